"""The family of AutoSP as data: which axes are covered, which shapes follow, and what its controls stand on."""

from __future__ import annotations

import hashlib
import itertools
import json
import math

import pytest

from jobs import probes
from jobs.contract import FAMILIES, MODES, SUITES, WORLD_SIZES, CaseInfo, ControlInfo
from jobs.probes.autosp.controls import MUTANTS, OF_GATHER
from jobs.probes.autosp.shapes import SYMBOLS, Exchanged, Gathered, Rewritten, params_of
from jobs.probes.control import implementation_of

CASES = {case.id: case for case in probes.catalogue() if case.family == "autosp"}
CONTROLS = [control for control in probes.controls() if control.family == "autosp"]
FLOATS = {"float32", "float64", "bfloat16", "float16"}
AXES = {
    "all_to_all": {
        "scatter": {"heads", "sequence"},
        "heads": {"ranks", "double", "squared", "uneven"},
        "dtype": FLOATS,
        "loss": {"square", "weighted", "scaled", "shared", "accumulate", "frozen", "forward_only"},
        "input": {"contiguous", "transposed", "expanded", "offset"},
        "cotangent": {"contiguous", "transposed", "expanded"},
        "wrap": {"call", "layer"},
        "batch": {"1", "2", "3"},
        "sp": {"0", "2", "4"},
    },
    "sequence": {"way": {"gather", "scatter"}, "dim": {"1", "2"}, "sp": {"0", "2"}, "wrap": {"call", "layer"}},
    "pass": {
        "names": {"short", "hf"},
        "then": {"graph", "aot_eager", "inductor"},
        "mask": {"causal", "rows"},
        "sp": {"0", "2", "4"},
    },
}


@pytest.mark.parametrize(("probe", "axis"), [(probe, axis) for probe, axes in AXES.items() for axis in axes])
def test_every_value_of_every_axis_is_covered(probe: str, axis: str) -> None:
    assert {case.params[axis] for case in CASES.values() if case.probe == probe} == AXES[probe][axis]


def test_ids_are_unique_and_each_probe_is_in_the_default_suite() -> None:
    assert len(CASES) == sum(case.family == "autosp" for case in probes.catalogue())
    default = [case for case in CASES.values() if case.suite == SUITES[0]]
    assert {case.probe for case in default} == set(AXES)
    assert len(default) <= 6
    assert all(case.modes == MODES[: len(case.modes)] for case in CASES.values())


def test_cases_and_controls_cross_the_border_unchanged() -> None:
    for case in CASES.values():
        assert CaseInfo.from_json(json.loads(json.dumps(case.to_json()))) == case
        assert case.family in FAMILIES
        assert case.api
        assert (case.expect == "refusal") == ("outside the contract" in case.summary)
    for control in CONTROLS:
        assert ControlInfo.from_json(json.loads(json.dumps(control.to_json()))) == control


def test_shapes_on_two_ranks() -> None:
    assert Exchanged().shapes(2) == ((2, 4, 3, 4), (2, 2, 6, 4))
    assert Exchanged(scatter="sequence").shapes(2) == ((2, 2, 6, 4), (2, 4, 3, 4))
    assert Exchanged(sp=2, heads="ranks").shapes(8) == ((2, 2, 3, 4), (2, 1, 6, 4))
    assert Gathered(dim=1).shapes(2) == ((2, 3, 3, 4), (2, 6, 3, 4))
    assert Gathered(dim=2, way="scatter").shapes(2) == ((2, 2, 6, 4), (2, 2, 3, 4))


def test_an_exchange_moves_every_element() -> None:
    for case in (case for case in CASES.values() if case.probe == "all_to_all" and case.expect == "values"):
        for size in [size for size in WORLD_SIZES if case.runs_at(size)]:
            params = params_of(case)
            assert isinstance(params, Exchanged)
            before, after = params.shapes(size)
            assert math.prod(before) == math.prod(after)


def test_symbols_and_labels_are_known_and_change_from_token_to_token() -> None:
    specs = {spec.name: spec for spec in Rewritten(batch=2).tensors(4, 1)}
    for name in ("ids", "labels"):
        values = specs[name].integers
        assert len(values) == 2 * 12
        assert set(values) == set(range(SYMBOLS))
        assert all(a != b for a, b in itertools.pairwise(values))
    assert specs["positions"].integers == tuple(range(12)) * 2
    assert {spec.integers for spec in Rewritten().tensors(2, 0)} == {s.integers for s in Rewritten().tensors(2, 1)}


def test_of_the_short_names_the_tracer_numbers_that_of_the_symbols_first() -> None:
    """torch.fx numbers a size after the sha256 of where it comes from, and keeps the lower of two that turn out equal.

    With these names that is the symbols' own length, which the pass looks for; with those of Hugging Face it is not.
    """

    def number(name: str) -> int:
        return int(hashlib.sha256(f"L['{name}'].size()[1]".encode()).hexdigest(), 16) % 100

    assert number("ids") < min(map(number, ("labels", "pos", "seen")))
    assert number("input_ids") > min(map(number, ("labels", "position_ids", "attention_mask")))


def test_every_mutant_is_tried_in_every_type_but_one_that_a_loss_would_hide() -> None:
    tried = {(implementation_of(control), CASES[control.case].dtype) for control in CONTROLS}
    wanted = {(name, dtype) for name in MUTANTS if name != "own_part" for dtype in FLOATS} - {("stale", "float16")}
    assert wanted <= tried
    assert {name for name, _ in tried if name in OF_GATHER} == set(OF_GATHER)
    agreeing = [control for control in CONTROLS if control.expected[0] == "agree"]
    assert {mode for control in agreeing for mode in control.modes} == set(MODES)


def test_a_case_of_the_pass_says_which_compiler_it_runs_whatever_its_mode() -> None:
    for case in CASES.values():
        params = params_of(case)
        then = params.then if isinstance(params, Rewritten) else ""
        assert case.compiles == {"": "", "graph": "aot_eager", "aot_eager": "aot_eager", "inductor": "inductor"}[then]
