"""What the default suite runs: every pair of values eagerly, every value traced, and at every size."""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from jobs.contract import SUITES, CaseInfo
from service.cases import catalogue
from service.suite import WHOLE, covering, default_cases, default_cells, pairs, showing, values

SIZES = (2, 4, 8)
Things = Callable[[CaseInfo], set[Any]]
ALL = catalogue().cases
DEFAULT = [case for case in ALL if case.suite == SUITES[0]]
CASES = {case.id: case for case in ALL}
CELLS = default_cells(default_cases(ALL), SIZES)


def one(name: str, family: str = "attention", suite: str = "default", sp: int = 0, **params: str) -> CaseInfo:
    modes = ("eager", "aot_eager")
    return CaseInfo(f"{family}/probe[{name}]", 1, family, "probe", params, modes, "float32", sp=sp, suite=suite)


def planned(cases: Iterable[CaseInfo], mode: str, *sizes: int) -> dict[int, set[str]]:
    found: dict[int, set[str]] = defaultdict(set)
    for case, its, size in default_cells(cases, sizes):
        if its == mode:
            found[size].add(case.partition("[")[2][:-1])
    return dict(found)


def traced(cases: Iterable[CaseInfo], *sizes: int) -> dict[int, set[str]]:
    return planned(cases, "aot_eager", *sizes)


def eager(cases: Iterable[CaseInfo], *sizes: int) -> dict[int, set[str]]:
    return planned(cases, "eager", *sizes)


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
        held = [case for case in DEFAULT if case.runs_at(size) and not (case.compiles and case.runs_at(SIZES[0]))]
        assert everything(held, values) <= everything(of("eager", size), values)


def test_a_value_that_an_answer_can_show_is_not_left_to_a_refusal_at_any_size() -> None:
    for size in SIZES:
        held = [case for case in DEFAULT if case.runs_at(size) and not (case.compiles and case.runs_at(SIZES[0]))]
        answers = [case for case in held if case.expect == "values"]
        there = [case for case in of("eager", size) if case.expect == "values"]
        assert everything(answers, values) <= everything(there, values)


def test_what_is_there_for_its_pairs_runs_once() -> None:
    for sizes in ((2,), (2, 4), SIZES):
        counted = Counter(case for case, mode, _ in default_cells(default_cases(ALL), sizes) if mode == "eager")
        own = [case for case in default_cases(ALL) if case.family not in WHOLE and case.suite != SUITES[0]]
        assert {counted[case.id] for case in own if any(map(case.runs_at, sizes))} == {1}


def test_few_cases_run_at_the_further_sizes() -> None:
    own = {case.id for case in ALL if case.family not in WHOLE}
    counted = Counter(size for case, _, size in default_cells(default_cases(ALL), (2, 4)) if case in own)
    assert counted[4] < counted[2] / 2


def test_what_a_compiler_runs_is_not_compiled_again_at_a_further_size() -> None:
    for case in (case for case in ALL if case.compiles and case.runs_at(2)):
        assert {size for ident, _, size in CELLS if ident == case.id} <= {2}


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
    assert eager(kept, 2) == {2: {"a", "b", "c"}}
    assert eager(kept, 2, 4) == {2: {"a", "b", "c"}, 4: {"a", "b"}}  # c has no value at 4 ranks that a and b lack


def test_what_is_there_for_its_pairs_runs_where_it_has_values_to_show_instead_of_a_chosen_case() -> None:
    cases = [
        one("a", batch="1", heads="1", kv="1"),
        one("b", batch="2", heads="1", kv="1"),
        one("c", batch="1", heads="2", kv="1"),
        one("d", batch="2", heads="2", kv="1", suite="full"),
    ]
    assert eager(cases, 2, 4) == {2: {"a", "b", "c"}, 4: {"a", "d"}}
    assert eager(cases, 2, 4, 8) == {2: {"a", "b", "c"}, 4: {"a", "b", "c"}, 8: {"a", "d"}}
    refused = [*cases[:3], dataclasses.replace(cases[3], expect="refusal")]
    assert eager(refused, 2, 4) == {2: {"a", "b", "c", "d"}, 4: {"a", "b", "c"}}


def test_a_refusal_shows_what_no_answer_does() -> None:
    answer, refusal = one("a", batch="1"), dataclasses.replace(one("b", batch="1", heads="few"), expect="refusal")
    shows = showing([answer, refusal])
    assert shows(answer) == {("batch", "1")}
    assert shows(refusal) == {("heads", "few")}
    assert shows(one("c", batch="1", heads="few", kv="1")) == {("batch", "1"), ("heads", "few")}


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
