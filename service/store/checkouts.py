"""The files of checkouts, for workers whose host never fetched them.

On the straight line this stands behind ``service.subjects``: where the database is a fleet's, whoever fetched a
checkout puts its tar here, and ``service.checkouts`` takes it from here on every other host.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy.orm import Session

from service.models import Checkout, CheckoutPart
from service.store.sql import NotFound, pack, unpack
from service.store.submit import name_checkouts

if TYPE_CHECKING:
    from service.subjects import Checkout as CheckoutFound

PART_BYTES = 2**20


@dataclass(frozen=True)
class CheckoutKept:
    """What is known of a checkout whose tar is kept here."""

    subject: str
    label: str
    digest: str
    size: int
    meta: dict[str, str]


def keep_checkout(session: Session, found: CheckoutFound, tar: IO[bytes]) -> None:
    """Keep the tar of a checkout, unless it is kept already."""
    checkout = name_checkouts(session, [found])[found.digest]
    # One process at a time: the second one finds what the first has put there.
    session.get_one(Checkout, checkout, with_for_update=True)
    kept = sa.select(CheckoutPart.position).where(CheckoutPart.checkout_id == checkout).limit(1)
    if session.scalars(kept).first() is not None:
        return
    position = 0
    while data := tar.read(PART_BYTES):
        session.execute(
            sa.insert(CheckoutPart).values(checkout_id=checkout, position=position, size=len(data), data=pack(data))
        )
        position += 1


def kept_commit(session: Session, repository: str, sha: str) -> CheckoutKept | None:
    """The checkout of a commit, by its repository's key and its full SHA, where its tar is kept whole."""
    parts = sa.select(CheckoutPart.checkout_id).where(CheckoutPart.checkout_id == Checkout.id).exists()
    found = session.scalars(sa.select(Checkout).where(Checkout.kind == "commit", Checkout.ref == sha, parts))
    row = next((row for row in found if row.meta.get("repository") == repository), None)
    return None if row is None else CheckoutKept(row.subject, row.label, row.digest, row.size, dict(row.meta))


def checkout_part(session: Session, digest: str, position: int) -> bytes | None:
    """One piece of a checkout's tar, or None behind the last."""
    row = session.get(CheckoutPart, (_checkout(session, digest), position))
    return None if row is None else unpack(row.data, row.size)


def _checkout(session: Session, digest: str) -> int:
    found = session.scalars(sa.select(Checkout.id).where(Checkout.digest == digest)).first()
    if found is None:
        raise NotFound(f"there is no checkout {digest}")
    return found
