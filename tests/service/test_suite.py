"""What the default suite runs: eager everything everywhere, traced as little as shows every value once."""

from __future__ import annotations

import dataclasses
from collections import defaultdict

import pytest

from jobs.contract import SUITES, CaseInfo
from service.cases import catalogue
from service.suite import default_cells, showing

SIZES = (2, 4, 8)
DEFAULT = [case for case in catalogue().cases if case.suite == SUITES[0]]
CASES = {case.id: case for case in DEFAULT}
CELLS = default_cells(catalogue().cases, SIZES)


def one(name: str, family: str = "attention", suite: str = "default", sp: int = 0, **params: str) -> CaseInfo:
    modes = ("eager", "aot_eager")
    return CaseInfo(f"{family}/probe[{name}]", 1, family, "probe", params, modes, "float32", sp=sp, suite=suite)


def traced(cases: list[CaseInfo], *sizes: int) -> dict[int, set[str]]:
    found: dict[int, set[str]] = defaultdict(set)
    for case, mode, size in default_cells(cases, sizes):
        if mode == "aot_eager":
            found[size].add(case.partition("[")[2][:-1])
    return dict(found)


def test_every_case_of_the_suite_and_no_other_runs_eager_at_every_size_that_holds_it() -> None:
    eager = {(case, size) for case, mode, size in CELLS if mode == "eager"}
    assert eager == {(case.id, size) for case in DEFAULT for size in SIZES if case.runs_at(size)}


def test_every_value_that_a_traced_case_has_is_traced_once_at_least() -> None:
    for mode in ("aot_eager", "inductor"):
        there = {value for case in DEFAULT if mode in case.modes for value in values(case)}
        run = {value for case, its, _ in CELLS if its == mode for value in values(CASES[case])}
        assert run == there


def values(case: CaseInfo) -> set[tuple[str, str, str]]:
    return {(case.id.partition("[")[0], axis, value) for axis, value in case.params.items()}


def test_traced_calls_run_at_the_smallest_size_and_exchanges_at_the_others_too() -> None:
    cases = [one("a", batch="1"), one("b", batch="1"), one("c", batch="2")]
    assert traced(cases, 4, 2) == {2: {"a", "c"}}
    assert traced(cases, 4) == {4: {"a", "c"}}
    exchanges = [one("a", "exchange", batch="1"), one("c", "exchange", batch="2")]
    assert traced(exchanges, 2, 4, 8) == {2: {"a", "c"}, 4: {"a"}, 8: {"a"}}


def test_a_case_that_needs_more_ranks_is_traced_at_its_own_smallest_size() -> None:
    cases = [one("a", batch="1"), one("b", batch="1", sub="2", sp=2)]
    assert traced(cases, 2, 4, 8) == {2: {"a"}, 4: {"b"}}


def test_the_family_that_explains_the_others_runs_whole() -> None:
    cases = [one("a", "torch-itself", batch="1"), one("b", "torch-itself", batch="1")]
    assert traced(cases, 2, 4) == {2: {"a", "b"}, 4: {"a", "b"}}


def test_the_full_suite_s_own_cases_are_left_out() -> None:
    assert traced([one("a", suite="full")], 2) == {}


@pytest.mark.parametrize(
    ("each", "chosen"),
    [
        ([{"a": "1"}, {"a": "1"}], [0]),
        ([{"a": "1", "b": "1"}, {"a": "2", "b": "1"}, {"a": "2", "b": "2"}], [0, 2]),
        ([{"a": "1", "b": "1"}, {"a": "2", "b": "1"}, {"a": "3", "b": "2"}], [0, 2, 1]),
        ([], []),
    ],
)
def test_few_cases_show_every_value(each: list[dict[str, str]], chosen: list[int]) -> None:
    cases = [dataclasses.replace(one(str(number)), params=params) for number, params in enumerate(each)]
    assert showing(cases) == [cases[number] for number in chosen]
