"""The family of AutoSP on real ranks: the oracle against other formulations, our own operators, and mutants of them."""

from __future__ import annotations

from typing import Any

import pytest

from jobs import probes
from jobs.probes.autosp.controls import MUTANTS
from jobs.probes.control import implementation_of
from tests.jobs.inside import answer_of

pytestmark = pytest.mark.torch


def answer(torch: str, *arguments: str) -> Any:
    return answer_of("tests/jobs/autosp_ranks.py", torch, *arguments, timeout=300)


@pytest.mark.parametrize("world_size", ["2", "4"])
def test_the_oracle_equals_loops_over_indices_and_a_model_that_was_never_rewritten(world_size: str) -> None:
    answers = answer("2.11.0-index", world_size, "whole")
    assert len(answers) >= 24
    assert {name: wrong for name, wrong in answers.items() if wrong} == {}


@pytest.mark.parametrize(("torch", "world_size"), [("2.2.2-index", "4"), ("2.11.0-index", "2")])
def test_operators_of_our_own_agree_in_every_case(torch: str, world_size: str) -> None:
    answers = answer(torch, world_size, "reference")
    assert len(answers) >= 15
    assert {name: wrong for name, wrong in answers.items() if wrong} == {}


def test_the_reference_for_tracers_agrees_when_it_is_traced() -> None:
    assert list(answer("2.11.0-index", "2", "traced").values()) == [[]]


def test_every_mutant_goes_wrong_in_its_gradient_and_nowhere_else() -> None:
    answers = answer("2.11.0-index", "4", "mutants")
    here = [one for one in probes.controls() if one.id in answers and implementation_of(one) in MUTANTS]
    assert len(here) > 35
    for control in here:
        assert "grad" in answers[control.id], control.id
        # The model's losses in sixteen bits are judged by their noise elsewhere.
        rounded = {"output"} if control.id.startswith("autosp/pass") and "bfloat16" in control.id else set()
        assert set(answers[control.id]) <= {"grad", "fd"} | rounded, control.id
