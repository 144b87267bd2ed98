"""The task between a submission and its jobs: find its subjects, fetch them, lock its runtimes, plan.

On the straight line this stands between ``service.api`` (which stored what was asked for) and ``workers.loop`` (which
runs what is planned here). It has a state of its own, so that a slow fetch is seen and one that was killed is taken up.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from sqlalchemy.exc import InterfaceError, OperationalError, SQLAlchemyError
from sqlalchemy.orm import Session

from service import store
from service.broker import Broker, Publisher, announce
from service.checkouts import known_commit
from service.claims import BEAT_S
from service.config import Settings
from service.db import Database
from service.errors import GradmatrixError, UsageError
from service.logs import bound
from service.order import Wanted, check
from service.store import Resolving, StaleFence
from service.subjects import Progress, Unreachable, resolve
from workers.runtimes import SourceUnavailableError
from workers.runtimes.locking import ensure_locked

REPORT_S = 1.0
"""How often, at most, the database is told how far it is."""
log = logging.getLogger(__name__)


class Fetcher:
    """Takes submissions on, one after the other, until it is told to stop."""

    def __init__(self, settings: Settings, database: Database, broker: Broker, tell: Publisher | None = None) -> None:
        """``broker`` wakes it; ``tell`` is told what it planned, where that is not the same."""
        self._settings, self._database, self._broker = settings, database, broker
        self._tell = tell or broker

    def run(self, stop: threading.Event) -> None:
        """Work until ``stop`` is set. A database that is away is waited for."""
        looked = 0.0
        while not stop.is_set():
            hinted = self._broker.wait(0.2)
            if not hinted and time.monotonic() - looked < BEAT_S:
                continue
            try:
                while not stop.is_set() and self.one(stop):
                    pass
            except SQLAlchemyError as error:
                log.warning("the database failed; trying again: %s", error)
                stop.wait(1.0)
            looked = time.monotonic()

    def one(self, stop: threading.Event | None = None) -> bool:
        """Take one submission on, if one waits, and see it through; whether one did."""
        with self._database.session() as session:
            task = store.claim_resolution(session)
        if task is None:
            return False
        with bound(submission=task.submission):
            self._see_through(task, stop or threading.Event())
        return True

    def _see_through(self, task: Resolving, stop: threading.Event) -> None:
        try:
            with _Reporting(self._database, task, stop) as report:
                self._resolve(task, report)
        except StaleFence:
            pass  # cancelled, or taken on by another one
        except InterruptedError:  # one of these, or stopped
            with suppress(StaleFence), self._database.session() as session:
                store.release_resolution(session, task)
        except (Unreachable, SourceUnavailableError) as error:
            self._end(store.give_back_resolution, task, error)
        except GradmatrixError as error:
            self._end(store.fail_resolution, task, error)
        except (OperationalError, InterfaceError):
            raise  # away: its lease says when it is tried again
        except Exception as error:
            log.exception("could not be fetched")
            self._end(store.give_back_resolution, task, error)

    def _end(self, act: Callable[[Session, Resolving, str], object], task: Resolving, error: Exception) -> None:
        log.warning("not resolved: %s", error)
        with suppress(StaleFence), self._database.session() as session:
            act(session, task, str(error) or type(error).__name__)

    def _resolve(self, task: Resolving, report: Progress) -> None:
        wanted = Wanted.from_json(task.request["wanted"])
        order = check(wanted, self._settings, wanted.transports)
        if order.at_most > 10 * self._settings.cells_max:  # so many that counting them would take long
            raise UsageError(f"that may be {order.at_most} cells, {self._too_many()}")
        checkouts = [
            known_commit(self._settings, self._database, subject, report) or resolve(subject, self._settings, report)
            for subject in order.subjects
        ]
        runtimes = ensure_locked(order.runtimes, self._settings, report)
        planned = order.plan(checkouts, runtimes)
        if planned.cells > self._settings.cells_max:
            raise UsageError(f"that is {planned.cells} cells, {self._too_many()}")
        if self._settings.database_url:
            # Before anybody may claim a job of it, and in transactions of its own: it may take a while.
            for checkout in checkouts:
                with self._database.session() as session, checkout.tar.open("rb") as tar:
                    store.keep_checkout(session, checkout, tar)
        with self._database.session() as session:
            store.plan_resolved(
                session,
                task,
                checkouts=checkouts,
                runtimes=list(runtimes),
                plan=planned,
                rerun=bool(task.request.get("rerun")),
                deadlines=self._settings.deadlines,
            )
        log.info("resolved: %d cells of %s", planned.cells, ", ".join(checkout.label for checkout in checkouts))
        announce(self._database, self._tell)

    def _too_many(self) -> str:
        most = f"and this service takes {self._settings.cells_max} at most (cells_max)"
        return f"{most}: ask for fewer versions, world sizes or cases"


class _Reporting:
    """Renews the task's lease while it lasts, and tells the database how far it is.

    A git fetch says nothing for minutes, so that this is a thread of its own; what is to be told is set by a call.
    """

    def __init__(self, database: Database, task: Resolving, stop: threading.Event) -> None:
        self._database, self._task, self._stop = database, task, stop
        self._now: tuple[str, int, int | None] = ("", 0, None)
        self._lost, self._over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._beat, name=f"fetch-{task.submission}")

    def __enter__(self) -> _Reporting:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def __call__(self, what: str, done: int, total: int | None) -> None:
        """What is being done. Raises InterruptedError where nobody waits for it any more."""
        self._now = (what, done, total)
        if self._stop.is_set() or self._lost.is_set():
            raise InterruptedError

    def _beat(self) -> None:
        told: tuple[str, int, int | None] | None = None
        at = 0.0
        while not self._over.wait(REPORT_S):
            if self._now == told and time.monotonic() - at < BEAT_S:
                continue
            told, at = self._now, time.monotonic()
            try:
                with self._database.session() as session:
                    store.report_resolution(session, self._task, *told)
            except StaleFence:
                self._lost.set()
                return
            except SQLAlchemyError:
                continue  # away for a moment; the lease outlives that
