"""What is large and old is removed; verdicts, evidence and what a pinned submission cites never are."""

from __future__ import annotations

import importlib
import logging
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from service import store
from service.broker import LocalBroker
from service.models import Attempt, AttemptBlob, Blob, ControlResult, Evidence, Result, ResultBlob
from service.reconcile import Reconciler, apply_retention
from service.retention import Retention
from service.schema import Base
from service.store import ClaimedJob, Expired
from service.store.retaining import BLOBS
from service.store.sql import lock
from service.verdicts import Verdict
from tests.support.stored import World, at, blob, judgement

DAY = timedelta(days=1).total_seconds()
POLICY = Retention(tensors_days=10, logs_days=20, attempts_days=30)


def failing(world: World, name: str, text: str) -> tuple[int, ClaimedJob]:
    """A submission of one cell that failed, with a tensor and a log kept; and the job that ran it."""
    view = world.submit([name])
    (job,) = world.claimed().jobs
    kept = [blob(f"tensor of {text}", "got"), blob(f"log of {text}")]
    world.answer(job, job.cells[0].cell, Verdict.SCALED, blobs=kept)
    with world.db.session() as session:
        held = {"job": job.job, "fence": job.fence, "attempt": job.attempt}
        store.record_attempt_facts(session, **held, facts={}, blobs=[blob(f"said around {text}")])
    world.finish(job)
    return view.id, job


def count(world: World, table: type) -> int:
    with world.db.read() as session:
        return session.scalar(sa.select(sa.func.count()).select_from(table)) or 0


def expired(world: World, days: float, policy: Retention = POLICY) -> dict[str, int]:
    with world.db.read() as session:
        return {what: each.number for what, each in store.expired(session, policy, at(days * DAY)).items()}


def apply(world: World, days: float, policy: Retention = POLICY) -> dict[str, int]:
    return apply_retention(world.db, policy, at(days * DAY))


def test_each_sort_goes_after_its_own_time(world: World) -> None:
    _, job = failing(world, "a", "a")
    assert expired(world, 9.9) == {"tensors": 0, "logs": 0, "attempts": 0}
    assert expired(world, 10.1) == {"tensors": 1, "logs": 0, "attempts": 0}
    assert expired(world, 20.1) == {"tensors": 1, "logs": 2, "attempts": 0}
    with world.db.read() as session:
        assert store.expired(session, POLICY, at(11 * DAY))["tensors"] == Expired(1, len("tensor of a"))
    assert apply(world, 10.1) == {"tensors": 1, "logs": 0, "attempts": 0}
    assert count(world, Blob) == 2
    assert apply(world, 40) == {"tensors": 0, "logs": 2, "attempts": 0}
    assert (count(world, Blob), count(world, Result), count(world, Evidence)) == (0, 1, 1)
    assert expired(world, 1000) == {"tensors": 0, "logs": 0, "attempts": 0}
    with world.db.read() as session:
        detail = store.find_cell(session, job.cells[0].cell)
        assert detail.row.verdict == "scaled"
        assert {(b.size, b.digest, b.meta["removed"]) for b in detail.blobs} == {
            (len("tensor of a"), None, at(10.1 * DAY).date().isoformat()),
            (len("log of a"), None, at(40 * DAY).date().isoformat()),
        }


def test_zero_days_are_for_ever(world: World) -> None:
    failing(world, "a", "a")
    forever = Retention(tensors_days=0, logs_days=0, attempts_days=0)
    assert apply(world, 10**4, forever) == expired(world, 10**4, forever) == {"tensors": 0, "logs": 0, "attempts": 0}


def test_what_a_pinned_submission_cites_stays(world: World) -> None:
    pinned, _ = failing(world, "a", "a")
    failing(world, "b", "b")
    with world.db.session() as session:
        store.pin(session, pinned, True)
    assert apply(world, 100) == {"tensors": 1, "logs": 2, "attempts": 0}
    assert count(world, Blob) == 3
    with world.db.session() as session:
        store.pin(session, pinned, False)
    assert apply(world, 100) == {"tensors": 1, "logs": 2, "attempts": 0}


def test_bytes_that_something_newer_refers_to_stay(world: World) -> None:
    failing(world, "a", "both")
    view = world.submit(["b"])
    (job,) = world.claimed(5 * DAY).jobs
    world.answer(job, job.cells[0].cell, Verdict.SCALED, blobs=[blob("tensor of both", "got")], now=at(5 * DAY))
    world.finish(job, 5 * DAY)
    assert apply(world, 11)["tensors"] == 1
    with world.db.read() as session:
        (kept,) = store.find_cell(session, world.rows(view.id)[0].cell).blobs
        assert kept.digest is not None and store.blob(session, kept.digest) == b"tensor of both"
    assert apply(world, 16)["tensors"] == 1
    assert count(world, Blob) == 2, "the logs of the first"


def test_an_attempt_goes_only_when_it_answered_nothing_and_its_job_is_over(world: World) -> None:
    view = world.submit(["a"])
    (first,) = world.claimed().jobs
    with world.db.session() as session:
        held: dict[str, Any] = {"job": first.job, "fence": first.fence, "attempt": first.attempt}
        store.record_attempt_facts(session, **held, facts={}, blobs=[blob("why it failed")])
        said = store.ControlAnswer("c", "eager", 2, "before", judgement(), True)
        store.record_controls(session, **held, controls=[said])
        store.requeue(session, first.job, first.fence, "the host went away", at(0))
    assert apply(world, 1000)["attempts"] == 0, "its job still waits"
    world.run(seconds=1000 * DAY)
    assert apply(world, 1000) == {"tensors": 0, "logs": 0, "attempts": 1}
    assert (count(world, Attempt), count(world, AttemptBlob), count(world, ControlResult)) == (1, 0, 0)
    assert world.view(view.id).state == "done"


def test_a_pinned_submissions_attempts_stay(world: World) -> None:
    view = world.submit(["a"])
    (first,) = world.claimed().jobs
    with world.db.session() as session:
        store.requeue(session, first.job, first.fence, "the host went away", at(0))
        store.pin(session, view.id, True)
    world.run(seconds=1)
    assert apply(world, 1000)["attempts"] == 0


def test_it_goes_in_batches(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.store.retaining.BATCH", 2)
    for name in "abc":
        failing(world, name, name)
    with world.db.session() as session:
        assert store.remove_expired(session, POLICY, at(100 * DAY)) == {"tensors": 2, "logs": 2, "attempts": 0}
    assert apply(world, 100) == {"tensors": 1, "logs": 4, "attempts": 0}
    assert count(world, ResultBlob) == 6


def test_the_reconciler_says_what_it_would_do_until_it_may(world: World, caplog: pytest.LogCaptureFixture) -> None:
    failing(world, "a", "a")  # so long ago that everything is too old
    with caplog.at_level(logging.INFO):
        assert "tensors_removed" not in Reconciler(world.db, LocalBroker(), POLICY).once()
    size = len("tensor of a")
    assert f"1 tensors are older than they are kept, {size} bytes: retention.apply is off" in caplog.messages
    assert count(world, Blob) == 3
    acting = Reconciler(world.db, LocalBroker(), replace(POLICY, apply=True))
    assert acting.once()["tensors_removed"] == 1
    assert "tensors_removed" not in acting.once(), "not at every beat"
    with world.db.read() as session:
        assert store.numbers(session).acts["tensors_removed"] == 1


def test_bytes_are_not_removed_under_somebody_who_is_about_to_refer_to_them(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    if world.db.engine.dialect.name != "postgresql":
        pytest.skip("an embedded database has one writer")
    failing(world, "a", "both")
    view = world.submit(["b"])
    (job,) = world.claimed().jobs
    accepting = importlib.import_module("service.store.accept")
    found_there = accepting.insert_missing

    def and_then_the_reconciler_comes(session: Session, table: type[Base], *rest: Any) -> None:
        found_there(session, table, *rest)
        if table is Blob:
            with world.db.session() as removing, suppress(sa.exc.OperationalError):
                removing.execute(sa.text("SET LOCAL lock_timeout = '100ms'"))
                store.remove_expired(removing, POLICY, at(11 * DAY))
                removing.commit()

    monkeypatch.setattr(accepting, "insert_missing", and_then_the_reconciler_comes)
    again = [blob("tensor of both", "got")]
    world.answer(job, job.cells[0].cell, Verdict.SCALED, blobs=again, now=at(9 * DAY))
    with world.db.read() as session:
        (kept,) = store.find_cell(session, world.rows(view.id)[0].cell).blobs
        assert kept.digest is not None and store.blob(session, kept.digest) == b"tensor of both"


def test_nobody_waits_for_the_reconciler_while_others_refer_to_bytes(world: World) -> None:
    if world.db.engine.dialect.name != "postgresql":
        pytest.skip("an embedded database has one writer")
    failing(world, "a", "a")
    with world.db.session() as referring:
        lock(referring, BLOBS, shared=True)
        with world.db.session() as session:
            assert store.remove_expired(session, POLICY, at(100 * DAY)) == {}
    assert apply(world, 100)["tensors"] == 1
