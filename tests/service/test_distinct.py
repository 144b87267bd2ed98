"""Every distinct fault once: what is one fault, where it is said to be, and in which order faults are told."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from service.diagnosis import Diagnosis
from service.distinct import DETAIL, distinct
from service.store import CellRow
from service.telling import TIMES
from service.wording import OUTSIDE

ZERO: dict[str, Any] = {
    "verdict": "zero_gradient",
    "signature": "zero: grad/x",
    "detail": "all of it is zero",
    "forward_ok": True,
}
RAISED: dict[str, Any] = {
    "verdict": "raised",
    "signature": "RuntimeError: f",
    "detail": "RuntimeError: f 3",
    "forward_ok": None,
}


def row(release: str, torch: str, mode: str = "eager", case: str = "a[x=1]", **more: Any) -> CellRow:
    values: dict[str, Any] = {"cell": 1, "job": 1, "state": "done", "subject": "deepspeed", "checkout": release}
    values |= {"label": f"deepspeed=={release}", "runtime": f"{torch}-index", "transport": "gloo", "world_size": 2}
    values |= {"version": 1, "family": "exchange", "channel": "release"}
    return CellRow(torch=torch, mode=mode, case=f"exchange/{case}", **{**values, **more})


def told(said: str) -> str:
    """A sentence without its example."""
    return said.partition(". For instance ")[0]


def seen(**tensors: str) -> Diagnosis:
    """A diagnosis of gradients in these states."""
    states: dict[str, tuple[str, ...]] = {}
    for name, state in tensors.items():
        states[state] = (*states.get(state, ()), name)
    return Diagnosis("what is wrong", "", "", None, None, "", states)


def test_one_fault_of_many_releases_and_versions_is_one_sentence_that_says_where() -> None:
    rows = [row(release, "2.11.0", **ZERO) for release in ("0.9.1", "0.10.0", "0.11.0")]
    rows += [row(release, torch, **ZERO) for release in ("0.10.0", "0.9.1") for torch in ("2.9.1", "2.10.0")]
    rows += [row("0.11.0", "2.9.1", verdict="agree"), row("0.11.0", "2.10.0", verdict=None)]
    rows += [row("0.9.1", "2.12.1", verdict="agree"), row("0.10.0", "2.12.1", verdict="agree")]
    assert distinct(rows) == [
        "zero gradient in exchange/a (eager; 2 ranks): deepspeed 0.9.1 and 0.10.0 on torch 2.9.1 to 2.11.0; "
        "deepspeed 0.11.0 on torch 2.11.0. "
        "For instance exchange/a[x=1], eager, 2 ranks, deepspeed==0.11.0 on torch 2.11.0: all of it is zero"
    ]


def test_everywhere_is_on_every_torch_that_can_import_the_release_and_one_is_named() -> None:
    rows = [row("0.9.1", torch, **ZERO) for torch in ("2.9.1", "2.11.0")] + [row("0.10.0", "2.11.0", **ZERO)]
    rows += [row("0.9.1", "2.2.2", verdict="unimportable"), row("0.10.0", "2.9.1", verdict="unimportable")]
    assert told(distinct(rows)[0]).endswith(
        ": deepspeed 0.9.1 on every torch that imports it; deepspeed 0.10.0 on torch 2.11.0"
    )


def test_the_example_is_the_smallest_case_of_the_newest_release_on_the_newest_torch() -> None:
    rows = [row(release, torch, **ZERO) for release in ("0.9.1", "0.10.0") for torch in ("2.10.0", "2.9.1")]
    rows += [row("0.11.0", "2.11.0", case="a[x=1,y=2]", **ZERO), row("0.11.0", "2.11.0", world_size=4, **ZERO)]
    (said,) = distinct(rows)
    assert "For instance exchange/a[x=1], eager, 2 ranks, deepspeed==0.10.0 on torch 2.10.0: " in said


def test_a_traced_call_s_own_fault_is_told_apart_from_one_that_the_eager_call_has_too() -> None:
    own = row("1", "2.11.0", "aot_eager", **ZERO)
    assert distinct([own])[0].startswith("zero gradient in traced exchange/a (aot_eager; 2 ranks): ")
    (both,) = distinct([own, row("1", "2.11.0", case="a[x=2]", **ZERO)])
    assert both.startswith("zero gradient in exchange/a (2 cases; eager, aot_eager; 2 ranks): ")


@pytest.mark.parametrize(
    ("change", "sentences"),
    [
        ({"verdict": "mismatch", "signature": "mismatch: grad/x"}, 2),
        ({"case": "exchange/b[x=1]"}, 2),
        ({"detail": OUTSIDE + "all of it"}, 2),
        ({"world_size": 4}, 1),
    ],
)
def test_what_makes_two_faults_of_two_cells_of_which_no_more_is_known(change: dict[str, Any], sentences: int) -> None:
    assert len(distinct([row("1", "2.11.0", **ZERO), row("1", "2.11.0", **{**ZERO, **change})])) == sentences


@pytest.mark.parametrize(
    ("one", "two", "faults"),
    [
        ({"x": "dead"}, {"x": "dead"}, 1),
        ({"x": "dead"}, {"y": "dead"}, 2),
        ({"x": "dead"}, {"x": "scaled"}, 2),
        ({"x": "dead", "y": "right"}, {"x": "dead", "y": "dead"}, 2),
        ({"x": "dead"}, {"x": "dead", "bias": "dead"}, 1),  # not every case has a bias
        ({"x": "dead", "moment/x": "dead"}, {"x": "dead", "moment/x": "wrong"}, 1),  # they follow from it
        ({"x": "scaled"}, {"x": "scaled by rank"}, 1),  # by which factors is the case's matter
        ({"x": "dead"}, {"x": "dead", "y": "too small to tell"}, 1),
    ],
)
def test_what_is_wrong_in_which_tensors_tells_faults_apart(
    one: dict[str, str], two: dict[str, str], faults: int
) -> None:
    rows = [row("1", "2.11.0", cell=1, **ZERO), row("1", "2.11.0", cell=2, case="a[x=2]", **ZERO)]
    assert len(distinct(rows, {1: seen(**one), 2: seen(**two)})) == faults


@pytest.mark.parametrize(
    ("verdict", "faults"),
    [
        ("agree", 2),  # mended for one case and not for the other: two faults
        ("mismatch", 2),
        ("agree_untraced", 1),  # the fault may be there, and was not met
        ("raised", 1),  # it may be hidden behind the error
        ("unsupported", 1),
        ("unimportable", 1),
    ],
)
def test_two_cases_that_are_mended_in_other_releases_have_two_faults(verdict: str, faults: int) -> None:
    other = row("2", "2.11.0", cell=4, case="a[x=2]", verdict=verdict, signature="e", forward_ok=None)
    rows = [row("1", "2.11.0", cell=1, **ZERO), row("2", "2.11.0", cell=2, **ZERO)]
    rows += [row("1", "2.11.0", cell=3, case="a[x=2]", **ZERO), other]
    zeros = dict.fromkeys((1, 2, 3), seen(x="dead"))
    said = distinct(rows, zeros | {4: seen(x="wrong")})
    assert sum(one.startswith("zero gradient in ") for one in said) == faults


def test_errors_are_told_apart_by_what_they_say_and_where() -> None:
    other = {**RAISED, "signature": "ValueError: g", "detail": "ValueError: g"}
    rows = [row("1", "2.11.0", **values) for values in (RAISED, RAISED, other)]
    assert len(distinct(rows)) == 2

    def at(line: int, case: str) -> CellRow:
        where = {"signature": "KeyError: k in ds/a.py f", "detail": f"KeyError: k, at ds/a.py:{line}, on every rank"}
        return row("1", "2.11.0", case=case, **{**RAISED, **where})

    # One place of the subject's is one fault whatever probe meets it; its functions of one name are not one place.
    (said,) = distinct([at(7, "a[x=1]"), at(7, "b[x=1]")])
    assert said.startswith("raised in exchange/a and exchange/b (2 cases; ")
    assert len(distinct([at(7, "a[x=1]"), at(9, "b[x=1]")])) == 2


def test_torchs_wordings_of_one_error_are_one_fault_and_crashes_are_told_by_their_last_words() -> None:
    wordings = [{**RAISED, "signature": f"{kind}: torch.cat(): no list"} for kind in ("RuntimeError", "ValueError")]
    assert (
        len(distinct([row("1", torch, **said) for torch, said in zip(("2.8.0", "2.9.1"), wordings, strict=True)])) == 1
    )
    crash: dict[str, Any] = {"verdict": "crash", "signature": "crash in forward", "detail": "rank 0 died"}
    rows = [row("1", "2.11.0", cell=n, case=f"a[x={n}]", **crash) for n in (1, 2, 3)]

    def words(said: str) -> Diagnosis:
        return Diagnosis(f"rank 0 died; last words: {said}", "", "", None, None, "")

    assert len(distinct(rows, {1: words("8 vs 4"), 2: words("6 vs 2"), 3: words("no socket")})) == 2


def test_scaled_gradients_say_their_factor_where_it_is_one() -> None:
    scaled: list[dict[str, Any]] = [
        {"verdict": "scaled", "signature": f"scaled by {by}: grad/x", "detail": f"{by} times"} for by in (2, 4)
    ]
    rows = [row("1", "2.11.0", cell=n, case=f"a[x={n}]", **values) for n, values in enumerate(scaled)]
    states = {n: seen(x="scaled") for n in (0, 1)}
    (both,) = distinct(rows, states)
    assert both.startswith("scaled gradient in exchange/a (2 cases; ")
    assert distinct(rows[:1], states)[0].startswith(f"scaled gradient {TIMES}2 in exchange/a")


def test_silent_ones_come_first_and_then_what_there_is_most_of() -> None:
    loud = [row("1", torch, **RAISED) for torch in ("2.9.1", "2.10.0", "2.11.0")]
    other = {**RAISED, "signature": "ValueError: g", "detail": "ValueError: g"}
    wrong = row("1", "2.11.0", verdict="forward_mismatch", signature="forward: y", detail="off", forward_ok=False)
    noticed = [row("1", "2.11.0", **{**ZERO, "verdict": "permuted", "forward_ok": False})] * 2
    said = distinct([row("1", "2.11.0", **other), *loud, wrong, *noticed, row("1", "2.11.0", **ZERO)])
    whats = [sentence.partition(" in ")[0] for sentence in said]
    assert whats == ["zero gradient", "permuted gradient", "wrong forward", "raised", "raised"]
    assert ["RuntimeError" in sentence for sentence in said[3:]] == [True, False]


def test_an_import_is_of_every_case_and_a_long_detail_is_cut() -> None:
    failed: dict[str, Any] = {"verdict": "unimportable", "signature": "ImportError: f", "detail": "x" * (DETAIL + 1)}
    rows = [row("1", "2.2.2", case=case, **failed) for case in ("a[x=1]", "b[x=1]")]
    assert distinct(rows) == [f"not importable: deepspeed 1 on torch 2.2.2 ({'x' * (DETAIL - 1)}…)"]


def test_of_many_clauses_as_many_are_told_as_there_is_room_for() -> None:
    said = dataclasses.replace(seen(x="dead"), what="; ".join(["x is wrong" + "!" * 90] * 5))
    (text,) = distinct([row("1", "2.11.0", **ZERO)], {1: said})
    assert text.endswith("x is wrong" + "!" * 90 + "…")
    assert text.count("x is wrong") == 3


def test_other_tensors_that_are_wrong_as_well_are_left_to_the_cell() -> None:
    detail = "gradient of k is zero; also wrong: q (zero gradient)"
    assert distinct([row("1", "2.11.0", **{**ZERO, "detail": detail})])[0].endswith(": gradient of k is zero")
