"""The worker's loop: on a hint, a freed device or every few seconds it claims what may start, and runs it.

On the straight line this stands between ``service.broker`` (which says that there is work) and ``workers.attempt``. The
same loop serves a fleet and one process on a laptop.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from service import store
from service.broker import Broker, LocalBroker
from service.cases import CaseCatalogue, catalogue
from service.catalog import RuntimeSpec
from service.catalog import load as load_catalog
from service.checkouts import ensure_checkout
from service.claims import BEAT_S, KILL_S, Choice, Choose, HostView, LeaseView, QueuedJob
from service.config import ConfigError, Settings
from service.db import Database
from service.logs import bound
from service.policy import Policy, load_policy
from service.store import Claim
from workers import events
from workers.attempt import Attempt
from workers.choose import choose
from workers.gpus import Guard, Inventory, Monitor, find_inventory, local_host
from workers.runtimes import Executor
from workers.scratch import sweep_scratch

TICK_S = 0.2
CONTAINED = "docker"
log = logging.getLogger(__name__)


class Loop:
    """Claims and runs jobs on one host until it is told to stop."""

    def __init__(
        self,
        settings: Settings,
        database: Database,
        *,
        host: HostView,
        executor: Executor,
        broker: Broker,
        listener: events.Listener,
        only: int | None = None,
        jobs: frozenset[int] | None = None,
        lasting: bool = False,
        models: Mapping[str, str] | None = None,
        monitor: Monitor | None = None,
    ) -> None:
        """``only`` limits it to what one submission waits for, ``jobs`` to these jobs.

        One that is ``lasting`` outlives a database that is away and a runtime that cannot be built: the job is given
        back, and says why when it is given up. ``models`` are what the host's devices are, and ``monitor`` knows how
        they are. Raises ConfigError where jobs are to be contained and ``executor`` contains nothing.
        """
        if settings.executor == CONTAINED and executor.trusted_only:
            raise ConfigError(
                f'jobs do not run in containers yet: executor = "{CONTAINED}" is for `gradmatrix runtimes` only'
            )
        self._lasting = lasting
        self._settings, self._database = settings, database
        self._host = dataclasses.replace(host, trusted_only=executor.trusted_only)
        self._executor, self._broker = executor, broker
        self._listener, self._only, self._jobs = listener, only, jobs
        self._catalogue: CaseCatalogue = catalogue()
        self._policy: Policy = load_policy()
        self._runtimes: dict[str, RuntimeSpec] = {spec.digest: spec for spec in load_catalog(settings).runtimes}
        self._models, self._monitor = models or {}, monitor
        self._recorded = False
        self._running: dict[threading.Thread, Attempt] = {}
        self._failure: BaseException | None = None

    def run(
        self, stop: threading.Event, done: Callable[[], bool] = lambda: False, stopped: str = "stopped by its worker"
    ) -> None:
        """Work until ``stop`` is set or ``done()`` holds. Raises what kept a container from being started at all.

        ``stopped`` is what jobs that were running say when ``stop`` ended them.
        """
        sweep_scratch(self._settings)
        renewed = beaten = looked = time.monotonic()
        look = True
        try:
            while not stop.is_set() and self._failure is None:
                look = self._reap() or look
                now = time.monotonic()
                if look or now - looked >= BEAT_S:
                    looked = now
                    idle = not self._running
                    look = self._claim_if_possible()
                    renewed = now if look and idle else renewed  # a claim is as good as a beat
                if not self._running and done():
                    return
                if now - beaten >= BEAT_S:
                    beaten = now
                    renewed = now if self._beat() else renewed
                if self._running and now - renewed > KILL_S:
                    self._stop_all("the lease could not be renewed")
                look = self._broker.wait(TICK_S) or look
        finally:
            self._stop_all(stopped if stop.is_set() else "stopped by its worker")
        if self._failure is not None:
            raise self._failure

    def _claim_if_possible(self) -> bool:
        try:
            return self._claim()
        except Exception as error:
            if not self._lasting:
                raise
            log.warning("nothing could be claimed; trying again: %s", error, exc_info=True)
            return False

    def _claim(self) -> bool:
        """Claim once; whether something was claimed, so that there may be more."""
        with self._database.session() as session:
            claim = store.claim(session, self._host_now(session), among(self._jobs), only=self._only)
        self._recorded = True
        if claim is None:
            return False
        if claim.runtime not in self._runtimes:  # locked since this loop began, or of another catalogue
            self._runtimes = {spec.digest: spec for spec in load_catalog(self._settings).runtimes}
        if claim.runtime not in self._runtimes:
            self._give_back(claim, f"this host knows no runtime {claim.runtime_name} of digest {claim.runtime[:12]}")
            return False
        attempt = self._attempt(claim)
        thread = threading.Thread(target=self._run, args=(attempt,), name=f"attempt-{claim.container[:8]}")
        self._running[thread] = attempt
        thread.start()
        return True

    def _host_now(self, session: Session) -> HostView:
        """The host, its devices in the places that the store has for them, without those that rest."""
        if not self._recorded:
            places = store.record_devices(session, self._host, self._models)
            self._host = dataclasses.replace(self._host, devices=places)
        resting = self._monitor.resting() if self._monitor is not None else frozenset()
        return dataclasses.replace(self._host, out=resting)

    def _give_back(self, claim: Claim, reason: str) -> None:
        """Let others have what cannot be run here; given back often enough, it is given up, and says why."""
        for job in claim.jobs:
            with bound(**job.ids):
                log.warning("%s", reason)
            with self._database.session() as session:
                store.requeue(session, job.job, job.fence, reason, waits=True)

    def _attempt(self, claim: Claim) -> Attempt:
        return Attempt(
            claim,
            settings=self._settings,
            database=self._database,
            executor=self._executor,
            runtime=self._runtimes[claim.runtime],
            checkout=partial(ensure_checkout, self._settings, self._database, claim.checkout),
            catalogue=self._catalogue,
            policy=self._policy,
            listener=self._listener,
            guard=Guard(claim.devices, self._host.name, self._database, self._monitor),
        )

    def _run(self, attempt: Attempt) -> None:
        claim = attempt.claim
        submissions = sorted({submission for job in claim.jobs for submission in job.submissions})
        with bound(container=claim.container, submissions=submissions, jobs=[job.job for job in claim.jobs]):
            try:
                attempt.run()
            except InterruptedError:
                pass
            except Exception as error:  # carried to the thread that waits for the work, or written down
                if self._lasting:
                    log.exception("the container failed")
                else:
                    self._failure = error

    def _reap(self) -> bool:
        """Forget the threads that ended; whether any did, since its devices are free now."""
        over = [thread for thread in self._running if not thread.is_alive()]
        for thread in over:
            thread.join()
            del self._running[thread]
        return bool(over)

    def _beat(self) -> bool:
        """Renew every claim; stop the attempts whose jobs are no longer ours. False when the database is away."""
        held = {job: (fence, attempt) for attempt in self._running.values() for job, fence in attempt.held()}
        try:
            with self._database.session() as session:
                lost = store.beat(session, jobs=[(job, fence) for job, (fence, _) in held.items()])
        except SQLAlchemyError:
            return False
        for attempt in {held[job][1] for job in lost}:
            attempt.stop("cancelled, or claimed by another worker")
        return True

    def _stop_all(self, reason: str) -> None:
        for attempt in self._running.values():
            attempt.stop(reason)
        for thread in self._running:
            thread.join()
        self._running.clear()


def among(jobs: Container[int] | None) -> Choose:
    """The usual choice, from these jobs of the queue only; from all of it where ``jobs`` is None."""

    def choice(queue: Sequence[QueuedJob], host: HostView, leases: Sequence[LeaseView], now: datetime) -> Choice:
        return choose([job for job in queue if jobs is None or job.id in jobs], host, leases, now)

    return choice


def run_embedded(
    settings: Settings,
    database: Database,
    submission: int,
    executor: Executor,
    listener: events.Listener,
    stop: threading.Event,
    broker: Broker | None = None,
    jobs: frozenset[int] | None = None,
    inventory: Inventory | None = None,
) -> None:
    """Work in this process until ``submission`` is done or ``stop`` is set; what is not done stays queued.

    ``jobs`` are those of it that are taken on and waited for; all of them by default. Raises the GradmatrixError that
    kept its containers from starting.
    """

    def done() -> bool:
        with database.read() as session:
            view = store.submission(session, submission)
        return not (view.live if jobs is None else any(job.live for job in view.jobs if job.id in jobs))

    inventory = inventory or find_inventory(settings)
    broker = broker or LocalBroker()
    with local_loop(settings, database, inventory, executor, broker, listener, only=submission, jobs=jobs) as loop:
        loop.run(stop, done, stopped="stopped by you")


@contextmanager
def local_loop(
    settings: Settings,
    database: Database,
    inventory: Inventory,
    executor: Executor,
    broker: Broker,
    listener: events.Listener,
    *,
    only: int | None = None,
    jobs: frozenset[int] | None = None,
    lasting: bool = False,
) -> Iterator[Loop]:
    """The loop of this machine, whose devices are those of ``inventory``, watched for as long as this lasts."""
    with inventory.watched() as monitor:
        yield Loop(
            settings,
            database,
            host=local_host(settings, inventory),
            executor=executor,
            broker=broker,
            listener=listener,
            only=only,
            jobs=jobs,
            lasting=lasting,
            models=inventory.models,
            monitor=monitor,
        )
