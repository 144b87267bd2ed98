"""Removing what is large and old: raw tensors, logs, and attempts that answered nothing.

On the straight line this stands behind ``service.reconcile``. Verdicts and evidence stay, and so does everything that
a pinned submission cites. Of bytes that are gone it is still known how many there were, and when they were removed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from service.models import (
    LIVE,
    Attempt,
    AttemptBlob,
    Blob,
    ControlResult,
    Job,
    Result,
    ResultBlob,
    Submission,
    SubmissionCell,
    SubmissionJob,
)
from service.retention import Retention
from service.store.sql import touched, try_lock

KINDS = {"tensors": ("got", "expected"), "logs": ("log", "stacks")}
PINNED = sa.select(SubmissionCell.cell_id).join(Submission).where(Submission.pinned)
"""The cells that a pinned submission cites."""
BATCH = 500
"""Rows per transaction, so that nobody waits long for it."""
BLOBS = "blobs"
"""Held by whoever removes bytes, and shared by those who refer to them."""


@dataclass(frozen=True)
class Expired:
    """How many things are due, and how many bytes they were before they were compressed or shared."""

    number: int
    size: int


def expired(session: Session, policy: Retention, now: datetime) -> dict[str, Expired]:
    """What :func:`remove_expired` would remove, called until nothing is left."""
    found = {}
    for what in KINDS:
        number, size = 0, 0
        for query in _blobs(policy, what, now):
            rows = query.subquery()
            one = session.execute(sa.select(sa.func.count(), sa.func.sum(rows.c.size)).select_from(rows)).one()
            number, size = number + one[0], size + int(one[1] or 0)
        found[what] = Expired(number, size)
    attempts = _attempts(policy, now)
    count = 0 if attempts is None else session.scalar(sa.select(sa.func.count()).select_from(attempts.subquery()))
    return {**found, "attempts": Expired(count or 0, 0)}


def remove_expired(session: Session, policy: Retention, now: datetime) -> dict[str, int]:
    """Remove at most :data:`BATCH` things of each sort; how many it were. None while others refer to bytes: they would
    all have to wait for it.
    """
    if not try_lock(session, BLOBS):
        return {}
    done = dict.fromkeys(KINDS, 0)
    for what in KINDS:
        for query in _blobs(policy, what, now):
            rows = session.scalars(query.limit(BATCH - done[what])).all()
            done[what] += len(rows)
            _forget(session, rows, now)
    attempts = _attempts(policy, now)
    gone = [] if attempts is None else list(session.scalars(attempts.limit(BATCH)))
    if gone:
        blobs = session.scalars(sa.select(AttemptBlob).where(AttemptBlob.attempt_id.in_(gone))).all()
        _forget(session, blobs, now)
        for table in (AttemptBlob, ControlResult):
            touched(session, sa.delete(table).where(table.attempt_id.in_(gone)))
        touched(session, sa.delete(Attempt).where(Attempt.id.in_(gone)))
    return {**done, "attempts": len(gone)}


def _forget(session: Session, rows: Sequence[Any], now: datetime) -> None:
    """Let go of the rows' bytes, and remove those that nothing else refers to."""
    digests = {row.digest for row in rows if row.digest}
    for row in rows:
        if row.digest:
            row.meta = {**row.meta, "removed": now.date().isoformat()}
            row.digest = None
    session.flush()
    used = sa.exists().where(ResultBlob.digest == Blob.digest) | sa.exists().where(AttemptBlob.digest == Blob.digest)
    touched(session, sa.delete(Blob).where(Blob.digest.in_(digests), ~used))


def _blobs(policy: Retention, what: str, now: datetime) -> list[sa.Select[Any]]:
    """The blobs of results, and those of attempts, that are due."""
    before = policy.before(what, now)
    if before is None:
        return []
    results = (
        sa.select(ResultBlob)
        .join(Result, Result.id == ResultBlob.result_id)
        .where(ResultBlob.kind.in_(KINDS[what]), ResultBlob.digest.is_not(None))
        .where(Result.created_at < before, Result.cell_id.not_in(PINNED))
    )
    attempts = (
        sa.select(AttemptBlob)
        .join(Attempt, Attempt.id == AttemptBlob.attempt_id)
        .where(AttemptBlob.kind.in_(KINDS[what]), AttemptBlob.digest.is_not(None), Attempt.ended_at < before)
        .where(~_cited())
    )
    return [results, attempts]


def _attempts(policy: Retention, now: datetime) -> sa.Select[int] | None:
    """The attempts that are due: they answered nothing, and nobody works on their jobs any more."""
    before = policy.before("attempts", now)
    if before is None:
        return None
    return (
        sa.select(Attempt.id)
        .join(Job, Job.id == Attempt.job_id)
        .where(Attempt.ended_at < before, Attempt.state != "running", Job.state.not_in(LIVE))
        .where(~sa.exists().where(Result.attempt_id == Attempt.id), ~_cited())
    )


def _cited() -> sa.ColumnElement[bool]:
    """Whether an attempt answered a cell of a pinned submission, or is of a job that one waited for."""
    answered = sa.exists().where(Result.attempt_id == Attempt.id, Result.cell_id.in_(PINNED))
    jobs = sa.select(SubmissionJob.job_id).join(Submission).where(Submission.pinned)
    return answered | Attempt.job_id.in_(jobs)
