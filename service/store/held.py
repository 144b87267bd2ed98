"""What becomes of a claimed job: started, given back, finished, cancelled, or taken from a holder that is gone.

On the straight line this follows ``service.store.claim``; ``workers.loop`` calls it, and ``reclaim`` whoever looks
at the queue next.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

import sqlalchemy as sa
from sqlalchemy.orm import Session

from service.claims import Alive, Holder
from service.models import LIVE, OVER, Attempt, GpuLease, Job, Result, Submission, SubmissionJob
from service.store.answered import answered
from service.store.settle import settle_jobs
from service.store.sql import NotFound, StaleFence, held_job, lock, touched, utcnow
from service.store.unanswered import answer_infra
from service.verdicts import Verdict

MAX_FAILURES = 3
"""Claims in a row that may end without one new answer, before a job is given up."""
AGAIN_S = 30.0
"""How long after the machine failed the first time the same host may try again; after the second twice as long."""


def start(session: Session, job: int, fence: int, now: datetime | None = None) -> None:
    """The container has come to this job. Raises StaleFence."""
    held_job(session, job, fence).state = "running"
    session.flush()
    settle_jobs(session, [job], now or utcnow())


def release(session: Session, job: int, fence: int, reason: str = "", now: datetime | None = None) -> str:
    """Give the job back unfinished, of one's own will (Ctrl-C, shutdown): no failure. The job's new state."""
    return _leave(session, job, fence, "released", reason, failed=False, now=now or utcnow())


def requeue(
    session: Session, job: int, fence: int, reason: str, now: datetime | None = None, *, waits: bool = False
) -> str:
    """Give the job back because its attempt failed. After :data:`MAX_FAILURES` without a new answer it is given up.

    ``waits``: this host, as it is, could only fail again at once.
    """
    return _leave(session, job, fence, "lost", reason, failed=True, waits=waits, now=now or utcnow())


def finish(session: Session, job: int, fence: int, reason: str = "", now: datetime | None = None) -> str:
    """End the job. Where cells still lack an answer it counts as :func:`requeue`. The job's new state."""
    return _leave(session, job, fence, "done", reason, failed=True, waits=True, now=now or utcnow())


def _leave(
    session: Session, job: int, fence: int, how: str, reason: str, *, failed: bool, now: datetime, waits: bool = False
) -> str:
    state = _end_attempt(session, job, fence, how, reason, failed=failed, waits=waits, now=now)
    if state != "cancelled":
        settle_jobs(session, [job], now)
    return state


def _end_attempt(
    session: Session, job: int, fence: int, how: str, reason: str, *, failed: bool, waits: bool, now: datetime
) -> str:
    """End the attempt, and queue the job again or end it too; its submissions are still to be settled."""
    try:
        row = held_job(session, job, fence)
    except StaleFence:
        return _leave_cancelled(session, job, fence, now)
    attempt = session.scalars(sa.select(Attempt).where(Attempt.job_id == job, Attempt.fence == fence)).one()
    missing = row.cells_total - row.cells_done
    attempt.state, attempt.ended_at = how, now
    attempt.note = reason or (f"ended with {missing} cells unanswered" if missing and failed else "")
    row.failures += int(bool(missing) and failed)
    row.lease_until = row.container = row.host_id = None
    if missing and row.failures < MAX_FAILURES:
        row.state, row.note = "queued", attempt.note
        row.not_before = None
        if waits and _of_the_machine(session, attempt.id):
            row.not_before = now + timedelta(seconds=AGAIN_S * row.failures)
    else:
        row.state, row.finished_at, row.note = "done", now, ""
        if missing:
            row.note = f"given up with {missing} cells unanswered: {attempt.note}"
            session.flush()
            answer_infra(session, attempt, f"given up after {row.failures} attempts: {attempt.note}", now)
            recount(session, row)
    session.flush()
    _free(session, attempt.container)
    return row.state


def _of_the_machine(session: Session, attempt: int) -> bool:
    """Whether what an attempt left unanswered is the machine's doing: it says so of a cell, or it answered none.

    One that answered, and ended early all the same, met a cell of the subject's that broke it: the others go on.
    """
    said = set(session.scalars(sa.select(Result.verdict).where(Result.attempt_id == attempt).distinct()))
    return not said or Verdict.INFRA in said


def _leave_cancelled(session: Session, job: int, fence: int, now: datetime) -> str:
    """The worker of a cancelled job has stopped: its devices are free. Raises StaleFence for any other stale job."""
    attempt = session.scalars(sa.select(Attempt).where(Attempt.job_id == job, Attempt.fence == fence)).one_or_none()
    row = session.get_one(Job, job)
    if row.state != "cancelled" or attempt is None or attempt.state != "running" or row.fence != fence:
        raise StaleFence(f"job {job} is {row.state} under fence {row.fence}: fence {fence} holds nothing")
    attempt.state, attempt.ended_at = "cancelled", now
    row.lease_until = None
    session.flush()
    _free(session, attempt.container)
    return row.state


def _free(session: Session, container: str) -> None:
    """Give the devices back once no attempt of the container runs any more."""
    running = sa.select(Attempt.id).where(Attempt.container == container, Attempt.state == "running")
    if session.scalars(running.limit(1)).first() is None:
        touched(session, sa.delete(GpuLease).where(GpuLease.container == container))


def cancel(session: Session, submission: int, now: datetime | None = None) -> list[int] | None:
    """Cancel a submission, and the live jobs that no other waits for. Answered cells keep their answers.

    The jobs' workers are told by their next beat; the answer is the jobs that were cancelled, None where the
    submission was over already and nothing was done.
    """
    now = now or utcnow()
    lock(session, "plan")  # nothing is planned meanwhile: what is planned now is cancelled too
    mine = sa.select(SubmissionJob.job_id).where(SubmissionJob.submission_id == submission)
    # jobs before submissions, as everywhere: two that lock in different orders could wait for each other
    jobs = session.scalars(
        sa.select(Job).where(Job.id.in_(mine), Job.state.in_(LIVE)).order_by(Job.id).with_for_update()
    ).all()
    row = session.get(Submission, submission, with_for_update=True)
    if row is None:
        raise NotFound(f"there is no submission {submission}")
    if row.state in OVER:
        return None
    row.state, row.finished_at = "cancelled", now
    session.flush()
    waited_for = set(
        session.scalars(
            sa.select(SubmissionJob.job_id)
            .join(Submission)
            .where(SubmissionJob.job_id.in_(mine), Submission.state.not_in(OVER))
        )
    )
    jobs = [job for job in jobs if job.id not in waited_for]
    for job in jobs:
        job.state, job.finished_at, job.note = "cancelled", now, "cancelled"
    session.flush()
    return [job.id for job in jobs]


def reclaim(session: Session, now: datetime | None = None, alive: Alive | None = None) -> list[int]:
    """Queue again the jobs whose holder is gone: by its lease, or at once where ``alive`` says that it is dead.

    The answer is the jobs that are queued again. With ``alive`` this is how a killed run is taken up by the next
    process on the same machine without waiting for its lease.
    """
    now = now or utcnow()
    states = take_back(session, now, alive)
    settle_jobs(session, states, now)
    return [job for job, state in states.items() if state == "queued"]


def take_back(session: Session, now: datetime, alive: Alive | None = None) -> dict[int, str]:
    """As :func:`reclaim`, with the submissions still to be settled: the new state of every job that was taken back.

    A job whose row somebody else has locked is left to the next look: so this waits for no job, and whoever locks
    jobs in their order (:func:`cancel`) never waits for one that waits for it.
    """
    running = sa.select(Attempt.job_id, Attempt.id).join(Job, Job.id == Attempt.job_id)
    running = running.where(Attempt.state == "running").order_by(Attempt.job_id)
    if alive is None:  # only a lease can say it, and most leases are not looked at twice
        running = running.where(sa.or_(Job.lease_until.is_(None), Job.lease_until < now))
    found = session.execute(running).all()
    mine = lock_free_jobs(session, {row[0] for row in found})
    states: dict[int, str] = {}
    for job_id, attempt_id in found:
        if job_id not in mine:
            continue
        job = session.get_one(Job, job_id, populate_existing=True)
        attempt = session.get_one(Attempt, attempt_id, populate_existing=True)
        if attempt.state != "running":  # it ended just before its row was locked
            continue
        holder = Holder(attempt.machine, attempt.pid, attempt.pid_started)
        expired = job.lease_until is None or job.lease_until < now
        if not expired and (alive is None or alive(holder) is not False):
            continue
        reason = "its lease ran out" if expired else f"its process {holder.pid} is gone"
        states[job.id] = _end_attempt(session, job.id, attempt.fence, "lost", reason, failed=True, waits=False, now=now)
    containers = sa.select(Attempt.container).where(Attempt.state == "running")
    touched(session, sa.delete(GpuLease).where(GpuLease.container.not_in(containers)))  # held for nobody
    return states


def lock_free_jobs(session: Session, jobs: Iterable[int]) -> set[int]:
    """Lock the rows of ``jobs`` that nobody else has locked, without waiting; which these are."""
    wanted = list(jobs)
    if not wanted:
        return set()
    rows = sa.select(Job.id).where(Job.id.in_(wanted)).order_by(Job.id)
    return set(session.scalars(rows.with_for_update(skip_locked=True)))


def recount(session: Session, job: Job) -> None:
    """Set the counts of ``job`` from its results, each cell's newest: imports and later judgements bring some that no
    transaction here accepted.
    """
    newest = sa.func.row_number().over(
        partition_by=Result.cell_id, order_by=(Result.created_at.desc(), Result.judged_at.desc(), Result.id.desc())
    )
    answers = (
        sa.select(Result.cell_id, Result.verdict, newest.label("place"))
        .join(Attempt, Attempt.id == Result.attempt_id)
        .where(Attempt.job_id == job.id)
        .subquery()
    )
    counted = sa.select(answers.c.verdict, sa.func.count()).where(answers.c.place == 1).group_by(answers.c.verdict)
    if job.state in LIVE:
        counted = counted.where(answers.c.cell_id.in_(answered(job.id)))
    found = session.execute(counted)
    job.counts = {row.verdict: row[1] for row in found}
    job.cells_done = sum(job.counts.values())
