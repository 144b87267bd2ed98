"""The part of ``gradmatrix run`` that builds runtimes and works: after planning, before the outcome is printed.

Runtimes are kept by default: all that are missing are built, several at once, and then everything runs. Where they are
not kept, one after the other is built, used for all of its jobs and removed, so that the disk holds one at a time.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING

from service import catalog
from service.catalog import RuntimeSpec
from service.config import Settings
from service.errors import GradmatrixError
from service.words import human_bytes, plural
from workers.cli.progress import Watcher
from workers.cli.runtimes import ensure
from workers.events import JobStarted
from workers.runtimes import RuntimeBuildError, inventory
from workers.runtimes.venv import VenvExecutor

if TYPE_CHECKING:
    from service.db import Database
    from service.store.views import SubmissionView

PATIENCE_S = 10.0
REMOVE_S = 3.0
"""How long, after Ctrl-C, pruning the package cache may wait for others that work in it."""


def execute(
    view: SubmissionView,
    settings: Settings,
    database: Database,
    watch: Watcher,
    *,
    keep_runtimes: bool = True,
) -> bool:
    """Build the runtimes that are missing and run the worker until the submission ends; whether it did.

    Raises RuntimeBuildError where a runtime cannot be built, after everything has run in those that can.
    """
    live = [job for job in view.jobs if job.live]
    _announce(view, settings, database, watch)
    needed = catalog.load(settings).select(tuple(dict.fromkeys(job.runtime for job in live)))
    with stop_on_signals(watch) as stop:
        failed: dict[str, RuntimeBuildError] = {}
        work = _Work(view.id, settings, database, VenvExecutor(settings), watch, stop, failed)
        try:
            if keep_runtimes:
                ensure(work.executor, needed, watch, stop=stop, failed=failed)
                work.run(frozenset(job.id for job in live if job.runtime not in failed))
            else:
                for spec in needed:
                    work.run_and_remove(spec, frozenset(job.id for job in live if job.runtime == spec.name))
        except InterruptedError:
            return False
    if failed:
        first, *others = failed.values()
        raise type(first)(
            str(first) + (f"\n{plural(len(others), 'other runtime')} could not be built either" * bool(others))
        )
    return not stop.is_set()


def _announce(view: SubmissionView, settings: Settings, database: Database, watch: Watcher) -> None:
    """Say what is to come, and take up what a killed run left."""
    from service import store
    from workers.gpus import alive

    live = [job for job in view.jobs if job.live]
    watch.say(
        f"submission s{view.id}: {view.cells - view.done} of {plural(view.cells, 'cell')} to run, in "
        f"{plural(len(live), 'job')}"
    )
    with database.session() as session:
        store.reclaim(session, alive=alive)  # what a killed run held is free at once, not when its lease ends
    with database.read() as session:
        rows = store.cells_of(session, view.id)
    case_s, compile_s = settings.deadlines.case_s, settings.deadlines.compile_s
    watch.patience = f"a cell may take {case_s:g} s, compiling it {compile_s:g} s; one that fails is tried again alone"
    watch.names |= {row.cell: f"{row.case} {row.mode}" for row in rows}
    labels = {row.checkout: row.label for row in rows}
    watch.expect(
        JobStarted(job.id, labels.get(job.checkout, "?"), job.torch, job.world_size, job.cells_total - job.cells_done)
        for job in live
    )


@dataclass(frozen=True)
class _Work:
    """One submission's work in this process."""

    submission: int
    settings: Settings
    database: Database
    executor: VenvExecutor
    watch: Watcher
    stop: threading.Event
    failed: dict[str, RuntimeBuildError]

    def run(self, jobs: frozenset[int]) -> None:
        """Run ``jobs``, in runtimes that are built. Raises InterruptedError on a stop."""
        from workers.loop import run_embedded

        if not jobs:
            return
        run_embedded(self.settings, self.database, self.submission, self.executor, self.watch, self.stop, jobs=jobs)
        if self.stop.is_set():
            raise InterruptedError

    def run_and_remove(self, spec: RuntimeSpec, jobs: frozenset[int]) -> None:
        """Run ``jobs``, all in the runtime ``spec``; if it was built for that, remove it however that ends."""
        built = ensure(self.executor, [spec], self.watch, stop=self.stop, failed=self.failed)
        if spec.name in self.failed:
            return
        try:
            self.run(jobs)
        finally:
            if built:
                self._remove(spec)

    def _remove(self, spec: RuntimeSpec) -> None:
        """Remove a runtime; where that is not possible say so, for the results are what matters."""
        began = time.monotonic()

        def tick() -> None:
            if self.stop.is_set() and time.monotonic() - began > REMOVE_S:
                raise InterruptedError

        try:
            _, freed = self.executor.remove([inventory.key(spec)], tick=tick)
        except InterruptedError:
            said = "removed; what only it needed of the package cache stays, for another build uses the cache now"
        except GradmatrixError as error:
            said = f"not removed: {error}"
        else:
            said = f"removed, {human_bytes(freed)} freed"
        self.watch.ended(spec.name, said)


@contextmanager
def stop_on_signals(watch: Watcher) -> Iterator[threading.Event]:
    """An event that Ctrl-C and its like set. A further Ctrl-C is heard only when the first has had its time."""
    stop, over = threading.Event(), threading.Event()
    asked_at: list[float] = []

    def on_signal(number: int, frame: FrameType | None) -> None:
        if asked_at and time.monotonic() - asked_at[0] > PATIENCE_S:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        asked_at.append(time.monotonic())
        stop.set()

    def announce() -> None:  # in a thread of its own: a signal may arrive in the middle of another line
        while not over.is_set():
            if stop.wait(0.2):
                watch.say("stopping: ending the processes that run")
                return

    watched = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, on_signal) for number in watched}
    announcer = threading.Thread(target=announce, daemon=True)
    announcer.start()
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        over.set()
        announcer.join()
