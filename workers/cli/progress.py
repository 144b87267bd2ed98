"""What a person sees while checkouts are fetched, runtimes built and jobs run.

On the straight line this listens to ``workers.loop``. On a terminal it is a live display; elsewhere (a pipe, CI,
NO_COLOR) one plain line per step, so that a log can be read afterwards. Nothing here decides anything.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from service.verdicts import VERDICTS, Verdict
from service.words import human_bytes, human_seconds, inert, known_word, plural, verdict_word
from workers.cli.words import verdict_style
from workers.events import LAST_PHASE, CellDone, Event, JobDone, JobStarted, PhaseDone, RuntimeBuilding

EVERY_S = 5.0
"""How often a plain log repeats a step that only grows."""
SILENT_S = 15.0
"""After how long a plain log says that a job is still waiting."""
TICK_S = 1.0
SHORT_S = 0.05
"""A step that took less has no line."""


def watcher(console: Console, environment: Mapping[str, str] = os.environ) -> Watcher:
    """The listener that suits ``console``."""
    quiet = environment.get("NO_COLOR") or environment.get("CI") or environment.get("TERM") == "dumb"
    return LiveWatcher(console) if console.is_terminal and not quiet else PlainWatcher(console)


class Watcher:
    """Keeps what is going on, under a lock, since events come from the worker's threads.

    names     per cell, what it is called on a line
    patience  how long a cell may take, for a line about a job that is silent

    As a context manager it looks at the running jobs once a second, in a thread that ends with it.
    """

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self.console = console
        self.names: dict[int, str] = {}
        self.patience = ""
        self._clock = clock
        self._started = clock()
        self._lock = threading.RLock()
        self._jobs: dict[int, JobStarted] = {}
        self._counts: dict[int, Counter[str]] = {}
        self._heard: dict[int, float] = {}
        self._in_cells: set[int] = set()
        self._over = threading.Event()
        self._ticker: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._ticker = threading.Thread(target=self._keep_ticking, name="heartbeat", daemon=True)
        self._ticker.start()
        return self

    def _keep_ticking(self) -> None:
        while not self._over.wait(TICK_S):
            self.tick()

    def tick(self) -> None:
        """Say of running jobs how long they have been silent, where it is time."""
        with self._lock:
            for job, heard in self._heard.items():
                self._waiting(job, self._clock() - heard)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @property
    def seconds(self) -> float:
        """Since when this watches."""
        return self._clock() - self._started

    def close(self) -> None:
        """Leave the terminal as it was."""
        self._over.set()
        if self._ticker is not None:
            self._ticker.join()

    def say(self, text: str | Text) -> None:
        """Show one line that stays."""
        line = Text.assemble(
            (f"[{human_seconds(self.seconds):>7}] ", "dim"), inert(text) if isinstance(text, str) else text
        )
        self._print(line)

    def _print(self, line: Text) -> None:
        self.console.print(line, soft_wrap=True)

    def expect(self, jobs: Iterable[JobStarted]) -> None:
        """Say what is to come, so that a job has a name before it starts."""
        with self._lock:
            self._jobs |= {job.job: job for job in jobs}
            self._total()

    def growing(self, name: str) -> Callable[[str, int, int | None], None]:
        """A progress callback for a step of ``name`` (a checkout, a runtime)."""
        return lambda what, done, total: self(RuntimeBuilding(name, what, done, total))

    def ended(self, name: str, text: str) -> None:
        """Say how a growing step ended, instead of its moving line."""
        with self._lock:
            self._forget(name)
            self.say(f"{name}: {text}")

    def __call__(self, event: Event) -> None:
        """Take one event from the worker."""
        with self._lock:
            if isinstance(event, RuntimeBuilding):
                self._grow(event)
            elif isinstance(event, JobStarted):
                self._jobs[event.job] = event
                self._counts.setdefault(event.job, Counter())
                self._heard[event.job] = self._clock()
                self._job_started(event)
            elif isinstance(event, PhaseDone):
                self._heard[event.job] = self._clock()
                self._in_cells |= {event.job} if event.name == LAST_PHASE else set()
                self._phase(event)
            elif isinstance(event, CellDone):
                self._heard[event.job] = self._clock()
                self._in_cells.add(event.job)
                self._counts.setdefault(event.job, Counter())[event.verdict] += 1
                self._cell(event)
            elif isinstance(event, JobDone):
                self._heard.pop(event.job, None)
                self._job_done(event)

    def _total(self) -> None:
        """Show how far the whole is, where that can be shown beside its parts."""

    def _forget(self, name: str) -> None:
        raise NotImplementedError

    def _grow(self, event: RuntimeBuilding) -> None:
        raise NotImplementedError

    def _job_started(self, event: JobStarted) -> None:
        raise NotImplementedError

    def _phase(self, event: PhaseDone) -> None:
        raise NotImplementedError

    def _waiting(self, job: int, silent: float) -> None:
        raise NotImplementedError

    def _cell(self, event: CellDone) -> None:
        """Say at once what somebody will want to look at; why, where the grid will not tell by a number."""
        known = Verdict(event.verdict) if event.verdict in VERDICTS else None
        if known and not (known.failing or known.incomplete):
            return
        name = self.names.get(event.cell, f"cell {event.cell}")
        word = (verdict_word(known) if known else inert(event.verdict), verdict_style(known))
        line = Text.assemble(f"{self._label(event.job)}: ", word, f": {inert(name)}")
        if event.detail and not (known and known.info.group == "gradient"):
            line.append(f" ({inert(event.detail, limit=160)})")
        self.say(line)

    def _job_done(self, event: JobDone) -> None:
        counts = ", ".join(
            f"{count} {known_word(verdict)}" for verdict, count in self._counts.get(event.job, {}).items()
        )
        outcome = "" if event.outcome == "done" else inert(event.outcome, limit=160) + "; "
        self.say(f"{self._label(event.job)}: {outcome}{counts or 'no cells'} in {human_seconds(event.seconds)}")

    def _label(self, job: int) -> str:
        started = self._jobs.get(job)
        if started is None:
            return f"job {job}"
        return inert(f"{started.label} · torch {started.torch} · {plural(started.world_size, 'rank')}")

    def _done(self, job: int) -> int:
        return sum(self._counts.get(job, Counter()).values())

    def _far(self, job: int) -> str:
        """How many of its cells have an answer: ``3 of 39 cells``."""
        done, started = self._done(job), self._jobs.get(job)
        return f"{done} of {plural(started.cells if started else done, 'cell')}"


def _step(event: RuntimeBuilding) -> str:
    return event.what if event.what.startswith(event.name) else f"{event.name}: {event.what}"


def _amount(event: RuntimeBuilding) -> str:
    """The bytes of a growing step: ``192 MB of 755 MB``."""
    if not event.bytes_done:
        return ""
    of = f" of {human_bytes(event.bytes_total)}" if event.bytes_total else ""
    return f", {human_bytes(event.bytes_done)}{of}"


class PlainWatcher(Watcher):
    """One line per step, none rewritten."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(console, clock)
        self._last: dict[str, tuple[str, float]] = {}
        self._waited: dict[int, float] = {}

    def _forget(self, name: str) -> None:
        self._last.pop(name, None)

    def _grow(self, event: RuntimeBuilding) -> None:
        if self._due(event.name, event.what):
            self.say(f"{_step(event)}{_amount(event)}")

    def _job_started(self, event: JobStarted) -> None:
        self._last[f"job {event.job}"] = ("cells", self._clock())
        self.say(f"{self._label(event.job)}: started, {plural(event.cells, 'cell')}")

    def _phase(self, event: PhaseDone) -> None:
        if event.seconds >= SHORT_S:
            self.say(f"{self._label(event.job)}: {event.name} in {human_seconds(event.seconds)}")

    def _waiting(self, job: int, silent: float) -> None:
        now = self._clock()
        if silent < SILENT_S or now - self._waited.get(job, 0.0) < SILENT_S:
            return
        self._waited[job] = now
        why = f" ({self.patience})" if self.patience and job in self._in_cells else ""
        self.say(f"{self._label(job)}: {self._far(job)}, waiting {human_seconds(silent)}{why}")

    def _cell(self, event: CellDone) -> None:
        super()._cell(event)
        if event.job in self._jobs and self._due(f"job {event.job}", "cells"):
            self.say(f"{self._label(event.job)}: {self._far(event.job)}")

    def _due(self, name: str, what: str) -> bool:
        """Whether the step is a new one, or has grown quietly for long enough."""
        now = self._clock()
        before = self._last.get(name)
        if before and before[0] == what and now - before[1] < EVERY_S:
            return False
        self._last[name] = (what, now)
        return True


class LiveWatcher(Watcher):
    """A line per running step that moves, and above it the lines that stay."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(console, clock)
        self._tasks: dict[str, TaskID] = {}
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[amount]}", markup=False),
            TimeElapsedColumn(),
            console=console,
            transient=True,
        )
        self._progress.start()

    def _print(self, line: Text) -> None:
        self.console.print(line, no_wrap=True, overflow="ellipsis")  # all of it is in the store

    def close(self) -> None:
        """Take the moving lines away."""
        super().close()
        self._progress.stop()

    def _grow(self, event: RuntimeBuilding) -> None:
        total = event.bytes_total or None
        description = inert(_step(event), limit=60)
        self._show(event.name, description, event.bytes_done, total, _amount(event).lstrip(", "))

    def _forget(self, name: str) -> None:
        task = self._tasks.pop(name, None)
        if task is not None:
            self._progress.remove_task(task)

    def _job_started(self, event: JobStarted) -> None:
        self._show(f"job {event.job}", self._label(event.job), 0, event.cells, f"0 of {plural(event.cells, 'cell')}")

    def _phase(self, event: PhaseDone) -> None:
        self._move(event.job, self._far(event.job) if event.job in self._in_cells else f"{event.name} done")

    def _waiting(self, job: int, silent: float) -> None:
        if job in self._in_cells:
            said = f", waiting {human_seconds(int(silent))}" if silent >= EVERY_S else ""
            self._move(job, self._far(job) + said)

    def _cell(self, event: CellDone) -> None:
        super()._cell(event)
        self._move(event.job, self._far(event.job))
        self._total()

    def _move(self, job: int, said: str) -> None:
        started, done = self._jobs.get(job), self._done(job)
        self._show(f"job {job}", self._label(job), done, started.cells if started else done, said)

    def _job_done(self, event: JobDone) -> None:
        self._forget(f"job {event.job}")
        super()._job_done(event)

    def _total(self) -> None:
        done, cells = sum(map(self._done, self._jobs)), sum(job.cells for job in self._jobs.values())
        self._show("all", f"all {plural(len(self._jobs), 'job')}", done, cells, f"{done} of {plural(cells, 'cell')}")

    def _show(self, name: str, description: str, done: int, total: int | None, amount: str) -> None:
        if name not in self._tasks:
            self._tasks[name] = self._progress.add_task(description, total=total, amount=amount)
        self._progress.update(
            self._tasks[name], description=description, completed=done, total=total, amount=inert(amount)
        )
