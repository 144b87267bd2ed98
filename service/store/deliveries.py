"""Deliveries of a webhook: acted upon once, however often and in whatever order they come.

On the straight line this stands behind ``service.api.webhooks``, in the transaction that stores a submission.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy.orm import Session

from service.models import Delivery, Submission
from service.store.held import cancel
from service.store.read import submission as read_submission
from service.store.sql import lock, utcnow
from service.store.views import SubmissionView

if TYPE_CHECKING:
    from service.webhook import Asked, Closed

WAITING = ("held", "resolving", "queued")
"""States of a submission of which nothing runs yet."""
CLOSED = "the pull request was closed"


def act_once(
    session: Session,
    guid: str,
    repository: str,
    asked: Asked,
    make: Callable[[], SubmissionView],
    now: datetime | None = None,
) -> tuple[SubmissionView, bool] | None:
    """The submission of what a delivery brought, made by ``make`` unless there is one, and whether it was made now.

    None where it comes late, and its pull request was closed at this commit: nobody waits for it.

    A commit that is once more the head of its pull request, after another one was, is asked for anew where it had been
    cancelled; one that could not be fetched is, whenever it is told of once more.
    Whatever else waits of that pull request is superseded.
    """
    now = now or utcnow()
    lock(session, "webhook")
    known = _known(session, guid, repository, asked)
    if known is not None and known.submission_id is None and not asked.reopened:
        _cancel(session, repository, asked.event, ("held",), CLOSED, now)  # older ones, that came late too
        return None
    kept = None if known is None or known.submission_id is None else read_submission(session, known.submission_id)
    sent_again = known is not None and known.guid == guid
    failed = kept is not None and kept.state == "failed" and _is_newest(session, repository, asked)
    if kept is not None and not failed and (sent_again or not _is_head_again(session, repository, asked)):
        return kept, False
    later = None if known is not None else _replaced_by(session, repository, asked)
    if later is not None and later.submission_id is not None:
        # It comes late: its pull request has moved on, and stays where it is.
        earlier = later.received_at - timedelta(microseconds=1)
        session.add(_delivery(guid, repository, asked, later.submission_id, earlier))
        session.flush()
        return read_submission(session, later.submission_id), False
    made = kept is None or kept.state in ("cancelled", "failed")
    view = make() if kept is None or made else kept
    if known is None:
        session.add(_delivery(guid, repository, asked, view.id, now))
    else:
        known.guid, known.submission_id, known.received_at = guid, view.id, now
    session.flush()
    if asked.pull:
        note = f"superseded by submission {view.id}, of commit {asked.sha}"
        _cancel(session, repository, asked.event, WAITING, note, now, keep=view.id)
    return view, made


def withdraw(session: Session, guid: str, repository: str, closed: Closed, now: datetime | None = None) -> list[int]:
    """The pull request was closed: nobody need approve any more what of it is held. Which submissions these were.

    That it was is remembered where nothing has told of its last commit yet: whatever does so comes late.
    """
    now = now or utcnow()
    lock(session, "webhook")
    if _known(session, guid, repository, closed) is None:
        told = Delivery(guid=guid, repository=repository, sha=closed.sha, event=closed.event, received_at=now)
        session.add(told)
        session.flush()
    return _cancel(session, repository, closed.event, ("held",), CLOSED, now)


def _known(session: Session, guid: str, repository: str, told: Asked | Closed) -> Delivery | None:
    """This delivery, or another one that told of the same commit."""
    same = (Delivery.repository == repository, Delivery.sha == told.sha, Delivery.event == told.event)
    return session.get(Delivery, guid) or session.scalars(sa.select(Delivery).where(*same)).first()


def _delivery(guid: str, repository: str, asked: Asked, submission: int, received_at: datetime) -> Delivery:
    made = Delivery(guid=guid, repository=repository, sha=asked.sha, event=asked.event, before=asked.before)
    made.submission_id, made.received_at = submission, received_at
    return made


def _replaced_by(session: Session, repository: str, asked: Asked) -> Delivery | None:
    """The delivery that says that the pull request has moved on from this commit, which nobody has told of yet."""
    of_pull = (Delivery.repository == repository, Delivery.event == asked.event, Delivery.before == asked.sha)
    newest = sa.select(Delivery).where(*of_pull).order_by(Delivery.received_at.desc()).limit(1)
    return session.scalars(newest).first() if asked.pull else None


def _is_head_again(session: Session, repository: str, asked: Asked) -> bool:
    """Whether the delivery moves its pull request to this commit, and is not one of long ago that comes late."""
    return asked.reopened or (asked.before is not None and _newest(session, repository, asked.event) == asked.before)


def _is_newest(session: Session, repository: str, asked: Asked) -> bool:
    """Whether nothing newer is known of what the delivery is about."""
    return not asked.pull or _newest(session, repository, asked.event) == asked.sha


def _newest(session: Session, repository: str, event: str) -> str | None:
    of_event = (Delivery.repository == repository, Delivery.event == event)
    return session.scalars(sa.select(Delivery.sha).where(*of_event).order_by(Delivery.received_at.desc())).first()


def _cancel(
    session: Session,
    repository: str,
    event: str,
    states: Sequence[str],
    note: str,
    now: datetime,
    keep: int | None = None,
) -> list[int]:
    """Cancel the submissions of a pull request that are in one of ``states``, but for ``keep``, and say why."""
    of_pull = (Delivery.repository == repository, Delivery.event == event, Submission.state.in_(states))
    query = sa.select(Submission.id).join(Delivery, Delivery.submission_id == Submission.id).where(*of_pull)
    found = [number for number in session.scalars(query.order_by(Submission.id)) if number != keep]
    for number in found:
        cancel(session, number, now)
        session.get_one(Submission, number).note = note
    session.flush()
    return found
