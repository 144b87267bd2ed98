"""From hand-made tensors to each verdict, by way of the real measuring."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.contract import CaseInfo, ControlInfo
from service.evidence import ErrorInfo, Evidence, Frame, GraphBreak, Noise, RankOutcome, TraceEvidence
from service.judge import ControlResult, Judgement, control_faults, judge, judge_control, merge_passes
from service.policy import PolicyError, load_policy, parse_policy, policy_from_data, policy_to_data
from service.verdicts import Verdict
from tests.workers.matter import Named, a_case, evidence_of, raw
from workers.collect.measure import Raw, measure, noise_of

POLICY = load_policy()
EXACT = a_case()
DENSE = a_case(id="attention/distributed[dtype=float32]", family="attention", exact=False)
X = np.arange(1.0, 17.0).reshape(2, 8) / 16

Values = Mapping[str, Any]
"""``grad/x`` → one array for every rank, or a list of one per rank; None for an absent tensor."""


def tensors(values: Values, ranks: int, dtype: str) -> list[dict[tuple[str, str], Raw | None]]:
    by_rank: list[dict[tuple[str, str], Raw | None]] = [{} for _ in range(ranks)]
    for key, value in values.items():
        role, _, name = key.partition("/")
        for rank in range(ranks):
            mine = value[rank] if isinstance(value, list) else value
            by_rank[rank][role, name] = mine if mine is None or isinstance(mine, Raw) else raw(mine, dtype)
    return by_rank


RIGHT: Values = {"output/y": [3 * X, -X], "grad/x": [2 * X, -2 * X], "input/x": [X, -X], "cotangent/y": [6 * X, X]}


def verdict(
    got: Values,
    right: Values = RIGHT,
    case: CaseInfo = EXACT,
    dtype: str = "float32",
    count: int = 2,
    **more: Any,
) -> Judgement:
    """The judgement on ``got`` changes of ``right``; a key that is set to ``...`` is never sent."""
    sent = tensors({key: value for key, value in {**right, **got}.items() if value is not ...}, count, dtype)
    evidence = evidence_of(sent, tensors(right, count, more.pop("truth", dtype)), case, **more)
    assert Evidence.from_json(evidence.to_json()).digest() == evidence.digest()
    return judge(evidence, case, POLICY)


# -- agreement -------------------------------------------------------------------------------------------------------


def test_agree_exactly() -> None:
    said = verdict({})
    assert (said.verdict, said.forward_ok, said.signature) == (Verdict.AGREE, True, "")
    assert said.detail == "forward exact, 1 gradient exact on 2 ranks"
    assert (said.error, said.alpha, said.nonzero_got, said.nonzero_expected) == (0.0, 1.0, 16, 16)
    assert said.policy_version == "1"


def test_minus_zero_agrees_and_nan_never_does() -> None:
    right = {"grad/x": [np.array([0.0, 1.0])] * 2, "output/y": X}
    assert verdict({"grad/x": np.array([-0.0, 1.0])}, right).verdict is Verdict.AGREE
    nan = {"grad/x": [np.array([math.nan, 1.0])] * 2, "output/y": X}
    assert verdict({}, nan).verdict is Verdict.MISMATCH


def test_one_bit_is_a_fault_in_an_exact_case_and_none_in_a_dense_one() -> None:
    off = 2 * X
    off[1, 3] = np.nextafter(np.float32(off[1, 3]), np.float32(9))
    said = verdict({"grad/x": [off, -2 * X]})
    assert (said.verdict, said.worst_tensor) == (Verdict.MISMATCH, "grad/x on rank 0")
    assert "first at [1, 3]" in said.detail
    assert verdict({"grad/x": [off, -2 * X]}, case=DENSE).verdict is Verdict.AGREE


TRACED = TraceEvidence(graphs=1, collective_in_graph=True, collectives=("all_to_all_single",), fullgraph="ok")
UNTRACED = TraceEvidence(graphs=2, breaks=(GraphBreak("autograd.Function", ""),))


def test_traced_and_untraced_agreement_are_told_apart() -> None:
    assert verdict({}, trace=TRACED).verdict is Verdict.AGREE
    said = verdict({}, trace=UNTRACED)
    assert said.verdict is Verdict.AGREE_UNTRACED
    assert "autograd.Function" in said.detail
    # What is wrong is wrong, traced or not.
    assert verdict({"grad/x": 0 * X}, trace=UNTRACED).verdict is Verdict.ZERO_GRADIENT
    local = a_case(id="tiled/mlp", family="tiled")
    assert verdict({}, case=local, trace=TraceEvidence(graphs=1)).verdict is Verdict.AGREE
    for trace in (UNTRACED, TraceEvidence()):
        assert verdict({}, case=local, trace=trace).verdict is Verdict.AGREE_UNTRACED


def test_what_must_be_absent_and_is_agrees() -> None:
    right = {**RIGHT, "grad/c": None}
    assert verdict({}, right).verdict is Verdict.AGREE
    said = verdict({"grad/c": X}, right)
    assert said.verdict is Verdict.MISMATCH
    assert "must not be" in said.detail


def test_a_forward_without_gradients_agrees() -> None:
    said = verdict({}, {"output/y": X})
    assert (said.verdict, said.nonzero_got) == (Verdict.AGREE, 16)
    assert said.detail == "forward exact, 0 gradients exact on 2 ranks"


# -- the subject's gradient --------------------------------------------------------------------------------------------


def test_zero_gradient() -> None:
    said = verdict({"grad/x": 0 * X})
    assert (said.verdict, said.forward_ok, said.signature) == (Verdict.ZERO_GRADIENT, True, "zero_gradient: grad/x")
    assert said.detail == (
        "gradient of x is zero on every rank: 0 of 16 elements are non-zero, expected 16; forward exact"
    )
    assert (said.nonzero_got, said.nonzero_expected, said.alpha, said.error) == (0, 16, 0.0, 1.0)


def test_an_expected_zero_is_no_zero_gradient() -> None:
    right = {**RIGHT, "grad/x": 0 * X}
    assert verdict({}, right).verdict is Verdict.AGREE
    said = verdict({"grad/x": [0 * X, X]}, right)
    assert said.verdict is Verdict.MISMATCH
    assert "should be zero and is up to 1 on rank 1" in said.detail


def test_partial_zero_of_a_block_names_the_dimension() -> None:
    case = a_case(dims={"x": ("batch", "heads")})
    dead = 2 * X.copy()
    dead[:, 6:] = 0
    said = verdict({"grad/x": [dead, -dead]}, case=case)
    assert (said.verdict, said.nonzero_got, said.nonzero_expected) == (Verdict.PARTIAL_ZERO, 12, 16)
    assert "the rest is right (zero: heads, block 4 of 4)" in said.detail


def test_partial_zero_of_a_rank() -> None:
    said = verdict({"grad/x": [2 * X, 0 * X]})
    assert (said.verdict, said.worst_tensor, said.nonzero_got) == (Verdict.PARTIAL_ZERO, "grad/x on rank 1", 0)
    assert "all of it on rank 1" in said.detail


def test_partial_zero_hidden_in_a_fine_norm() -> None:
    # The gate's half of a projection is a thousand times smaller: its death costs 0.1 % of the norm.
    right = np.concatenate([np.full((4, 8), 1.0), np.full((4, 8), 1e-3)])
    got = right.copy()
    got[4:] = 0
    wide = {"grad/w": Noise(rel_l2=1e-3, max_abs=1e-6, worst_block=1e-2)}
    said = verdict({"grad/w": got}, {"output/y": X, "grad/w": right}, DENSE, noise=wide)
    assert said.error is not None
    assert said.error < 4e-3
    assert said.verdict is Verdict.PARTIAL_ZERO
    unmeasured = verdict({"grad/w": got}, {"output/y": X, "grad/w": right}, DENSE)
    assert unmeasured.verdict is Verdict.PARTIAL_ZERO


def test_no_gradient() -> None:
    said = verdict({"grad/x": None})
    assert (said.verdict, said.nonzero_expected) == (Verdict.NO_GRADIENT, 16)
    assert said.detail.startswith("gradient of x is None on every rank")
    one = verdict({"grad/x": [None, -2 * X]})
    assert (one.verdict, one.worst_tensor) == (Verdict.NO_GRADIENT, "grad/x on rank 0")
    silent = verdict({"grad/x": ...})
    assert silent.verdict is Verdict.NO_GRADIENT
    assert "was never reported" in silent.detail


@pytest.mark.parametrize("alpha", [2.0, 0.5, -1.0, 1 / 3])
def test_scaled(alpha: float) -> None:
    right = {"output/y": X, "grad/x": [2 * X, -2 * X]}
    said = verdict({"grad/x": [2 * alpha * X, -2 * alpha * X]}, right, dtype="float64", case=a_case(dtype="float64"))
    assert (said.verdict, said.forward_ok) == (Verdict.SCALED, True)
    assert said.alpha == pytest.approx(alpha, rel=1e-12)
    assert f"{alpha:.6g} times" in said.detail


@pytest.mark.parametrize(("dtype", "bits"), [("bfloat16", 8), ("float16", 11), ("float32", 24), ("float64", 53)])
def test_a_factor_is_told_in_every_type_up_to_its_own_rounding(dtype: str, bits: int) -> None:
    # Full mantissas: three times such a number has a bit or two more than the type holds.
    odd = (2.0 ** (bits - 1) + np.arange(1.0, 33.0, 2.0).reshape(2, 8)) / 2.0 ** (bits - 1)
    step = 2.0 ** (2 - bits)
    thrice = np.round(3 * odd / step) * step
    right, case = {"output/y": X, "grad/x": odd}, a_case(dtype=dtype)
    said = verdict({"grad/x": thrice}, right, case, dtype)
    assert said.verdict is Verdict.SCALED
    assert said.alpha == pytest.approx(3, abs=3 * 2.0**-bits)
    assert said.signature == "scaled by 3: grad/x"
    # One element more is off by 1/16 of all: no rounding. One that is off by a bit alone is no factor.
    thrice[0, 0] *= 1.25
    assert verdict({"grad/x": thrice}, right, case, dtype).verdict is Verdict.MISMATCH
    odd_one = odd.copy()
    odd_one[0, 0] += 2 * 2.0 ** (1 - bits)
    assert verdict({"grad/x": odd_one}, right, case, dtype).verdict is Verdict.MISMATCH


def test_a_zero_that_hides_in_the_rounding_of_a_factor_is_still_told() -> None:
    right = np.array([[1.0] * 8, [2.0**-9] * 8])
    got = np.array([[2.0] * 8, [0.0] * 8])
    said = verdict({"grad/x": got}, {"output/y": X, "grad/x": right}, a_case(dtype="bfloat16"), "bfloat16")
    assert said.verdict is Verdict.PARTIAL_ZERO


def test_the_stated_scale_is_no_fault_and_its_absence_is() -> None:
    case = a_case(scale=2.0)
    assert verdict({"grad/x": [4 * X, -4 * X]}, case=case).verdict is Verdict.AGREE
    said = verdict({}, case=case)
    assert (said.verdict, said.alpha) == (Verdict.SCALED, 1.0)
    assert "convention is 2" in said.detail


def test_two_factors_are_no_convention() -> None:
    said = verdict({"grad/x": [4 * X, -6 * X]})
    assert said.verdict is Verdict.MISMATCH
    assert said.detail == (
        "gradient of x is right up to one factor per rank: "
        "2 times what it should be on rank 0 and 3 times on rank 1; forward exact"
    )
    # Residual 0.4 is a fault, whatever the best factor is.
    half = 2 * X.copy()
    half[0] *= 3
    assert verdict({"grad/x": half}, {**RIGHT, "grad/x": 2 * X}).verdict is Verdict.MISMATCH


def test_permuted() -> None:
    swapped = (2 * X).T.reshape(2, 8)
    said = verdict({"grad/x": [swapped, -swapped]})
    assert said.verdict is Verdict.PERMUTED
    assert "every right value, but in other places" in said.detail
    other = verdict({"grad/x": [-2 * X, 2 * X]}, {**RIGHT, "grad/x": [2 * X, -2 * X + 1 / 16]})
    assert other.verdict is Verdict.MISMATCH


def test_right_values_on_wrong_ranks_are_said_to_be() -> None:
    a, b = 2 * X, np.flip(X) + 1
    for case in (EXACT, DENSE):
        said = verdict({"grad/x": [b, a]}, {**RIGHT, "grad/x": [a, b]}, case)
        assert (said.verdict, said.signature) == (Verdict.PERMUTED, "permuted across ranks: grad/x")
        assert said.detail == (
            "gradient of x is permuted across ranks: every value is right, on the wrong rank (on every rank); "
            "forward exact"
        )
    # One rank should have had nothing, and got the other's: nothing is lost.
    said = verdict({"grad/x": [0 * X, b]}, {**RIGHT, "grad/x": [b, 0 * X]})
    assert said.signature == "permuted across ranks: grad/x"
    off = b.copy()
    off[1, 1] += 2**-6
    assert verdict({"grad/x": [off, a]}, {**RIGHT, "grad/x": [a, b]}).verdict is Verdict.MISMATCH


def test_mismatch_and_nan() -> None:
    noise = np.cos(np.arange(16.0) ** 2).reshape(2, 8)
    said = verdict({"grad/x": noise})
    assert (said.verdict, said.signature) == (Verdict.MISMATCH, "mismatch: grad/x")
    nan = 2 * X.copy()
    nan[1, 1] = math.nan
    for case in (EXACT, DENSE):
        said = verdict({"grad/x": [nan, -2 * X]}, case=case)
        assert said.verdict is Verdict.MISMATCH
        assert "1 non-finite elements of 16, expected 0" in said.detail


def test_beside_nan_an_element_that_rounding_took_away_is_no_news() -> None:
    nan = X.copy()
    nan[0, 0], nan[1, 1] = math.nan, 0.0
    right = {"output/y": X, "grad/x": X}
    assert verdict({"grad/x": nan}, right, case=DENSE).verdict is Verdict.MISMATCH
    assert verdict({"grad/x": np.where(np.isnan(nan), X, nan)}, right, case=DENSE).verdict is Verdict.PARTIAL_ZERO


def test_the_gravest_gradient_names_the_cell_and_the_others_are_told() -> None:
    right = {"output/y": X, "grad/q": X, "grad/k": X, "grad/v": X}
    said = verdict({"grad/q": 2 * X, "grad/k": 0 * X}, right)
    assert (said.verdict, said.worst_tensor) == (Verdict.ZERO_GRADIENT, "grad/k on rank 0")
    assert "also wrong: q (scaled gradient)" in said.detail


def test_nondeterministic() -> None:
    ranks = [RankOutcome(0, "ok", repeat_equal=True), RankOutcome(1, "ok", repeat_equal=False)]
    said = verdict({}, ranks=ranks)
    assert (said.verdict, said.forward_ok) == (Verdict.NONDETERMINISTIC, True)
    assert "on rank 1" in said.detail
    wrong = verdict({"grad/x": 0 * X}, ranks=ranks)
    assert wrong.verdict is Verdict.ZERO_GRADIENT
    assert "different bits" in wrong.detail


def test_wide_noise_does_not_make_a_factor_of_what_leaves_a_rest() -> None:
    e, across = np.array([1.0, 1, 1, 1]), np.array([1.0, -1, 1, -1])
    noise = {"grad/x": Noise(rel_l2=0.1, max_abs=0.01, worst_block=None)}
    right = {"output/y": X, "grad/x": e}
    # Residual 0.9 / √(9 + 0.81) = 0.29, inside the tolerance of 0.4.
    said = verdict({"grad/x": 3 * e + 0.9 * across}, right, DENSE, noise=noise)
    assert said.verdict is Verdict.MISMATCH
    assert verdict({"grad/x": 3 * e}, right, DENSE, noise=noise).verdict is Verdict.SCALED


# -- forward and manners -----------------------------------------------------------------------------------------------


def test_wrong_shape_comes_before_everything() -> None:
    said = verdict({"output/y": (3 * X).reshape(4, 4), "grad/x": 0 * X}, {**RIGHT, "output/y": 3 * X})
    assert (said.verdict, said.forward_ok) == (Verdict.WRONG_SHAPE, False)
    assert said.detail == (
        "output y has shape [4, 4] on every rank, expected [2, 8]; it holds the expected values in another order"
    )


def test_another_type_is_a_fault_where_the_oracle_has_the_cases_own() -> None:
    said = verdict({"output/y": [raw(3 * X, "float64"), raw(-X, "float64")]})
    assert said.verdict is Verdict.WRONG_SHAPE
    assert "type float64 on every rank, expected float32" in said.detail
    # A dense oracle is in float64 whatever the case is in.
    assert verdict({}, case=DENSE, truth="float64").verdict is Verdict.AGREE
    assert verdict({"output/y": [raw(3 * X, "float64"), raw(-X, "float64")]}, case=DENSE).verdict is Verdict.AGREE


def test_an_error_where_zero_is_due_does_not_stand_for_one_that_has_a_size() -> None:
    """What a broadcast's gradient looks like when it is not summed: half of it at the source, something elsewhere."""
    right = {**RIGHT, "grad/x": [4 * X, 0 * X]}
    said = verdict({"grad/x": [2 * X, 20 * X]}, right)
    assert (said.verdict, said.worst_tensor, said.error) == (Verdict.MISMATCH, "grad/x on rank 0", 0.5)
    assert said.detail.startswith("gradient of x is wrong on every rank: on rank 0 it is wrong by 0.5 of its norm")
    alone = verdict({"grad/x": [4 * X, 20 * X]}, right)
    assert alone.detail.startswith("gradient of x should be zero and is up to 20 on rank 1")


def test_forward_mismatch_comes_before_the_gradient() -> None:
    said = verdict({"output/y": [3 * X, X], "grad/x": 0 * X})
    assert (said.verdict, said.forward_ok, said.worst_tensor) == (Verdict.FORWARD_MISMATCH, False, "output/y on rank 1")
    assert verdict({"output/y": ...}).verdict is Verdict.FORWARD_MISMATCH


@pytest.mark.parametrize("key", ["input/x", "cotangent/y"])
def test_mutated(key: str) -> None:
    touched = [np.array(value) for value in RIGHT[key]]
    touched[1][0, 0] += 1
    said = verdict({key: touched})
    assert (said.verdict, said.forward_ok, said.worst_tensor) == (Verdict.MUTATED, True, f"{key} on rank 1")
    assert "on every rank: " not in said.detail
    assert "on rank 1: on rank 1 it is off by " in said.detail
    halved = verdict({key: [RIGHT[key][0], 0.5 * np.array(RIGHT[key][1])]})
    assert "was changed by the call on rank 1: on rank 1 it is 0.5 times what it was; " in halved.detail
    unseen = verdict({key: ...})
    assert unseen.verdict is Verdict.MISMATCH
    assert "was not shown" in unseen.detail


def test_mutated_is_by_the_byte() -> None:
    zero = {**RIGHT, "input/x": 0 * X}
    signs = verdict({"input/x": -0.0 * X}, zero)
    assert signs.verdict is Verdict.MUTATED
    assert "only signs of zeros differ" in signs.detail
    assert verdict({}, {**RIGHT, "input/x": math.nan * X}).verdict is Verdict.AGREE


def test_changes_to_torchs_state_are_told_in_every_cell() -> None:
    said = verdict({}, changes=("default dtype: float32 → float64",))
    assert said.detail.endswith("[it also changed: default dtype: float32 → float64]")


# -- no answer ---------------------------------------------------------------------------------------------------------

KEY = ErrorInfo(
    "KeyError", "'0'", (Frame("toy/layer.py", 330, "forward", "subject"), Frame("torch/x.py", 9, "f", "torch"))
)
REFUSES = ErrorInfo("ValueError", "5 tokens do not divide by 2 ranks", (Frame("toy/layer.py", 3, "check", "subject"),))
REFUSAL = a_case(expect="refusal")


UNJUDGED = "; the forward was not judged"


def ended(*outcomes: tuple[str, ErrorInfo | None], case: CaseInfo = EXACT, **more: Any) -> Judgement:
    ranks = [RankOutcome(rank, status, more.get("phase", "run"), error, more.get("reason"))
             for rank, (status, error) in enumerate(outcomes)]  # fmt: skip
    sent: list[Named] = more.get("sent", [{} for _ in outcomes])
    right = [] if case is REFUSAL else tensors(RIGHT, 2, "float32")
    return judge(evidence_of(sent, right, case, ranks), case, POLICY)


def test_raised_names_the_error_without_numbers_and_tells_them_in_the_detail() -> None:
    said = ended(("raised", KEY), ("raised", KEY))
    assert (said.verdict, said.forward_ok) == (Verdict.RAISED, None)
    assert said.signature == "KeyError: '<n>' in toy/layer.py forward"
    assert said.detail == "KeyError: '0', at toy/layer.py:330, on every rank"


def test_raised_after_a_right_forward_says_so() -> None:
    sent = [{("output", "y"): one["output", "y"]} for one in tensors(RIGHT, 2, "float32")]
    said = ended(("raised", KEY), ("raised", KEY), sent=sent)
    assert said.forward_ok is True
    assert said.detail.endswith("after a right forward")
    flat = [{("output", "y"): raw(np.ravel(value))} for value in RIGHT["output/y"]]
    said = ended(("raised", KEY), ("raised", KEY), sent=flat)
    assert (said.verdict, said.forward_ok) == (Verdict.WRONG_SHAPE, False)
    assert said.detail.startswith("output y has shape [16] on every rank, expected [2, 8]")
    assert said.detail.endswith("; then KeyError: '0', at toy/layer.py:330, on every rank")


def test_partial_raise() -> None:
    for other in ("ok", "lost", "hang"):
        said = ended((other, None), ("raised", KEY))
        assert said.verdict is Verdict.PARTIAL_RAISE
        assert "on rank 1 of 2 only" in said.detail
    # A rank that only says that its peer went away did not fail by itself.
    echo = ErrorInfo("RuntimeError", "Connection closed by peer [127.0.0.1]:41234")
    assert ended(("raised", echo), ("raised", KEY)).signature.startswith("KeyError")
    assert ended(("raised", echo), ("raised", KEY)).verdict is Verdict.PARTIAL_RAISE
    assert ended(("raised", echo), ("raised", echo)).verdict is Verdict.RAISED
    assert ended(("raised", echo), ("crash", None)).verdict is Verdict.CRASH


def test_hang_crash_unsupported_lost() -> None:
    said = ended(("hang", None), ("ok", None))
    assert (said.verdict, said.detail) == (Verdict.HANG, "rank 0 did not return within the deadline, in run" + UNJUDGED)
    assert ended(("crash", None), ("hang", None)).verdict is Verdict.CRASH
    said = ended(("unsupported", None), ("unsupported", None), reason="no all_to_all_single in toy.comm")
    assert (said.verdict, said.detail) == (Verdict.UNSUPPORTED, "no all_to_all_single in toy.comm")
    assert ended(("unsupported", None), ("ok", None)).verdict is Verdict.PARTIAL_RAISE
    assert ended(("lost", None), ("lost", None), reason="time was used up").verdict is Verdict.INFRA
    assert judge(Evidence(), EXACT, POLICY).verdict is Verdict.INVALID


@pytest.mark.parametrize("status", ["raised", "hang", "crash"])
def test_what_other_ranks_show_after_one_was_lost_is_not_judged(status: str) -> None:
    # Rank 1 went on alone: its collective met the wrong one of rank 0, and its output is nobody's fault.
    (_, wrong) = tensors({"output/y": 9 * X}, 2, "float32")
    error = KEY if status == "raised" else None
    said = ended((status, error), ("ok", None), sent=[{}, wrong])
    assert (said.verdict.failing, said.forward_ok) == (True, None)
    assert said.detail.endswith(UNJUDGED)
    both = ended(("raised", KEY), ("raised", KEY), sent=[wrong, wrong])
    assert (both.verdict, both.forward_ok) == (Verdict.RAISED, False)
    assert UNJUDGED not in both.detail


def test_a_failing_refusal_says_first_that_the_case_is_outside_the_contract() -> None:
    for outcomes in (
        [("ok", None)] * 2, [("raised", KEY)] * 2, [("hang", None)] * 2, [("raised", REFUSES), ("ok", None)]
    ):  # fmt: skip
        said = ended(*outcomes, case=REFUSAL)
        assert said.verdict.failing
        assert said.detail.startswith("outside the contract: ")
        assert said.detail.count("outside the contract") == 1
        leak = merge_passes(said, ended(("raised", REFUSES), ("raised", REFUSES), case=REFUSAL))
        assert leak.verdict is Verdict.LEAK
        assert leak.detail.startswith("outside the contract: after other cases in the same process: ")
    for right in (
        ended(("raised", REFUSES), ("raised", REFUSES), case=REFUSAL),
        ended(("raised", KEY), ("raised", KEY)),
    ):
        assert "outside" not in right.detail
    assert "outside" not in judge(Evidence.stopped("unimportable", "no", KEY), REFUSAL, POLICY).detail


def test_a_refusal_is_right_only_on_every_rank_clearly_and_before_any_result() -> None:
    refused = ended(("raised", REFUSES), ("raised", REFUSES), case=REFUSAL)
    assert (refused.verdict, refused.signature) == (Verdict.REFUSED, "")
    assert "5 tokens do not divide" in refused.detail
    assert ended(("raised", REFUSES), ("ok", None), case=REFUSAL).verdict is Verdict.PARTIAL_RAISE
    assert ended(("raised", KEY), ("raised", KEY), case=REFUSAL).verdict is Verdict.RAISED
    assert ended(("raised", REFUSES), ("raised", REFUSES), case=REFUSAL, phase="setup").verdict is Verdict.RAISED
    assert ended(("hang", None), ("hang", None), case=REFUSAL).verdict is Verdict.HANG
    silent = ended(("ok", None), ("ok", None), case=REFUSAL)
    assert (silent.verdict, silent.forward_ok) == (Verdict.MISMATCH, None)
    assert "a refusal was due" in silent.detail
    late = ended(("raised", REFUSES), ("raised", REFUSES), case=REFUSAL, sent=[{("output", "y"): raw(X)}, {}])
    assert late.verdict is Verdict.RAISED
    assert "the forward had answered" in late.detail


@pytest.mark.parametrize("kind", ["invalid", "infra", "unsupported", "unimportable", "crash", "hang"])
def test_a_stopped_cell_is_what_stopped_it(kind: Any) -> None:
    said = judge(Evidence.stopped(kind, "this is why"), EXACT, POLICY)
    assert said.verdict.value == kind
    assert said.forward_ok is None
    assert kind == "unimportable" or said.detail == "this is why"


def test_unimportable_names_module_line_and_need() -> None:
    frames = (
        Frame("toy/__init__.py", 2, "<module>", "subject"),
        Frame("toy/compile/ops.py", 12, "<module>", "subject"),
    )
    error = ErrorInfo("AttributeError", "module 'torch.library' has no attribute 'custom_op'", frames)
    said = judge(Evidence.stopped("unimportable", "no", error), EXACT, POLICY)
    assert (said.verdict, said.signature) == (Verdict.UNIMPORTABLE, "needs another torch: torch.library.custom_op")
    assert said.detail == "the import fails in toy.compile.ops, line 12: needs another torch: torch.library.custom_op"


TRITON = ErrorInfo("RuntimeError", "0 active drivers ([]). There should only be one.", KEY.frames)


def test_what_the_machine_did_is_never_the_subjects() -> None:
    assert judge(Evidence.stopped("unimportable", "no", TRITON), EXACT, POLICY).verdict is Verdict.INFRA
    full = ErrorInfo("OSError", "[Errno 28] No space left on device: '/tmp/x'")
    for error in (TRITON, full, ErrorInfo("MemoryError", "")):
        assert ended(("raised", KEY), ("raised", error)).verdict is Verdict.INFRA
        assert ended(("raised", error), ("raised", error), case=REFUSAL).verdict is Verdict.INFRA


# -- tolerance, and the false alarms that there must not be ------------------------------------------------------------


def test_rounding_is_held_against_the_dense_runs_own_error() -> None:
    right = {"output/y": X, "grad/x": X}
    off = X * (1 + 3e-4)
    assert verdict({"grad/x": off}, right, DENSE).verdict is Verdict.SCALED
    noise = {"grad/x": Noise(rel_l2=1e-4, max_abs=1e-4, worst_block=1e-4)}
    assert verdict({"grad/x": off}, right, DENSE, noise=noise).verdict is Verdict.AGREE
    assert verdict({"grad/x": X * (1 + 5e-4)}, right, DENSE, noise=noise).verdict is Verdict.SCALED


def test_without_a_dense_run_eps_and_root_n_rule_up_to_the_cap() -> None:
    # float32, 16 elements: 4 · 2⁻²³ · 4 = 1.9e-6.
    right = {"output/y": X, "grad/x": X}
    assert verdict({"grad/x": X * (1 + 1.8e-6)}, right, DENSE, "float64").verdict is Verdict.AGREE
    assert verdict({"grad/x": X * (1 + 2.0e-6)}, right, DENSE, "float64").verdict is Verdict.SCALED
    # bfloat16 with a million elements would have 4 · 2⁻⁷ · 1024 = 32: the cap holds at 0.05.
    big = np.ones((1024, 1024))
    case = dataclasses.replace(DENSE, dtype="bfloat16")
    much = {"output/y": X, "grad/x": big}
    assert verdict({"grad/x": 1.0625 * big}, much, case, "bfloat16", 1).verdict is Verdict.SCALED
    assert verdict({"grad/x": (1 + 2**-7) * big}, much, case, "bfloat16", 1).verdict is Verdict.AGREE


def test_float64_that_casts_inside_is_judged_at_its_effective_precision() -> None:
    right = {"output/y": X, "grad/x": X}
    single = X.astype(np.float32) * np.float32(1 + 1e-6)
    case = dataclasses.replace(DENSE, dtype="float64")
    assert verdict({"grad/x": single}, right, case, "float64").verdict.failing
    cast = dataclasses.replace(case, params={"effective": "float32"})
    assert verdict({"grad/x": single}, right, cast, "float64").verdict is Verdict.AGREE


def test_an_expected_gradient_below_the_noise_is_insensitive_not_zero() -> None:
    # k_proj's bias without rotary: mathematically zero, 1e-18 in the oracle's float64, 1e-9 in any float32 run.
    bias = np.array([1e-18, -2e-18, 1e-18, 0.0])
    right = {"output/y": X, "grad/bias": bias}
    dense = noise_of([measure(raw([1e-9, 2e-9, -1e-9, 0]), raw(bias, "float64"), DENSE, "grad", "bias", 0)])
    for got in ([0.0, 0, 0, 0], [2e-9, 0, 0, 1e-9]):
        said = verdict({"grad/bias": np.array(got)}, right, DENSE, truth="float64", noise=dense)
        assert said.verdict is Verdict.INSENSITIVE
    loud = verdict({"grad/bias": np.array([1.0, 0, 0, 0])}, right, DENSE, truth="float64", noise=dense)
    assert loud.verdict is Verdict.MISMATCH


def test_one_insensitive_gradient_beside_sound_ones_is_told_and_no_more() -> None:
    right = {"output/y": X, "grad/w": X, "grad/bias": np.full(4, 1e-18)}
    said = verdict({"grad/bias": np.full(4, 1e-9)}, right, DENSE, truth="float64")
    assert said.verdict is Verdict.AGREE
    assert said.detail.endswith("below the noise: bias")


def test_q_of_the_first_causal_token_may_be_zero() -> None:
    right = np.ones((8, 4)) * 0.25
    right[0] = 1e-18
    got = right.copy()
    got[0] = 0
    assert verdict({"grad/q": got}, {"output/y": X, "grad/q": right}, DENSE, truth="float64").verdict is Verdict.AGREE


def test_an_odd_local_length_that_agrees_agrees() -> None:
    # #7842: 5 local of 10 global tokens, [5, 8, 8, 64] on each of 2 ranks; the adapter on both sides differs by 0.
    x = np.resize(np.arange(1, 128) / 16, (5, 8, 8, 64))
    assert verdict({}, {"output/y": x, "grad/x": [x, -x]}, DENSE).verdict is Verdict.AGREE


def test_a_wholly_masked_mean_is_nan_where_nan_is_due() -> None:
    nan = {"output/loss": np.float32(math.nan), "grad/x": math.nan * X}
    assert verdict({}, nan, DENSE).verdict is Verdict.AGREE
    assert verdict({"output/loss": np.float32(0)}, nan, DENSE).verdict is Verdict.FORWARD_MISMATCH


def test_the_subjects_own_forward_tells_a_convention_from_a_fault() -> None:
    v = raw(np.ones((2, 8)), "float64")
    right = {"output/y": X, "grad/x": X, "fd/x": v}
    total = float(X.sum())
    for part, told in ((2 * total, "another convention?"), (total, "contradicts its gradient"), (9.0, "neither")):
        said = verdict({"grad/x": 2 * X, "fd/x": raw(part, "float64")}, right)
        assert said.verdict is Verdict.SCALED
        assert told in said.detail


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_wrong_gradient_ever_agrees_in_an_exact_case(data: st.DataObject) -> None:
    flat = 2 * X.ravel().copy()
    where = data.draw(st.integers(0, 15))
    flat[where] = data.draw(st.floats(width=32).filter(lambda value: value != flat[where]))
    said = verdict({"grad/x": [flat.reshape(2, 8), -2 * X]})
    assert said.verdict.failing
    assert said.verdict.info.group == "gradient"


# -- passes and controls -----------------------------------------------------------------------------------------------


def test_right_alone_and_wrong_after_others_is_a_leak() -> None:
    wrong, right = verdict({"grad/x": 0 * X}), verdict({})
    said = merge_passes(wrong, right)
    assert (said.verdict, said.nonzero_got, said.signature) == (Verdict.LEAK, 0, "leak: zero_gradient: grad/x")
    assert "gradient of x is zero" in said.detail
    assert "alone in fresh ranks: forward exact" in said.detail
    other = verdict({"grad/x": None})
    assert merge_passes(wrong, other) is other
    assert merge_passes(right, wrong) is wrong
    assert merge_passes(right, right) is right
    infra = judge(Evidence.stopped("infra", "no"), EXACT, POLICY)
    kept = merge_passes(wrong, infra)
    assert (kept.verdict, kept.error) == (wrong.verdict, wrong.error)
    assert "not repeated alone" in kept.detail


REFERENCE = ControlInfo("exchange/reference", "exchange", EXACT.id, ("eager",), ("agree",))
MUTANT = ControlInfo("exchange/zeroed", "exchange", EXACT.id, ("eager",), ("zero_gradient",))


def result(control: ControlInfo, got: Values, stage: str = "before") -> ControlResult:
    sent, right = tensors({**RIGHT, **got}, 2, "float32"), tensors(RIGHT, 2, "float32")
    told = judge_control(evidence_of(sent, right), EXACT, control, POLICY)
    return ControlResult(control.id, "eager", 2, stage, told)


def faults(*results: ControlResult, mode: str = "eager", world: int = 2) -> tuple[str, ...]:
    return control_faults([REFERENCE, MUTANT], results, "exchange", mode, world)


def test_controls() -> None:
    good, caught = result(REFERENCE, {}), result(MUTANT, {"grad/x": 0 * X})
    assert good.verdict.ok
    assert caught.verdict.ok
    assert faults(good, caught) == ()
    assert faults(mode="aot_eager") == ()
    (missed,) = faults(good, result(MUTANT, {}))
    assert "exchange/zeroed should be zero_gradient and was agree" in missed
    assert faults(good) == ("control exchange/zeroed gave no answer",)
    assert len(faults(good, caught, world=4)) == 2
    (after,) = faults(good, caught, result(REFERENCE, {"grad/x": X}, "after"))
    assert "the subject changed torch" in after
    # An answer after the import vouches for nothing.
    assert faults(caught, result(REFERENCE, {}, "after")) == ("control exchange/reference gave no answer",)


def test_a_control_that_misbehaved_makes_every_answer_invalid() -> None:
    evidence = evidence_of(tensors(RIGHT, 2, "float32"), tensors(RIGHT, 2, "float32"))
    said = judge(evidence, EXACT, POLICY, faults=("control a failed",))
    assert (said.verdict, said.detail) == (Verdict.INVALID, "control a failed")
    stopped = Evidence.stopped("unimportable", "no", KEY)
    assert judge(stopped, EXACT, POLICY, faults=("control a failed",)).verdict is Verdict.UNIMPORTABLE


# -- policy ------------------------------------------------------------------------------------------------------------


def test_a_policy_is_read_whole_or_not_at_all() -> None:
    from importlib.resources import files

    text = (files("service.policies") / "v1.toml").read_text(encoding="utf-8")
    assert parse_policy(text) == POLICY
    assert (POLICY.eps.float32, POLICY.eps.bfloat16, POLICY.eps.of("int64")) == (2.0**-23, 2.0**-7, 2.0**-52)
    wrong = {
        "[tolerance] has an unknown key 'kk'; did you mean k": text.replace("k = 4.0", "k = 4.0\nkk = 1"),
        "[tolerance] lacks k": text.replace("k = 4.0", ""),
        "unknown key 'esp'": text.replace("[eps]", "[esp]"),
        "k = True is not a number": text.replace("k = 4.0", "k = true"),
        "cap = -1": text.replace("cap = 0.05", "cap = -1"),
        "[classes] partial_share = 7 is out of range: above 0, and at most 1": text.replace("= 0.125", "= 7.0"),
        "[tolerance] k = 1001 is out of range: above 0, and at most 1000": text.replace("k = 4.0", "k = 1001"),
        "[eps] bfloat16 = 1.5 is out of range": text.replace("bfloat16 = 0.0078125", "bfloat16 = 1.5"),
        "not TOML": text + "\n[",
    }
    for reason, changed in wrong.items():
        with pytest.raises(PolicyError) as caught:
            parse_policy(changed)
        assert reason in str(caught.value)
    with pytest.raises(PolicyError, match="no policy version '9'"):
        load_policy("9")
    for edge in (text.replace("= 0.125", "= 1.0"), text.replace("k = 4.0", "k = 1000")):
        assert parse_policy(edge) != POLICY
    # What an earlier version of this program took is still read back from the store.
    wide = dataclasses.replace(POLICY, classes=dataclasses.replace(POLICY.classes, partial_share=7.0))
    assert policy_from_data(policy_to_data(wide)) == wide


def test_another_policy_judges_the_same_evidence_anew() -> None:
    sent, right = (
        tensors({"output/y": X, "grad/x": X * (1 + 1e-5)}, 2, "float32"),
        tensors({"output/y": X, "grad/x": X}, 2, "float32"),
    )
    evidence = evidence_of(sent, right, DENSE)
    wide = dataclasses.replace(POLICY, version="2", tolerance=dataclasses.replace(POLICY.tolerance, c=100.0))
    assert judge(evidence, DENSE, POLICY).verdict is Verdict.SCALED
    assert (judge(evidence, DENSE, wide).verdict, judge(evidence, DENSE, wide).policy_version) == (Verdict.AGREE, "2")
