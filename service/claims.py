"""What a claim is decided on: the queue, a host, its leases, and the choice. Plain data.

On the straight line this stands between ``service.store`` (which reads these rows and writes the choice down) and
``workers.choose`` (which decides and touches no database).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from jobs.contract import Deadlines

LEASE_S = 60.0
"""How long a claim holds without a beat."""
BEAT_S = 5.0
"""How often a worker renews its claims, and how often it looks for work that no message announced."""
KILL_S = 45.0
"""After so long without a renewal a worker kills its own container: before anyone else may claim the job."""

SLOT = "cpu:"
"""What the name of a CPU slot begins with; every other device is a GPU, named by its UUID."""

WEBHOOK = "webhook"
"""The reason of a submission that no person asked for."""
PRIORITIES = {"manual": 30, WEBHOOK: 20, "nightly": 10, "bisection": 0}
"""Per reason of a submission, how far it goes before others: a step weighs as much as AGE_S of waiting."""
AGE_S = 600.0
"""Seconds of waiting that weigh as much as one step of priority: whatever waits comes first in the end."""


def wall_s(deadlines: Deadlines) -> float:
    """The longest that a container of one job may live: outside everything that the job itself holds to a deadline.

    Its own deadline for the job (``job_s``) counts from the import on; what comes before has this much at most.
    """
    return deadlines.job_s + 2 * deadlines.import_s + deadlines.compile_s


@dataclass(frozen=True)
class Holder:
    """The process that holds a claim.

    machine  the machine's boot, together with what its process ids are counted in; "" where that is unknown
    pid      the process, and ``started`` its start time, since process ids are used again
    """

    machine: str
    pid: int
    started: str


Alive = Callable[[Holder], "bool | None"]
"""Whether a holder still runs; None where this process cannot know, for then only the lease counts."""


@dataclass(frozen=True)
class HostView:
    """A host as a claim sees it.

    devices       what it leases: GPU UUIDs as they are wired, or ``cpu:0`` … where it offers slots
    shares        whether a job larger than the host may run on all of it (CPU slots limit load, GPUs are ranks)
    transports    what can run here
    wall_cap_s    the longest that one container may live
    trusted_only  whether it is left out of what only a webhook asked for, since nothing here contains it
    out           those of ``devices`` that get no job, for they are sick or at rest; they keep their place all the same
    """

    name: str
    devices: tuple[str, ...]
    holder: Holder
    shares: bool = True
    transports: tuple[str, ...] = ("gloo", "nccl-dispatch")
    wall_cap_s: float = Deadlines().attempt_s
    trusted_only: bool = True
    out: frozenset[str] = frozenset()

    @property
    def well(self) -> tuple[str, ...]:
        """The devices that may get a job."""
        return tuple(device for device in self.devices if device not in self.out)

    def blocks(self, size: int) -> list[tuple[str, ...]]:
        """The aligned blocks of ``size`` devices in which every one may get a job."""
        starts = range(0, len(self.devices) - size + 1, size)
        return [block for at in starts if self.out.isdisjoint(block := self.devices[at : at + size])]

    def demand(self, job: QueuedJob) -> int | None:
        """How many devices ``job`` takes here, or None when it cannot run here, however long it waits."""
        if job.transport not in self.transports or not self.well:
            return None
        if self.shares:
            return min(job.world_size, len(self.well))
        return job.world_size if self.blocks(job.world_size) else None


@dataclass(frozen=True)
class QueuedJob:
    """A job in the queue.

    group           jobs with equal checkout and runtime may share a container
    wall_s          the longest that it may run
    reserved_for    the host that is being kept free for it, while ``reserved_until`` has not passed
    """

    id: int
    checkout: int
    runtime: int
    transport: str
    world_size: int
    priority: int
    queued_at: datetime
    wall_s: float
    reserved_for: str | None = None
    reserved_until: datetime | None = None

    @property
    def group(self) -> tuple[int, int, str]:
        """What all jobs of one container have in common."""
        return (self.checkout, self.runtime, self.transport)


@dataclass(frozen=True)
class LeaseView:
    """A device in use, and when its container must have ended by its wall limit."""

    device: str
    ends_at: datetime


@dataclass(frozen=True)
class Choice:
    """What to claim now, and the blocked job that this host is kept free for.

    jobs     in the order in which they run, one after the other; empty when nothing may start now
    devices  one lease, as large as the largest of them
    reserve  the id of the job that starts here as soon as enough devices are free
    """

    jobs: tuple[QueuedJob, ...] = ()
    devices: tuple[str, ...] = ()
    wall_s: float = 0.0
    reserve: int | None = None


Choose = Callable[[Sequence[QueuedJob], HostView, Sequence[LeaseView], datetime], Choice]
