"""Whose code a job runs, and so which hosts may run it.

On the straight line this stands beside ``service.store.claim``. What a webhook brought may be anybody's; a person who
asks for the same content, whatever the name, vouches for it. An approval does not: it lets code run in a container.
"""

from __future__ import annotations

from datetime import timedelta

import sqlalchemy as sa
from sqlalchemy.orm import Session

from service.claims import LEASE_S, WEBHOOK
from service.models import Host, Job, Submission, SubmissionCheckout, SubmissionJob
from service.store.sql import utcnow

WAITS = (
    "no host that is up may run what only a webhook asked for: that takes the docker executor. A person who submits "
    "the same commit vouches for it, and every host may run it then"
)


def vouched() -> sa.ColumnElement[bool]:
    """Whether anybody but a webhook ever asked for the checkout of a row of ``job``."""
    by_person = sa.select(SubmissionCheckout.checkout_id).join(
        Submission, Submission.id == SubmissionCheckout.submission_id
    )
    return by_person.where(SubmissionCheckout.checkout_id == Job.checkout_id, Submission.reason != WEBHOOK).exists()


def waits_for_a_container(session: Session, submission: Submission) -> str:
    """Why jobs of it wait although hosts are free, in words; nothing where it is not for that."""
    if submission.reason != WEBHOOK or submission.state not in ("queued", "running"):
        return ""
    mine = sa.select(Job.id).join(SubmissionJob, SubmissionJob.job_id == Job.id)
    mine = mine.where(SubmissionJob.submission_id == submission.id, Job.state == "queued", ~vouched())
    up = sa.select(Host.id).where(~Host.trusted_only, Host.seen_at > utcnow() - timedelta(seconds=LEASE_S))
    stuck = session.scalar(sa.select(mine.exists() & ~up.exists()))
    return WAITS if stuck else ""
