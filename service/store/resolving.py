"""Submissions before they have jobs: held for an approval, waiting for a fetch, being fetched, or failed at it.

On the straight line this stands between ``service.api`` (which stored what was asked) and ``service.store.submit``
(which plans it); ``workers.fetch`` does the task in between. Whoever holds it has a lease and a fence, as of a job.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from jobs.contract import Deadlines
from service.claims import AGE_S, LEASE_S
from service.matrix import Plan
from service.models import OVER, Hint, Resolution, Submission
from service.store.read import submission as read_submission
from service.store.sql import NotFound, StaleFence, StoreError, lock, utcnow
from service.store.submit import add_plan, new_submission
from service.store.views import SubmissionView

if TYPE_CHECKING:
    from service.catalog import RuntimeSpec
    from service.subjects import Checkout as CheckoutFound

MAX_TRIES = 3
"""How often a submission is fetched for before an unreachable network is its answer."""
MAX_LOST = 10
"""How many of its fetchers may be gone without a word: what ends them must not end them for ever."""
AGAIN_S = 30.0
"""How long after the first failure it is tried again; after the second twice as long."""


@dataclass(frozen=True)
class Resolving:
    """A submission that was taken on, to be fetched and planned."""

    submission: int
    fence: int
    request: dict[str, Any]


def open_submission(
    session: Session,
    *,
    requester: str,
    reason: str,
    priority: int,
    request: dict[str, Any],
    held: str = "",
    now: datetime | None = None,
) -> SubmissionView:
    """Store what was asked for, to be resolved; or to be held for an approval, for the reason ``held``."""
    now = now or utcnow()
    asked: dict[str, Any] = {"requester": requester, "reason": reason, "priority": priority, "request": request}
    row = new_submission(session, "held" if held else "resolving", **asked, now=now, note=held)
    if not held:
        _wait(session, row.id, now)
    return read_submission(session, row.id)


def approve(session: Session, submission: int, now: datetime | None = None) -> SubmissionView:
    """Let a held submission go on. Raises StoreError where there is none, or it is not held."""
    row = session.get(Submission, submission, with_for_update=True)
    if row is None:
        raise NotFound(f"there is no submission {submission}")
    if row.state != "held":
        raise StoreError(f"submission {submission} waits for no approval: it is {row.state}")
    row.state, row.note = "resolving", ""
    _wait(session, row.id, now or utcnow())
    return read_submission(session, row.id)


def was_let_go(session: Session, submission: int) -> bool:
    """Whether a submission was ever there to be resolved; one that was held and never approved was not."""
    return session.get(Resolution, submission) is not None


def _wait(session: Session, submission: int, now: datetime) -> None:
    values: dict[str, Any] = {"state": "waiting", "fence": 0, "tries": 0, "lost": 0, "doing": "", "bytes_done": 0}
    session.add(Resolution(submission_id=submission, **values))
    session.add(Hint(kind="fetch", created_at=now))
    session.flush()


def claim_resolution(session: Session, now: datetime | None = None) -> Resolving | None:
    """Take on the submission that comes first, by priority and waiting as jobs do; or None."""
    now = now or utcnow()
    due = sa.or_(Resolution.lease_until.is_(None), Resolution.lease_until <= now)
    found = session.execute(
        sa.select(Resolution, Submission)
        .join(Submission, Submission.id == Resolution.submission_id)
        .where(Resolution.state.in_(("waiting", "fetching")), due, Submission.state == "resolving")
        .order_by(sa.extract("epoch", Submission.created_at) - Submission.priority * AGE_S, Submission.id)
        .limit(1)
        .with_for_update(skip_locked=True)
    ).first()
    if found is None:
        return None
    task, row = found
    task.lost += int(task.state == "fetching")  # under a lease that has run out
    if task.lost >= MAX_LOST:
        task.state, task.lease_until = "done", None
        row.state, row.finished_at = "failed", now
        row.note = f"given up: whoever fetched for it was gone {task.lost} times"
        session.flush()
        return claim_resolution(session, now)
    task.state, task.fence, task.lease_until = "fetching", task.fence + 1, now + timedelta(seconds=LEASE_S)
    session.flush()
    return Resolving(row.id, task.fence, dict(row.request))


def _held(session: Session, task: Resolving) -> tuple[Resolution, Submission]:
    """The rows, locked. Raises StaleFence where somebody else took it on, or nobody waits for it any more."""
    row = session.get(Submission, task.submission, with_for_update=True, populate_existing=True)
    now = session.get(Resolution, task.submission, with_for_update=True, populate_existing=True)
    if row is None or now is None or now.fence != task.fence or now.state != "fetching" or row.state in OVER:
        raise StaleFence(f"submission {task.submission} is no longer fetched for under fence {task.fence}")
    return now, row


def report_resolution(
    session: Session, task: Resolving, doing: str, done: int, total: int | None, now: datetime | None = None
) -> None:
    """Say how far the fetching is, and renew its lease. Raises StaleFence."""
    row, _ = _held(session, task)
    row.doing, row.bytes_done, row.bytes_total = doing, done, total
    row.lease_until = (now or utcnow()) + timedelta(seconds=LEASE_S)
    session.flush()


def give_back_resolution(session: Session, task: Resolving, reason: str, now: datetime | None = None) -> bool:
    """Something outside failed: try again later, at most :data:`MAX_TRIES` times in all. Whether it will be."""
    now = now or utcnow()
    row, submission = _held(session, task)
    row.tries += 1
    if row.tries >= MAX_TRIES:
        fail_resolution(session, task, reason, now)
        return False
    row.state, row.lease_until, row.doing = "waiting", now + timedelta(seconds=AGAIN_S * row.tries), ""
    submission.note = reason
    session.flush()
    return True


def release_resolution(session: Session, task: Resolving) -> None:
    """Give it back of one's own will (shutdown): no try, and the next may take it on at once. Raises StaleFence."""
    row, _ = _held(session, task)
    row.state, row.lease_until, row.doing = "waiting", None, ""
    session.flush()


def fail_resolution(session: Session, task: Resolving, reason: str, now: datetime | None = None) -> None:
    """The submission cannot be made into jobs, and ``reason`` says why. Raises StaleFence."""
    row, submission = _held(session, task)
    row.state, row.lease_until, row.doing = "done", None, ""
    submission.state, submission.note, submission.finished_at = "failed", reason, now or utcnow()
    session.flush()


def plan_resolved(
    session: Session,
    task: Resolving,
    *,
    checkouts: Sequence[CheckoutFound],
    runtimes: Sequence[RuntimeSpec],
    plan: Plan,
    rerun: bool = False,
    deadlines: Deadlines = Deadlines(),  # noqa: B008 - frozen
    now: datetime | None = None,
) -> SubmissionView:
    """The submission's jobs and cells; it is queued from here on. Raises StaleFence."""
    now = now or utcnow()
    lock(session, "plan")  # before the rows, as everybody who plans or cancels does
    row, submission = _held(session, task)
    row.state, row.lease_until, row.doing, submission.note = "done", None, "", ""
    session.add(Hint(kind="work", created_at=now))
    return add_plan(
        session,
        submission,
        checkouts=checkouts,
        runtimes=runtimes,
        plan=plan,
        rerun=rerun,
        deadlines=deadlines,
        now=now,
    )
