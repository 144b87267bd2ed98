"""The choice on a virtual clock: many seeds, a thousand arrivals each, and what no arrival may break.

The bound on how long a job waits follows from the rules of ``workers.choose``:

- A job's rank is the moment it was queued, less ``AGE_S`` per step of priority. So only jobs that come within
  (steps of priority above it) x ``AGE_S`` after it can ever be ranked before it; the set of them is fixed from then on.
- Once nothing that is ranked before it waits any more, it is the first. It reserves a host that it fits, and from that
  moment nothing starts there that could, by its wall limit, keep it from starting when the leases that are there end.
  So it starts within the longest wall limit of one container.
- Until then those before it run. Whichever of them is the first starts within one longest wall limit by the same
  argument, and at least one of them starts in every such span: n of them are gone within n spans.

So a job starts within (n + 1) x the longest wall limit, n being how many are ranked before it and not started, counted
when the last of those that may overtake it has come. That holds whatever comes behind it.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

import pytest

from service.claims import AGE_S, Choice, HostView, LeaseView, QueuedJob
from tests.support.stored import at
from tests.workers.test_choose import gpus, job
from workers.choose import choose, rank

ARRIVALS = 1000
PRIORITIES = 4
CAP_S = 600.0
"""The longest wall limit of one container."""
SIZES = (1, 2, 2, 2, 4, 4, 8)
Chooser = Callable[[Sequence[QueuedJob], HostView, Sequence[LeaseView], datetime], Choice]


@dataclass(order=True)
class Running:
    """A container, by when it ends; its lease promises no more than its wall limit."""

    ends: float
    host: str = field(compare=False)
    devices: tuple[str, ...] = field(compare=False)
    limit: float = field(compare=False)


@dataclass
class Fleet:
    """Hosts that look at the queue whenever a job comes or a container ends; time is what the next of them says."""

    hosts: tuple[HostView, ...]
    rng: random.Random
    choose: Chooser = choose
    clock: float = 0.0
    queue: dict[int, QueuedJob] = field(default_factory=dict)
    running: list[Running] = field(default_factory=list)
    started: dict[int, float] = field(default_factory=dict)
    promised: dict[int, float] = field(default_factory=dict)
    """By when whoever is the first must start, as the leases on its host were when it became that."""

    def until(self, clock: float) -> None:
        """Let everything end that ends until then, and look after each end."""
        while self.running and self.running[0].ends <= clock:
            self.clock = heapq.heappop(self.running).ends
            self.look()
        self.clock = max(clock, self.clock)

    def come(self, one: QueuedJob) -> None:
        """A job comes. What was promised to those that it may overtake is promised no more."""
        self.promised = {number: end for number, end in self.promised.items() if rank(self.queue[number]) < rank(one)}
        self.queue[one.id] = one
        self.look()

    def look(self) -> None:
        """Every host looks until nothing more may start anywhere."""
        started = True
        while started:
            started = False
            for host in self.rng.sample(self.hosts, len(self.hosts)):
                while (choice := self._ask(host)).jobs:
                    self._start(choice, host)
                    started = True
                self._keep(choice, host)
        self._hold_to_promise()

    def _ask(self, host: HostView) -> Choice:
        return self.choose(list(self.queue.values()), host, self._leases(host), at(self.clock))

    def _start(self, choice: Choice, host: HostView) -> None:
        in_use = {device for one in self.running if one.host == host.name for device in one.devices}
        assert not in_use & set(choice.devices), "no device is given out twice"
        assert set(choice.devices) <= set(host.devices)
        needs = [host.demand(one) or 0 for one in choice.jobs]
        assert len(choice.devices) == len(set(choice.devices)) == max(needs), "all devices that a job needs, or none"
        assert choice.wall_s <= host.wall_cap_s
        self._keep(choice, host)
        for one in choice.jobs:
            assert one.id not in self.started, "a job starts once"
            assert self.clock <= self.promised.pop(one.id, self.clock), (
                "back-fill delays nobody for whom a host is kept"
            )
            self.started[one.id] = self.clock
            del self.queue[one.id]
        # most end long before their limit
        took = choice.wall_s * self.rng.choice((1, 3, 6, 10)) / 10
        limit = self.clock + choice.wall_s
        heapq.heappush(self.running, Running(self.clock + took, host.name, choice.devices, limit))

    def _keep(self, choice: Choice, host: HostView) -> None:
        """The reservation, as the store writes it down; the host's beats renew it."""
        for number, one in self.queue.items():
            if number == choice.reserve:
                self.queue[number] = replace(one, reserved_for=host.name, reserved_until=at(self.clock + 1e9))
            elif one.reserved_for == host.name:
                self.queue[number] = replace(one, reserved_for=None, reserved_until=None)

    def _leases(self, host: HostView) -> list[LeaseView]:
        mine = (one for one in self.running if one.host == host.name)
        return [LeaseView(device, at(one.limit)) for one in mine for device in one.devices]

    def _hold_to_promise(self) -> None:
        """A host is kept for the first of the queue, and when it will be free only ever comes nearer."""
        first = min(self.queue.values(), key=rank, default=None)
        self.promised = {one: end for one, end in self.promised.items() if first is not None and one == first.id}
        if first is None:
            return
        assert first.reserved_for is not None, "a host is kept for the first of the queue"
        host = next(host for host in self.hosts if host.name == first.reserved_for)
        ends = {lease.device: seconds(lease.ends_at) for lease in self._leases(host)}
        need = first.world_size
        blocks = [host.devices[start : start + need] for start in range(0, len(host.devices) - need + 1, need)]
        free = min(max(ends.get(device, self.clock) for device in block) for block in blocks)
        self.promised[first.id] = min(free, self.promised.get(first.id, free))


def seconds(moment: datetime) -> float:
    return (moment - at(0)).total_seconds()


def arrivals(rng: random.Random, devices: int) -> list[QueuedJob]:
    """Jobs in the order in which they come, for a load that is a little too small or too large for the fleet."""
    load, clock, found = rng.choice((0.8, 1.0, 1.2)), 0.0, []
    for number in range(ARRIVALS):
        size, wall = rng.choice(SIZES), rng.choice((30.0, 120.0, 300.0, CAP_S))
        found.append(
            job(
                number, size, wall_s=wall, priority=rng.randrange(PRIORITIES), queued_at=at(clock),
                checkout=number // rng.choice((1, 1, 3)),
            )
        )  # fmt: skip
        # half of its limit is what a container takes on average
        clock += round(rng.expovariate(load * devices / (size * wall / 2)))
    return found


def run(seed: int, chooser: Chooser = choose) -> None:
    """A thousand arrivals, and as long as it takes until all have started; then each wait is held to its bound."""
    rng = random.Random(seed)
    hosts = (gpus(8, "a", CAP_S), gpus(8, "b", CAP_S), gpus(4, "c", CAP_S))
    jobs = arrivals(rng, sum(len(host.devices) for host in hosts))
    fleet = Fleet(hosts, rng, chooser)
    for one in jobs:
        fleet.until(seconds(one.queued_at))
        fleet.come(one)
    while fleet.running:
        fleet.until(fleet.running[0].ends)
    assert len(fleet.started) == ARRIVALS, "nothing starves"
    ranks = sorted((rank(one), fleet.started[one.id]) for one in jobs)
    for place, one in enumerate(sorted(jobs, key=rank)):
        if one.world_size < 8 and place % 10:
            continue  # the largest ones all, of the others enough
        settled = seconds(one.queued_at) + (PRIORITIES - 1 - one.priority) * AGE_S
        before = sum(start > settled for _, start in ranks[:place])
        assert fleet.started[one.id] <= settled + (before + 1) * CAP_S, "a wait is bounded"


@pytest.mark.parametrize("seed", range(4))
def test_a_thousand_arrivals_are_served_in_bounded_time(seed: int) -> None:
    run(seed)


def _keeps_nothing(queue: Sequence[QueuedJob], host: HostView, leases: Sequence[LeaseView], now: datetime) -> Choice:
    alone = (choose([one], host, leases, now) for one in sorted(queue, key=rank))
    return next((choice for choice in alone if choice.jobs), Choice())


def _never_ages(queue: Sequence[QueuedJob], host: HostView, leases: Sequence[LeaseView], now: datetime) -> Choice:
    return choose([replace(one, priority=1000 * one.priority) for one in queue], host, leases, now)


def _sees_no_leases(queue: Sequence[QueuedJob], host: HostView, leases: Sequence[LeaseView], now: datetime) -> Choice:
    return choose(queue, host, [], now)


def _gives_too_few(queue: Sequence[QueuedJob], host: HostView, leases: Sequence[LeaseView], now: datetime) -> Choice:
    choice = choose(queue, host, leases, now)
    return replace(choice, devices=choice.devices[:-1])


def _forgets_limits(queue: Sequence[QueuedJob], host: HostView, leases: Sequence[LeaseView], now: datetime) -> Choice:
    """Back-fill as if everything ended at once."""
    choice = choose([replace(one, wall_s=1.0) for one in queue], host, leases, now)
    jobs = tuple(one for one in queue if one.id in {chosen.id for chosen in choice.jobs})
    return replace(choice, jobs=jobs, wall_s=min(sum(one.wall_s for one in jobs), CAP_S))


@pytest.mark.parametrize(
    ("chooser", "caught_by"),
    [
        (_keeps_nothing, "a host is kept for the first"),
        (_never_ages, "a host is kept for the first|a wait is bounded"),
        (_sees_no_leases, "no device is given out twice"),
        (_gives_too_few, "all devices that a job needs"),
        (_forgets_limits, "back-fill delays nobody"),
    ],
)
def test_a_wrong_choice_is_caught(chooser: Chooser, caught_by: str) -> None:
    with pytest.raises(AssertionError, match=caught_by):
        run(0, chooser)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_two_hundred_seeds_of_a_thousand_arrivals() -> None:
    for seed in range(200):
        run(seed)
        if seed % 10 == 9:
            print(f"{seed + 1} seeds", flush=True)  # noqa: T201
