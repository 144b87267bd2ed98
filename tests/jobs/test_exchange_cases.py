"""The exchange family as data: which axes are covered, which shapes follow, and that reading it needs no torch."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from jobs import probes
from jobs.contract import FAMILIES, MODES, WORLD_SIZES, CaseInfo, ControlInfo
from jobs.probes.case import FLOATS, TensorSpec, input_key
from jobs.probes.control import implementation_of
from jobs.probes.exchange.controls import MUTANTS
from jobs.probes.exchange.shapes import Exchange, head_share, params_of

ROOT = Path(__file__).parents[2]
CASES = {case.id: case for case in probes.catalogue() if case.family == "exchange"}
CONTROLS = [control for control in probes.controls() if control.family == "exchange"]
AXES = {
    "dtype": {"float32", "float64", "bfloat16", "float16"},
    "loss": {"square", "weighted", "scaled", "shared", "accumulate", "frozen", "forward_only"},
    "input": {"contiguous", "transposed", "expanded", "offset"},
    "cotangent": {"contiguous", "transposed", "expanded"},
    "wrap": {"call", "layer"},
    "sp": {"0", "2", "4"},
}
SHAPED = {
    "layout": {"bshd", "sbhd"},
    "scatter": {"heads", "sequence"},
    "batch": {"1", "2", "3"},
    "heads": {"ranks", "double", "squared", "uneven", "uneven_large", "uneven_many"},
    "length": {"even", "odd", "indivisible", "unequal"},
}


def of(probe: str) -> list[CaseInfo]:
    return [case for case in CASES.values() if case.probe == probe]


def test_the_definitions_are_read_without_torch() -> None:
    code = "import sys; from jobs import probes; probes.catalogue(); probes.controls(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_ids_are_unique_and_those_that_others_rely_on_exist() -> None:
    assert len(CASES) == sum(case.family == "exchange" for case in probes.catalogue())
    for stable in (
        "exchange/dim0[dtype=float32,loss=square]",
        "exchange/dim0[dtype=float32,loss=square,wrap=layer]",
        "exchange/seq_head[layout=bshd,scatter=heads,heads=double,dtype=float32,loss=square]",
        "exchange/after_uneven[layout=bshd,scatter=heads,heads=squared,dtype=float32,loss=square]",
        "exchange/single_all_to_all[layout=sbhd,scatter=sequence,heads=squared,how=async,dtype=float64]",
    ):
        assert stable in CASES


@pytest.mark.parametrize("axis", AXES)
def test_dim0_covers_every_value_of_every_axis(axis: str) -> None:
    assert {case.params[axis] for case in of("dim0")} == AXES[axis]


@pytest.mark.parametrize("axis", [*AXES, *SHAPED])
def test_seq_head_covers_every_value_of_every_axis(axis: str) -> None:
    assert {case.params[axis] for case in of("seq_head")} == {**AXES, **SHAPED}[axis]


def test_each_layout_meets_each_direction_in_every_probe_between_sequence_and_heads() -> None:
    for probe in ("seq_head", "single_all_to_all"):
        met = {(case.params["layout"], case.params["scatter"]) for case in of(probe)}
        assert met == {(layout, scatter) for layout in SHAPED["layout"] for scatter in SHAPED["scatter"]}


def test_modes_are_nested_and_the_costly_ones_few() -> None:
    counts = {mode: sum(mode in case.modes for case in CASES.values()) for mode in MODES}
    assert counts["eager"] == len(CASES)
    assert 20 <= counts["aot_eager"] <= 25
    assert 6 <= counts["inductor"] <= 8
    assert all(case.modes == MODES[: len(case.modes)] for case in CASES.values())


def test_cases_and_controls_cross_the_border_unchanged() -> None:
    for case in CASES.values():
        assert CaseInfo.from_json(json.loads(json.dumps(case.to_json()))) == case
        assert case.family in FAMILIES
        assert case.summary.endswith(".")
    for control in CONTROLS:
        assert ControlInfo.from_json(json.loads(json.dumps(control.to_json()))) == control


def test_shapes_of_the_dim0_exchange() -> None:
    params = params_of(CASES["exchange/dim0[dtype=float32,loss=square]"])
    assert [params.shapes(size, 0)[0] for size in WORLD_SIZES] == [(2, 2, 4, 4), (4, 2, 4, 4), (8, 2, 4, 4)]
    assert math.prod(params.shapes(2, 0)[0]) == 64
    assert math.prod(params.shapes(4, 3)[1]) == 128
    assert Exchange(sp=2).shapes(8, 1) == ((2, 2, 4, 4), (2, 2, 4, 4))
    assert Exchange(blocks="extra").shapes(4, 0)[0] == (5, 2, 4, 4)


@pytest.mark.parametrize(
    ("params", "place", "expected"),
    [
        (Exchange(layout="bshd", scatter="heads", heads="double", batch=3), 0, ((3, 4, 4, 4), (3, 8, 2, 4))),
        (Exchange(layout="sbhd", scatter="heads", heads="double", batch=3), 0, ((4, 3, 4, 4), (8, 3, 2, 4))),
        (Exchange(layout="bshd", scatter="sequence", heads="uneven"), 0, ((1, 8, 2, 4), (1, 4, 3, 4))),
        (Exchange(layout="bshd", scatter="sequence", heads="uneven"), 1, ((1, 8, 1, 4), (1, 4, 3, 4))),
        (Exchange(layout="sbhd", scatter="heads", heads="ranks", length="odd"), 1, ((5, 1, 2, 4), (10, 1, 1, 4))),
        (Exchange(layout="bshd", scatter="heads", heads="ranks", length="unequal"), 0, ((1, 5, 2, 4), (1, 9, 1, 4))),
        (Exchange(layout="bshd", scatter="heads", heads="ranks", length="unequal"), 1, ((1, 4, 2, 4), (1, 9, 1, 4))),
    ],
)
def test_shapes_between_sequence_and_heads_on_two_ranks(
    params: Exchange, place: int, expected: tuple[tuple[int, ...], tuple[int, ...]]
) -> None:
    assert params.shapes(2, place) == expected


def test_an_indivisible_sequence_is_one_that_no_number_of_ranks_divides() -> None:
    params = Exchange(layout="bshd", scatter="sequence", heads="squared", length="indivisible")
    assert all(params.shapes(size, 0)[0][1] % size == 1 for size in WORLD_SIZES)


def test_what_goes_in_comes_out() -> None:
    for case in CASES.values():
        params = params_of(case)
        for size in [size for size in WORLD_SIZES if case.runs_at(size) and case.expect == "values"]:
            pairs = [params.shapes(size, place) for place in range(params.ranks(size))]
            assert sum(math.prod(before) for before, _ in pairs) == sum(math.prod(after) for _, after in pairs)


def test_shares_of_heads_add_up_and_differ_by_one_at_most() -> None:
    for count in range(1, 120):
        for ranks in WORLD_SIZES:
            shares = [head_share(count, ranks, place) for place in range(ranks)]
            assert sum(shares) == count
            assert shares == sorted(shares, reverse=True)
            assert shares[0] - shares[-1] <= 1


@pytest.mark.parametrize("size", WORLD_SIZES)
def test_many_uneven_heads_are_a_number_that_floating_point_loses(size: int) -> None:
    count = Exchange(heads="uneven_many").head_count(size)
    shares = {head_share(count, size, place) for place in range(size)}
    assert count % size != 0
    assert any(int(share * (count / share)) != count for share in shares)


def test_a_refusal_says_why_and_only_refusals_are_outside_the_contract() -> None:
    outside = {case.id for case in CASES.values() if case.expect == "refusal"}
    assert outside == {case.id for case in CASES.values() if "outside the contract" in case.summary}
    assert {CASES[one].probe for one in outside} == {"dim0", "seq_head", "single_all_to_all"}


def test_every_tensor_has_keys_of_its_own() -> None:
    specs = {case.id: [TensorSpec(name, "input", (1,), (1,)) for name in case.dims] for case in CASES.values()}
    keys = [input_key(case, spec, rank) for case in CASES.values() for spec in specs[case.id] for rank in range(8)]
    assert len(keys) == len(set(keys))


def test_every_mutant_is_tried_and_every_mode_and_type_has_a_reference() -> None:
    assert len({control.id for control in CONTROLS}) == len(CONTROLS)
    assert set(MUTANTS) <= {implementation_of(control) for control in CONTROLS}
    agreeing = [control for control in CONTROLS if control.expected[0] == "agree"]
    assert {mode for control in agreeing for mode in control.modes} == set(MODES)
    assert {CASES[control.case].dtype for control in agreeing} == set(FLOATS)
    assert {CASES[control.case].probe for control in agreeing} == {"dim0", "seq_head"}
    for name in MUTANTS:
        assert {CASES[one.case].dtype for one in CONTROLS if implementation_of(one) == name} == set(FLOATS), name


def test_few_controls_stand_beside_every_run_and_vouch_for_every_mode_and_type() -> None:
    beside = [control for control in CONTROLS if control.suite == "default"]
    assert len(beside) <= 20
    mutants = [control for control in beside if implementation_of(control) in MUTANTS]
    assert {CASES[control.case].dtype for control in mutants} == {"float32"}
    assert {CASES[control.case].probe for control in mutants} == {"dim0", "seq_head"}
    right = [control for control in beside if control not in mutants]
    assert {mode for control in right for mode in control.modes} == set(MODES)
    assert {CASES[control.case].dtype for control in right} == set(FLOATS)


def test_an_unknown_family_is_an_error_that_names_the_known_ones() -> None:
    with pytest.raises(LookupError, match="'exchanges'; there are exchange"):
        probes.module("exchanges")
