"""What a fleet stands on goes away and comes back: Redis, PostgreSQL, and a worker that sleeps past its lease."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import requests

from tests.campaign import reader
from tests.campaign.fleet import ENDS_S, PARTS, Fleet, campaign_fleet

pytestmark = [pytest.mark.services, pytest.mark.timeout(600)]


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    """Undisturbed, and slow enough that what happens happens while it works."""
    with campaign_fleet(tmp_path) as made:
        made.pace_s = 0.25
        for name in PARTS:
            made.start(name)
        yield made


def until(fleet: Fleet, what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + ENDS_S
    while not what():
        assert time.monotonic() < deadline, fleet.logs()
        assert fleet.ended() == []
        time.sleep(0.02)


def gone(fleet: Fleet, name: str) -> None:
    """Kill a part for good."""
    fleet.kill(name)
    del fleet.lives[name]


def working(fleet: Fleet) -> bool:
    """Whether some cells have an answer."""
    return fleet.query("SELECT count(*) FROM result") > 0


def all_is_well(fleet: Fleet) -> dict[str, int]:
    """Everything comes to its end, and the history is right."""
    until(fleet, lambda: not fleet.unfinished())
    assert reader.read(fleet.conninfo, latest=time.time()) == []
    return reader.count(fleet.conninfo)


def ready(fleet: Fleet) -> int:
    return requests.get(f"{fleet.address}/readyz", timeout=30).status_code


@pytest.mark.parametrize("how", ["restarted", "flushed"])
def test_redis_loses_what_it_had_and_nobody_else_does(fleet: Fleet, how: str) -> None:
    fleet.post(fleet.commit())
    until(fleet, lambda: working(fleet))
    if how == "restarted":
        fleet.redis.halt(signal.SIGKILL)
        fleet.redis.start()
    else:
        fleet.redis.client().flushall()
    fleet.post(fleet.commit())
    assert all_is_well(fleet)["submissions"] == 2


@pytest.mark.parametrize("away_s", [3, pytest.param(60, marks=pytest.mark.slow)])
def test_without_redis_work_is_found_by_looking(fleet: Fleet, away_s: float) -> None:
    fleet.redis.halt(signal.SIGKILL)
    since = time.monotonic()
    fleet.post(fleet.commit())
    until(fleet, lambda: fleet.query("SELECT count(*) FROM submission WHERE state = 'done'") == 1)
    assert fleet.query("SELECT count(*) FROM hint") > 0, "it says so as soon as somebody hears it"
    time.sleep(max(0.0, since + away_s - time.monotonic()))
    fleet.redis.start()
    fleet.post(fleet.commit())
    assert all_is_well(fleet)["submissions"] == 2


def test_everybody_outlives_a_restart_of_the_database(fleet: Fleet) -> None:
    fleet.post(fleet.commit())
    until(fleet, lambda: working(fleet))
    assert ready(fleet) == 200
    fleet.postgres.halt(signal.SIGQUIT)  # as if its machine had failed
    assert ready(fleet) == 503
    fleet.postgres.start()
    until(fleet, lambda: ready(fleet) == 200)
    fleet.post(fleet.commit())
    assert all_is_well(fleet)["submissions"] == 2


def test_a_worker_that_slept_past_its_lease_is_followed_and_refused(fleet: Fleet) -> None:
    gone(fleet, "worker-2")
    fleet.post(fleet.commit())
    until(fleet, lambda: working(fleet))
    asleep = fleet.lives["worker-1"].process.pid
    os.kill(asleep, signal.SIGSTOP)
    held = fleet.query("SELECT count(*) FROM job WHERE state IN ('leased', 'running')")
    assert held > 0
    fleet.start("worker-2")
    until(fleet, lambda: fleet.query("SELECT count(*) FROM attempt WHERE note = 'its lease ran out'") >= held)
    os.kill(asleep, signal.SIGCONT)
    there = all_is_well(fleet)
    assert there["lost"] >= held
    assert there["answers"] == there["cells"]
    # it is a good worker again
    gone(fleet, "worker-2")
    fleet.post(fleet.commit())
    assert all_is_well(fleet)["submissions"] == 2
