"""A mean over nothing is not a number in the dense form; a case may accept zero as well, and says so."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from jobs.contract import CaseInfo
from service.judge import Judgement, judge
from service.policy import load_policy
from service.verdicts import Verdict
from tests.workers.matter import a_case, evidence_of, raw

DENSE = a_case(id="tiled/loss[dtype=float32]", family="tiled", exact=False)
EITHER = dataclasses.replace(DENSE, accepts="oracle or zero")
NAN, ZERO, ZEROS = np.array(np.nan), np.array(0.0), np.zeros((2, 4))


def judged(case: CaseInfo, y: Any, x: Any, dtype: str = "float32") -> Judgement:
    right = [{("output", "y"): raw(NAN, "float64"), ("grad", "x"): raw(ZEROS, "float64")}]
    sent = [{("output", "y"): raw(y, dtype), ("grad", "x"): raw(x, dtype)}]
    return judge(evidence_of(sent, right, case), case, load_policy())


@pytest.mark.parametrize("y", [NAN, ZERO])
def test_not_a_number_and_zero_are_both_right_where_the_case_accepts_zero(y: Any) -> None:
    said = judged(EITHER, y, ZEROS)
    assert (said.verdict, said.forward_ok) == (Verdict.AGREE, True)


def test_without_the_acceptance_zero_is_a_wrong_forward() -> None:
    assert judged(DENSE, NAN, ZEROS).verdict is Verdict.AGREE
    assert judged(DENSE, ZERO, ZEROS).verdict is Verdict.FORWARD_MISMATCH


@pytest.mark.parametrize("y", [NAN, ZERO])
def test_a_gradient_that_is_not_a_number_is_accepted_beside_neither(y: Any) -> None:
    assert judged(EITHER, y, ZEROS * np.nan).verdict is Verdict.MISMATCH


def test_any_other_number_is_wrong() -> None:
    assert judged(EITHER, np.array(1e-3), ZEROS).verdict is Verdict.FORWARD_MISMATCH
    assert judged(EITHER, ZERO, ZEROS + 1e-3).verdict is Verdict.MISMATCH


def test_zero_in_another_shape_is_a_wrong_shape() -> None:
    assert judged(EITHER, np.zeros(2), ZEROS).verdict is Verdict.WRONG_SHAPE
