"""Every distinct fault once: what is one fault, where it is said to be, and in which order faults are told."""

from __future__ import annotations

from typing import Any

import pytest

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


def test_one_fault_of_many_releases_and_versions_is_one_sentence_that_says_where() -> None:
    rows = [row(release, "2.11.0", **ZERO) for release in ("0.9.1", "0.10.0", "0.11.0")]
    rows += [row(release, torch, **ZERO) for release in ("0.10.0", "0.9.1") for torch in ("2.9.1", "2.10.0")]
    rows += [row("0.11.0", "2.9.1", verdict="agree"), row("0.11.0", "2.10.0", verdict=None)]
    assert distinct(rows) == [
        "zero gradient in exchange/a (eager; 2 ranks): "
        "deepspeed==0.9.1 and deepspeed==0.10.0 on torch 2.9.1 and 2.10.0; "
        "deepspeed==0.9.1 to deepspeed==0.11.0 on torch 2.11.0 (all of it is zero)"
    ]


def test_a_traced_call_s_own_fault_is_told_apart_from_one_that_the_eager_call_has_too() -> None:
    own = row("1", "2.11.0", "aot_eager", **ZERO)
    assert distinct([own])[0].startswith("zero gradient in traced exchange/a (aot_eager; 2 ranks): ")
    (both,) = distinct([own, row("1", "2.11.0", case="a[x=2]", **ZERO)])
    assert both.startswith("zero gradient in exchange/a (2 cases; eager, aot_eager; 2 ranks): ")


@pytest.mark.parametrize(
    ("change", "sentences"),
    [
        ({"signature": "zero: grad/y"}, 1),  # which tensor is for the cell to say
        ({"verdict": "no_gradient"}, 2),
        ({"case": "exchange/b[x=1]"}, 2),
        ({"detail": OUTSIDE + "all of it"}, 2),
        ({"world_size": 4}, 1),
    ],
)
def test_what_makes_two_faults_of_two_cells(change: dict[str, Any], sentences: int) -> None:
    assert len(distinct([row("1", "2.11.0", **ZERO), row("1", "2.11.0", **{**ZERO, **change})])) == sentences


def test_errors_are_told_apart_by_what_they_say_and_scaled_gradients_by_their_factor() -> None:
    other = {**RAISED, "signature": "ValueError: g", "detail": "ValueError: g"}
    scaled: list[dict[str, Any]] = [
        {"verdict": "scaled", "signature": f"scaled by {by}: grad/x", "detail": f"{by} times"} for by in (2, 4)
    ]
    rows = [row("1", "2.11.0", **values) for values in (RAISED, RAISED, other, *scaled)]
    assert {sentence.partition(" in ")[0] for sentence in distinct(rows)} == {
        f"scaled gradient {TIMES}2",
        f"scaled gradient {TIMES}4",
        "raised",
    }
    assert len(distinct(rows)) == 4


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
    assert distinct(rows) == [f"not importable: deepspeed==1 on torch 2.2.2 ({'x' * (DETAIL - 1)}…)"]


def test_other_tensors_that_are_wrong_as_well_are_left_to_the_cell() -> None:
    detail = "gradient of k is zero; also wrong: q (zero gradient)"
    assert distinct([row("1", "2.11.0", **{**ZERO, "detail": detail})])[0].endswith("(gradient of k is zero)")
