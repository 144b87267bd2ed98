"""What a host does next. Pure: the queue, the host, its leases and the time in; the choice out.

On the straight line this is the decision inside ``service.store.claim``, which ``workers.loop`` passes in.

Jobs are ranked by priority, and waiting raises it: ``AGE_S`` of waiting weigh as much as one step of priority. Since
all jobs age alike, the rank of two never changes, and a job can be overtaken only by those that come within
(difference of priority) x ``AGE_S`` after it: nothing starves. The best job that fits starts. If a better one is
blocked because too few devices are free, this host is kept for it: what starts meanwhile must end, by its wall
limit, before enough devices are free.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from service.claims import Choice, HostView, LeaseView, QueuedJob

AGE_S = 600.0
MAX_JOBS = 16
"""Jobs in one container: so long, at most, does whoever comes next wait for its companions."""


def choose(queue: Sequence[QueuedJob], host: HostView, leases: Sequence[LeaseView], now: datetime) -> Choice:
    """The best job that may start on ``host`` now, with the companions that share its container."""
    taken = {lease.device for lease in leases}
    free = [device for device in host.devices if device not in taken]
    ends = [lease.ends_at for lease in leases if lease.device in host.devices]
    ranked = sorted(((need, job) for job in queue if (need := host.demand(job))), key=lambda pair: rank(pair[1]))
    kept_for: int | None = None
    before: datetime | None = None
    for position, (need, job) in enumerate(ranked):
        if need > len(free):
            if kept_for is None and _may_reserve(job, host, now):
                kept_for, before = job.id, _enough_at(ends, len(free), need, now)
        elif before is None or now + timedelta(seconds=min(job.wall_s, host.wall_cap_s)) <= before:
            start = _Start(host, now, need, len(free) - need, [job], before)
            start.fill(ranked[position + 1 :], ends)
            return Choice(tuple(start.jobs), tuple(free[: start.size]), start.wall_s, kept_for)
    return Choice(reserve=kept_for)


def rank(job: QueuedJob) -> tuple[float, int, int, str, int, int]:
    """The order of the queue. Among equals those of one group stand together, so that they share a container."""
    return (job.queued_at.timestamp() - job.priority * AGE_S, *job.group, job.world_size, job.id)


@dataclass
class _Start:
    """A container that is being filled: ``size`` devices, ``spare`` ones that nobody better waits for."""

    host: HostView
    now: datetime
    size: int
    spare: int
    jobs: list[QueuedJob] = field(default_factory=list)
    before: datetime | None = None

    @property
    def wall_s(self) -> float:
        return self._wall_s(self.jobs)

    def _wall_s(self, jobs: list[QueuedJob]) -> float:
        return min(sum(job.wall_s for job in jobs), self.host.wall_cap_s)

    def fill(self, others: Sequence[tuple[int, QueuedJob]], ends: Sequence[datetime]) -> None:
        """Add companions, best first. They delay nobody who is better: neither longer nor larger than others allow."""
        ends = list(ends)
        for need, job in others:
            if self._takes(need, job):
                grown = max(need - self.size, 0)
                self.size, self.spare = self.size + grown, self.spare - grown
                self.jobs.append(job)
            elif need <= self.spare:
                self.spare -= need  # it starts there by itself, at the next look
                ends += [self._after(job.wall_s)] * need
            elif self.before is None and _may_reserve(job, self.host, self.now):
                mine = [self._after(self.wall_s)] * self.size
                self.before = _enough_at([*ends, *mine], self.spare, need, self.now)

    def _takes(self, need: int, job: QueuedJob) -> bool:
        if job.group != self.jobs[0].group or len(self.jobs) >= MAX_JOBS or need - self.size > self.spare:
            return False
        return self.before is None or self._after(self._wall_s([*self.jobs, job])) <= self.before

    def _after(self, seconds: float) -> datetime:
        return self.now + timedelta(seconds=min(seconds, self.host.wall_cap_s))


def _may_reserve(job: QueuedJob, host: HostView, now: datetime) -> bool:
    """One host per blocked job: not this one while another is being kept free for it."""
    if job.reserved_for in (None, host.name):
        return True
    return job.reserved_until is None or job.reserved_until <= now


def _enough_at(ends: Sequence[datetime], free: int, need: int, now: datetime) -> datetime:
    """When ``need`` devices are free at the latest, if every container keeps to its wall limit."""
    return max(sorted(ends)[need - free - 1], now)
