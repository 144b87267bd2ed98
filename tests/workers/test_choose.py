"""What a host does next, tried on a virtual clock."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.claims import AGE_S, LEASE_S, Choice, Holder, HostView, LeaseView, QueuedJob
from tests.support.stored import at
from workers.choose import MAX_JOBS, choose


def gpus(count: int = 8, name: str = "here", cap: float = 3600.0) -> HostView:
    devices = tuple(f"GPU-{name}-{n}" for n in range(count))
    return HostView(name, devices, Holder("boot", 1, "1"), False, ("nccl", "gloo"), cap)


def slots(count: int = 2) -> HostView:
    return HostView("cpu", tuple(f"cpu:{n}" for n in range(count)), Holder("boot", 1, "1"))


def job(number: int, size: int = 2, **more: object) -> QueuedJob:
    values: dict[str, object] = {"checkout": number, "runtime": 1, "transport": "gloo", "priority": 0, "wall_s": 100.0}
    values |= {"queued_at": at(0), **more}
    return QueuedJob(id=number, world_size=size, **values)  # type: ignore[arg-type]


def ids(choice: Choice) -> list[int]:
    return [item.id for item in choice.jobs]


def leases(host: HostView, *ends: float) -> list[LeaseView]:
    return [LeaseView(device, at(end)) for device, end in zip(host.devices, ends, strict=False)]


def test_nothing_to_do() -> None:
    assert choose([], gpus(), [], at(0)) == Choice()


def test_one_job_gets_as_many_devices_as_ranks() -> None:
    host = gpus()
    assert choose([job(1, 4)], host, [], at(0)) == Choice((job(1, 4),), host.devices[:4], 100.0, None)
    assert choose([job(1, 4)], host, leases(host, 9, 9), at(0)).devices == host.devices[4:]


def taken(host: HostView, *numbers: int, until: float = 50) -> list[LeaseView]:
    return [LeaseView(host.devices[number], at(until)) for number in numbers]


@pytest.mark.parametrize(
    ("busy", "size", "given_out"),
    [
        ((), 2, (0, 1)),
        ((0, 1), 2, (2, 3)),  # the other half of a block that is broken already
        ((0, 1, 2, 3), 2, (4, 5)),
        ((0, 1, 4, 5), 2, (2, 3)),
        ((2, 3), 4, (4, 5, 6, 7)),
        ((1,), 2, (2, 3)),  # 0 alone is no block, and 2 and 3 are the rest of a broken one
        ((), 8, (0, 1, 2, 3, 4, 5, 6, 7)),
    ],
)
def test_gpus_are_given_out_in_aligned_blocks_and_large_ones_stay_whole(
    busy: tuple[int, ...], size: int, given_out: tuple[int, ...]
) -> None:
    host = gpus()
    chosen = choose([job(1, size)], host, taken(host, *busy), at(0))
    assert chosen.devices == tuple(host.devices[number] for number in given_out)


def test_enough_devices_that_are_no_block_wait_for_one() -> None:
    """Two pairs of different halves: a job of four waits until one of the halves is free, at the latest at 50."""
    host = gpus()
    running = taken(host, 0, 1, until=50) + taken(host, 4, 5, until=90)
    assert choose([job(1, 4)], host, running, at(0)) == Choice(reserve=1)
    short, long = job(2, wall_s=50.0), job(3, wall_s=51.0)
    assert ids(choose([job(1, 4, priority=9), short, long], host, running, at(0))) == [2]
    assert ids(choose([job(1, 4, priority=9), long], host, running, at(0))) == []


def test_a_device_that_is_out_moves_no_other_and_is_waited_for_by_nobody() -> None:
    host = replace(gpus(), out=frozenset({"GPU-here-3"}))
    assert choose([job(1, 2)], host, [], at(0)).devices == host.devices[:2], "the whole half of a broken block"
    assert choose([job(1, 4)], host, [], at(0)).devices == host.devices[4:]
    assert choose([job(1, 1)], host, taken(host, 0, 1), at(0)).devices == host.devices[2:3]
    assert choose([job(1, 8)], host, [], at(0)) == Choice(), "seven of eight: no 8-GPU job is kept for"
    busy = taken(host, 4, until=90)
    assert choose([job(1, 4)], host, busy, at(0)) == Choice(reserve=1)
    assert ids(choose([job(1, 4, priority=9), job(2, 2, wall_s=91.0)], host, busy, at(0))) == []
    assert ids(choose([job(1, 4, priority=9), job(2, 2, wall_s=90.0)], host, busy, at(0))) == [2]


def test_slots_that_are_out_are_not_counted() -> None:
    host = replace(slots(3), out=frozenset({"cpu:1"}))
    assert choose([job(1, 8)], host, [], at(0)).devices == ("cpu:0", "cpu:2")
    assert choose([job(1, 2)], replace(host, out=frozenset(host.devices)), [], at(0)) == Choice()


def test_a_companion_makes_its_container_a_larger_aligned_block() -> None:
    host = gpus()
    small, large = job(1, 2, checkout=5), job(2, 4, checkout=5)
    chosen = choose([small, large], host, taken(host, 2, 3), at(0))
    assert (ids(chosen), chosen.devices) == ([1], host.devices[:2]), "0 and 1 are in no free block of four"
    chosen = choose([small, large], host, taken(host, 4), at(0))
    assert ids(chosen) == [1]
    assert chosen.devices == host.devices[6:], "so that 0 to 3 stay whole for the other one"
    chosen = choose([small, large], host, taken(host, 4, 5, 6, 7), at(0))
    assert (ids(chosen), chosen.devices) == ([1, 2], host.devices[:4])


def test_priority_first_then_age_then_number() -> None:
    queue = [job(1, queued_at=at(5)), job(2, queued_at=at(0)), job(3, priority=1, queued_at=at(9))]
    order = []
    while queue:
        (first,) = ids(choose(queue, gpus(2), [], at(10)))
        order.append(first)
        queue = [item for item in queue if item.id != first]
    assert order == [3, 2, 1]


@pytest.mark.parametrize(("waited", "first"), [(AGE_S * 2 - 1, 2), (AGE_S * 2 + 1, 1)])
def test_waiting_outweighs_priority_in_the_end(waited: float, first: int) -> None:
    queue = [job(1), job(2, priority=2, queued_at=at(waited))]
    assert ids(choose(queue, gpus(2), [], at(waited))) == [first]


def test_jobs_of_one_checkout_and_runtime_share_one_lease_of_the_largest_size() -> None:
    queue = [job(1, 2, checkout=7), job(2, 8, checkout=7), job(3, 4, checkout=7), job(4, 2, checkout=7, runtime=2)]
    choice = choose(queue, gpus(), [], at(0))
    assert (ids(choice), len(choice.devices), choice.wall_s) == ([1, 3, 2], 8, 300.0)


def test_a_container_never_outlives_the_cap() -> None:
    queue = [job(n, checkout=7) for n in range(1, 6)]
    assert choose(queue, gpus(cap=250.0), [], at(0)).wall_s == 250.0
    assert len(ids(choose([job(n, checkout=7) for n in range(50)], gpus(), [], at(0)))) == MAX_JOBS


def test_a_companion_does_not_take_devices_that_a_better_job_can_have_now() -> None:
    queue = [job(1, 2, checkout=7), job(2, 4, queued_at=at(1)), job(3, 8, checkout=7, queued_at=at(2))]
    assert ids(choose(queue, gpus(), [], at(9))) == [1]
    assert ids(choose([queue[0], queue[2]], gpus(), [], at(9))) == [1, 3]


def test_a_companion_does_not_delay_a_better_job_that_is_blocked() -> None:
    queue = [job(1, 2, checkout=7), job(2, 8, queued_at=at(1)), job(3, 2, checkout=7, queued_at=at(2))]
    assert ids(choose(queue, gpus(), [], at(9))) == [1]


def test_a_job_that_is_too_large_for_the_host_is_left_to_others() -> None:
    assert choose([job(1, 8)], gpus(4), [], at(0)) == Choice()
    assert choose([job(1, transport="nccl-dispatch")], gpus(4), [], at(0)) == Choice()
    assert choose([job(1)], gpus(0), [], at(0)) == Choice()


def test_slots_are_shared_by_more_ranks_than_there_are() -> None:
    host = slots(2)
    assert choose([job(1, 8)], host, [], at(0)).devices == host.devices
    assert choose([job(1, 8)], host, leases(host, 50), at(0)) == Choice(reserve=1)


def test_a_blocked_job_keeps_the_host_and_only_what_ends_before_may_start() -> None:
    host = gpus()
    running = leases(host, 30, 30, 30, 30, 90, 90)
    large = job(1, 4, priority=9)  # needs 4, 2 are free: at 30 there are
    short, long = job(2, wall_s=30.0), job(3, wall_s=31.0)
    assert choose([large, long], host, running, at(0)) == Choice(reserve=1)
    assert choose([large, short, long], host, running, at(0)) == Choice((short,), host.devices[6:], 30.0, 1)
    assert choose([large, short], host, running, at(1)) == Choice(reserve=1)
    assert ids(choose([large, long], host, running[4:], at(30))) == [1]
    late = job(1, 8, priority=9)  # all 8 only at 90
    assert ids(choose([late, long], host, running, at(59))) == [3]
    assert ids(choose([late, long], host, running, at(60))) == []


def test_an_overdue_lease_promises_nothing() -> None:
    host = gpus(4)
    assert choose([job(1, 4, priority=9), job(2, wall_s=1.0)], host, leases(host, 5, 5), at(50)) == Choice(reserve=1)


def test_a_blocked_job_keeps_one_host_only() -> None:
    host = gpus(4)
    elsewhere = job(1, 4, priority=9, reserved_for="there", reserved_until=at(LEASE_S))
    assert choose([elsewhere, job(2)], host, leases(host, 5, 5), at(0)) == Choice(
        (job(2),), host.devices[2:], 100.0, None
    )
    assert choose([elsewhere, job(2)], host, leases(host, 5, 5), at(LEASE_S)).reserve == 1  # that host is gone
    assert ids(choose([elsewhere], host, [], at(0))) == [1]  # it may start wherever it fits first


SIZES = st.sampled_from([1, 2, 3, 4, 6, 8])
QUEUE = st.lists(
    st.builds(
        lambda size, checkout, priority, queued, wall: (size, checkout, priority, queued, wall),
        *(SIZES, st.integers(1, 3), st.integers(0, 3), st.integers(-3000, 0), st.sampled_from([10.0, 60.0, 900.0])),
    ),
    max_size=10,
).map(
    lambda rows: [
        job(n, size, checkout=c, priority=p, queued_at=at(q), wall_s=w) for n, (size, c, p, q, w) in enumerate(rows, 1)
    ]
)
ENDS = st.lists(st.integers(-10, 500), max_size=8)


def _fits(host: HostView, need: int, free: Sequence[str]) -> bool:
    if host.shares:
        return need <= len(free)
    starts = range(0, len(host.devices) - need + 1, need)
    return any(set(host.devices[start : start + need]) <= set(free) for start in starts)


@given(queue=QUEUE, ends=ENDS, count=st.integers(0, 8), shares=st.booleans(), sick=st.sets(st.integers(0, 7)))
def test_every_choice_keeps_the_rules(
    queue: list[QueuedJob], ends: list[int], count: int, shares: bool, sick: set[int]
) -> None:
    host = replace(gpus(count), shares=shares, out=frozenset(f"GPU-here-{number}" for number in sick))
    held = leases(host, *ends)
    choice = choose(queue, host, held, at(0))
    not_free = {lease.device for lease in held} | host.out
    free = [device for device in host.devices if device not in not_free]
    # no overlap, no partial hold, one lease of the largest size
    assert set(choice.devices) <= set(free)
    needs = [host.demand(item) for item in choice.jobs]
    assert len(set(choice.devices)) == len(choice.devices) == max((need or 0 for need in needs), default=0)
    assert len(set(ids(choice))) == len(choice.jobs) and all(item in queue for item in choice.jobs)
    assert len({item.group for item in choice.jobs}) <= 1
    assert choice.wall_s == min(sum(item.wall_s for item in choice.jobs), host.wall_cap_s)
    # the host never idles while something that fits is the best
    possible = [item for item in queue if host.demand(item)]
    best = min(possible, key=lambda item: item.queued_at.timestamp() - item.priority * AGE_S, default=None)
    if best and _fits(host, host.demand(best) or 0, free):
        assert choice.jobs
    if choice.jobs and not shares:
        first = host.devices.index(choice.devices[0])
        assert first % len(choice.devices) == 0
        assert choice.devices == host.devices[first : first + len(choice.devices)]
    # what is reserved for could not start now, and nothing that starts outlasts the moment when it can
    if choice.reserve is not None:
        (kept,) = [item for item in queue if item.id == choice.reserve]
        assert kept not in choice.jobs
        well = [device for device in host.devices if device not in host.out]
        assert _fits(host, host.demand(kept) or 0, well), "what can never start here is not waited for"
    # the same question gets the same answer, in whatever order it is asked
    assert choose(queue[::-1], host, held[::-1], at(0)) == choice


@dataclass
class Fleet:
    """Hosts that ask ``choose`` for work on a virtual clock, with every job running to its wall limit."""

    hosts: list[HostView]
    queue: list[QueuedJob] = field(default_factory=list)
    running: list[tuple[str, LeaseView]] = field(default_factory=list)
    started: dict[int, float] = field(default_factory=dict)

    def step(self, clock: float) -> None:
        now = at(clock)
        self.running = [(name, lease) for name, lease in self.running if lease.ends_at > now]
        for host in self.hosts:
            while choice := choose(self.queue, host, self._leases(host), now):
                self._keep(choice, host, now)
                if not choice.jobs:
                    break
                for device in choice.devices:
                    assert (host.name, device) not in {(name, lease.device) for name, lease in self.running}
                    self.running.append((host.name, LeaseView(device, at(clock + choice.wall_s))))
                for item in choice.jobs:
                    self.started[item.id] = clock
                self.queue = [item for item in self.queue if item.id not in ids(choice)]

    def _leases(self, host: HostView) -> Sequence[LeaseView]:
        return [lease for name, lease in self.running if name == host.name]

    def _keep(self, choice: Choice, host: HostView, now: datetime) -> None:
        """The reservation, as the store writes it down."""
        until = at((now - at(0)).total_seconds() + LEASE_S)
        for n, item in enumerate(self.queue):
            if item.id == choice.reserve:
                self.queue[n] = replace(item, reserved_for=host.name, reserved_until=until)
            elif item.reserved_for == host.name:
                self.queue[n] = replace(item, reserved_for=None, reserved_until=None)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("priority", [0, 1, 2])
def test_nothing_starves(seed: int, priority: int) -> None:
    """The largest job that there can be, of the lowest priority, against an endless stream of small better ones."""
    rng = random.Random(seed)
    fleet = Fleet([gpus(4, "a"), gpus(8, "b")])
    step, came, wall = 10, 200, 60.0
    load = 1 / step * 2.25 * wall / 12  # device-seconds that arrive per device-second that there is
    assert load > 1, "the fleet must never catch up"
    # it is overtaken only by what came until then, which cannot take longer than with half of the devices idle
    latest = (came + priority * AGE_S) * load * 2 + 3 * wall
    for clock in range(0, int(latest), step):
        for n in range(rng.randint(0, 2)):
            size, slow = rng.choice([1, 2, 2, 4]), rng.uniform(0.5, 1.5)
            fleet.queue.append(
                job(100 + clock * 10 + n, size, priority=priority, wall_s=slow * wall, queued_at=at(clock))
            )
        if clock <= came < clock + step:
            fleet.queue.append(job(1, 8, wall_s=wall, queued_at=at(came)))
        fleet.step(clock)
    assert 1 in fleet.started


def test_a_blocked_large_job_starts_when_the_leases_that_it_met_have_ended() -> None:
    """Whatever small jobs of lower rank keep coming: back-fill never moves the reservation."""
    fleet = Fleet([gpus(8)])
    fleet.queue = [job(n, 2, wall_s=50.0 + 10 * n) for n in range(2, 5)]  # on 6 of 8 devices, until 90 at the latest
    fleet.step(0)
    fleet.queue = [job(1, 8, priority=5)]
    for clock in range(0, 300, 5):
        fleet.queue += [job(1000 + clock * 10 + n, 1, wall_s=float(10 * n), queued_at=at(clock)) for n in range(1, 6)]
        fleet.step(clock)
    assert fleet.started[1] == 90
    assert any(0 < start < 90 for number, start in fleet.started.items() if number >= 1000)
