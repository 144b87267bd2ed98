"""Claims: a job goes to one host, under a new fence, with all of its devices or none.

On the straight line this is the database's half of ``workers.loop``; what is claimed is decided by the pure choice
that the loop passes in.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Iterable
from datetime import datetime, timedelta

import sqlalchemy as sa
from sqlalchemy.orm import Session

from jobs.contract import FAMILIES, MODES, CellSpec
from service.claims import LEASE_S, Choice, Choose, HostView, LeaseView, QueuedJob
from service.models import (
    HELD,
    OVER,
    Attempt,
    CaseVersion,
    Cell,
    Checkout,
    GpuLease,
    Host,
    Job,
    Runtime,
    Submission,
    SubmissionJob,
)
from service.store.answered import answered
from service.store.devices import lock_host, seen, sick_devices
from service.store.held import lock_free_jobs, take_back
from service.store.settle import settle_jobs
from service.store.sql import touched, utcnow
from service.store.trust import vouched
from service.store.views import Claim, ClaimedJob

COLUMNS = (
    *(Job.id, Job.checkout_id, Job.runtime_id, Job.transport, Job.world_size, Job.priority, Job.queued_at, Job.wall_s),
    *(Host.name, Job.reserved_until),
)
"""What QueuedJob has, in its order: the whole queue is read at every look."""
FIELDS = tuple(field.name for field in dataclasses.fields(QueuedJob))
ELSEWHERE_S = 60.0
"""For how long a job that failed on a host is left to the others."""


class _LostRaceError(Exception):
    """Another host was faster."""


def claim(
    session: Session, host: HostView, choose: Choose, now: datetime | None = None, *, only: int | None = None
) -> Claim | None:
    """Claim what ``choose`` picks for ``host``, or nothing. Jobs whose lease ran out anywhere are queued again first,
    and no device that is sick is chosen from.

    ``only`` limits the queue to the jobs that one submission waits for.
    """
    now = now or utcnow()
    lock_host(session, host.name)
    taken_back = take_back(session, now)
    host_id = seen(session, host, now)
    host = dataclasses.replace(host, out=host.out | sick_devices(session, host_id))
    queue = _queue(session, only, host, host_id, now)
    choice = choose(queue, host, _leases(session, host_id), now)
    _reserve(session, choice.reserve, host_id, now)
    claimed = _take_or_not(session, choice, host, host_id, now) if choice.jobs else None
    # All at once and at the end, for whoever locks submissions has locked its jobs before.
    settle_jobs(session, [*taken_back, *(job.job for job in (claimed.jobs if claimed else ()))], now)
    return claimed


def _take_or_not(session: Session, choice: Choice, host: HostView, host_id: int, now: datetime) -> Claim | None:
    try:
        with session.begin_nested():
            return _take(session, choice, host, host_id, now)
    except (_LostRaceError, sa.exc.IntegrityError):
        return None  # all or none: the savepoint took back what had been claimed already


def _queue(session: Session, only: int | None, host: HostView, host_id: int, now: datetime) -> list[QueuedJob]:
    """What may be claimed here. What just failed here is left to the other hosts for a while, if there are any, and
    waits if there are none; what nobody vouches for is no matter of a host that cannot contain it.

    Whoever has one submission run and stands beside it (``only``) is not kept waiting.
    """
    since = now - timedelta(seconds=ELSEWHERE_S)
    failed_here = sa.exists().where(
        Attempt.job_id == Job.id,
        Attempt.host_id == host_id,
        Attempt.state.in_(("lost", "done")),  # done, and the job queued again: cells lack an answer
        Attempt.ended_at > since,
    )
    due = sa.or_(Job.not_before.is_(None), Job.not_before <= now) if only is None else sa.true()
    others = sa.exists().where(Host.id != host_id, Host.seen_at > now - timedelta(seconds=LEASE_S))
    query = (
        sa.select(*COLUMNS)
        .outerjoin(Host, Host.id == Job.reserved_host_id)
        .where(Job.state == "queued", Job.transport.in_(host.transports), ~sa.and_(failed_here, sa.or_(others, ~due)))
        .order_by(Job.priority.desc(), Job.queued_at, Job.id)
    )
    if host.trusted_only:
        query = query.where(vouched())
    if only is not None:
        query = query.join(SubmissionJob, SubmissionJob.job_id == Job.id).where(SubmissionJob.submission_id == only)
    return [QueuedJob(**dict(zip(FIELDS, row, strict=True))) for row in session.execute(query)]


def _leases(session: Session, host_id: int) -> list[LeaseView]:
    found = session.execute(sa.select(GpuLease.device, GpuLease.ends_at).where(GpuLease.host_id == host_id))
    return [LeaseView(device, ends_at) for device, ends_at in found]


def _reserve(session: Session, job: int | None, host_id: int, now: datetime) -> None:
    """Keep the host free for ``job`` for as long as a beat may take; the next look at the queue says it again."""
    before = sa.select(Job.id).where(Job.state == "queued", Job.reserved_host_id == host_id, Job.id != (job or 0))
    let_go = {"reserved_host_id": None, "reserved_until": None}
    kept = {"reserved_host_id": host_id, "reserved_until": now + timedelta(seconds=LEASE_S)}
    for jobs, values in ((session.scalars(before).all(), let_go), ([] if job is None else [job], kept)):
        if free := lock_free_jobs(session, jobs):  # whose row is locked is being changed anyway
            touched(session, sa.update(Job).where(Job.id.in_(free), Job.state == "queued").values(**values))


def _take(session: Session, choice: Choice, host: HostView, host_id: int, now: datetime) -> Claim:
    container, until = uuid.uuid4().hex, now + timedelta(seconds=LEASE_S)
    ends_at = now + timedelta(seconds=choice.wall_s)
    for device in choice.devices:
        session.add(GpuLease(host_id=host_id, device=device, container=container, lease_until=until, ends_at=ends_at))
    session.flush()
    wanted = {job.id for job in choice.jobs}
    if lock_free_jobs(session, wanted) != wanted:  # another host claims one of them, or it is being cancelled
        raise _LostRaceError
    claimed = tuple(_take_job(session, job.id, host, host_id, container, until, now) for job in choice.jobs)
    first = choice.jobs[0]
    checkout, runtime = session.get_one(Checkout, first.checkout), session.get_one(Runtime, first.runtime)
    return Claim(
        container=container,
        checkout=checkout.digest,
        subject=checkout.subject,
        label=checkout.label,
        runtime=runtime.digest,
        runtime_name=runtime.name,
        transport=first.transport,
        devices=choice.devices,
        wall_s=choice.wall_s,
        jobs=claimed,
    )


def _take_job(
    session: Session, job: int, host: HostView, host_id: int, container: str, until: datetime, now: datetime
) -> ClaimedJob:
    statement = (
        sa.update(Job)
        .where(Job.id == job, Job.state == "queued")
        .values(
            fence=Job.fence + 1,
            state="leased",
            lease_until=until,
            host_id=host_id,
            container=container,
            reserved_host_id=None,
            reserved_until=None,
            not_before=None,
        )
    )
    if touched(session, statement) != 1:
        raise _LostRaceError
    fence, world_size = session.execute(sa.select(Job.fence, Job.world_size).where(Job.id == job)).one()
    attempt = Attempt(job_id=job, fence=fence, container=container, host_id=host_id, state="running", note="", facts={})
    attempt.machine, attempt.pid, attempt.pid_started = host.holder.machine, host.holder.pid, host.holder.started
    attempt.started_at = now
    session.add(attempt)
    session.flush()
    waiting = sa.select(SubmissionJob.submission_id).join(Submission)
    waiting = waiting.where(SubmissionJob.job_id == job, Submission.state.not_in(OVER))
    submissions = tuple(session.scalars(waiting.order_by(Submission.id)))
    return ClaimedJob(job, fence, attempt.id, world_size, _unanswered(session, job), submissions)


def _unanswered(session: Session, job: int) -> tuple[CellSpec, ...]:
    """The job's cells that none of its attempts has answered for good, a family and a mode at a time."""
    found = session.execute(
        sa.select(Cell.id, CaseVersion.case_id, CaseVersion.version, Cell.mode, CaseVersion.family)
        .join(CaseVersion, CaseVersion.id == Cell.case_version_id)
        .where(Cell.job_id == job, Cell.id.not_in(answered(job)))
    )
    order = sorted(found, key=lambda row: (_place(FAMILIES, row.family), _place(MODES, row.mode), row.id))
    return tuple(CellSpec(row.id, row.case_id, row.version, row.mode) for row in order)


def _place(words: tuple[str, ...], word: str) -> int:
    return words.index(word) if word in words else len(words)


def beat(session: Session, *, jobs: Iterable[tuple[int, int]], now: datetime | None = None) -> set[int]:
    """Renew the leases of ``jobs`` (each with its fence); the answer is those that must stop at once.

    These were cancelled, or claimed anew because their lease had run out: nothing is accepted for them any more.
    """
    now = now or utcnow()
    until = now + timedelta(seconds=LEASE_S)
    stop: set[int] = set()
    for job, fence in sorted(jobs):
        held = (Job.id == job, Job.fence == fence, Job.state.in_(HELD))
        if touched(session, sa.update(Job).where(*held).values(lease_until=until)) != 1:
            stop.add(job)
            continue
        container = sa.select(Job.container).where(Job.id == job).scalar_subquery()
        touched(session, sa.update(GpuLease).where(GpuLease.container == container).values(lease_until=until))
        seen = sa.select(Job.host_id).where(Job.id == job).scalar_subquery()
        touched(session, sa.update(Host).where(Host.id == seen).values(seen_at=now))
    return stop
