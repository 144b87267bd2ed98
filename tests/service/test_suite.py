"""What the default suite runs: every pair of values eagerly, every value traced, and at every size."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from jobs.contract import SUITES, CaseInfo
from service.cases import catalogue
from service.suite import WHOLE, covering, default_cases, default_cells, pairs, values

SIZES = (2, 4, 8)
Things = Callable[[CaseInfo], set[Any]]
ALL = catalogue().cases
DEFAULT = [case for case in ALL if case.suite == SUITES[0]]
CASES = {case.id: case for case in ALL}
CELLS = default_cells(default_cases(ALL), SIZES)


def one(name: str, family: str = "attention", suite: str = "default", sp: int = 0, **params: str) -> CaseInfo:
    modes = ("eager", "aot_eager")
    return CaseInfo(f"{family}/probe[{name}]", 1, family, "probe", params, modes, "float32", sp=sp, suite=suite)


def traced(cases: list[CaseInfo], *sizes: int) -> dict[int, set[str]]:
    found: dict[int, set[str]] = defaultdict(set)
    for case, mode, size in default_cells(cases, sizes):
        if mode == "aot_eager":
            found[size].add(case.partition("[")[2][:-1])
    return dict(found)


def of(mode: str, size: int | None = None) -> list[CaseInfo]:
    """The cases that run in a mode, at one size or any."""
    return [CASES[case] for case, its, at in CELLS if its == mode and size in (None, at)]


def everything(cases: Iterable[CaseInfo], things: Things) -> set[tuple[str, Any]]:
    return {(case.id.partition("[")[0], thing) for case in cases for thing in things(case)}


def test_every_two_values_that_any_affordable_case_has_together_are_had_together_by_an_eager_one() -> None:
    affordable = [case for case in ALL if case.suite == SUITES[0] or case.compiles != "inductor"]
    assert everything(of("eager"), pairs) == everything(affordable, pairs)


def test_what_people_chose_runs_at_its_smallest_size_and_has_every_value_again_at_every_other() -> None:
    assert {case.id for case in DEFAULT if case.runs_at(2)} <= {case.id for case in of("eager", 2)}
    for size in SIZES:
        held = [case for case in DEFAULT if case.runs_at(size)]
        assert everything(held, values) <= everything(of("eager", size), values)


def test_few_cases_run_at_the_further_sizes() -> None:
    again = {case.id for case in of("eager", 8) if case.family not in WHOLE}
    assert len(again) < len({case.id for case in of("eager", 2) if case.family not in WHOLE}) / 2


def test_every_value_that_a_chosen_case_has_traced_is_traced_once_at_least() -> None:
    for mode in ("aot_eager", "inductor"):
        there = everything([case for case in DEFAULT if mode in case.modes], values)
        assert everything(of(mode), values) == there


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


def test_of_the_full_suite_there_is_what_completes_the_pairs_and_it_is_not_traced() -> None:
    cases = [
        one("a", batch="1", heads="1"),
        one("b", batch="2", heads="2"),
        one("c", batch="1", heads="2", suite="full"),
        one("d", batch="2", heads="2", suite="full"),
    ]
    kept = default_cases(cases)
    assert [case.params for case in kept] == [case.params for case in cases[:3]]
    assert traced(list(kept), 2) == {2: {"a", "b"}}
    eager = {(case.partition("[")[2][:-1], size) for case, mode, size in default_cells(kept, (2, 4)) if mode == "eager"}
    assert eager == {(name, 2) for name in "abc"} | {("a", 4), ("b", 4)}


def test_what_follows_from_other_parameters_is_no_axis() -> None:
    assert values(one("a", batch="1", effective="float32")) == {("batch", "1")}


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
    assert covering(cases, values) == [cases[number] for number in chosen]
