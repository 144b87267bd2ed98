"""What was answered: results, evidence, blobs, controls. Append-only."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey, Index, String, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from service.schema import Base, one_of

STAGES = ("before", "after")


class ControlSet(Base):
    """Controls that had to answer in an attempt, each with the case whose oracle it uses, as their authors had them."""

    __tablename__ = "control_set"
    digest: Mapped[str] = mapped_column(String(64), primary_key=True)
    size: Mapped[int]
    data: Mapped[bytes]


class Policy(Base):
    """A tolerance policy that has judged something here again, whole, so that its version means one thing."""

    __tablename__ = "policy"
    version: Mapped[str] = mapped_column(String(32), primary_key=True)
    content: Mapped[dict[str, Any]]
    created_at: Mapped[datetime]


class Evidence(Base):
    """The numbers of all tensors and ranks of a result, compressed; equal gradients share a row."""

    __tablename__ = "evidence"
    digest: Mapped[str] = mapped_column(String(64), primary_key=True)
    size: Mapped[int]
    data: Mapped[bytes]


class Result(Base):
    """A judgement on what one attempt answered for one cell. Append-only.

    The first of a cell and an attempt came with the answer (``judged_at`` is ``created_at``); later ones are of the
    same evidence under another policy, or by a newer judge. Blobs belong to the first.

    ``evidence_digest`` is what the verdict rests on. ``first_digest`` is the pass among other cases and
    ``alone_digest`` the one in fresh ranks, where there was one; both are null where an older program ran the cell.
    """

    __tablename__ = "result"
    __table_args__ = (UniqueConstraint("cell_id", "attempt_id", "judged_at"), Index(None, "attempt_id"))
    id: Mapped[int] = mapped_column(primary_key=True)
    cell_id: Mapped[int] = mapped_column(ForeignKey("cell.id"))
    attempt_id: Mapped[int] = mapped_column(ForeignKey("attempt.id"))
    verdict: Mapped[str] = mapped_column(String(32))
    policy_version: Mapped[str] = mapped_column(String(32))
    forward_ok: Mapped[bool | None]
    signature: Mapped[str] = mapped_column(Text)
    detail: Mapped[str] = mapped_column(Text)
    worst_tensor: Mapped[str | None] = mapped_column(String(255))
    error: Mapped[float | None]
    alpha: Mapped[float | None]
    nonzero_got: Mapped[int | None]
    nonzero_expected: Mapped[int | None]
    evidence_digest: Mapped[str] = mapped_column(ForeignKey("evidence.digest"))
    first_digest: Mapped[str | None] = mapped_column(ForeignKey("evidence.digest"))
    alone_digest: Mapped[str | None] = mapped_column(ForeignKey("evidence.digest"))
    seconds: Mapped[float]
    created_at: Mapped[datetime]
    judged_at: Mapped[datetime]


class Blob(Base):
    """Bytes kept for people: raw tensors of cells that do not agree, logs, stacks. Compressed, by digest."""

    __tablename__ = "blob"
    digest: Mapped[str] = mapped_column(String(64), primary_key=True)
    size: Mapped[int]
    data: Mapped[bytes]


class ResultBlob(Base):
    """A blob of a result. ``digest`` is empty where only its size is known: the bytes were over the cap, or they were
    removed on the day that ``meta`` has as ``removed``.
    """

    __tablename__ = "result_blob"
    __table_args__ = (Index(None, "digest"),)
    result_id: Mapped[int] = mapped_column(ForeignKey("result.id"), primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[str] = mapped_column(String(32))
    name: Mapped[str] = mapped_column(String(255))
    rank: Mapped[int | None]
    size: Mapped[int]
    meta: Mapped[dict[str, Any]]
    digest: Mapped[str | None] = mapped_column(ForeignKey("blob.digest"))


class AttemptBlob(Base):
    """A blob of an attempt as a whole: what was logged outside every cell."""

    __tablename__ = "attempt_blob"
    __table_args__ = (Index(None, "digest"),)
    attempt_id: Mapped[int] = mapped_column(ForeignKey("attempt.id"), primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[str] = mapped_column(String(32))
    name: Mapped[str] = mapped_column(String(255))
    rank: Mapped[int | None]
    size: Mapped[int]
    meta: Mapped[dict[str, Any]]
    digest: Mapped[str | None] = mapped_column(ForeignKey("blob.digest"))


class ControlResult(Base):
    """What a control of ours answered in an attempt, and whether that was what it must answer."""

    __tablename__ = "control_result"
    __table_args__ = (
        UniqueConstraint("attempt_id", "control", "mode", "world_size", "stage"),
        one_of("stage", STAGES),
    )
    id: Mapped[int] = mapped_column(primary_key=True)
    attempt_id: Mapped[int] = mapped_column(ForeignKey("attempt.id"))
    control: Mapped[str] = mapped_column(String(255))
    mode: Mapped[str] = mapped_column(String(32))
    world_size: Mapped[int]
    stage: Mapped[str] = mapped_column(String(16))
    verdict: Mapped[str] = mapped_column(String(32))
    as_expected: Mapped[bool]
    detail: Mapped[str] = mapped_column(Text)
    policy_version: Mapped[str] = mapped_column(String(32))
    evidence_digest: Mapped[str | None] = mapped_column(ForeignKey("evidence.digest"))
