"""What was asked for: kept as words, checked, and refused where a part of it would silently not run."""

from __future__ import annotations

from pathlib import Path

import pytest

from service import catalog
from service.config import Settings
from service.errors import UsageError
from service.order import Wanted, check
from tests.support.stored import checkout

OVER_NCCL = "attention/distributed[layout=bshd,heads=squared,kv=same,dtype=float32,causal=yes,overlap=stream]"


def wanted(*cases: str) -> Wanted:
    return Wanted(subjects=("deepspeed==0.18.3",), torch=("2.11.0",), modes=("eager",), cases=cases)


@pytest.mark.parametrize(
    ("case", "said"),
    [(OVER_NCCL, "they exist over nccl,"), ("loss/aggregate[recipe=weighted_all_reduce,*sp=2]", "at world size 4, 8")],
)
def test_a_case_that_is_named_and_cannot_run_here_is_an_error_beside_others_that_can(
    tmp_path: Path, case: str, said: str
) -> None:
    settings = Settings(home=tmp_path)
    runtimes = catalog.load(settings).select(["2.11.0"])
    order = check(wanted("dim0", case), settings, ("gloo",))
    with pytest.raises(UsageError, match=r"nothing to run for .* over gloo in mode eager at world size 2") as refused:
        order.plan([checkout("deepspeed==1")], runtimes)
    assert said in str(refused.value)
    assert check(wanted("dim0"), settings, ("gloo",)).plan([checkout("deepspeed==1")], runtimes).cells > 0


def test_words_are_kept_as_they_were(tmp_path: Path) -> None:
    asked = Wanted(subjects=("torch",), torch=("all",), suite="full", exclude=({"mode": "eager", "world_size": 2},))
    assert Wanted.from_json(asked.to_json()) == asked
