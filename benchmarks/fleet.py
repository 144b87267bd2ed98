"""How many GPUs of a fleet are busy, of those that packing allows: ``python -m benchmarks.fleet``.

20 hosts of 8 GPUs, which a stand-in for NVML lists, on a virtual clock. Jobs of 2, 4 and 8 ranks come at random, with
the priorities of their reasons, and sleep for as long as they would have run, which is less than their wall limit.
Claims, leases, reservations and ends are the store's own, and what is claimed is decided by ``workers.choose``.

At one moment packing allows the GPUs that are busy, and as many more as jobs that wait could use of the aligned blocks
that are free: largest first, which is the most, for sizes are halves of each other. A host that is kept free for a
large job so counts against us, as long as small ones wait that would fit. The second figure allows what could be busy
if jobs that run could be moved as well: as many GPUs as all jobs want, and all that there are at most.
"""

from __future__ import annotations

import dataclasses
import heapq
import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from jobs.contract import Deadlines
from service import store
from service.claims import BEAT_S, LEASE_S, PRIORITIES, Holder, HostView
from service.matrix import plan
from service.store import Claim
from tests.support.nvml import machine
from tests.support.stored import World, at, case, checkout, open_world, runtime
from workers.choose import choose
from workers.gpus import gpus_of

HOSTS, GPUS = 20, 8
SIZES = {2: 6, 4: 3, 8: 1}
"""Ranks of a job, and how often there are such jobs."""
RUNS_S = (60.0, 900.0)
"""A job runs for so long, each duration as likely as the other."""
HOURS = 1.5
WARM_S = 1800.0
"""Until the fleet is as full as it gets; what is busy counts from then on."""
LOADS = (0.7, 0.95, 1.3)
"""GPUs that are wanted, of those that there are: with room, nearly full, and with a queue that only grows."""
SEED = 1
RUNTIME, CASE = runtime("2.11.0"), case("a")
LOOK_S = LEASE_S / 2
"""How often a host looks in any case; it does so every BEAT_S, and it makes no difference to what is kept for whom."""
assert BEAT_S < LOOK_S < LEASE_S


def hosts() -> list[HostView]:
    """Hosts as their workers find them."""
    made = []
    for number in range(HOSTS):
        found = gpus_of(machine(GPUS, f"{number:02}-"))
        holder = Holder("boot", number, "1")
        view = HostView(f"host-{number:02}", found.devices(), holder, found.shares, found.transports)
        made.append(dataclasses.replace(view, trusted_only=False))
    return made


@dataclass
class Fleet:
    """The hosts at work. ``wanted`` are GPUs of jobs that run or wait; ``waiting`` are jobs by their size."""

    world: World
    rng: random.Random
    hosts: list[HostView] = field(default_factory=hosts)
    clock: float = 0.0
    busy: int = 0
    wanted: int = 0
    waiting: Counter[int] = field(default_factory=Counter)
    busy_s: float = 0.0
    allowed_s: float = 0.0
    movable_s: float = 0.0
    jobs: int = 0
    claims_s: list[float] = field(default_factory=list)
    ends: list[tuple[float, int, int, Claim]] = field(default_factory=list)

    def pass_to(self, clock: float) -> None:
        """Let time pass with everything as it is."""
        if clock > WARM_S:
            seconds = clock - max(self.clock, WARM_S)
            self.busy_s += self.busy * seconds
            self.allowed_s += (self.busy + self.room()) * seconds
            self.movable_s += min(self.wanted, HOSTS * GPUS) * seconds
        self.clock = clock

    def room(self) -> int:
        """How many GPUs jobs that wait could use of the aligned blocks that are free."""
        used = {device for *_, claim in self.ends for device in claim.devices}
        free = Counter(size for host in self.hosts for size in whole(host.devices, used))
        found = left = 0
        for size in sorted(SIZES, reverse=True):
            blocks = free[size] + 2 * left
            taken = min(blocks, self.waiting[size])
            found, left = found + taken * size, blocks - taken
        return found

    def come(self) -> None:
        """A job comes in, of a checkout of its own: it shares its container with no other."""
        self.jobs += 1
        size = self.rng.choices(list(SIZES), list(SIZES.values()))[0]
        tree = checkout(f"subject=={self.jobs}")
        planned = plan([tree], [RUNTIME], ["nccl"], [size], [CASE], ["eager"])
        reason = self.rng.choice(list(PRIORITIES))
        with self.world.db.session() as session:
            store.submit(
                session, checkouts=[tree], runtimes=[RUNTIME], plan=planned, requester="x", reason=reason,
                priority=PRIORITIES[reason], request={}, deadlines=Deadlines(), now=at(self.clock),
            )  # fmt: skip
        self.wanted += size
        self.waiting[size] += 1
        for number in self.rng.sample(range(HOSTS), HOSTS):
            self.look(number)

    def look(self, number: int) -> None:
        """A host claims as long as there is something for it."""
        while self.waiting.total():
            began = time.perf_counter()
            with self.world.db.session() as session:
                claim = store.claim(session, self.hosts[number], choose, at(self.clock))
            self.claims_s.append(time.perf_counter() - began)
            if claim is None:
                return
            self.busy += len(claim.devices)
            self.waiting.subtract(job.world_size for job in claim.jobs)
            end = self.clock + self.rng.uniform(*RUNS_S)
            heapq.heappush(self.ends, (end, claim.jobs[0].job, number, claim))

    def end(self) -> None:
        """The next job to wake up ends as an attempt does, and its host looks for work."""
        _, _, number, claim = heapq.heappop(self.ends)
        self.busy -= len(claim.devices)
        self.wanted -= len(claim.devices)
        for job in claim.jobs:
            for cell in job.cells:
                self.world.answer(job, cell.cell, now=at(self.clock))
            self.world.finish(job, self.clock)
        self.look(number)

    def beat(self) -> None:
        """Everybody renews what it holds, and looks."""
        held = [(job.job, job.fence) for *_, claim in self.ends for job in claim.jobs]
        with self.world.db.session() as session:
            assert store.beat(session, jobs=held, now=at(self.clock)) == set()
        for number in range(HOSTS):
            self.look(number)


def whole(block: tuple[str, ...], used: set[str]) -> Iterator[int]:
    """The sizes of the largest aligned blocks that are free in ``block``."""
    if used.isdisjoint(block):
        yield len(block)
    elif len(block) > min(SIZES):
        half = len(block) // 2
        yield from whole(block[:half], used)
        yield from whole(block[half:], used)


def measured(load: float, hours: float = HOURS) -> Fleet:
    """A fleet after so many hours of jobs that want ``load`` times the GPUs that there are."""
    rng = random.Random(SEED)  # noqa: S311 - the same jobs every time
    size = sum(size * often for size, often in SIZES.items()) / sum(SIZES.values())
    every_s = size * sum(RUNS_S) / 2 / (HOSTS * GPUS) / load
    with tempfile.TemporaryDirectory() as folder:
        world = open_world(Path(folder))
        fleet = Fleet(world, rng)
        comes, beats = 0.0, LOOK_S
        while fleet.clock < hours * 3600:
            ends = fleet.ends[0][0] if fleet.ends else float("inf")
            fleet.pass_to(min(comes, beats, ends))
            if fleet.clock == ends:
                fleet.end()
            elif fleet.clock == comes:
                fleet.come()
                comes += rng.expovariate(1 / every_s)
            else:
                fleet.beat()
                beats += LOOK_S
        world.db.dispose()
    return fleet


def main() -> None:
    for load in LOADS:
        fleet = measured(load)
        looks = sorted(fleet.claims_s)
        allowed, movable = fleet.busy_s / fleet.allowed_s, fleet.busy_s / fleet.movable_s
        print(f"load {load:.0%}: {allowed:.1%} of what packing allows is busy, {movable:.1%} if jobs could move;")
        waiting, claim_ms = fleet.waiting.total(), looks[len(looks) // 2] * 1000
        print(f"  {fleet.jobs} jobs, {waiting} wait at the end; {len(looks)} looks of {claim_ms:.0f} ms", flush=True)


if __name__ == "__main__":
    main()
