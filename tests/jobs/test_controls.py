"""What holds for the controls of every family."""

from __future__ import annotations

import pytest

from jobs import probes
from jobs.contract import SUITES
from service.verdicts import Verdict

CASES = {case.id: case for case in probes.catalogue()}
CONTROLS = probes.controls()


def test_their_ids_are_unique() -> None:
    assert len({control.id for control in CONTROLS}) == len(CONTROLS)


@pytest.mark.parametrize("family", probes.FAMILIES)
def test_they_stand_on_cases_of_their_mode_and_expect_known_verdicts(family: str) -> None:
    mine = [control for control in CONTROLS if control.family == family]
    assert mine
    for control in mine:
        assert CASES[control.case].family == family
        assert set(control.modes) <= set(CASES[control.case].modes)
        assert control.expected
        assert set(control.expected) <= {verdict.value for verdict in Verdict}
        assert control.suite in SUITES
