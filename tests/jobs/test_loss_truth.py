"""The loss family on real ranks: oracle against plain loops, our reference and mutants, and the stand-in for NCCL."""

from __future__ import annotations

import json
from typing import Any

import pytest

from jobs import probes
from jobs.probes.control import implementation_of
from tests.jobs.inside import answer_of

pytestmark = pytest.mark.torch
OLD, NEW = "2.2.2-index", "2.11.0-index"
CASES = {case.id: case for case in probes.catalogue() if case.family == "loss"}
OF_FORWARD = {
    "wrong_shape": {"output"},
    "input_mutated": {"input"},
    "last_left_out": {"output", "grad"},
    "mean_of_means": {"output", "grad"},
    "boundary_dropped": {"output", "grad"},
    "unshifted": {"output", "grad"},
    "reference": set(),
    "traced_reference": set(),
}
"""What goes wrong where it is not the gradient alone, and the central difference beside it."""


def answer(torch: str, *arguments: str) -> Any:
    return answer_of("tests/jobs/loss_ranks.py", torch, *arguments, timeout=240)


@pytest.mark.parametrize("world_size", ["2", "4"])
def test_the_oracle_equals_plain_loops_and_their_central_differences(world_size: str) -> None:
    answers = answer(NEW, world_size, "loops")
    known = {case.id for case in CASES.values() if case.expect == "values" and case.runs_at(int(world_size))}
    assert known - set(answers) == {"loss/aggregate[recipe=own,reduction=mean,tokens=none,dtype=float32,loss=sum]"}
    assert {case: wrong for case, wrong in answers.items() if wrong} == {}


@pytest.mark.parametrize(("torch", "world_size"), [(OLD, "2"), (NEW, "4")])
def test_a_loss_of_our_own_agrees_in_every_case(torch: str, world_size: str) -> None:
    answers = answer(torch, world_size, "reference")
    assert len(answers) >= 50
    for case, wrong in answers.items():
        # Of a loss in the hundreds, float32 leaves no step whose difference is as near as is asked here.
        huge = CASES[case].params.get("size") == "huge"
        assert wrong == [] or (huge and wrong == ["fd"]), case


@pytest.mark.parametrize(("torch", "world_size"), [(OLD, "4"), (NEW, "2")])
def test_every_mutant_goes_wrong_where_it_should_and_nowhere_else(torch: str, world_size: str) -> None:
    answers = answer(torch, world_size, "mutants")
    here = [one for one in probes.controls() if one.id in answers and CASES[one.case].dtype in ("float32", "float64")]
    assert len(here) >= 50
    for control in here:
        wrong = set(answers[control.id]) - {"fd", "not a number"}
        assert wrong == OF_FORWARD.get(implementation_of(control), {"grad"}), control.id


@pytest.mark.parametrize("torch", [OLD, NEW])
def test_the_traced_references_agree(torch: str) -> None:
    answers = answer(torch, "2", "mutants", "aot_eager")
    assert len(answers) >= 2
    assert not any(answers.values())


def test_gathers_like_nccl_compare_no_shapes_and_take_any_size() -> None:
    (said,) = set(answer(NEW, "2", "gathers").values())
    assert json.loads(said.removeprefix("raised RuntimeError: ")) == [[5, 6], [0.0, 4.0], [0.0, 1.0]]
