"""Export and import: nothing lost, nothing overwritten, nothing half-done."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jobs.contract import ControlInfo
from service import store
from service.models import Submission
from service.policy import load_policy
from service.verdicts import Verdict
from tests.support.stored import Template, World, at, blob, case, checkout, evidence, judgement, open_world

Record = dict[str, Any]
CONTROL = ControlInfo("exchange/zero", "exchange", case("a").id, ("eager",), ("zero_gradient",))
POLICY_2 = dataclasses.replace(load_policy(), version="2")


@pytest.fixture
def filled(world: World) -> World:
    """A finished submission with every kind of record, a second one that shares cells with it, and a live third."""
    world.submit(["a", "b"], sizes=[2, 4], checkouts=[checkout("deepspeed==1"), checkout("path:x")])
    while claim := world.claim():
        for job in claim.jobs:
            told: dict[str, Any] = {"job": job.job, "fence": job.fence, "attempt": job.attempt}
            with world.db.session() as session:
                store.record_attempt_facts(session, **told, facts={"torch": "2.11.0"}, blobs=[blob("hello")])
                store.record_control_set(session, **told, controls=[(CONTROL, case("a"))])
                said = ("exchange/zero", "eager", 2, "after", judgement(), False, evidence(7))
                store.record_controls(session, **told, controls=[store.ControlAnswer(*said)])
            for number, spec in enumerate(job.cells):
                kept = [blob("stack", "stacks", 1), blob("x" * 5000)]
                passes = {"first": evidence(number + 20), "alone": evidence(number)}
                world.answer(job, spec.cell, Verdict.MISMATCH, evidence=evidence(number), blobs=kept, **passes)
            world.finish(job)
    world.judge(POLICY_2, Verdict.SCALED, seconds=3)
    world.submit(["b", "c"])
    world.run(Verdict.INFRA)
    world.submit(["b", "c"], rerun=True)
    (job,) = world.claimed().jobs
    world.answer(job, job.cells[0].cell, now=at(5), judgement=judgement(Verdict.HANG))
    return world


@pytest.fixture
def empty(tmp_path: Path, template: Template) -> Iterator[World]:
    opened = open_world(tmp_path / "empty", template)
    yield opened
    opened.db.dispose()


def exported(world: World, submissions: list[int] | None = None) -> list[Record]:
    """An export, by way of the lines of a file."""
    with world.db.read() as session:
        lines = [json.dumps(record) for record in store.export_all(session, submissions)]
    return list(store.load_lines(lines))


def imported(world: World, records: list[Record]) -> store.Imported:
    with world.db.session() as session:
        return store.import_records(session, copy.deepcopy(records))


def test_export_import_export_is_the_same(filled: World, empty: World) -> None:
    records = exported(filled)
    counts = imported(empty, records)
    assert counts.added.total() == len(records) and not counts.known
    assert {record["record"] for record in records} == set(store.records.KINDS)
    assert exported(empty) == records


def test_what_was_finished_reads_the_same_after_an_import(filled: World, empty: World) -> None:
    filled.run(seconds=10_000)
    imported(empty, exported(filled))

    def shown(world: World) -> list[tuple[Any, ...]]:
        with world.db.read() as session:
            keys = {view.key: view.id for view in store.submissions(session)}
            views = [store.submission(session, keys[key]) for key in sorted(keys)]
            names = ("case", "world_size", "label", "verdict", "evidence_digest", "error")
            return [
                (
                    *(view.key, view.counts, view.done),
                    sorted((job.world_size, job.checkout, job.cells_done) for job in view.jobs),
                    sorted(str([getattr(row, name) for name in names]) for row in store.cells_of(session, view.id)),
                )
                for view in views
            ]

    assert shown(empty) == shown(filled)
    assert len(shown(filled)) == 3


def test_a_second_import_changes_nothing(filled: World, empty: World) -> None:
    records = exported(filled)
    imported(empty, records)
    counts = imported(empty, records)
    assert counts.known.total() == len(records) and not counts.added
    assert exported(empty) == records
    assert imported(filled, records).known.total() == len(records)


def test_an_import_into_what_exists_adds_and_keeps(filled: World, empty: World) -> None:
    empty.submit(["a", "c"])
    empty.run(Verdict.SCALED)
    before = exported(empty)
    imported(empty, exported(filled))
    after = exported(empty)
    assert [record for record in before if record not in after] == []
    assert len(after) > len(before)


def test_an_import_never_makes_work(filled: World, empty: World) -> None:
    records = exported(filled)
    assert {record["state"] for record in records if record["record"] == "job"} == {"done", "cancelled"}
    imported(empty, records)
    assert empty.claim(10_000) is None
    with empty.db.read() as session:
        assert store.unfinished_submission(session) is None
    # the live job's unanswered cell: nobody answered it, so whoever asks again gets it run
    assert [job.cells_total for job in empty.submit(["c"]).jobs] == [1]


def test_a_later_export_brings_what_came_since(filled: World, empty: World) -> None:
    imported(empty, exported(filled))
    filled.run(seconds=10_000)
    counts = imported(empty, exported(filled))
    assert counts.added["result"] == 1 and counts.added["submission"] == 0
    with empty.db.read() as session:
        counted = [view.counts for view in store.submissions(session)]
    assert counted.count({"hang": 1, "agree": 1}) == 2  # the second and the third ask for the same cells


def test_one_submission_alone_holds_all_that_it_rests_on(filled: World, empty: World) -> None:
    records = exported(filled, [2])
    imported(empty, records)
    assert exported(empty) == records
    assert [record["reason"] for record in records if record["record"] == "submission"] == ["manual"]
    with filled.db.read() as session, pytest.raises(store.StoreError, match="no submission 99"):
        list(store.export_all(session, [1, 99]))


def _first(records: list[Record], kind: str) -> Record:
    return next(record for record in records if record["record"] == kind)


def _set(kind: str, name: str, value: Any) -> Callable[[list[Record]], None]:
    return lambda records: _first(records, kind).__setitem__(name, value)


DAMAGE: dict[str, tuple[Callable[[list[Record]], None], str]] = {
    "another version": (_set("result", "v", 2), "field 'v': version 2"),
    "unknown kind": (_set("result", "record", "verdict"), "field 'record': 'verdict' is none of"),
    "unknown field": (_set("result", "colour", "red"), "result: field 'colour': is not known"),
    "missing field": (lambda r: _first(r, "result").__delitem__("verdict"), "result: field 'verdict': is missing"),
    "wrong type": (_set("result", "seconds", "long"), "result: field 'seconds': must be a number"),
    "not finite": (_set("result", "error", float("nan")), "result: field 'error': must be a number"),
    "too long": (_set("runtime", "torch", "2" * 65), "runtime: field 'torch': must be a text of at most 64"),
    "bool for a number": (_set("cell", "cell", ["0" * 64, "0" * 64, "gloo", True, "a", 1, "eager"]), "field 'cell'"),
    "short key": (_set("cell", "cell", ["0" * 64]), "cell: field 'cell': must be a list of 7 values"),
    "a live job": (_set("job", "state", "queued"), "job: field 'state': must be one of done, cancelled"),
    "naive time": (_set("attempt", "started_at", "2026-01-01T00:00:00"), "field 'started_at': must be a time with"),
    "no base64": (_set("blob", "data", "?"), "blob: field 'data': must be base64"),
    "no zlib": (_set("blob", "data", "AAAA"), "blob: field 'data': not zlib data"),
    "more bytes than said": (_set("blob", "size", 1), "blob: field 'data': does not hold exactly the 1 bytes"),
    "a size beyond reason": (_set("blob", "size", 2**40), "blob: field 'size': is above"),
    "another digest": (_set("evidence", "digest", "0" * 64), "evidence: field 'digest': is not that of the data"),
    "no case": (_set("case", "info", {"id": 1}), "case: field 'info': must define a case"),
    "another case": (_set("case", "version", 9), "case: field 'info': describes another case"),
    "dangling": (lambda r: r.remove(_first(r, "checkout")), "field 'checkout': refers to checkout"),
    "dangling evidence": (
        _set("result", "evidence_digest", "1" * 64),
        "result: field 'evidence_digest': refers to evidence 1111",
    ),
    "a list": (lambda r: r.__setitem__(3, []), "line 4: the record: must be an object"),  # type: ignore[call-overload]
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_malformed_record_is_named_and_nothing_is_imported(filled: World, empty: World, name: str) -> None:
    damage, message = DAMAGE[name]
    records = exported(filled)
    damage(records)
    with empty.db.session() as session:
        with pytest.raises(store.ImportRefusedError) as refused:
            store.import_records(session, records)
        assert session.query(Submission).count() == 0  # rolled back though the caller went on
    assert message in str(refused.value)
    assert str(refused.value).startswith("line ") and str(refused.value).endswith("; nothing was imported")
    assert exported(empty) == []


def test_the_line_is_the_right_one(filled: World, empty: World) -> None:
    records = exported(filled)
    number = next(n for n, record in enumerate(records, 1) if record["record"] == "attempt")
    records[number - 1]["fence"] = 1
    with pytest.raises(store.ImportRefusedError, match=f"^line {number}: attempt: field 'fence': is not known"):
        imported(empty, records)


@pytest.mark.parametrize("line", ["{", "", "[" * 100_000, b"\xff"])
def test_a_line_that_is_not_json_is_named(line: str | bytes) -> None:
    with pytest.raises(store.ImportRefusedError, match="line 2: the line: is not JSON"):
        list(store.load_lines(["{}", line]))


def test_a_case_that_asks_another_question_is_refused(filled: World, empty: World) -> None:
    records = exported(filled)
    _first(records, "case")["info"]["scale"] = 2.0
    empty.submit(["a"])
    with pytest.raises(store.ImportRefusedError, match=r"field 'info': asks another question .*: scale differ"):
        imported(empty, records)


def test_evidence_that_cannot_be_judged_again_is_refused(empty: World) -> None:
    from service.store.exporting import _plain
    from service.store.sql import pack

    data = b'{"schema": 1}'
    record = {"v": 1, "record": "evidence", "digest": hashlib.sha256(data).hexdigest(), "size": len(data)}
    with pytest.raises(store.ImportRefusedError, match="line 1: evidence: field 'data': is not evidence"):
        imported(empty, [record | {"data": _plain(pack(data))}])
