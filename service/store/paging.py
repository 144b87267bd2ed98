"""Lists a page at a time, for interfaces that hand them out so: each page begins behind a number.

On the straight line this is what ``service.api`` reads, beside ``service.store.read``.
"""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.orm import Session

from service.models import CaseVersion, Cell, Checkout, Host, Result, Runtime, Submission
from service.store.devices import devices_of
from service.store.read import asked_query, cell_query, cell_row, view_of
from service.store.read import submission as read_submission
from service.store.views import CellRow, HostView, RuntimeView, SubmissionView


def page_of_submissions(
    session: Session, limit: int, before: int | None = None, *, states: Sequence[str] = (), requester: str | None = None
) -> list[SubmissionView]:
    """The newest submissions older than number ``before``, newest first."""
    query = sa.select(Submission).order_by(Submission.id.desc()).limit(limit)
    if before is not None:
        query = query.where(Submission.id < before)
    if states:
        query = query.where(Submission.state.in_(states))
    if requester is not None:
        query = query.where(Submission.requester == requester)
    return [view_of(session, row) for row in session.scalars(query)]


def page_of_cells(
    session: Session,
    submission: int,
    limit: int,
    after: int | None = None,
    *,
    verdicts: Sequence[str] = (),
    families: Sequence[str] = (),
) -> list[CellRow]:
    """The cells of a submission behind number ``after``, by their number. Raises NotFound."""
    read_submission(session, submission)
    query = asked_query(submission).order_by(Cell.id).limit(limit)
    if after is not None:
        query = query.where(Cell.id > after)
    if verdicts:
        query = query.where(Result.verdict.in_(verdicts))
    if families:
        query = query.where(CaseVersion.family.in_(families))
    return [cell_row(row, label=row.label) for row in session.execute(query)]


def hosts(session: Session) -> list[HostView]:
    """Every host that ever looked for work, the one that did last first."""
    return [
        HostView(row.name, devices_of(session, row.id), tuple(row.transports), row.trusted_only, row.seen_at)
        for row in session.scalars(sa.select(Host).order_by(Host.seen_at.desc(), Host.id))
        if row.transports
    ]


def runtimes_in_use(session: Session) -> list[RuntimeView]:
    """Every runtime that something was planned for, with the number of cells that have an answer in it."""
    answered = sa.func.count(Cell.result_id)
    query = sa.select(Runtime, answered).outerjoin(Cell, Cell.runtime_id == Runtime.id).group_by(Runtime.id)
    return [
        RuntimeView(row.name, row.torch, row.variant, row.channel, row.python, row.digest, count)
        for row, count in session.execute(query.order_by(Runtime.id))
    ]


def newest_checkout(session: Session, text: str) -> str | None:
    """The digest of the newest checkout with this label, reference or beginning of a digest."""
    either = [Checkout.label == text, Checkout.ref == text]
    if len(text) >= 6:
        either.append(Checkout.digest.startswith(text, autoescape=True))
    query = sa.select(Checkout.digest).where(sa.or_(*either)).order_by(Checkout.id.desc()).limit(1)
    return session.scalars(query).first()


def cells_of_checkouts(session: Session, digests: Sequence[str]) -> list[CellRow]:
    """Every cell of these checkouts, with its current answer."""
    query = cell_query().where(Checkout.digest.in_(digests))
    return [cell_row(row) for row in session.execute(query.order_by(CaseVersion.id, Cell.mode, Cell.id))]
