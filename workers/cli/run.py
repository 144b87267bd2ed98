"""``gradmatrix run``: the whole straight line in one process, with a worker inside.

Everything that was asked for is checked before anything is fetched, everything is fetched before anything is built,
and what is answered already is not run again.
"""

from __future__ import annotations

import getpass
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from service.claims import PRIORITIES
from service.config import Settings, load_settings
from service.errors import UsageError
from service.words import human_bytes, plural
from workers.cli.console import INCOMPLETE, console, show_error
from workers.cli.progress import Watcher, watcher
from workers.runtimes import RuntimeBuildError

if TYPE_CHECKING:
    from service.db import Database
    from service.order import Order
    from service.store.views import SubmissionView
    from service.subjects import Checkout, SubjectRequest


@dataclass(frozen=True)
class Asked:
    """The words of the command line, as they were written."""

    subjects: tuple[str, ...] = ()
    torch: tuple[str, ...] = ()
    world_sizes: tuple[str, ...] = ()
    transports: tuple[str, ...] = ()
    modes: tuple[str, ...] = ()
    cases: tuple[str, ...] = ()
    suite: str | None = None
    resume: bool = False
    rerun: bool = False


@dataclass(frozen=True)
class Shown:
    """How the outcome is shown."""

    json: str | None = None
    junit: str | None = None
    all_rows: bool = False


def run(asked: Asked, shown: Shown, *, keep_runtimes: bool = True) -> int:
    """Do it all; the exit status. Without ``keep_runtimes`` each runtime that has to be built is removed after use."""
    from service.db import open_database
    from workers.cli.executing import execute
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
            if order and any(subject.kind in ("commit", "path") for subject in order.subjects):
                watch.say("code runs as you, in virtual environments: give it only what you trust")
            view = resumed(database) if order is None else submitted(asked, order, settings, database, watch)
            missing = view.cells - view.done
            stopped, failure = False, None
            try:
                stopped = view.live and not execute(view, settings, database, watch, keep_runtimes=keep_runtimes)
            except RuntimeBuildError as error:
                if still_missing(database, view.id) == missing:
                    raise
                failure = error
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
    if failure is not None:
        show_error(f"{failure}\nwhat ran is kept, and gradmatrix run --resume runs the others")
        return INCOMPLETE
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
        "--transport": asked.transports,
        "--mode": asked.modes,
        "--case": asked.cases,
        "--suite": asked.suite,
        "--rerun": asked.rerun,
    }
    if beside := [name for name, value in given.items() if value]:
        raise UsageError(
            f"--resume finishes the newest unfinished submission as it was asked for, so {', '.join(beside)} cannot "
            "stand beside it; leave --resume out to ask anew: what is answered already is not run again"
        )


def check_order(asked: Asked, settings: Settings) -> Order:
    """Check every word of the command line. Raises UsageError, naming the nearest known, before anything is done."""
    from service.order import Wanted, check
    from workers.gpus import local_host

    axes = ("subjects", "torch", "world_sizes", "transports", "modes", "cases", "suite")
    wanted = Wanted(**{name: getattr(asked, name) for name in axes})
    host = local_host(settings)
    order = check(wanted, settings, host.transports)
    if not host.shares and (larger := [size for size in order.world_sizes if size > len(host.devices)]):
        there = plural(len(host.devices), "GPU")
        raise UsageError(f"this host has {there}: no world size of {', '.join(map(str, larger))} can run on it")
    return order


def submitted(asked: Asked, order: Order, settings: Settings, database: Database, watch: Watcher) -> SubmissionView:
    """Resolve the subjects, plan, and store the submission."""
    from service import store
    from workers.cli.runtimes import locked

    checkouts = [resolved(request, settings, watch) for request in order.subjects]
    runtimes = locked(order.runtimes, settings, watch)
    with database.session() as session:
        return store.submit(
            session,
            checkouts=checkouts,
            runtimes=list(runtimes),
            plan=order.plan(checkouts, runtimes),
            requester=getpass.getuser(),
            reason="manual",
            priority=PRIORITIES["manual"],
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


def still_missing(database: Database, submission: int) -> int:
    """How many of a submission's cells have no answer."""
    from service import store

    with database.read() as session:
        now = store.submission(session, submission)
    return now.cells - now.done
