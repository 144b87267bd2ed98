"""Who may do what, and what was asked twice: tokens, idempotency keys, webhook deliveries."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import ForeignKey, Index, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from service.schema import Base, one_of

SCOPES = ("read", "submit", "admin")
"""Each may do what those before it may."""


class Token(Base):
    """A bearer token: the hash of its secret, and ``prefix``, by which people tell it from others."""

    __tablename__ = "token"
    __table_args__ = (one_of("scope", SCOPES),)
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(64))
    prefix: Mapped[str] = mapped_column(String(16))
    digest: Mapped[str] = mapped_column(String(64), unique=True)
    scope: Mapped[str] = mapped_column(String(16))
    created_at: Mapped[datetime]
    used_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]


class IdempotencyKey(Base):
    """A key under which somebody posted: the same again is answered with the same submission."""

    __tablename__ = "idempotency_key"
    __table_args__ = (UniqueConstraint("requester", "key"), Index(None, "created_at"))
    id: Mapped[int] = mapped_column(primary_key=True)
    requester: Mapped[str] = mapped_column(String(255))
    key: Mapped[str] = mapped_column(String(255))
    body: Mapped[str] = mapped_column(String(64))
    submission_id: Mapped[int] = mapped_column(ForeignKey("submission.id"))
    created_at: Mapped[datetime]


class Delivery(Base):
    """A webhook's delivery that was acted upon; neither it nor what it says of one commit is acted upon again.

    ``before`` is the commit that it replaced, where it says so. One without a submission says that its pull request was
    closed, and was the first to tell of that commit.
    """

    __tablename__ = "delivery"
    __table_args__ = (UniqueConstraint("repository", "sha", "event"),)
    guid: Mapped[str] = mapped_column(String(64), primary_key=True)
    repository: Mapped[str] = mapped_column(String(255))
    sha: Mapped[str] = mapped_column(String(64))
    event: Mapped[str] = mapped_column(String(32))
    before: Mapped[str | None] = mapped_column(String(64))
    submission_id: Mapped[int | None] = mapped_column(ForeignKey("submission.id"))
    received_at: Mapped[datetime]
