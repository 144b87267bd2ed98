"""How far submissions are, after something happened to their jobs."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.orm import Session

from service.models import LIVE, OVER, Job, Submission, SubmissionJob
from service.store.sql import utcnow


def settle(session: Session, submissions: Iterable[int], now: datetime) -> None:
    """Bring the state of ``submissions`` up to date with their jobs'."""
    for submission in sorted(set(submissions)):
        row = session.get(Submission, submission, with_for_update=True)
        if row is None or row.state in OVER:
            continue
        states = set(
            session.scalars(
                sa.select(Job.state).join(SubmissionJob).where(SubmissionJob.submission_id == submission).distinct()
            )
        )
        if not states & set(LIVE):
            row.state, row.finished_at = "done", now
        else:
            row.state = "queued" if states == {"queued"} else "running"
    session.flush()


def settle_jobs(session: Session, jobs: Iterable[int], now: datetime) -> None:
    """The same for every submission that waits for one of ``jobs``: all at once, so that all lock in one order."""
    waiting = sa.select(SubmissionJob.submission_id).where(SubmissionJob.job_id.in_(list(jobs)))
    settle(session, session.scalars(waiting), now)


def settle_all(session: Session, now: datetime | None = None) -> int:
    """The same for every submission whose jobs are all over while it is not; how many there were."""
    now = now or utcnow()
    live = sa.select(SubmissionJob.submission_id).join(Job).where(Job.state.in_(LIVE))
    waiting = sa.select(Submission.id).where(Submission.state.in_(("queued", "running")), Submission.id.not_in(live))
    stuck = session.scalars(waiting).all()
    settle(session, stuck, now)
    return len(stuck)
