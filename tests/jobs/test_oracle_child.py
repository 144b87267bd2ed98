"""The oracle's process: an oracle may differentiate, and does so in a fork of a process that has traced."""

from __future__ import annotations

import pytest

from service.cases import catalogue
from tests.jobs.inside import answer_of

OLD, NEW = "2.2.2-index", "2.11.0-index"

TIMES = 16
"""On torch 2.11 half of the children failed that did not renew their threads first."""


@pytest.mark.torch
@pytest.mark.parametrize("torch", [OLD, NEW])
def test_an_oracle_that_differentiates_never_fails_after_the_tracer_was_used(torch: str) -> None:
    case = catalogue().select(families=["model"])[0].id
    given = answer_of("tests/jobs/oracle_children.py", torch, case, str(TIMES), timeout=200)
    assert given == [given[0]] * TIMES
    assert given[0] > 0
