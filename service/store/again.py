"""What is asked for by its number and not by words: cells once more, and a submission to be kept for good.

On the straight line this stands behind ``service.api``: nothing has to be found or fetched for it.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from jobs.contract import Deadlines
from service.claims import wall_s
from service.matrix import PlannedCell
from service.models import (
    LIVE,
    Attempt,
    CaseVersion,
    Cell,
    Checkout,
    Hint,
    Job,
    Result,
    Submission,
    SubmissionCell,
    SubmissionCheckout,
    SubmissionJob,
)
from service.store.read import submission as read_submission
from service.store.retaining import BLOBS
from service.store.sql import NotFound, StoreError, lock, utcnow
from service.store.submit import new_submission, queue_job
from service.store.views import SubmissionView

PLACE = ("checkout_id", "runtime_id", "transport", "world_size")


def rerun_cells(
    session: Session,
    cells: Sequence[int],
    *,
    requester: str,
    priority: int,
    request: dict[str, Any],
    deadlines: Deadlines,
    known: Container[tuple[str, int]] | None = None,
    now: datetime | None = None,
) -> SubmissionView:
    """A submission that runs ``cells`` again. One that a live job is to answer anyway is waited for, not run twice.

    ``known`` are the cases that there are today, by id and version. Raises StoreError where a cell is of another one:
    it asks a question that nobody can ask any more.
    """
    now = now or utcnow()
    lock(session, "plan")
    row = new_submission(
        session, "queued", requester=requester, reason="manual", priority=priority, request=request, now=now
    )
    jobs = sa.select(Cell.job_id).where(Cell.id.in_(cells), Cell.job_id.is_not(None))
    # locked, so that a job that ends meanwhile waits for this submission and then tells it
    live = session.scalars(
        sa.select(Job).where(Job.id.in_(jobs), Job.state.in_(LIVE)).order_by(Job.id).with_for_update()
    )
    for job in live:
        job.priority = max(job.priority, priority)
    found = session.execute(
        sa.select(Cell, CaseVersion, Job.state)
        .join(CaseVersion, CaseVersion.id == Cell.case_version_id)
        .outerjoin(Job, Job.id == Cell.job_id)
        .where(Cell.id.in_(cells))
        .order_by(Cell.id)
    ).all()
    for cell, case, _ in found:
        if known is not None and (case.case_id, case.version) not in known:
            what = f"version {case.version} of {case.case_id}"
            raise StoreError(f"cell {cell.id} is of {what}, which is no longer asked: submit its case anew")
    waits: set[int] = set()
    fresh: dict[tuple[Any, ...], dict[int, PlannedCell]] = {}
    for cell, case, state in found:
        if state in LIVE and cell.job_id is not None:
            waits.add(cell.job_id)
        else:
            place = tuple(getattr(cell, name) for name in PLACE)
            fresh.setdefault(place, {})[cell.id] = PlannedCell(case.case_id, case.version, cell.mode)
    for place, missing in fresh.items():
        waits.add(queue_job(session, dict(zip(PLACE, place, strict=True)), missing, priority, wall_s(deadlines), now))
    session.execute(sa.insert(SubmissionCell), [{"submission_id": row.id, "cell_id": cell.id} for cell, _, _ in found])
    session.execute(sa.insert(SubmissionJob), [{"submission_id": row.id, "job_id": job} for job in sorted(waits)])
    for position, checkout in enumerate(dict.fromkeys(cell.checkout_id for cell, _, _ in found)):
        label = session.get_one(Checkout, checkout).label
        session.add(SubmissionCheckout(submission_id=row.id, checkout_id=checkout, position=position, label=label))
    session.add(Hint(kind="work", created_at=now))
    session.flush()
    return read_submission(session, row.id)


def cells_of_job(session: Session, job: int) -> list[int]:
    """The cells that the job has answered, or is to answer."""
    answered = sa.select(Result.cell_id).join(Attempt, Attempt.id == Result.attempt_id).where(Attempt.job_id == job)
    its = sa.or_(Cell.job_id == job, Cell.id.in_(answered))
    return list(session.scalars(sa.select(Cell.id).where(its).order_by(Cell.id)))


def pin(session: Session, submission: int, pinned: bool) -> SubmissionView:
    """Keep what the submission cites for good, or no longer. Raises NotFound."""
    lock(session, BLOBS, shared=True)  # nothing of it is removed meanwhile
    row = session.get(Submission, submission)
    if row is None:
        raise NotFound(f"there is no submission {submission}")
    row.pinned = pinned
    session.flush()
    return read_submission(session, submission)
