"""A red cell in full: tensors of a model grouped, factors in words, what stands beside it along every axis."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from service.diagnosis import Beside, Diagnosis, diagnose
from service.edges import stretches
from service.evidence import Evidence, Noise, RankOutcome
from service.extents import Extent, along_releases, extent_text
from service.judge import judge
from service.naming import have, spoken, stepped
from service.policy import load_policy
from service.training import TRAINING, meaning
from service.verdicts import Verdict
from tests.service.answers import Cell, at
from tests.workers.matter import Named, a_case, evidence_of, raw

POLICY = load_policy()
W = np.arange(1.0, 17.0).reshape(2, 8) / 16
NAMES = [
    f"layer{n}.{name}" for n in (0, 1) for name in ("q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj")
]
MODEL = a_case(
    id="model/decoder[dtype=float32]", family="model", exact=False, api="toy.Attention, the documented way",
    dims=dict.fromkeys(NAMES, ("query/gate", "input")), weights=tuple(NAMES),
)  # fmt: skip


def of_model(changed: dict[str, Any], truth: dict[str, Any] | None = None, **more: Any) -> tuple[Cell, Diagnosis]:
    """A model whose gradients are all W, but for those that ``changed`` names by the end of theirs."""
    right = truth or dict.fromkeys(NAMES, W)
    got = {name: next((v for end, v in changed.items() if name.endswith(end)), value) for name, value in right.items()}

    def rank(values: dict[str, Any]) -> Named:
        return {("output", "y"): raw(W)} | {
            ("grad", name): None if value is None else raw(value) for name, value in values.items()
        }

    evidence = evidence_of([rank(got)] * 2, [rank(right)] * 2, MODEL, **more)
    said = judge(evidence, MODEL, POLICY)
    row = Cell(
        verdict=str(said.verdict), signature=said.signature, detail=said.detail, forward_ok=said.forward_ok,
        case=MODEL.id, mode="aot_eager",
    )  # fmt: skip
    found = diagnose(row, evidence, MODEL, POLICY)
    assert found is not None
    return row, found


def test_dead_projections_are_named_together_beside_those_that_learn() -> None:
    _, found = of_model({"q_proj": 0 * W, "k_proj": 0 * W, "v_proj": 0 * W})
    # 3 projections of 16 elements in 2 layers; every rank has the whole of them.
    assert found.what == (
        "the q, k and v projections receive no gradient (0 of 96 elements are non-zero on each rank); "
        "the o projection and the MLP are right"
    )
    assert found.training == (
        "the q, k and v projections will not be trained through this call; "
        "the forward is right, so that the loss will look healthy"
    )
    assert set(found.tensors) == {"dead", "right"}
    assert found.tensors["dead"] == tuple(n for n in sorted(NAMES) if n[7:8] in "qkv")
    assert found.api == "toy.Attention, the documented way"


def test_a_half_that_is_dead_names_its_block_and_is_told_beside_what_is_dead_altogether() -> None:
    half = np.concatenate([W[:1], 0 * W[1:]])
    _, found = of_model({"q_proj": half, "k_proj": 0 * W, "v_proj": 0 * W})
    assert found.what == (
        "the k and v projections receive no gradient (0 of 64 elements are non-zero on each rank); "
        "a part of the gradient of the q projection is zero (16 of 32 elements are non-zero on each rank "
        "(zero: query/gate, block 2 of 2)); the o projection and the MLP are right"
    )
    assert dict(found.tensors)["partly dead"] == ("layer0.q_proj", "layer1.q_proj")


def test_what_the_optimiser_made_of_it_is_told_as_that() -> None:
    truth = dict.fromkeys(("layer0.k_proj", "step/layer0.k_proj", "moment/layer0.k_proj", "layer0.o_proj"), W)
    _, found = of_model({"k_proj": 0 * W}, truth)
    assert found.what == (
        "the k projection receives no gradient (0 of 16 elements are non-zero on each rank); "
        "after the optimiser's step the k projection has not moved; "
        "the o projection is right"
    )


def test_what_is_counted_is_of_one_kind_and_the_gradient_leads() -> None:
    kinds = ("layer0.k_proj", "step/layer0.k_proj", "moment/layer0.k_proj", "root/layer0.k_proj")
    row, found = of_model({"k_proj": 0 * W}, dict.fromkeys((*kinds, "layer0.o_proj"), W))
    assert row.detail.startswith("gradient of layer0.k_proj is zero on every rank: 0 of 16 elements")
    assert "moment" not in row.detail
    row, found = of_model({"k_proj": 0 * W}, dict.fromkeys((*kinds[1:], "step/layer0.o_proj"), W))
    assert row.detail.startswith("optimiser's step of layer0.k_proj is zero on every rank: 0 of 16 elements")
    # 16 elements of one weight, and not those of its step, its moment and its second one.
    assert found.what.startswith(
        "after the optimiser's step the k projection has not moved (0 of 16 elements are non-zero on each rank); "
    )


def test_moments_in_another_state_than_the_step_are_told_and_right_ones_too() -> None:
    names = [f"{kind}/layer0.{name}" for kind in ("step", "moment", "root") for name in ("k_proj", "o_proj")]
    _, found = of_model({"step/layer0.k_proj": 3 * W, "moment/layer0.k_proj": 0 * W}, dict.fromkeys(names, W))
    assert (
        "the optimiser's moments of the k projection are zero (0 of 16 elements are non-zero on each rank)"
        in found.what
    )
    assert "the optimiser's step of the k projection is 3 times what it should be" in found.what
    assert "moments are right" not in found.what
    _, found = of_model({"step/layer0.k_proj": 3 * W}, dict.fromkeys(names, W))
    assert found.what == (
        "the optimiser's step of the k projection is 3 times what it should be; "
        "the o projection moved as it should; the optimiser's moments are right"
    )


def test_the_name_for_grouping_is_that_of_what_was_stored_before_the_step_led() -> None:
    row, _ = of_model({"k_proj": 0 * W}, dict.fromkeys(("step/layer0.k_proj", "moment/layer0.k_proj"), W))
    assert row.signature == "zero_gradient: grad/moment/layer0.k_proj"


def test_of_many_factors_only_the_range_is_told() -> None:
    names = [f"layer{n}.o_proj" for n in range(4)]
    _, found = of_model({name: (n + 2) * W for n, name in enumerate(names)}, dict.fromkeys(names, W))
    assert found.what == "the gradient of the o projection is 2 to 5 times what it should be"


def test_a_factor_of_its_own_on_each_rank_is_told_as_that() -> None:
    right: Named = {("output", "y"): raw(W), ("grad", "x"): raw(W)}
    ranks: list[Named] = [{**right, ("grad", "x"): raw(factor * W)} for factor in (2.0, 0.5)]
    evidence = evidence_of(ranks, [right] * 2, a_case())
    row = _row(judge(evidence, a_case(), POLICY))
    found = diagnose(row, evidence, a_case(), POLICY)
    assert found is not None
    factors = "2 times what it should be on rank 0 and 0.5 times on rank 1"
    assert row.verdict == "mismatch"
    assert row.detail == f"gradient of x is right up to one factor per rank: {factors}; forward exact"
    assert found.what == f"the gradient of x is right up to one factor per rank ({factors})"
    assert dict(found.tensors) == {"scaled by rank": ("x",)}
    assert f"each rank's part has a size of its own ({factors})" in found.training


@pytest.mark.parametrize("second", [W, np.concatenate([W[:1], 3 * W[1:]])], ids=["right", "bent"])
def test_one_rank_that_is_bent_is_no_factor_and_one_that_is_right_has_the_factor_one(second: np.ndarray) -> None:
    right: Named = {("output", "y"): raw(W), ("grad", "x"): raw(W)}
    ranks: list[Named] = [{**right, ("grad", "x"): raw(2 * W)}, {**right, ("grad", "x"): raw(second)}]
    said = judge(evidence_of(ranks, [right] * 2, a_case()), a_case(), POLICY)
    told = "2 times what it should be on rank 0 and 1 times on rank 1" in said.detail
    assert (said.verdict, told) == (Verdict.MISMATCH, second is W)


def test_a_gradient_where_none_is_due_is_told_as_that() -> None:
    right: Named = {("output", "y"): raw(W), ("grad", "x"): raw(W), ("grad", "c"): None}
    evidence = evidence_of([{**right, ("grad", "c"): raw(W)}] * 2, [right] * 2, a_case())
    found = diagnose(_row(judge(evidence, a_case(), POLICY)), evidence, a_case(), POLICY)
    assert found is not None
    assert found.what == "c has a gradient where none is due; x is right"


def test_a_crash_says_its_last_words_once() -> None:
    evidence = Evidence(ranks=(RankOutcome(0, "crash", "forward", reason="killed by SIGABRT"), RankOutcome(1, "ok")))
    row = _row(judge(evidence, a_case(), POLICY))
    found = diagnose(row, evidence, a_case(), POLICY, log="  what():  [enforce fail at /a/b/pair.cc:1] 8 vs 4\n")
    assert found is not None
    assert found.what == ("rank 0 died, in forward (killed by SIGABRT); last words: [enforce fail at pair.cc:1] 8 vs 4")
    told = dataclasses.replace(row, detail=found.what)
    again = diagnose(told, evidence, a_case(), POLICY, log="error: 2")
    assert again is not None
    assert again.what == found.what


def test_a_step_alone_is_of_the_weight_that_it_would_have_moved() -> None:
    truth = dict.fromkeys(("step/layer0.k_proj", "moment/layer0.k_proj", "step/layer0.o_proj"), W)
    _, found = of_model({"k_proj": 0 * W}, truth)
    assert found.training.startswith("the k projection will not be trained through this call")


def test_a_weight_is_told_apart_from_an_activation_of_which_only_what_it_comes_from_is_trained() -> None:
    truth = dict.fromkeys(("x", "layer0.k_proj", "layer0.o_proj"), W)
    _, found = of_model({"x": 0 * W, "k_proj": 0 * W}, truth)
    assert found.training.startswith("the k projection and what x comes from will not be trained")


@pytest.mark.parametrize(
    ("factor", "words"),
    [
        (4.0, "is 4 times too large unless the optimiser is scale-free"),
        (0.25, "is 4 times too small unless the optimiser is scale-free"),
        (-1.0, "goes the wrong way, uphill (the gradient is -1 times the right one)"),
    ],
)
def test_a_factor_is_told_as_what_an_update_becomes(factor: float, words: str) -> None:
    _, found = of_model({"o_proj": factor * W})
    assert f"every update of the o projection {words}" in found.training
    assert f"the gradient of the o projection is {factor:g} times what it should be" in found.what


def test_a_stated_convention_is_what_a_factor_is_told_against() -> None:
    case = dataclasses.replace(MODEL, scale=2.0)
    got: Named = {("output", "y"): raw(W), ("grad", "w"): raw(8 * W)}
    right: Named = {("output", "y"): raw(W), ("grad", "w"): raw(W)}
    evidence = evidence_of([got] * 2, [right] * 2, case)
    found = diagnose(_row(judge(evidence, case, POLICY)), evidence, case, POLICY)
    assert found is not None
    assert "the gradient of w is 4 times what it should be" in found.what
    assert "4 times too large" in found.training


def _row(said: Any, **changes: Any) -> Cell:
    return Cell(
        verdict=str(said.verdict), signature=said.signature, detail=said.detail, forward_ok=said.forward_ok, **changes
    )


def test_nan_is_told_as_nan_and_what_is_below_the_noise_as_that() -> None:
    nan = W.copy()
    nan[0, 0] = math.nan
    truth = {"layer0.o_proj": W, "layer0.k_bias": np.full(4, 1e-18)}
    noise = {"grad/layer0.k_bias": Noise(rel_l2=1.0, max_abs=1e-6)}
    _, found = of_model({"o_proj": nan}, truth, noise=noise)
    assert found.what == (
        "the gradient of the o projection is wrong (2 elements are NaN or infinite, and 0 should be); "
        "k_bias is below the noise"
    )
    assert "they are NaN or infinite, and after one step so is what they are added to" in found.training
    assert found.tensors["too small to tell"] == ("layer0.k_bias",)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({("output", "y"): raw(2 * W)}, "; the gradients are right"),
        (
            {("output", "y"): raw(2 * W), ("grad", "x"): raw(W[:, ::-1].copy())},
            "; the gradient of x is wrong too (the right values elsewhere)",
        ),
    ],
)
def test_what_gradients_are_like_stands_beside_a_wrong_forward(changed: Named, said: str) -> None:
    right: Named = {("output", "y"): raw(W), ("grad", "x"): raw(W)}
    evidence = evidence_of([{**right, **changed}] * 2, [right] * 2, a_case())
    row = _row(judge(evidence, a_case(), POLICY))
    assert row.verdict == "forward_mismatch"
    found = diagnose(row, evidence, a_case(), POLICY)
    assert found is not None
    assert found.what == row.detail + said


def test_a_weight_that_every_rank_holds_is_counted_once() -> None:
    right: Named = {("output", "y"): raw(W), ("grad", "x"): raw(W), ("grad", "w"): raw(W)}
    dead = {**right, ("grad", "w"): raw(0 * W)}
    case = a_case(weights=("w",))
    evidence = evidence_of([dead] * 2, [right] * 2, case)
    found = diagnose(_row(judge(evidence, case, POLICY)), evidence, case, POLICY)
    assert found is not None
    assert found.what == f"w receives no gradient (0 of {W.size} elements are non-zero on each rank); x is right"


def test_a_silent_answer_where_a_refusal_is_due_is_told_as_that() -> None:
    case = a_case(expect="refusal")
    evidence = evidence_of([{("output", "y"): raw(W)}] * 2, [], case)
    found = diagnose(_row(judge(evidence, case, POLICY)), evidence, case, POLICY)
    assert found is not None
    assert found.what == "every one of 2 ranks answered silently, and a refusal was due"
    assert found.training.startswith("nobody is told that this is not supported")


@pytest.mark.parametrize(
    ("eager", "said"),
    [
        (at("2.11.0", "agree", 7), "agrees (cell 7): only the traced call is wrong"),
        (at("2.11.0", "agree_untraced", 7), "agrees, untraced (cell 7): only the traced call is wrong"),
        (at("2.11.0", "zero_gradient", 7), "has the same fault (cell 7): the tracer has no part in it"),
        (at("2.11.0", "scaled", 7), "says otherwise (cell 7): scaled gradient"),
        (at("2.11.0", None, 7), ""),
        (None, ""),
    ],
)
def test_the_eager_verdict_stands_beside_the_traced_one(eager: Cell | None, said: str) -> None:
    row, evidence = _zero()
    found = diagnose(row, evidence, a_case(), POLICY, Beside(eager=eager))
    assert found is not None
    assert found.eager == said


def _zero(**changes: Any) -> tuple[Cell, Any]:
    right: Named = {("output", "y"): raw(W), ("grad", "x"): raw(W)}
    evidence = evidence_of([{**right, ("grad", "x"): raw(0 * W)}] * 2, [right] * 2, a_case())
    row = dataclasses.replace(_row(judge(evidence, a_case(), POLICY), mode="aot_eager"), **changes)
    assert row.signature == "zero_gradient: grad/x"
    return row, evidence


def test_where_along_torch_it_is() -> None:
    row, evidence = _zero()
    answers = [at("2.9.1"), at("2.10.0"), row, at("2.13.0")]
    beside = Beside(over_torch=answers, torches=("2.9.1", "2.10.0", "2.11.0", "2.12.1", "2.13.0"))
    found = diagnose(row, evidence, a_case(), POLICY, beside)
    assert found is not None
    assert found.torch == Extent("2.10.0", "2.11.0", "2.11.0", "2.13.0", ("2.12.1",))
    assert extent_text(found.torch) == "last good 2.10.0, first bad 2.11.0, fixed in 2.13.0, not known of 2.12.1"


def test_a_version_that_is_right_in_no_traced_graph_is_said_to_be() -> None:
    row, evidence = _zero(label="deepspeed==0.19.6")
    answers = [at("2.10.0", "agree_untraced"), row, at("2.12.1")]
    releases = [at("2.11.0", label="deepspeed==0.19.5"), at("2.11.0", "agree_untraced", label="deepspeed==0.19.8")]
    beside = Beside(over_torch=answers, over_releases=releases)
    found = diagnose(row, evidence, a_case(), POLICY, beside)
    assert found is not None
    assert extent_text(found.torch) == "last good 2.10.0 (untraced), first bad 2.11.0, fixed in 2.12.1"
    assert extent_text(found.release) == (
        "last good deepspeed==0.19.5, first bad deepspeed==0.19.6, fixed in deepspeed==0.19.8 (untraced)"
    )


def test_where_along_releases_it_is() -> None:
    def on(version: str, verdict: str = "agree", subject: str = "deepspeed") -> Cell:
        return at("2.11.0", verdict, label=f"{subject}=={version}")

    row, _ = _zero(label="deepspeed==0.19.6")
    others = [on("0.18.3"), on("0.9.2"), on("0.19.10"), on("0.19.5", "zero_gradient"), on("0.19.7", subject="other")]
    found = along_releases(row, others)
    assert found == Extent("deepspeed==0.18.3", "deepspeed==0.19.5", "deepspeed==0.19.6", "deepspeed==0.19.10", ())
    assert along_releases(row, []) is None
    assert along_releases(dataclasses.replace(row, label="path:x"), others) is None
    # Another fault neither ends a stretch nor prolongs it.
    assert along_releases(row, [on("0.19.5", "scaled")]) == Extent(
        None, "deepspeed==0.19.6", "deepspeed==0.19.6", None, (), ("deepspeed==0.19.5",)
    )
    assert extent_text(along_releases(row, [on("0.19.5", "scaled"), on("0.19.4", "infra")])).endswith(
        "something else fails on deepspeed==0.19.5, not known of deepspeed==0.19.4"
    )


def test_of_many_unknown_versions_only_the_number_is_told() -> None:
    columns = [(str(n), "bad" if n == 0 else "untried") for n in range(9)]
    (one,) = stretches(columns)
    extent = Extent(one.last_good, one.first_bad, one.last_bad, one.fixed_in, one.unsaid)
    assert extent_text(extent) == "bad in 0, the only one with an answer; not known of 8 others"
    assert extent_text(None) == ""


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["x"], "x"),
        (["q", "k", "v"], "q, k and v"),
        (["layer0.q_proj", "layer1.q_proj"], "the q projection"),
        (["model.layers.3.q_proj.weight", "model.layers.3.v_proj.weight"], "the q and v projections"),
        (["layer0.up_proj", "layer0.down_proj", "embed"], "the MLP and the embedding"),
        (["layer0.up_proj"], "up_proj"),
        (["norm", "layer0.norm_before"], "the norms"),
        (["step/layer0.o_proj"], "the o projection"),
        ([f"w{n}" for n in range(9)], "w0, w1, w2, w3, w4, w5 and 3 more"),
    ],
)
def test_names_as_people_say_them(names: list[str], said: str) -> None:
    assert spoken(names) == said


def test_layers_are_said_where_a_parameter_is_so_in_some_of_them_only() -> None:
    names = [f"layer{n}.{name}" for n in range(3) for name in ("o_proj", "up_proj", "down_proj")] + ["head"]
    assert spoken(names[:3], names) == "the o projection and the MLP of layer 0"
    assert spoken(names[3:], names) == "the head, and the o projection and the MLP of layers 1 and 2"
    assert spoken(names, names) == "the o projection, the MLP and the head"
    first = {"layer0.o_proj": W, "layer1.o_proj": W}
    _, found = of_model({"layer0.o_proj": 0 * W}, first)
    assert found.what == (
        "the o projection of layer 0 receives no gradient (0 of 16 elements are non-zero on each rank); "
        "the o projection of layer 1 is right"
    )


def test_the_verb_goes_with_the_names() -> None:
    assert have(["x"], "is", "are") == have(["layer0.up_proj", "layer0.down_proj"], "is", "are") == "is"
    assert have(["layer0.q_proj"], "is", "are") == "is"
    assert have(["x", "y"], "is", "are") == have(["norm", "norm_after"], "is", "are") == "are"
    assert (stepped("moment/layer0.q_proj"), stepped("layer0.q_proj")) == ("layer0.q_proj", "")


def test_every_verdict_has_its_clause_for_training() -> None:
    assert set(TRAINING) == set(Verdict)
    assert not [verdict for verdict, text in TRAINING.items() if not text and verdict is not Verdict.AGREE]


def test_what_a_row_alone_says_of_training() -> None:
    assert meaning(Verdict.ZERO_GRADIENT, forward_ok=True) == (
        "some or all of what comes before it will not be trained through this call; "
        "the forward is right, so that the loss will look healthy"
    )
    assert "2 times too small" in meaning(Verdict.SCALED, forward_ok=None, alpha=0.5)
    assert "healthy" not in meaning(Verdict.SCALED, forward_ok=False, alpha=0.5)
    assert meaning(Verdict.MISMATCH, forward_ok=True, outside=True).startswith("nobody is told")
