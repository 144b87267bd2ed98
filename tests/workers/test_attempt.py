"""A container that ends before its time: because its job is cancelled, or because what it says cannot be stored."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from jobs.contract import PHASE_JOB, AttemptSpec
from service import store
from service.broker import LocalBroker
from service.cases import CaseCatalogue
from service.catalog import Catalog
from service.config import Settings
from service.matrix import plan
from service.models import Attempt, GpuLease, Job, Result
from tests.support.stored import World, checkout, open_world, runtime
from tests.workers.matter import CASE, CONTROL, cell_events, event, opening
from tests.workers.scripted import Scripted
from workers.gpus import local_host
from workers.loop import Loop

WAIT_S = 30.0


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    spec, tree = runtime("2.11.0"), checkout("toy==1")
    monkeypatch.setattr("workers.loop.catalogue", lambda: CaseCatalogue((CASE,), (CONTROL,)))
    monkeypatch.setattr("workers.loop.load_catalog", lambda settings: Catalog((spec,), "index"))
    monkeypatch.setattr("workers.loop.BEAT_S", 0.05)
    monkeypatch.setattr("workers.package.pack", lambda checkout: b"a tar")
    opened = open_world(tmp_path)
    planned = plan([tree], [spec], ["gloo"], [2], [CASE], ["eager"])
    asked: dict[str, Any] = {"requester": "x", "reason": "manual", "priority": 0, "request": {}}
    with opened.db.session() as session:
        store.submit(session, checkouts=[tree], runtimes=[spec], plan=planned, **asked)
    yield opened
    opened.db.dispose()


def loop(world: World, home: Path, executor: Scripted) -> Loop:
    settings = Settings(home=home, cpu_slots=2)
    return Loop(
        settings, world.db, host=local_host(settings), executor=executor,
        broker=LocalBroker(), listener=lambda event: None, lasting=True,
    )  # fmt: skip


@pytest.mark.parametrize("told_by", ["an answer that is not taken any more", "the beat"])
def test_its_devices_are_free(world: World, tmp_path: Path, told_by: str, caplog: pytest.LogCaptureFixture) -> None:
    ended = threading.Event()

    def script(spec: AttemptSpec, devices: tuple[str, ...]) -> Iterator[Mapping[str, Any]]:
        (job,) = spec.jobs
        yield from opening()
        with world.db.session() as session:
            store.cancel(session, 1)
        if told_by == "the beat":
            assert ended.wait(WAIT_S)
        yield from ({**said, "job": job.job} for said in cell_events(job.cells[0].cell))
        assert ended.wait(WAIT_S)

    deadline = time.monotonic() + WAIT_S

    def freed() -> bool:
        assert time.monotonic() < deadline
        return state() != "running"

    def state() -> str:
        with world.db.read() as session:
            found: str = session.scalars(sa.select(Attempt.state)).one()
        return found

    executor = Scripted(script)
    kill = threading.Thread(target=lambda: ended.set() if _killed(executor) else None)
    kill.start()
    with caplog.at_level(logging.WARNING):
        loop(world, tmp_path, executor).run(threading.Event(), freed)
    ended.set()
    kill.join()
    assert state() == "cancelled"
    with world.db.read() as session:
        assert session.scalars(sa.select(GpuLease)).all() == []
        assert session.scalars(sa.select(Job.state)).one() == "cancelled"
    assert caplog.records == [], "nothing failed"


def test_what_cannot_be_stored_ends_its_container_and_is_run_again(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    accept, times = store.accept, iter(range(100))

    def accepted(*given: Any) -> dict[int, int]:
        if next(times) == 0:
            raise OSError("the disk is full")
        return accept(*given)

    def says(spec: AttemptSpec, devices: tuple[str, ...]) -> Iterator[Mapping[str, Any]]:
        (job,) = spec.jobs
        yield from opening()
        yield from ({**said, "job": job.job} for said in cell_events(job.cells[0].cell))
        if len(executor.played) == 1:
            assert _killed(executor)
        yield event("phase", name=PHASE_JOB.format(job.job), seconds=0.0)
        yield event("bye", ok=True, reason=None)

    def over() -> bool:
        with world.db.read() as session:
            return session.scalars(sa.select(Job.state)).one() == "done"

    monkeypatch.setattr(store, "accept", accepted)
    executor = Scripted(says)
    with caplog.at_level(logging.WARNING):
        loop(world, tmp_path, executor).run(threading.Event(), over)
    with world.db.read() as session:
        assert session.scalars(sa.select(Result.verdict)).all() == ["agree"], "nothing is blamed on what ran"
        assert session.scalars(sa.select(Attempt.state).order_by(Attempt.id)).all() == ["done", "done"]
    assert "the disk is full" in caplog.text


def _killed(executor: Scripted) -> bool:
    """Wait until the container that was started is told to end."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        if any(played.killed for played in executor.played):
            return True
        time.sleep(0.01)
    return False
