"""The newest submission of a branch, for those who ask how a subject does and know no number.

On the straight line this is what ``service.api.badges`` reads, beside ``service.store.read``.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from service.claims import WEBHOOK
from service.models import Checkout, Submission, SubmissionCheckout
from service.subjects import repository_key

LOOK_BACK = 200
"""Submissions of a subject among which the newest of a branch is looked for."""


def newest_of_branch(session: Session, subject: str, repository: str, branches: Collection[str]) -> int | None:
    """The newest submission of ``subject`` that was made of one of ``branches``: pushed to it, or asked for by name.
    ``repository`` is the key of the one whose branches these are: others may have branches of the same name.

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
        if _branches(request, repository) & set(branches):
            return int(number)
    return None


def _branches(request: dict[str, Any], repository: str) -> set[str]:
    """What branches of the repository a submission was made of, as far as it says so."""
    words = [str(word).removeprefix("git+") for word in request.get("wanted", {}).get("subjects", ())]
    split = [word.rpartition("@") for word in words]
    refs = [ref for address, _, ref in split if address and repository_key(address) == repository]
    pushed = [str(request.get(WEBHOOK, {}).get("branch", ""))] if refs else []
    return {ref.removeprefix("refs/heads/") for ref in (*refs, *pushed)} - {""}
