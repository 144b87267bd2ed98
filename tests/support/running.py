"""The main job in miniature: one checkout on built runtimes, through the real planner, store, loop and judge."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from jobs.contract import SUITES, Deadlines
from service import store
from service.cases import catalogue
from service.catalog import RuntimeSpec
from service.config import Settings, load_settings
from service.db import Database, open_database
from service.matrix import plan
from service.store import CellRow
from service.subjects import Checkout, SubjectRequest, Unreachable, parse_subject, resolve
from tests.support.runtimes import runtime
from workers import events
from workers.loop import run_embedded
from workers.runtimes.venv import VenvExecutor

ONE_CASE = "exchange/dim0[dtype=float32,loss=square]"
QUICK = Deadlines(case_s=6, compile_s=60, import_s=60, job_s=300, attempt_s=400)
"""For subjects that hang on purpose; a busy machine may need the usual ones for others."""


@dataclass
class Run:
    """A finished run: its rows, and the database to look further into."""

    database: Database
    settings: Settings
    submission: int
    rows: list[CellRow]

    def verdicts(self) -> dict[str, str]:
        """Verdict by case and mode, for runs of one checkout, runtime and world size."""
        return {f"{row.case} {row.mode}": str(row.verdict) for row in self.rows}


def submit(
    home: Path,
    subject: Path | str,
    runtimes: Sequence[RuntimeSpec],
    *,
    cases: Sequence[str] = (ONE_CASE,),
    modes: Sequence[str] = ("eager",),
    world_sizes: Sequence[int] = (2,),
    transports: Sequence[str] = ("gloo",),
    deadlines: Deadlines = Deadlines(),  # noqa: B008 - frozen
    rank_memory_bytes: int = 0,
    suite: str = SUITES[-1],
) -> Run:
    """Plan and store a submission in a home of its own; nothing runs yet."""
    settings = Settings(home=home, deadlines=deadlines, rank_memory_bytes=rank_memory_bytes)
    request: SubjectRequest = parse_subject(str(subject), settings)
    checkout: Checkout = resolve(request, settings)
    planned = plan([checkout], runtimes, transports, world_sizes, catalogue().select(cases), modes, suite=suite)
    database = open_database(settings)
    with database.session() as session:
        view = store.submit(
            session,
            checkouts=[checkout],
            runtimes=list(runtimes),
            plan=planned,
            requester="test",
            reason="manual",
            priority=0,
            request={},
        )
    return Run(database, settings, view.id, [])


def work(run: Run, listener: events.Listener = lambda event: None, stop: threading.Event | None = None) -> Run:
    """Work until the submission is done (or ``stop`` is set), in runtimes shared with every other test."""
    executor = VenvExecutor(load_settings())
    run_embedded(run.settings, run.database, run.submission, executor, listener, stop or threading.Event())
    with run.database.read() as session:
        run.rows = list(store.cells_of(session, run.submission))
    return run


def run_tree(
    home: Path,
    subject: Path | str,
    runtimes: Sequence[RuntimeSpec],
    listener: Callable[[events.Event], None] = lambda event: None,
    **axes: object,
) -> Run:
    """Submit and work."""
    return work(submit(home, subject, runtimes, **axes), listener)  # type: ignore[arg-type]


def run_release(home: Path, release: str, torch: str, **axes: object) -> Run:
    """The same of a release on the runtime called ``torch``; the test is skipped where it cannot be fetched."""
    try:
        return run_tree(home, release, [runtime(torch)], **axes)  # type: ignore[arg-type]
    except Unreachable as error:
        pytest.skip(str(error))
