"""The store under everything that may happen to it, in any order; and mutants of it, each caught by what it breaks."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from service import broker
from service.store import StoreError, accept, held, resolving, sql
from service.store.accept import _count, _unanswered
from service.store.again import rerun_cells
from service.store.claim import _take_job, beat
from service.store.submit import _sort_out
from tests.service.store.machine import Machine
from tests.support.stored import World, open_world

ALL = list(HealthCheck)


def histories(number: int, steps: int, **more: Any) -> settings:
    """So many histories of so many steps, the same at every call. They are not made smaller: that would take long."""
    return settings(
        max_examples=number, stateful_step_count=steps, deadline=None, derandomize=True, database=None,
        phases=[Phase.generate], suppress_health_check=ALL, report_multiple_bugs=False, **more,
    )  # fmt: skip


def quick(world: World) -> World:
    """Without waiting for the disk, where that is told by a connection: nobody pulls a plug here."""
    if world.db.engine.dialect.name == "sqlite":
        sa.event.listen(world.db.engine, "connect", lambda raw, _entry: raw.execute("PRAGMA synchronous = OFF"))
        world.db.engine.dispose()
    return world


def check(world: World, how: settings) -> None:
    run_state_machine_as_test(lambda: Machine(world), settings=how)  # type: ignore[arg-type] # it calls it, no more


def test_whatever_happens_the_store_keeps_its_word(world: World) -> None:
    quick(world)
    check(world, histories(8, 30))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_whatever_happens_for_long_the_store_keeps_its_word(world: World) -> None:
    quick(world)
    check(world, histories(400, 80))


@dataclass(frozen=True)
class Mutant:
    """One function of the store with a mistake in it, and what says so."""

    function: Callable[..., Any]
    right: str
    wrong: str
    caught_by: str


MUTANTS = {
    "an old fence is taken for the newest": Mutant(
        sql.held_job, "row.fence != fence", "False", "an old fence writes nothing"
    ),
    "a job that is over takes answers": Mutant(
        sql.held_job, "row.state not in HELD", "False", "an old fence writes nothing|is not one of job"
    ),
    "a beat renews whatever it is told": Mutant(
        beat, "Job.fence == fence, Job.state.in_(HELD)", "Job.id > 0", "a beat says who must stop"
    ),
    "a fence goes back with its job": Mutant(
        held._end_attempt, "session.flush()\n    _free", "row.fence -= 1; session.flush()\n    _free",
        "a fence (never goes back|counts)",
    ),
    "a claim counts twice": Mutant(
        _take_job, "fence=Job.fence + 1", "fence=Job.fence + 2", "a fence counts the claims"
    ),
    "a cell is answered twice": Mutant(
        _unanswered, "if cell not in over", "", "an answer is taken once"
    ),
    "a new answer is not shown": Mutant(
        accept, "Cell.id == Result.cell_id)", "Cell.id == Result.cell_id, Cell.result_id.is_(None))",
        "a cell shows its newest answer",
    ),
    "a failing machine's answer counts at once": Mutant(
        _count, "verdict is not Verdict.INFRA or", "verdict or", "counts are those of the answers"
    ),
    "an answer is not counted": Mutant(
        _count, "row.cells_done += len(counted)", "pass", "counts are those of the answers"
    ),
    "a verdict is counted under another": Mutant(
        _count, "Counter(map(str, counted))", "Counter('agree' for _ in counted)", "counts are those of the answers"
    ),
    "cells of a live job are queued once more": Mutant(
        rerun_cells, "state in LIVE and", "False and", "UNIQUE constraint failed: job|a live job has all of"
    ),
    "a plan takes cells from a live job": Mutant(
        _sort_out, "if job in live:", "if False:", "UNIQUE constraint failed: job|a live job has all of"
    ),
    "cancelling takes what others wait for": Mutant(
        held.cancel, "if job.id not in waited_for", "", "what was asked for is answered or on its way"
    ),
    "devices are free before their last job is over": Mutant(
        held._free, "session.scalars(running.limit(1)).first() is None", "True", "a container holds its devices"
    ),
    "devices are never free again": Mutant(
        held._free, "session.scalars(running.limit(1)).first() is None", "False", "a container holds its devices"
    ),
    "a submission is not told that its job is over": Mutant(
        held._leave, "settle_jobs(session, [job], now)", "pass", "a submission is as far as its jobs"
    ),
    "who holds a job for ever keeps it": Mutant(
        held.take_back, "job.lease_until is None or job.lease_until < now", "False", "everything comes to its end"
    ),
    "what is given up has no answer": Mutant(
        held._end_attempt, "answer_infra(session, attempt,", "(lambda *_: None)(", "is answered or on its way"
    ),
    "a plan under an old fence counts": Mutant(
        resolving._held, "now.fence != task.fence", "False", "an old fence writes nothing"
    ),
    "who fetches for ever keeps it": Mutant(
        resolving.claim_resolution, "sa.or_(Resolution.lease_until.is_(None), Resolution.lease_until <= now)",
        "Resolution.lease_until.is_(None)", "everything comes to its end",
    ),
    "what waits for its fetcher is forgotten": Mutant(
        resolving.give_back_resolution, "row.state, row.lease_until, row.doing = \"waiting\"",
        "row.state, row.lease_until, row.doing = \"done\"", "a submission is always somebody's task",
    ),
    "news are not in the outbox": Mutant(
        rerun_cells, "session.add(Hint(kind=\"work\", created_at=now))", "pass", "a hint is gone only once"
    ),
    "what could not be sent is forgotten": Mutant(
        broker.announce, "broker.publish()", "broker.publish() if not broker.down else None", "a hint is gone only once"
    ),
}  # fmt: skip
"""What may be wrong with the store, for everything that must hold."""


@pytest.fixture
def small(tmp_path: Path) -> Iterator[World]:
    opened = quick(open_world(tmp_path / "home"))
    yield opened
    opened.db.dispose()


@pytest.mark.parametrize("name", MUTANTS)
def test_every_mistake_is_caught_by_what_it_breaks(name: str, small: World, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant = MUTANTS[name]
    _plant(mutant, monkeypatch)
    with pytest.raises((AssertionError, sa.exc.IntegrityError, StoreError), match=mutant.caught_by):
        check(small, histories(200, 30))


def _plant(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the wrong function in the place of the right one, wherever that was imported to."""
    right = mutant.function
    assert isinstance(right, FunctionType)
    source = inspect.getsource(right)
    assert source.count(mutant.right) >= 1, f"{right.__name__} has no {mutant.right!r} any more"
    made: dict[str, Any] = {}
    text = "from __future__ import annotations\n" + source.replace(mutant.right, mutant.wrong, 1)
    exec(compile(text, "mutant", "exec"), right.__globals__, made)  # noqa: S102
    for module in [
        module for name, module in sys.modules.items() if name.startswith(("service.", "tests.service.store."))
    ]:
        if vars(module).get(right.__name__) is right:
            monkeypatch.setattr(module, right.__name__, made[right.__name__])
