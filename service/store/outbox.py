"""The outbox: hints written in the transaction whose news they are, sent after it, and removed once they were.

On the straight line this stands between the store and ``service.broker``. A hint that is lost all the same costs the
few seconds until a worker looks by itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.orm import Session

from service.models import Hint
from service.store.sql import touched


def hints(session: Session, limit: int = 100) -> list[tuple[int, str]]:
    """What is still to be said, oldest first: its number and its kind."""
    found = session.execute(sa.select(Hint.id, Hint.kind).order_by(Hint.id).limit(limit))
    return [(row.id, row.kind) for row in found]


def drop_hints(session: Session, sent: Sequence[int]) -> None:
    """Forget what was sent."""
    touched(session, sa.delete(Hint).where(Hint.id.in_(sent)))
