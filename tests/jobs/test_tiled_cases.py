"""The tiled family as data: which axes are covered, which tensors follow, and what is said about the truth."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import pytest

from jobs import probes
from jobs.contract import MODES, CaseInfo
from jobs.probes.case import FLOATS, TensorSpec, input_key
from jobs.probes.control import implementation_of
from jobs.probes.tiled.base import IGNORED, LIVE, Tiled, targets
from jobs.probes.tiled.controls import IN_ONE_TYPE, MUTANTS
from jobs.probes.tiled.shapes import (
    PARAMS,
    ChunkedFeedForward,
    ChunkedLogitsLoss,
    Compute,
    ComputeLoss,
    FeedForward,
    FusedLoss,
    HeadLoss,
    LogitsLoss,
    params_of,
)

ROOT = Path(__file__).parents[2]
CASES = {case.id: case for case in probes.catalogue() if case.family == "tiled"}
CONTROLS = [control for control in probes.controls() if control.family == "tiled"]
COMMON = {
    "dtype": {"float32", "float64", "bfloat16", "float16"},
    "input": {"contiguous", "transposed", "expanded", "offset"},
    "batch": {"1", "2", "3"},
    "frozen": {"nothing", "x", "parameters"},
    "wrap": {"call", "layer", "checkpoint"},
    "listed": {"all", "none"},
    "tied": {"yes", "no"},
    "bias": {"present", "absent"},
}
LOSSES = {"square", "weighted", "scaled", "shared", "accumulate", "forward_only"}
AXES: dict[str, dict[str, set[str]]] = {
    "mlp": {**COMMON, "loss": LOSSES, "cotangent": {"contiguous", "transposed", "expanded"}, "rank": {"2", "3"}},
    "compute": {**COMMON, "loss": LOSSES, "passed": {"module", "tensors"}, "entry": {"wrapper", "function"}},
    "compute_loss": {
        **{name: COMMON[name] for name in ("dtype", "batch", "frozen", "wrap", "listed", "tied", "bias")},
        "loss": {"sum", *LOSSES} - {"scaled"}, "reduction": {"mean", "sum", "balanced"}, "labels": set(LIVE),
        "passed": {"module", "tensors"}, "entry": {"wrapper", "function"}, "unshard": {"0", "1"},
    },
    "fused_logits_loss": {
        **COMMON, "loss": {"sum", *LOSSES} - {"scaled"}, "reduction": {"mean", "sum", "balanced"},
        "labels": set(LIVE), "mask": {"absent", "given"},
    },
    "loss": {"labels": set(LIVE), "dtype": COMMON["dtype"], "batch": {"1", "2"}},
    "fpdt_ffn": {"bias": {"added", "returned"}, "dtype": COMMON["dtype"], "frozen": {"nothing", "x", "parameters"}},
    "fpdt_logits_loss": {
        "labels": {"all", "uneven"}, "vocabulary": {"small", "wide"}, "logits": {"usual", "large"},
        "part": {"own", "whole"}, "sp": {"0", "2", "4"}, "dtype": COMMON["dtype"],
    },
}  # fmt: skip
IN_DEFAULT: dict[str, dict[str, set[str]]] = {
    "mlp": {"dtype": COMMON["dtype"], "loss": LOSSES, "batch": {"1", "2", "3"}, "wrap": COMMON["wrap"]},
    "compute_loss": {"reduction": {"mean", "sum", "balanced"}, "labels": set(LIVE), "batch": {"1", "2", "3"}},
    "fused_logits_loss": {"reduction": {"mean", "sum", "balanced"}, "labels": set(LIVE), "frozen": COMMON["frozen"]},
}


def of(probe: str, suite: str = "full") -> list[CaseInfo]:
    return [case for case in CASES.values() if case.probe == probe and suite in (case.suite, "full")]


def test_the_definitions_are_read_without_torch() -> None:
    code = "import sys; from jobs.probes.tiled import controls; controls.controls(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("probe", PARAMS)
def test_every_axis_is_covered(probe: str) -> None:
    for suite, axes in (("full", AXES), ("default", IN_DEFAULT)):
        for axis, values in axes.get(probe, {}).items():
            missing = values - {case.params[axis] for case in of(probe, suite)}
            assert not missing, (suite, axis, missing)


@pytest.mark.parametrize("probe", ["mlp", "compute", "compute_loss", "fused_logits_loss"])
def test_shards_run_from_one_to_more_than_there_are_tokens_and_need_not_divide_them(probe: str) -> None:
    pairs = {(params.tokens, params.shards) for params in map(params_of, of(probe))}
    assert any(shards == 1 for _, shards in pairs)
    assert any(shards > tokens for tokens, shards in pairs)
    assert any(shards < tokens and tokens % shards for tokens, shards in pairs)


def test_the_shapes_that_faults_of_the_past_needed_are_there() -> None:
    for stable in (
        "tiled/compute[dtype=float32,loss=square,batch=1,tokens=5,shards=4,entry=function]",
        "tiled/compute[dtype=float32,loss=weighted,batch=2,tokens=8,shards=4,bias=present,entry=function]",
        "tiled/mlp[dtype=float32,loss=weighted,batch=2,tokens=8,shards=4,cotangent=transposed]",
        "tiled/loss[dtype=float32,loss=sum,labels=shard,tokens=8,shards=4]",
    ):
        assert CASES[stable].suite == "default"


def test_of_every_mode_there_are_cases_and_all_stand_over_gloo() -> None:
    assert {mode for case in CASES.values() for mode in case.modes} == set(MODES)
    assert all("gloo" in case.transports and not case.exact and case.api for case in CASES.values())


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        (FeedForward(), {"x": (1, 8, 8), "gate": (12, 8), "up": (12, 8), "down": (8, 12), "w": (1, 8, 8)}),
        (FeedForward(rank=2, tied="yes"), {"x": (8, 8), "gate": (12, 8), "up": (12, 8), "w": (8, 8)}),
        (Compute(widening="yes"), {"x": (1, 8, 8), "down": (16, 12), "w": (1, 8, 16)}),
        (HeadLoss(batch=2, loss="weighted"), {"x": (2, 8, 8), "labels": (2, 8), "head": (16, 8), "w": ()}),
        (LogitsLoss(batch=2), {"x": (2, 8, 16), "labels": (2, 8)}),
        (ChunkedFeedForward(batch=3), {"x": (8, 3, 8), "second": (8, 12), "second_bias": (8,), "w": (8, 3, 8)}),
        (ChunkedLogitsLoss(batch=2, vocabulary="wide"), {"labels": (2, 8), "head": (128, 8), "w": (8, 2)}),
    ],
)
def test_shapes(params: Tiled, expected: dict[str, tuple[int, ...]]) -> None:
    shapes = {spec.name: spec.shape for spec in params.tensors(2, 1)}
    assert {name: shapes.get(name) for name in expected} == expected


def test_arguments_come_in_the_order_of_the_functions() -> None:
    assert [spec.name for spec in FusedLoss(mask="given", loss="accumulate", bias="present").tensors(2, 0)] == [
        "x", "labels", "mask", "head", "head_bias", "w", "w2",
    ]  # fmt: skip
    assert [spec.name for spec in ComputeLoss(tied="yes").tensors(2, 0)] == ["x", "labels", "ids", "head"]


def test_parameters_are_the_same_on_every_rank_and_activations_are_not() -> None:
    case = CASES["tiled/mlp[dtype=float32,loss=weighted,batch=1,tokens=8,shards=4]"]
    specs = {spec.name: spec for spec in params_of(case).tensors(2, 0)}

    def keys(name: str) -> set[str]:
        return {input_key(case, specs[name], rank) for rank in range(4)}

    assert [len(keys(name)) for name in ("x", "gate", "up", "down", "w")] == [4, 1, 1, 1, 4]


def test_what_is_frozen_needs_no_gradient() -> None:
    def roles(frozen: str) -> dict[str, str]:
        return {spec.name: spec.role for spec in FeedForward(frozen=frozen, tied="yes").tensors(2, 0)}

    assert roles("nothing") == {"x": "input", "gate": "input", "up": "input", "w": "cotangent"}
    assert roles("x") == {"x": "frozen", "gate": "input", "up": "input", "w": "cotangent"}
    assert roles("parameters") == {"x": "input", "gate": "frozen", "up": "frozen", "w": "cotangent"}
    assert roles("up") == {"x": "input", "gate": "input", "up": "frozen", "w": "cotangent"}


def live(labels: str, tokens: int = 8, shards: int = 4, batch: int = 1, place: int = 0) -> list[int]:
    """How many labels of each shard are live, of one row."""
    params = LogitsLoss(tokens=tokens, shards=shards, batch=batch)
    row = targets(params, labels, 16, place)[:tokens]
    step = -(-tokens // shards)
    return [sum(label != IGNORED for label in row[start : start + step]) for start in range(0, tokens, step)]


def test_masks_are_what_they_are_called() -> None:
    assert live("all") == [2, 2, 2, 2]
    assert live("uneven") == [1, 2, 1, 2]
    assert live("shard") == [0, 2, 2, 2]
    assert live("few", shards=8) == [0, 1, 0, 0, 0, 0, 0, 0]
    assert live("none") == [0, 0, 0, 0]
    for place in range(8):
        assert len(set(live("uneven", place=place))) > 1
        assert min(live("uneven", place=place)) > 0


def test_labels_are_in_the_vocabulary_and_differ_between_ranks() -> None:
    for vocabulary, place in itertools.product((16, 128), range(8)):
        values = targets(LogitsLoss(batch=3), "uneven", vocabulary, place)
        assert all(value == IGNORED or 0 <= value < vocabulary for value in values)
    assert targets(LogitsLoss(), "all", 16, 0) != targets(LogitsLoss(), "all", 16, 1)


def test_only_a_mean_over_nothing_accepts_zero() -> None:
    either = {case.id for case in CASES.values() if case.accepts == "oracle or zero"}
    assert either == {
        case.id
        for case in CASES.values()
        if case.params.get("labels") == "none" and case.params.get("reduction", "mean") != "sum"
    }
    assert {CASES[one].probe for one in either} == {"compute_loss", "fused_logits_loss", "loss"}
    assert all("not a number" in CASES[one].summary for one in either)


@pytest.mark.parametrize(
    ("probe", "case", "said"),
    [
        ("compute_loss", "loss=sum,reduction=mean,labels=all,tokens=8,shards=4]", False),
        ("compute_loss", "loss=sum,reduction=mean,labels=all,tokens=3,shards=5]", False),
        ("compute_loss", "loss=square,reduction=mean,labels=uneven,tokens=8,shards=4]", True),
        ("compute_loss", "loss=sum,reduction=mean,labels=all,tokens=5,shards=2,batch=2]", True),
        ("fused_logits_loss", "loss=sum,reduction=mean,labels=all,tokens=6,shards=4,frozen=parameters]", False),
        (
            "fused_logits_loss",
            "loss=sum,reduction=mean,labels=uneven,tokens=8,shards=4,batch=2,frozen=parameters]",
            True,
        ),
    ],
)
def test_a_mean_of_means_that_is_not_that_of_the_tokens_says_so(probe: str, case: str, said: bool) -> None:
    assert ("mean of the shards' means" in CASES[f"tiled/{probe}[dtype=float32,{case}"].summary) is said


def test_what_is_outside_the_contract_says_why() -> None:
    outside = [case for case in CASES.values() if case.expect == "refusal"]
    assert {case.probe for case in outside} == {"fpdt_ffn", "fpdt_logits_loss"}
    assert all(int(case.params["tokens"]) % int(case.params["shards"]) for case in outside)
    assert all("outside the contract" in case.summary for case in outside)


def test_what_is_added_up_in_32_bits_is_judged_in_them() -> None:
    for case in of("fpdt_ffn") + of("fpdt_logits_loss"):
        assert case.params["effective"] == ("float32" if case.dtype == "float64" else case.dtype)
        assert "effective" not in case.id


def test_every_tensor_has_keys_of_its_own() -> None:
    specs = {case.id: [TensorSpec(name, "input", (1,), (1,)) for name in case.dims] for case in CASES.values()}
    keys = [input_key(case, spec, rank) for case in CASES.values() for spec in specs[case.id] for rank in range(8)]
    assert len(keys) == len(set(keys))


def test_dimensions_have_the_names_of_what_they_are() -> None:
    for case in CASES.values():
        for spec in params_of(case).tensors(case.sp or 2, 0):
            if spec.name in case.dims:
                assert len(case.dims[spec.name]) == len(spec.shape), (case.id, spec.name)


def test_every_mutant_is_tried_in_every_type_and_few_stand_beside_every_run() -> None:
    assert len({control.id for control in CONTROLS}) == len(CONTROLS)
    for name in MUTANTS:
        types = {CASES[one.case].dtype for one in CONTROLS if implementation_of(one) == name}
        assert types == ({"float32"} if name in IN_ONE_TYPE else set(FLOATS)), name
    beside = [control for control in CONTROLS if control.suite == "default"]
    assert {mode for one in beside if one.expected[0] == "agree" for mode in one.modes} == set(MODES)
    assert {CASES[one.case].dtype for one in beside} == {"float32"}
    assert 5 <= sum(one.expected[0] != "agree" for one in beside) <= 8
