"""The newest submission of a branch, for those who ask how a subject stands and know no number.

On the straight line this is what ``service.api.badges`` reads, beside ``service.store.read``.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from service.claims import WEBHOOK
from service.models import Checkout, Submission, SubmissionCheckout

LOOK_BACK = 200
"""Submissions of a subject among which the newest of a branch is looked for."""


def newest_of_branch(session: Session, subject: str, branches: Collection[str]) -> int | None:
    """The newest submission of ``subject`` that was made of one of ``branches``: pushed to it, or asked for by name.

    One that was cancelled says nothing of the branch, nor does a pull request.
    """
    of_subject = (
        sa.select(SubmissionCheckout.checkout_id)
        .join(Checkout, Checkout.id == SubmissionCheckout.checkout_id)
        .where(SubmissionCheckout.submission_id == Submission.id, Checkout.subject == subject)
    )
    query = sa.select(Submission.id, Submission.request).where(
        Submission.state.in_(("queued", "running", "done")), of_subject.exists()
    )
    for number, request in session.execute(query.order_by(Submission.id.desc()).limit(LOOK_BACK)):
        if _branches(request) & set(branches):
            return int(number)
    return None


def _branches(request: dict[str, Any]) -> set[str]:
    """What branches a submission was made of, as far as it says so."""
    words = [str(word) for word in request.get("wanted", {}).get("subjects", ())]
    named = {word.rpartition("@")[2].removeprefix("refs/heads/") for word in words if word.startswith("git+")}
    return (named | {str(request.get(WEBHOOK, {}).get("branch", ""))}) - {""}
