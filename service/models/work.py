"""What is asked for, and who does it: submissions, jobs, attempts, hosts and their leases."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, ForeignKey, Index, String, Text, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column

from service.schema import Base, one_of

SUBMISSION_STATES = ("held", "resolving", "queued", "running", "done", "cancelled", "failed")
"""``held`` waits for an approval; ``failed`` could not be made into jobs: no such commit, say."""
OVER = ("done", "cancelled", "failed")
"""States of a submission that nothing changes any more."""
JOB_STATES = ("queued", "leased", "running", "done", "cancelled")
LIVE = ("queued", "leased", "running")
"""States of a job that somebody will still work on."""
HELD = ("leased", "running")
"""States of a job that a worker holds."""
RESOLUTION_STATES = ("waiting", "fetching", "done")
DEVICE_STATES = ("well", "sick")
ATTEMPT_STATES = ("running", "done", "released", "lost", "cancelled")


class Host(Base):
    """A machine that has claimed at least once. ``trusted_only``: it takes nothing that only a webhook asked for."""

    __tablename__ = "host"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(255), unique=True)
    devices: Mapped[int]
    transports: Mapped[list[str]]
    trusted_only: Mapped[bool] = mapped_column(default=True)
    seen_at: Mapped[datetime]


class Device(Base):
    """A device that a host leases out. A sick one gets no job until a person says that it is well."""

    __tablename__ = "device"
    __table_args__ = (UniqueConstraint("host_id", "name"), one_of("state", DEVICE_STATES))
    id: Mapped[int] = mapped_column(primary_key=True)
    host_id: Mapped[int] = mapped_column(ForeignKey("host.id"))
    name: Mapped[str] = mapped_column(String(64))
    model: Mapped[str] = mapped_column(String(128))
    state: Mapped[str] = mapped_column(String(16))
    reason: Mapped[str] = mapped_column(Text)
    since: Mapped[datetime]


class Submission(Base):
    """A request to evaluate checkouts over a matrix. ``note`` says why one failed or is held.

    ``pinned`` keeps everything that it cites from being removed.
    """

    __tablename__ = "submission"
    __table_args__ = (one_of("state", SUBMISSION_STATES), Index(None, "state", "id"))
    id: Mapped[int] = mapped_column(primary_key=True)
    key: Mapped[str] = mapped_column(String(32), unique=True)
    state: Mapped[str] = mapped_column(String(16))
    requester: Mapped[str] = mapped_column(String(255))
    reason: Mapped[str] = mapped_column(String(64))
    priority: Mapped[int]
    request: Mapped[dict[str, Any]]
    note: Mapped[str] = mapped_column(Text)
    pinned: Mapped[bool]
    created_at: Mapped[datetime]
    finished_at: Mapped[datetime | None]


class Resolution(Base):
    """The task between a submission and its jobs: find its subjects, fetch them, plan.

    ``fence`` counts who took it on, as a job's does; ``tries`` counts those that ended, because something outside
    failed, and ``lost`` those that were gone. ``doing`` and the bytes are for people who wait.
    """

    __tablename__ = "resolution"
    __table_args__ = (one_of("state", RESOLUTION_STATES), Index(None, "state", "lease_until"))
    submission_id: Mapped[int] = mapped_column(ForeignKey("submission.id"), primary_key=True)
    state: Mapped[str] = mapped_column(String(16))
    fence: Mapped[int]
    tries: Mapped[int]
    lost: Mapped[int]
    lease_until: Mapped[datetime | None]
    doing: Mapped[str] = mapped_column(Text)
    bytes_done: Mapped[int] = mapped_column(BigInteger)
    bytes_total: Mapped[int | None] = mapped_column(BigInteger)


class Job(Base):
    """Checkout x runtime x transport x world size: what is queued, claimed and leased devices.

    ``fence`` counts the claims: whoever holds an older one may write nothing. ``failures`` counts the claims in a row
    that ended without one new result; the host of the last of them waits until ``not_before``, where it is set.
    ``counts`` holds a number per verdict, kept by the transaction that accepts.
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
    not_before: Mapped[datetime | None]
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
    __table_args__ = (Index(None, "checkout_id"),)
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


class Hint(Base):
    """The outbox: written with what it announces, in one transaction, and removed once the message was sent."""

    __tablename__ = "hint"
    id: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[str] = mapped_column(String(16))
    created_at: Mapped[datetime]


class Act(Base):
    """How many things the reconciler ever put right, by what it does."""

    __tablename__ = "act"
    name: Mapped[str] = mapped_column(String(32), primary_key=True)
    number: Mapped[int] = mapped_column(BigInteger)
