"""Reading back: submissions with how far they are, and their cells with their current answers.

On the straight line this is what ``service.compare``, ``service.dashboard`` and the command line read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from service.claims import WEBHOOK
from service.imports import current
from service.models import (
    LIVE,
    Attempt,
    CaseVersion,
    Cell,
    Checkout,
    Host,
    Job,
    Result,
    Runtime,
    Submission,
    SubmissionCell,
    SubmissionCheckout,
    SubmissionJob,
)
from service.store.sql import NotFound
from service.store.trust import waits_for_a_container
from service.store.views import CellRow, JobView, SubmissionView
from service.verdicts import Verdict

ANSWER: tuple[str, ...] = ("verdict", "forward_ok", "signature", "detail", "worst_tensor", "error", "alpha")
ANSWER += ("nonzero_got", "nonzero_expected", "evidence_digest", "policy_version", "seconds")
"""What a row shows of the cell's current result."""


IS_WAITED_FOR = (
    sa.select(SubmissionJob.job_id)
    .where(SubmissionJob.submission_id == SubmissionCell.submission_id, SubmissionJob.job_id == Cell.job_id)
    .correlate(SubmissionCell, Cell)
    .exists()
)
"""Whether a submission waits for the job that a cell of it is to be answered by, and does not only cite the cell."""
SUBMISSION: tuple[str, ...] = ("id", "key", "state", "requester", "reason", "priority", "request")
SUBMISSION += ("note", "pinned", "created_at", "finished_at")


def submission(session: Session, submission_id: int) -> SubmissionView:
    """One submission. Raises NotFound."""
    row = session.get(Submission, submission_id)
    if row is None:
        last = session.scalar(sa.select(sa.func.max(Submission.id)))
        raise NotFound(f"there is no submission {submission_id}; " + (f"the newest is {last}" if last else "none yet"))
    return view_of(session, row)


def submissions(session: Session, limit: int = 20) -> list[SubmissionView]:
    """The newest submissions, newest first."""
    rows = session.scalars(sa.select(Submission).order_by(Submission.id.desc()).limit(limit)).all()
    return [view_of(session, row) for row in rows]


def unfinished_submission(session: Session) -> SubmissionView | None:
    """The newest submission that is neither done nor cancelled: what a killed run left behind, and no webhook."""
    live = sa.select(Submission).where(Submission.state.in_(("resolving", "queued", "running")))
    live = live.where(Submission.reason != WEBHOOK)
    row = session.scalars(live.order_by(Submission.id.desc()).limit(1)).first()
    return None if row is None else view_of(session, row)


def view_of(session: Session, row: Submission) -> SubmissionView:
    """A submission's row with how far it is."""
    cells, counts = tally(session, row.id)
    return SubmissionView(
        **{name: getattr(row, name) for name in SUBMISSION},
        cells=cells,
        done=sum(counts.values()),
        waiting=waits_for_a_container(session, row),
        jobs=jobs_of(session, row.id),
        counts=counts,
    )


def tally(
    session: Session, submission_id: int, *, subject: str | None = None, runtimes: Collection[str] | None = None
) -> tuple[int, dict[str, int]]:
    """How many cells a submission has, of one subject and in some runtimes where these are named, and how many of
    them are answered, per verdict.
    """
    query = _states(submission_id)
    if subject is not None:
        query = query.join(Checkout, Checkout.id == Cell.checkout_id).where(Checkout.subject == subject)
    if runtimes is not None:
        query = query.join(Runtime, Runtime.id == Cell.runtime_id).where(Runtime.name.in_(runtimes))
    counts: Counter[str] = Counter()
    cells = 0
    for job_state, same_job, waits, verdict, count in session.execute(query):
        cells += count
        if _due(job_state, bool(same_job), bool(waits), verdict) is None:
            counts[verdict] += count
    return cells, dict(counts)


def _states(submission_id: int) -> sa.Select[*tuple[Any, ...]]:
    same_job = Attempt.job_id == Cell.job_id
    return (
        sa.select(Job.state, same_job, IS_WAITED_FOR, Result.verdict, sa.func.count())
        .select_from(SubmissionCell)
        .join(Cell, Cell.id == SubmissionCell.cell_id)
        .outerjoin(Job, Job.id == Cell.job_id)
        .outerjoin(Result, Result.id == Cell.result_id)
        .outerjoin(Attempt, Attempt.id == Result.attempt_id)
        .where(SubmissionCell.submission_id == submission_id)
        .group_by(Job.state, same_job, IS_WAITED_FOR, Result.verdict)
    )


def _due(job_state: str | None, same_job: bool, waits: bool, verdict: str | None) -> str | None:
    """The state of a cell without a current answer; None when it has one.

    While the cell's job is live an older answer is history for those that wait for the job: they asked for a new one.
    For everybody else it stands until there is another.
    """
    if job_state in LIVE:
        return None if verdict is not None and (same_job or not waits) else job_state
    if verdict is not None:
        return None
    return "cancelled" if job_state == "cancelled" else "missing"


def jobs_of(session: Session, submission_id: int) -> tuple[JobView, ...]:
    """The jobs that a submission waits for, its own and shared ones."""
    found = session.execute(
        sa.select(Job, Checkout.digest, Runtime, Host.name)
        .join(SubmissionJob, SubmissionJob.job_id == Job.id)
        .join(Checkout, Checkout.id == Job.checkout_id)
        .join(Runtime, Runtime.id == Job.runtime_id)
        .outerjoin(Host, Host.id == Job.host_id)
        .where(SubmissionJob.submission_id == submission_id)
        .order_by(Job.id)
    )
    columns = ("id", "state", "transport", "world_size", "priority", "fence", "cells_total", "cells_done", "note")
    return tuple(
        JobView(
            **{name: getattr(job, name) for name in columns},
            checkout=checkout,
            runtime=runtime.name,
            torch=runtime.torch,
            host=host,
            counts=dict(job.counts),
        )
        for job, checkout, runtime, host in found
    )


def cells_of(session: Session, submission_id: int, *, only_latest: bool = True) -> list[CellRow]:
    """The cells of a submission, checkouts in the order asked for, then by runtime, world size, case and mode.

    ``only_latest=False`` gives one row per answer ever stored for a cell, oldest first, instead of the current one.
    """
    submission(session, submission_id)
    query = asked_query(submission_id, only_latest=only_latest).order_by(
        SubmissionCheckout.position, Cell.runtime_id, Cell.world_size, CaseVersion.id, Cell.mode, Result.id
    )
    return [cell_row(row, label=row.label, only_latest=only_latest) for row in session.execute(query)]


def asked_query(submission_id: int, *, only_latest: bool = True) -> sa.Select[*tuple[Any, ...]]:
    """The cells of a submission, as :func:`cell_query` has them, each with the label that it asked for."""
    return (
        cell_query(only_latest=only_latest)
        .add_columns(SubmissionCheckout.label, IS_WAITED_FOR.label("waits"))
        .join(SubmissionCell, SubmissionCell.cell_id == Cell.id)
        .join(
            SubmissionCheckout,
            sa.and_(
                SubmissionCheckout.submission_id == SubmissionCell.submission_id,
                SubmissionCheckout.checkout_id == Cell.checkout_id,
            ),
        )
        .where(SubmissionCell.submission_id == submission_id)
    )


def cell_query(*, only_latest: bool = True) -> sa.Select[*tuple[Any, ...]]:
    """Cells with everything that a :class:`CellRow` shows."""
    on = Result.id == Cell.result_id if only_latest else Result.cell_id == Cell.id
    return (
        sa.select(Cell, Checkout, Runtime, CaseVersion, Job.state.label("job_state"), Result, Attempt.job_id)
        .join(Checkout, Checkout.id == Cell.checkout_id)
        .join(Runtime, Runtime.id == Cell.runtime_id)
        .join(CaseVersion, CaseVersion.id == Cell.case_version_id)
        .outerjoin(Job, Job.id == Cell.job_id)
        .outerjoin(Result, on)
        .outerjoin(Attempt, Attempt.id == Result.attempt_id)
    )


def cell_row(row: Any, *, label: str | None = None, only_latest: bool = True) -> CellRow:
    """A row of :func:`cell_query`, as people see it."""
    cell, checkout, runtime, case, result = row.Cell, row.Checkout, row.Runtime, row.CaseVersion, row.Result
    verdict = None if result is None else result.verdict
    due = _due(row.job_state, row.job_id == cell.job_id, bool(getattr(row, "waits", False)), verdict)
    if not only_latest and result is not None:
        due = None
    return CellRow(
        cell=cell.id,
        job=cell.job_id,
        state=due or "done",
        subject=checkout.subject,
        checkout=checkout.digest,
        label=label or checkout.label,
        torch=runtime.torch,
        runtime=runtime.name,
        channel=runtime.channel,
        transport=cell.transport,
        world_size=cell.world_size,
        case=case.case_id,
        version=case.version,
        family=case.family,
        mode=cell.mode,
        **({} if due or result is None else answer_of(result)),
    )


def answer_of(result: Any) -> dict[str, Any]:
    """The columns of a result that a row shows; how a failed import is named is brought up to date."""
    values = {name: getattr(result, name) for name in ANSWER}
    if values["verdict"] == Verdict.UNIMPORTABLE:
        values["signature"] = current(values["signature"])
    return values
