"""The tables. The database is the truth; messages between processes are hints.

On the straight line this stands beneath ``service.store``, the only package that reads or writes these rows. Column
types are the portable ones: the same schema serves SQLite and PostgreSQL, and ``migrations`` must equal it.

No table has a row per tensor or rank: those numbers are one compressed document in ``evidence``, shared by digest.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, ForeignKey, Index, String, Text, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column

from service.schema import Base, one_of

SUBMISSION_STATES = ("resolving", "queued", "running", "done", "cancelled")
JOB_STATES = ("queued", "leased", "running", "done", "cancelled")
LIVE = ("queued", "leased", "running")
"""States of a job that somebody will still work on."""
HELD = ("leased", "running")
"""States of a job that a worker holds."""
ATTEMPT_STATES = ("running", "done", "released", "lost", "cancelled")
STAGES = ("before", "after")


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


class Host(Base):
    """A machine that has claimed at least once."""

    __tablename__ = "host"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(255), unique=True)
    devices: Mapped[int]
    seen_at: Mapped[datetime]


class Submission(Base):
    """A request to evaluate checkouts over a matrix."""

    __tablename__ = "submission"
    __table_args__ = (one_of("state", SUBMISSION_STATES), Index(None, "state", "id"))
    id: Mapped[int] = mapped_column(primary_key=True)
    key: Mapped[str] = mapped_column(String(32), unique=True)
    state: Mapped[str] = mapped_column(String(16))
    requester: Mapped[str] = mapped_column(String(255))
    reason: Mapped[str] = mapped_column(String(64))
    priority: Mapped[int]
    request: Mapped[dict[str, Any]]
    created_at: Mapped[datetime]
    finished_at: Mapped[datetime | None]


class Job(Base):
    """Checkout x runtime x transport x world size: what is queued, claimed and leased devices.

    ``fence`` counts the claims: whoever holds an older one may write nothing. ``failures`` counts the claims in a row
    that ended without one new result. ``counts`` holds a number per verdict, kept by the transaction that accepts.
    """

    __tablename__ = "job"
    __table_args__ = (
        one_of("state", JOB_STATES),
        Index(
            "uq_job_live",
            *("checkout_id", "runtime_id", "transport", "world_size", "cells_digest"),
            unique=True,
            sqlite_where=text("state IN ('queued', 'leased', 'running')"),
            postgresql_where=text("state IN ('queued', 'leased', 'running')"),
        ),
        Index(None, "state", "priority", "queued_at"),
        Index(None, "state", "lease_until"),
        Index(None, "container"),
    )
    id: Mapped[int] = mapped_column(primary_key=True)
    key: Mapped[str] = mapped_column(String(32), unique=True)
    checkout_id: Mapped[int] = mapped_column(ForeignKey("checkout.id"))
    runtime_id: Mapped[int] = mapped_column(ForeignKey("runtime.id"))
    transport: Mapped[str] = mapped_column(String(32))
    world_size: Mapped[int]
    cells_digest: Mapped[str] = mapped_column(String(64))
    state: Mapped[str] = mapped_column(String(16))
    priority: Mapped[int]
    wall_s: Mapped[float]
    fence: Mapped[int]
    failures: Mapped[int]
    lease_until: Mapped[datetime | None]
    host_id: Mapped[int | None] = mapped_column(ForeignKey("host.id"))
    container: Mapped[str | None] = mapped_column(String(32))
    reserved_host_id: Mapped[int | None] = mapped_column(ForeignKey("host.id"))
    reserved_until: Mapped[datetime | None]
    cells_total: Mapped[int]
    cells_done: Mapped[int]
    counts: Mapped[dict[str, int]]
    note: Mapped[str] = mapped_column(Text)
    created_at: Mapped[datetime]
    queued_at: Mapped[datetime]
    finished_at: Mapped[datetime | None]


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


class SubmissionCell(Base):
    """What a submission asked for, whoever runs it."""

    __tablename__ = "submission_cell"
    __table_args__ = (Index(None, "cell_id"),)
    submission_id: Mapped[int] = mapped_column(ForeignKey("submission.id"), primary_key=True)
    cell_id: Mapped[int] = mapped_column(ForeignKey("cell.id"), primary_key=True)


class SubmissionJob(Base):
    """What a submission waits for: jobs of its own, and live ones that it shares."""

    __tablename__ = "submission_job"
    __table_args__ = (Index(None, "job_id"),)
    submission_id: Mapped[int] = mapped_column(ForeignKey("submission.id"), primary_key=True)
    job_id: Mapped[int] = mapped_column(ForeignKey("job.id"), primary_key=True)


class SubmissionCheckout(Base):
    """The name under which a submission asked for a checkout: a release and a tree can be the same content."""

    __tablename__ = "submission_checkout"
    submission_id: Mapped[int] = mapped_column(ForeignKey("submission.id"), primary_key=True)
    checkout_id: Mapped[int] = mapped_column(ForeignKey("checkout.id"), primary_key=True)
    position: Mapped[int]
    label: Mapped[str] = mapped_column(String(255))


class Attempt(Base):
    """One execution of a job, under one fence. Several of one container share ``container``.

    ``machine``, ``pid`` and ``pid_started`` name the process that holds it, so that its death is seen at once by
    anyone on the same machine. ``facts`` is what the container said about itself.
    """

    __tablename__ = "attempt"
    __table_args__ = (
        UniqueConstraint("job_id", "fence"),
        one_of("state", ATTEMPT_STATES),
        Index(None, "state"),
        Index(None, "container"),
    )
    id: Mapped[int] = mapped_column(primary_key=True)
    job_id: Mapped[int] = mapped_column(ForeignKey("job.id"))
    fence: Mapped[int]
    container: Mapped[str] = mapped_column(String(32))
    host_id: Mapped[int] = mapped_column(ForeignKey("host.id"))
    machine: Mapped[str] = mapped_column(String(255))
    pid: Mapped[int]
    pid_started: Mapped[str] = mapped_column(String(64))
    state: Mapped[str] = mapped_column(String(16))
    note: Mapped[str] = mapped_column(Text)
    facts: Mapped[dict[str, Any]]
    started_at: Mapped[datetime]
    ended_at: Mapped[datetime | None]
    control_set_digest: Mapped[str | None] = mapped_column(ForeignKey("control_set.digest"))


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
    """A blob of a result. ``digest`` is empty where the bytes were over the cap and only their size is known."""

    __tablename__ = "result_blob"
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


class GpuLease(Base):
    """A device in use. A container holds all of its devices or none; the rows go when its last job ends."""

    __tablename__ = "gpu_lease"
    __table_args__ = (UniqueConstraint("host_id", "device"), Index(None, "container"))
    id: Mapped[int] = mapped_column(primary_key=True)
    host_id: Mapped[int] = mapped_column(ForeignKey("host.id"))
    device: Mapped[str] = mapped_column(String(64))
    container: Mapped[str] = mapped_column(String(32))
    lease_until: Mapped[datetime]
    ends_at: Mapped[datetime]
