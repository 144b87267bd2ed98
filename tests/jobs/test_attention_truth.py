"""The attention family on real ranks: the oracle against a second formulation, our reference, and our mutants."""

from __future__ import annotations

from typing import Any

import pytest

from jobs import probes
from jobs.probes.control import implementation_of
from tests.jobs.inside import answer_of

pytestmark = pytest.mark.torch
TORCHES = ("2.2.2-index", "2.11.0-index")
EVERY_GRADIENT = {"grad/q", "grad/k", "grad/v"}
WRONG = {
    "reference": set(),
    "zeroed": {"grad/k", "grad/v"},
    "times_ranks": {"grad/v"},
    "part_dropped": {"grad/k"},
    "rank_dropped": {"grad/v"},
    "stale": {"grad/v"},
    "not_a_number": {"grad/k"},
    "detached": {"grad/k"},
    "not_sent_back": EVERY_GRADIENT,
    "replica_dropped": {"grad/k", "grad/v"},
    "wrong_shape": {"output/y"},
    "forward_permuted": {"output/y"},
    "input_mutated": {"input/v"},
    "cotangent_mutated": {"cotangent/w"},
    "unmasked": EVERY_GRADIENT | {"output/y"},
    "own_tokens": EVERY_GRADIENT | {"output/y"},
    "groups_shifted": EVERY_GRADIENT | {"output/y"},
}
"""What each control gets wrong; the queries' gradient where nothing is said."""


def answer(torch: str, *arguments: str) -> Any:
    return answer_of("tests/jobs/attention_ranks.py", torch, *arguments, timeout=300)


def wrong_in(answers: dict[str, Any]) -> dict[str, Any]:
    return {name: said for name, said in answers.items() if said}


@pytest.mark.parametrize(("world_size", "cases"), [("2", 85), ("4", 15)])
def test_the_oracle_equals_attention_row_by_row_with_derivatives_by_hand(world_size: str, cases: int) -> None:
    answers = answer("2.11.0-index", world_size, "rows")
    assert len(answers) > cases
    assert wrong_in(answers) == {}


def test_the_oracles_derivatives_are_those_of_its_outputs() -> None:
    answers = answer("2.11.0-index", "2", "slopes")
    assert {name.partition("[")[0] for name in answers} == {
        f"attention/{p}" for p in ("distributed", "ulysses_hf", "fpdt")
    }
    assert all(answers.values())


def test_attention_by_chunks_is_that_of_its_tokens_in_order() -> None:
    assert answer("2.11.0-index", "2", "chunked") == {
        case.id: [] for case in probes.catalogue() if case.probe == "fpdt"
    }


@pytest.mark.parametrize(("torch", "world_size"), [("2.2.2-index", "4"), ("2.11.0-index", "2")])
def test_an_attention_of_our_own_agrees_in_every_case(torch: str, world_size: str) -> None:
    answers = answer(torch, world_size, "reference")
    assert len(answers) > 85
    assert wrong_in(answers) == {}


def test_a_public_report_of_wrong_gradients_compared_with_another_layout() -> None:
    """DeepSpeed #7842: 5 tokens on each of 2 ranks, [5, 8, 8, 64] per rank, and gradients that differ by order 1.

    The baseline was an attention that takes batch and heads first, called on tensors with tokens first. An attention of
    our own agrees with the truth on that very size (the test above), while such a baseline is as wrong as reported.
    """
    ((name, off),) = answer("2.11.0-index", "2", "baseline").items()
    assert "heads=eight" in name
    assert off > 0.5


@pytest.mark.parametrize("torch", TORCHES)
def test_the_reference_for_tracers_agrees_when_it_is_traced(torch: str) -> None:
    answers = answer(torch, "2", "traced")
    assert len(answers) == 1
    assert wrong_in(answers) == {}


@pytest.mark.parametrize(("torch", "world_size"), [("2.2.2-index", "2"), ("2.11.0-index", "4")])
def test_every_mutant_goes_wrong_where_it_should_and_nowhere_else(torch: str, world_size: str) -> None:
    answers = answer(torch, world_size, "mutants")
    here = [one for one in probes.controls() if one.id in answers]
    assert len(here) > 80
    for control in here:
        expected = WRONG.get(implementation_of(control), {"grad/q"})
        # Where one of forward and backward is wrong and the other is not, they contradict each other.
        assert set(answers[control.id]) - {"fd"} == expected, control.id
