"""What is tested: checkouts, runtimes, cases, and the cells that they span."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, ForeignKey, Index, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from service.schema import Base


class Checkout(Base):
    """A subject at one exact content, known by the digest of its files."""

    __tablename__ = "checkout"
    id: Mapped[int] = mapped_column(primary_key=True)
    digest: Mapped[str] = mapped_column(String(64), unique=True)
    subject: Mapped[str] = mapped_column(String(64))
    kind: Mapped[str] = mapped_column(String(16))
    label: Mapped[str] = mapped_column(String(255))
    ref: Mapped[str] = mapped_column(String(255))
    size: Mapped[int] = mapped_column(BigInteger)
    meta: Mapped[dict[str, Any]]


class Runtime(Base):
    """A pinned torch environment."""

    __tablename__ = "runtime"
    id: Mapped[int] = mapped_column(primary_key=True)
    digest: Mapped[str] = mapped_column(String(64), unique=True)
    name: Mapped[str] = mapped_column(String(64))
    torch: Mapped[str] = mapped_column(String(64))
    variant: Mapped[str] = mapped_column(String(32))
    channel: Mapped[str] = mapped_column(String(32))
    python: Mapped[str] = mapped_column(String(32))


class CaseVersion(Base):
    """A case as its author defined it; ``info`` is kept whole, so that old evidence can be judged again."""

    __tablename__ = "case_version"
    __table_args__ = (UniqueConstraint("case_id", "version"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    case_id: Mapped[str] = mapped_column(String(255))
    version: Mapped[int]
    family: Mapped[str] = mapped_column(String(32))
    info: Mapped[dict[str, Any]]


class Cell(Base):
    """Checkout x runtime x transport x world size x case x mode, with its newest job and its newest result."""

    __tablename__ = "cell"
    __table_args__ = (
        UniqueConstraint(
            *("checkout_id", "runtime_id", "transport", "world_size", "case_version_id", "mode"),
            name="uq_cell_identity",
        ),
        Index(None, "case_version_id", "mode", "world_size", "transport"),
        Index(None, "job_id"),
    )
    id: Mapped[int] = mapped_column(primary_key=True)
    checkout_id: Mapped[int] = mapped_column(ForeignKey("checkout.id"))
    runtime_id: Mapped[int] = mapped_column(ForeignKey("runtime.id"))
    transport: Mapped[str] = mapped_column(String(32))
    world_size: Mapped[int]
    case_version_id: Mapped[int] = mapped_column(ForeignKey("case_version.id"))
    mode: Mapped[str] = mapped_column(String(32))
    job_id: Mapped[int | None] = mapped_column(ForeignKey("job.id"))
    # cell and result point at each other, hence a constraint that is added once both tables are there
    result_id: Mapped[int | None] = mapped_column(ForeignKey("result.id", use_alter=True, name="fk_cell_result_id"))


class CheckoutPart(Base):
    """A piece of a checkout's tar, for the workers of a fleet, whose host may never have fetched it."""

    __tablename__ = "checkout_part"
    checkout_id: Mapped[int] = mapped_column(ForeignKey("checkout.id"), primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True)
    size: Mapped[int]
    data: Mapped[bytes]
