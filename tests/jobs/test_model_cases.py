"""The model family as data: which axes are covered, which shapes follow, and what its controls stand on."""

from __future__ import annotations

import json
from typing import Any

import pytest

from jobs import probes
from jobs.contract import FAMILIES, MODES, SUITES, WORLD_SIZES, CaseInfo, ControlInfo
from jobs.probes.case import input_key
from jobs.probes.control import implementation_of
from jobs.probes.model.controls import MUTANTS
from jobs.probes.model.shapes import FEATURES, HIDDEN, Decoder, params_of

CASES = {case.id: case for case in probes.catalogue() if case.family == "model"}
CONTROLS = [control for control in probes.controls() if control.family == "model"]
FLOATS = {"float32", "float64", "bfloat16", "float16"}
AXES = {
    "via": {"distributed", "ulysses"},
    "traced": {"layer", "attention", "model"},
    "layout": {"bshd", "sbhd"},
    "kv": {"same", "half"},
    "gate": {"yes", "no"},
    "mask": {"causal", "full"},
    "bias": {"none", "qkv"},
    "rotary": {"no", "yes"},
    "tied": {"no", "yes"},
    "dtype": FLOATS,
    "loss": {"entropy", "weighted", "scaled", "shared", "accumulate", "forward_only"},
    "frozen": {"none", "embed", "but_k_bias"},
    "step": {"none", "adam"},
    "batch": {"1", "2", "3"},
    "sp": {"0", "2", "4"},
}


def test_ids_are_unique_and_those_that_others_rely_on_exist() -> None:
    assert len(CASES) == sum(case.family == "model" for case in probes.catalogue())
    common = "layout=bshd,kv=half,gate=yes,dtype=float32,loss=entropy"
    for via, more, suite in (
        ("distributed", "traced=attention,step=adam", "full"),
        ("ulysses", "step=adam", "default"),
        ("distributed", "step=adam", "full"),
    ):
        known = CASES[f"model/decoder[via={via},{common},{more}]"]
        assert (known.modes, known.suite) == (("eager", "aot_eager"), suite)


@pytest.mark.parametrize("axis", AXES)
def test_every_value_of_every_axis_is_covered(axis: str) -> None:
    assert {case.params[axis] for case in CASES.values()} == AXES[axis]


@pytest.mark.parametrize("axis", ["via", "layout", "kv", "gate", "mask", "bias", "rotary", "tied", "step"])
def test_the_default_suite_covers_what_changes_the_model(axis: str) -> None:
    default = [case for case in CASES.values() if case.suite == SUITES[0]]
    assert len(default) <= 6
    assert {case.params[axis] for case in default} == AXES[axis]


def test_modes_are_nested_and_code_is_generated_in_the_full_suite_alone() -> None:
    assert all(case.modes == MODES[: len(case.modes)] for case in CASES.values())
    assert {case.suite for case in CASES.values() if "inductor" in case.modes} == {"full"}
    traced = {case.params["traced"] for case in CASES.values() if "aot_eager" in case.modes}
    assert traced == AXES["traced"]


def test_cases_and_controls_cross_the_border_unchanged() -> None:
    for case in CASES.values():
        assert CaseInfo.from_json(json.loads(json.dumps(case.to_json()))) == case
        assert case.family in FAMILIES
        assert case.api
        assert case.summary.endswith(".")
    for control in CONTROLS:
        assert ControlInfo.from_json(json.loads(json.dumps(control.to_json()))) == control


@pytest.mark.parametrize(
    ("params", "shapes"),
    [
        (Decoder(), {"q_proj": (2, 16, 8), "k_proj": (8, 8), "v_proj": (8, 8), "o_proj": (8, 16)}),
        (Decoder(gate="no", kv="same"), {"q_proj": (1, 16, 8), "k_proj": (16, 8), "v_proj": (16, 8)}),
        (Decoder(bias="qkv"), {"q_bias": (2, 16), "k_bias": (8,), "v_bias": (8,)}),
    ],
)
def test_shapes_of_a_layer_on_two_ranks(params: Decoder, shapes: dict[str, Any]) -> None:
    layer = params.layer(2)
    assert {name: layer[name] for name in shapes} == shapes
    assert {name: params.weights(2)[f"layer1.{name}"] for name in shapes} == shapes


@pytest.mark.parametrize("size", WORLD_SIZES)
def test_every_rank_has_as_many_heads_of_each_kind(size: int) -> None:
    for case in (case for case in CASES.values() if case.runs_at(size)):
        params = params_of(case)
        queries, keys = params.heads(size)
        ranks = params.ranks(size)
        assert queries % ranks == keys % ranks == queries % keys == 0
        assert params.layer(size)["o_proj"] == (HIDDEN, queries * FEATURES)


def test_parameters_are_the_same_on_every_rank_and_tokens_are_not() -> None:
    for case in CASES.values():
        for spec in params_of(case).tensors(4, 0):
            keys = {input_key(case, spec, rank) for rank in range(4)}
            assert len(keys) == (1 if spec.shared else 4)


def test_what_a_case_does_without_is_not_handed_in() -> None:
    def names(**values: Any) -> list[str]:
        return [spec.name for spec in Decoder(**values).tensors(2, 0)]

    assert "head" in names()
    assert "head" not in names(tied="yes")
    assert "layer0.q_bias" not in names()
    assert {"x", "x2", "w", "w2"} <= set(names(loss="accumulate"))
    assert "w" not in names(loss="forward_only")
    roles = {spec.name: spec.role for spec in Decoder(frozen="embed").tensors(2, 0)}
    assert roles["embed"] == "frozen"
    assert set(roles.values()) == {"input", "frozen", "cotangent"}


def test_every_tensor_has_named_dimensions() -> None:
    for case in CASES.values():
        params = params_of(case)
        for spec in params.tensors(case.sp or 2, 0):
            assert len(case.dims[spec.name]) == len(spec.shape), spec.name
        if params.step == "adam":
            assert case.dims["step/layer1.q_proj"] == ("query/gate", "head and feature", "input")


def test_every_mutant_is_tried_in_every_type_and_few_stand_beside_every_run() -> None:
    tried = {(implementation_of(control), CASES[control.case].dtype) for control in CONTROLS}
    assert {(name, dtype) for name in MUTANTS for dtype in FLOATS} <= tried
    beside = [control for control in CONTROLS if control.suite == SUITES[0]]
    assert 5 <= sum(implementation_of(control) in MUTANTS for control in beside) <= 8
    agreeing = [control for control in CONTROLS if control.expected[0] == "agree"]
    assert {mode for control in agreeing for mode in control.modes} == set(MODES)
    assert {CASES[control.case].dtype for control in agreeing} == FLOATS
