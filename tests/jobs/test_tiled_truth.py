"""The tiled family on real ranks: oracle against loops and differences, and our reference and mutants against it."""

from __future__ import annotations

from typing import Any

import pytest

from jobs import probes
from jobs.probes.control import implementation_of
from tests.jobs.inside import answer_of

pytestmark = pytest.mark.torch
OLD, NEW = "2.2.2-index", "2.11.0-index"
CASES = {case.id: case for case in probes.catalogue() if case.family == "tiled"}
CONTROLS = [control for control in probes.controls() if control.family == "tiled"]
PARAMETERS = {"grad/gate", "grad/up", "grad/down"}
WRONG: dict[str, set[str]] = {
    "reference": set(),
    "parameter_zeroed": {"grad/gate"},
    "times_ranks": {"grad/x", *PARAMETERS},
    "over_ranks": {"grad/x", *PARAMETERS},
    "over_shards": PARAMETERS,
    "part_dropped": PARAMETERS,
    "left_behind": {*PARAMETERS, "grad/gate_bias", "grad/up_bias", "grad/down_bias"},
    "scale_forgotten": {"grad/head"},
    "wrong_shape": {"output/y"},
    "forward_permuted": {"output/y"},
    "input_mutated": {"input/x"},
    "cotangent_mutated": {"cotangent/w"},
}
"""What goes wrong where it is not the gradient of x alone."""
NOT_TOLD = ("input_mutated", "cotangent_mutated", "left_behind", "not_a_number", "reference")
"""Mutants whose forward and backward still fit: the central difference says nothing about them."""


def answer(torch: str, *arguments: str) -> Any:
    return answer_of("tests/jobs/tiled_ranks.py", torch, *arguments, timeout=240)


@pytest.mark.parametrize("world_size", ["2", "4"])
def test_the_oracle_equals_a_formulation_in_plain_loops_with_derivatives_by_hand(world_size: str) -> None:
    answers = answer(NEW, world_size, "loops")
    assert len(answers) > 150
    assert {case: wrong for case, wrong in answers.items() if wrong} == {}


def test_the_oracles_gradients_are_the_differences_of_its_forward() -> None:
    answers = answer(OLD, "2", "differences")
    assert len(answers) > 150
    assert {case: wrong for case, wrong in answers.items() if wrong} == {}


@pytest.mark.parametrize(("torch", "world_size"), [(OLD, "4"), (NEW, "2")])
def test_tiled_functions_of_our_own_agree_in_every_case(torch: str, world_size: str) -> None:
    answers = answer(torch, world_size, "reference")
    assert set(answers) == {case.id for case in CASES.values() if case.runs_at(int(world_size))}
    for case, wrong in answers.items():
        assert wrong == ("refused" if CASES[case].expect == "refusal" else []), case


@pytest.mark.parametrize("torch", [OLD, NEW])
def test_the_traced_reference_agrees_in_every_traced_case(torch: str) -> None:
    answers = answer(torch, "2", "reference", "aot_eager")
    assert len(answers) > 8
    assert {case: wrong for case, wrong in answers.items() if wrong} == {}


@pytest.mark.parametrize(("torch", "world_size"), [(OLD, "2"), (NEW, "4")])
def test_every_mutant_goes_wrong_where_it_should_and_nowhere_else(torch: str, world_size: str) -> None:
    answers = answer(torch, world_size, "mutants")
    assert set(answers) == {control.id for control in CONTROLS if "eager" in control.modes}
    for control in CONTROLS:
        if "eager" not in control.modes:
            continue
        name, case = implementation_of(control), CASES[control.case]
        expected = WRONG.get(name, {"grad/x"})
        told = case.dtype == "float64" and name not in NOT_TOLD
        said = set(answers[control.id])
        if name == "wrong_shape":
            assert said >= expected, control.id
        else:
            assert said == expected | ({"fd"} if told else set()), control.id
