"""What a host does next. Pure: the queue, the host, its leases and the time in; the choice out.

On the straight line this is the decision inside ``service.store.claim``, which ``workers.loop`` passes in.

Jobs are ranked by priority, and waiting raises it: ``AGE_S`` of waiting weigh as much as one step of priority. Since
all jobs age alike, the rank of two never changes, and a job can be overtaken only by those that come within
(difference of priority) x ``AGE_S`` after it: nothing starves. The best job that fits starts. If a better one is
blocked because too few devices are free, this host is kept for it: what starts meanwhile must end, by its wall
limit, before enough devices are free.

GPUs are given out in aligned blocks, of the devices 0 and 1, 2 and 3, or 4 to 7, as they are wired, and where the
block's other half is in use already, so that large blocks stay whole. A device that is out (sick, say) is in no
block and moves no other one: a job for which no block is left is not waited for here. CPU slots are all alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from service.claims import AGE_S, Choice, HostView, LeaseView, QueuedJob

Block = tuple[str, ...]
Ends = dict[str, datetime]
"""Devices that are in use, and when each must be free again."""
MAX_JOBS = 16
"""Jobs in one container: so long, at most, does whoever comes next wait for its companions."""


def choose(queue: Sequence[QueuedJob], host: HostView, leases: Sequence[LeaseView], now: datetime) -> Choice:
    """The best job that may start on ``host`` now, with the companions that share its container."""
    ends = {lease.device: lease.ends_at for lease in leases}
    ranked = sorted(((need, job) for job in queue if (need := host.demand(job))), key=lambda pair: rank(pair[1]))
    kept_for: int | None = None
    before: datetime | None = None
    for position, (need, job) in enumerate(ranked):
        block = _block(host, need, ends)
        if block is None:
            if kept_for is None and _may_reserve(job, host, now):
                kept_for, before = job.id, _free_at(host, need, ends, now)
        elif before is None or now + timedelta(seconds=min(job.wall_s, host.wall_cap_s)) <= before:
            start = _Start(host, now, block, [job], ends, before)
            start.fill(ranked[position + 1 :])
            return Choice(tuple(start.jobs), start.block, start.wall_s, kept_for)
    return Choice(reserve=kept_for)


def rank(job: QueuedJob) -> tuple[float, int, int, str, int, int]:
    """The order of the queue. Among equals those of one group stand together, so that they share a container."""
    return (job.queued_at.timestamp() - job.priority * AGE_S, *job.group, job.world_size, job.id)


@dataclass
class _Start:
    """A container that is being filled. ``ends``: the devices that are not its to take, and when they are free."""

    host: HostView
    now: datetime
    block: Block
    jobs: list[QueuedJob]
    ends: Ends
    before: datetime | None = None

    @property
    def wall_s(self) -> float:
        return self._wall_s(self.jobs)

    def _wall_s(self, jobs: list[QueuedJob]) -> float:
        return min(sum(job.wall_s for job in jobs), self.host.wall_cap_s)

    def fill(self, others: Sequence[tuple[int, QueuedJob]]) -> None:
        """Add companions, best first. They delay nobody who is better: neither longer nor larger than others allow."""
        taken = dict(self.ends)
        for need, job in others:
            grown = self._takes(need, job, taken)
            if grown is not None:
                self.block = grown
                self.jobs.append(job)
                continue
            mine = dict.fromkeys(self.block, self._after(self.wall_s))
            beside = _block(self.host, need, {**taken, **mine})
            if beside is not None:  # it starts there by itself, at the next look
                taken |= dict.fromkeys(beside, self._after(job.wall_s))
            elif self.before is None and _may_reserve(job, self.host, self.now):
                self.before = _free_at(self.host, need, {**taken, **mine}, self.now)

    def _takes(self, need: int, job: QueuedJob, taken: Ends) -> Block | None:
        """The block with ``job`` in it, or None where it must not come along."""
        if job.group != self.jobs[0].group or len(self.jobs) >= MAX_JOBS:
            return None
        if self.before is not None and self._after(self._wall_s([*self.jobs, job])) > self.before:
            return None
        return self.block if need <= len(self.block) else _grown(self.host, need, self.block, taken)

    def _after(self, seconds: float) -> datetime:
        return self.now + timedelta(seconds=min(seconds, self.host.wall_cap_s))


def _may_reserve(job: QueuedJob, host: HostView, now: datetime) -> bool:
    """One host per blocked job: not this one while another is being kept free for it."""
    if job.reserved_for in (None, host.name):
        return True
    return job.reserved_until is None or job.reserved_until <= now


def _block(host: HostView, need: int, taken: Ends) -> Block | None:
    """``need`` free devices, or None."""
    if host.shares:
        free = tuple(device for device in host.well if device not in taken)
        return free[:need] if len(free) >= need else None
    whole = [block for block in host.blocks(need) if not any(device in taken for device in block)]
    return min(whole, key=lambda block: _free_around(host, block, taken), default=None)


def _free_around(host: HostView, block: Block, taken: Ends) -> int:
    """How many devices are free in the larger block that this one is a half of: the fewer, the less is broken up."""
    around = next((larger for larger in host.blocks(2 * len(block)) if block[0] in larger), block)
    return sum(device not in taken for device in around)


def _grown(host: HostView, need: int, block: Block, taken: Ends) -> Block | None:
    """``need`` devices with those of ``block`` among them, or None."""
    others = {device: end for device, end in taken.items() if device not in block}
    if host.shares:
        spare = [device for device in host.well if device not in block and device not in others]
        return (*block, *spare[: need - len(block)]) if len(spare) >= need - len(block) else None
    fitting = (larger for larger in host.blocks(need) if block[0] in larger)
    return next((larger for larger in fitting if not any(device in others for device in larger)), None)


def _free_at(host: HostView, need: int, ends: Ends, now: datetime) -> datetime:
    """When ``need`` devices are free at the latest, if every container keeps to its wall limit."""
    free_at = {device: max(ends.get(device, now), now) for device in host.well}
    if host.shares:
        return sorted(free_at.values())[need - 1]
    return min(max(free_at[device] for device in block) for block in host.blocks(need))
