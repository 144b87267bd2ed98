from __future__ import annotations

import json
from dataclasses import replace

from jobs.contract import CaseInfo, ControlInfo
from tests.workers.cli.conftest import Gradmatrix
from workers.cli.cases import case_lines, control_lines


def test_cases_are_listed_with_modes_worlds_version_and_summary(gradmatrix: Gradmatrix) -> None:
    status, out, _ = gradmatrix("cases", "exchange/dim0[dtype=float32,loss=square]")
    lines = out.splitlines()
    assert status == 0
    assert lines[0] == "exchange/dim0[dtype=float32,loss=square]"
    assert any("eager, aot_eager, inductor · 2, 4, 8 ranks · version 1" in line for line in lines)
    assert lines[-1] == "1 case"


def test_the_json_is_what_jobs_says(gradmatrix: Gradmatrix) -> None:
    status, out, _ = gradmatrix("cases", "--json", "-")
    data = json.loads(out)
    assert status == 0
    cases = [CaseInfo.from_json(item) for item in data["cases"]]
    assert {case.family for case in cases} >= {"exchange"}
    assert [ControlInfo.from_json(item) for item in data["controls"]]


def test_an_unknown_glob_names_the_nearest(gradmatrix: Gradmatrix) -> None:
    status, out, err = gradmatrix("cases", "exchange/dim9")
    assert (status, out) == (2, "")
    assert "did you mean exchange/dim0" in err


def test_a_case_says_its_groups_its_convention_and_that_a_refusal_is_due() -> None:
    info = CaseInfo("x/y", 3, "x", "y", {}, ("eager",), "float64", sp=2, expect="refusal", scale=0.5, summary="S.")
    assert [line.plain for line in case_lines(info, usual=True)] == [
        "x/y",
        "    S.",
        "    eager · groups of 2 in 4, 8 ranks · version 3 · outside the contract: must be refused · "
        "the convention scales the gradient by 0.5",
    ]
    assert " · suite full" in case_lines(replace(info, suite="full"), usual=False)[-1].plain
    assert "default suite eagerly, for pairs" in case_lines(replace(info, suite="full"), usual=True)[-1].plain


def test_a_control_says_what_it_must_be() -> None:
    mutant = ControlInfo("x/zeroed", "x", "x/y", ("eager",), ("zero_gradient", "partial_zero"), "Zero.")
    assert [line.plain for line in control_lines(mutant)] == [
        "control x/zeroed must be caught as zero_gradient or partial_zero",
        "    Zero.",
    ]
    right = ControlInfo("x/right", "x", "x/y", ("eager",), ("agree",))
    assert [line.plain for line in control_lines(right)] == ["control x/right must agree"]
