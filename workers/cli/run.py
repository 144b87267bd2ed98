"""``gradmatrix run``: the whole straight line in one process, with a worker inside.

Everything that was asked for is checked before anything is fetched, everything is fetched before anything is built,
and what is answered already is not run again.
"""

from __future__ import annotations

import getpass
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from types import FrameType
from typing import TYPE_CHECKING

from jobs.contract import MODES, WORLD_SIZES, CaseInfo
from service import catalog
from service.catalog import RuntimeSpec
from service.config import Settings, load_settings
from service.errors import UsageError, nearest
from workers.cli.console import INCOMPLETE, console, show_error
from workers.cli.progress import Watcher, watcher
from workers.cli.words import human_bytes, plural
from workers.events import JobStarted

if TYPE_CHECKING:
    from service.db import Database
    from service.store.views import SubmissionView
    from service.subjects import Checkout, SubjectRequest

TRANSPORT = "gloo"
DEFAULT_WORLD_SIZES = (2,)
PRIORITY = 0
PATIENCE_S = 10.0


@dataclass(frozen=True)
class Asked:
    """The words of the command line, as they were written."""

    subjects: tuple[str, ...] = ()
    torch: tuple[str, ...] = ()
    world_sizes: tuple[str, ...] = ()
    modes: tuple[str, ...] = ()
    cases: tuple[str, ...] = ()
    resume: bool = False
    rerun: bool = False


@dataclass(frozen=True)
class Shown:
    """How the outcome is shown."""

    json: str | None = None
    junit: str | None = None
    all_rows: bool = False


@dataclass(frozen=True)
class Order:
    """What was asked for, checked: every part of it exists."""

    subjects: tuple[SubjectRequest, ...]
    runtimes: tuple[RuntimeSpec, ...]
    world_sizes: tuple[int, ...]
    modes: tuple[str, ...]
    cases: tuple[CaseInfo, ...]


def run(asked: Asked, shown: Shown) -> int:
    """Do it all; the exit status."""
    from service.db import open_database
    from workers.cli.stored import check_targets, print_submission

    started = time.monotonic()
    check_targets(shown.json, shown.junit)
    settings = load_settings()
    if asked.resume:
        check_resume(asked)
    order = None if asked.resume else check_order(asked, settings)
    database = open_database(settings)
    try:
        with watcher(console(stderr=True)) as watch:
            if order and any(subject.kind != "release" for subject in order.subjects):
                watch.say("code runs as you, in virtual environments: give it only what you trust")
            view = resumed(database) if order is None else submitted(asked, order, settings, database, watch)
            missing = view.cells - view.done
            stopped = view.live and not execute(view, settings, database, watch)
        status = print_submission(
            settings,
            database,
            view.id,
            json=shown.json,
            junit_file=shown.junit,
            all_rows=shown.all_rows,
            seconds=time.monotonic() - started,
            executed=missing - still_missing(database, view.id),
        )
    finally:
        database.dispose()
    if stopped:
        show_error("stopped; every finished cell is kept, and gradmatrix run --resume runs the others")
        return INCOMPLETE
    return status


def check_resume(asked: Asked) -> None:
    """Refuse what would choose beside --resume: the submission says what is run. Raises UsageError."""
    given = {
        "SUBJECT": asked.subjects,
        "--torch": asked.torch,
        "--world-size": asked.world_sizes,
        "--mode": asked.modes,
        "--case": asked.cases,
        "--rerun": asked.rerun,
    }
    if beside := [name for name, value in given.items() if value]:
        raise UsageError(
            f"--resume finishes the newest unfinished submission as it was asked for, so {', '.join(beside)} cannot "
            "stand beside it; leave --resume out to ask anew: what is answered already is not run again"
        )


def check_order(asked: Asked, settings: Settings) -> Order:
    """Check every word of the command line. Raises UsageError, naming the nearest known, before anything is done."""
    from service.cases import catalogue
    from service.subjects import parse_subject

    if not asked.subjects:
        raise UsageError("name at least one subject to test: deepspeed==0.18.3, git+https://…@REF, or a path")
    torch = _split(asked.torch)
    known = catalog.load(settings)
    if not torch:
        versions = ", ".join(spec.torch for spec in known.bare())
        raise UsageError(f"say on which torch: --torch V, once per version; there are {versions}")
    runtimes = known.select(torch)
    modes = _known(_split(asked.modes), MODES, "mode") or MODES
    world_sizes = _world_sizes(_split(asked.world_sizes)) or DEFAULT_WORLD_SIZES
    cases = catalogue().select(asked.cases)
    subjects = tuple(parse_subject(text, settings) for text in dict.fromkeys(asked.subjects))
    return Order(subjects, runtimes, world_sizes, modes, cases)


def _split(words: Sequence[str]) -> tuple[str, ...]:
    """Options may be repeated, or hold several values with commas; each value once."""
    return tuple(dict.fromkeys(part.strip() for word in words for part in word.split(",") if part.strip()))


def _known(words: Sequence[str], known: Sequence[str], what: str) -> tuple[str, ...]:
    for word in words:
        if word not in known:
            raise UsageError(f"{what} {word!r} is not known: {nearest(word, known)} There are {', '.join(known)}")
    return tuple(word for word in known if word in words)


def _world_sizes(words: Sequence[str]) -> tuple[int, ...]:
    sizes = []
    for word in words:
        if not word.isdecimal() or int(word) not in WORLD_SIZES:
            there = ", ".join(map(str, WORLD_SIZES))
            close = min(WORLD_SIZES, key=lambda size: abs(size - int(word))) if word.isdecimal() else None
            hint = f"the nearest is {close}; " if close else ""
            raise UsageError(f"world size {word!r} is not known: {hint}there are {there}")
        sizes.append(int(word))
    return tuple(sorted(sizes))


def submitted(asked: Asked, order: Order, settings: Settings, database: Database, watch: Watcher) -> SubmissionView:
    """Resolve the subjects, plan, and store the submission."""
    from service import store
    from service.matrix import plan

    checkouts = [resolved(request, settings, watch) for request in order.subjects]
    planned = plan(checkouts, order.runtimes, TRANSPORT, order.world_sizes, order.cases, order.modes)
    with database.session() as session:
        return store.submit(
            session,
            checkouts=checkouts,
            runtimes=list(order.runtimes),
            plan=planned,
            requester=getpass.getuser(),
            reason="manual",
            priority=PRIORITY,
            request=asdict(asked),
            rerun=asked.rerun,
            deadlines=settings.deadlines,
        )


def resolved(request: SubjectRequest, settings: Settings, watch: Watcher) -> Checkout:
    """One subject as a checkout; said only where something had to be fetched or packed."""
    from service.subjects import resolve

    name, told = request.text, False

    def progress(what: str, done: int, total: int | None) -> None:
        nonlocal told
        told = True
        watch.growing(name)(what, done, total)

    checkout = resolve(request, settings, progress)
    if told:
        watch.ended(name, f"{checkout.label}, content {checkout.digest[:12]}, {human_bytes(checkout.size)}")
    return checkout


def resumed(database: Database) -> SubmissionView:
    """The newest submission that something kept from ending. Raises UsageError where there is none."""
    from service import store

    with database.read() as session:
        view = store.unfinished_submission(session)
        newest = store.submissions(session, 1)
    if view is not None:
        return view
    if not newest:
        raise UsageError("there is nothing to resume: nothing was ever run here")
    raise UsageError(f"there is nothing to resume: all is done (gradmatrix show s{newest[0].id})")


def execute(view: SubmissionView, settings: Settings, database: Database, watch: Watcher) -> bool:
    """Build the runtimes that are missing and run the worker until the submission ends; whether it did."""
    from service import store
    from workers.cli.runtimes import ensure
    from workers.gpus import alive
    from workers.loop import run_embedded
    from workers.runtimes.venv import VenvExecutor

    executor = VenvExecutor(settings)
    live = [job for job in view.jobs if job.state not in ("done", "cancelled")]
    needed = tuple(dict.fromkeys(job.runtime for job in live))
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
    with stop_on_signals(watch) as stop:
        try:
            ensure(executor, catalog.load(settings).select(needed), watch, stop=stop)
        except InterruptedError:
            return False
        run_embedded(settings, database, view.id, executor, watch, stop)
    return not stop.is_set()


def still_missing(database: Database, submission: int) -> int:
    """How many of a submission's cells have no answer."""
    from service import store

    with database.read() as session:
        now = store.submission(session, submission)
    return now.cells - now.done


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
