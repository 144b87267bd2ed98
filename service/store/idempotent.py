"""Idempotency keys: a request that is sent twice under one key is one request.

On the straight line this stands behind ``service.api``, in the transaction that stores a submission.
"""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.orm import Session

from service.models import IdempotencyKey
from service.store.sql import StoreError, lock, touched, utcnow


class KeyReusedError(StoreError):
    """The key was used before, for something else."""


def posted_before(session: Session, requester: str, key: str, body: str) -> int | None:
    """The submission of the same request under this key, if there was one. Until the end of the transaction nobody
    else posts under it. Raises KeyReusedError where the key belongs to another request; ``body`` is its digest.
    """
    lock(session, f"key:{requester}:{key}")
    row = session.scalars(
        sa.select(IdempotencyKey).where(IdempotencyKey.requester == requester, IdempotencyKey.key == key)
    ).first()
    if row is None:
        return None
    if row.body != body:
        raise KeyReusedError(f"the Idempotency-Key {key!r} was used for another request; take a new one")
    return row.submission_id


def remember_post(session: Session, requester: str, key: str, body: str, submission: int) -> None:
    """Remember what was made of the request under this key."""
    values = {"requester": requester, "key": key, "body": body, "submission_id": submission, "created_at": utcnow()}
    session.execute(sa.insert(IdempotencyKey).values(**values))


def forget_keys(session: Session, before: datetime) -> int:
    """Forget keys that are older; how many there were."""
    return touched(session, sa.delete(IdempotencyKey).where(IdempotencyKey.created_at < before))
