"""Where a checkout came from: what whoever wants it too has to name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from service.models import Checkout


@dataclass(frozen=True)
class Origin:
    """kind: release, commit, path or torch; ref: the version or the full SHA; meta: the repository of a commit …"""

    kind: str
    ref: str
    meta: dict[str, Any]


def origin(session: Session, digest: str) -> Origin:
    """That of the checkout with this content, which a cell names."""
    row = session.execute(sa.select(Checkout).where(Checkout.digest == digest)).scalar_one()
    return Origin(row.kind, row.ref, dict(row.meta))
