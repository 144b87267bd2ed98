"""The exchange family on real ranks: oracle against plain loops, our reference and mutants, and a second subject."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from jobs import probes
from jobs.probes.control import implementation_of
from tests.jobs.inside import answer_of

pytestmark = pytest.mark.torch
ROOT = Path(__file__).parents[2]
TORCHES = ("2.2.2-index", "2.11.0-index")
OF_FORWARD = {
    "wrong_shape": {"output"},
    "forward_permuted": {"output", "fd"},
    "input_mutated": {"input"},
    "cotangent_mutated": {"cotangent"},
    "reference": set(),
}
"""What goes wrong where it is not the gradient: that goes together with the central difference beside it."""


def answer(torch: str, *arguments: str, program: str = "tests/jobs/exchange_ranks.py") -> Any:
    return answer_of(program, torch, *arguments, timeout=120)


@pytest.mark.parametrize("torch", TORCHES)
def test_values_are_the_same_in_every_torch_and_exact_in_every_type(torch: str, tmp_path: Path) -> None:
    program = tmp_path / "values.py"
    program.write_text(
        "import json, torch\n"
        "from jobs.values import dyadic\n"
        "kinds = (torch.float64, torch.float32, torch.float16, torch.bfloat16)\n"
        "print(json.dumps([(dyadic('a key', (5, 40), kind).double() * 16).flatten().tolist() for kind in kinds]))\n"
    )
    drawn = random.Random("a key").getrandbits(8 * 200)
    expected = []
    for index in range(200):
        byte = drawn >> 8 * index & 255
        expected.append((1 if byte < 128 else -1) * (byte % 128 or 127))
    assert answer(torch, program=str(program)) == [expected] * 4


@pytest.mark.parametrize("world_size", ["2", "4", "8"])
def test_the_oracle_equals_a_formulation_in_plain_loops(world_size: str) -> None:
    answers = answer("2.11.0-index", world_size, "loops")
    assert len(answers) > 60
    assert {case: wrong for case, wrong in answers.items() if wrong} == {}


@pytest.mark.parametrize("torch", TORCHES)
@pytest.mark.parametrize("world_size", ["2", "4"])
def test_an_exchange_of_our_own_agrees_in_every_case(torch: str, world_size: str) -> None:
    answers = answer(torch, world_size, "reference")
    assert len(answers) >= 50
    assert {case: wrong for case, wrong in answers.items() if wrong} == {}


@pytest.mark.parametrize("torch", TORCHES)
@pytest.mark.parametrize("world_size", ["2", "8"])
def test_every_mutant_goes_wrong_where_it_should_and_nowhere_else(torch: str, world_size: str) -> None:
    answers = answer(torch, world_size, "mutants")
    here = [one for one in probes.controls() if one.id in answers]
    assert len(here) >= 39
    for control in here:
        expected = OF_FORWARD.get(implementation_of(control), {"grad", "fd"})
        assert set(answers[control.id]) == expected, control.id


@pytest.mark.parametrize("torch", TORCHES)
def test_a_subject_of_another_shape_is_probed_through_its_own_adapter(torch: str) -> None:
    answers = answer(torch, "4", str(ROOT / "tests/data/tinysp"))
    for case in [case for case in probes.catalogue() if case.id in answers]:
        if case.probe in ("dim0", "single_all_to_all"):
            expected: Any = "unsupported: tinysp has no exchange"
        elif "uneven" in (case.params["before"], *case.params["heads"].split("_")):
            expected = "unsupported: tinysp.deal_heads deals out even heads only"
        else:
            expected = "refused" if case.expect == "refusal" else []
        got = answers[case.id]
        assert got == expected or (isinstance(expected, str) and str(got).startswith(expected)), case.id
