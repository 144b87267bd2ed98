"""The worker's loop where something is not as it should be: it goes on, and the job says why."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import sqlalchemy as sa

from service.broker import LocalBroker
from service.claims import WEBHOOK
from service.config import ConfigError, Settings
from service.models import Job
from tests.support.stored import World, host, open_world
from workers.loop import Loop
from workers.runtimes import Executor
from workers.runtimes.venv import VenvExecutor
from workers.scratch import sweep_scratch


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    opened = open_world(tmp_path)
    yield opened
    opened.db.dispose()


def test_a_job_of_a_runtime_that_this_host_does_not_know_is_given_back_and_in_the_end_given_up(
    world: World, tmp_path: Path
) -> None:
    view = world.submit(["a"], torch=["0.0.1"])
    nothing = cast("Executor", SimpleNamespace(trusted_only=True))  # nothing may be run
    loop = Loop(
        Settings(home=tmp_path), world.db, host=host(), executor=nothing, broker=LocalBroker(),
        listener=lambda event: None, lasting=True,
    )  # fmt: skip
    for _ in range(3):
        assert loop._claim() is False
        with world.db.session() as session:  # the time passes that it waits for this host to come to itself
            session.execute(sa.update(Job).values(not_before=None))
    (job,) = world.view(view.id).jobs
    assert job.state == "done"
    assert "given up with 1 cells unanswered: this host knows no runtime 0.0.1-index of digest" in job.note


@pytest.mark.parametrize("contained", [False, True])
def test_what_only_a_webhook_asked_for_is_claimed_where_the_executor_contains_it(
    world: World, tmp_path: Path, contained: bool
) -> None:
    """Whatever the host said of itself before: it is the executor that does or does not."""
    view = world.submit(["a"], torch=["0.0.1"], reason=WEBHOOK)
    settings = Settings(home=tmp_path)
    executor = cast("Executor", SimpleNamespace(trusted_only=False)) if contained else VenvExecutor(settings)
    loop = Loop(
        settings, world.db, host=dataclasses.replace(host(), trusted_only=contained), executor=executor,
        broker=LocalBroker(), listener=lambda event: None, lasting=True,
    )  # fmt: skip
    assert loop._claim() is False, "no host knows this runtime"
    (job,) = world.view(view.id).jobs
    assert job.fence == int(contained), "and one had it"


def test_folders_that_killed_workers_left_are_removed_and_those_in_use_are_not(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    old, young = tmp_path / "work" / "tmpold", tmp_path / "work" / "tmpyoung"
    for folder in (old, young):
        (folder / "cache").mkdir(parents=True)
    long_ago = time.time() - 2 * settings.deadlines.attempt_s - 60
    os.utime(old, (long_ago, long_ago))
    assert sweep_scratch(settings) == 1
    assert not old.exists() and (young / "cache").is_dir()


def test_who_asks_for_containers_gets_nothing_less(world: World, tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, executor="docker")
    with pytest.raises(ConfigError, match="jobs do not run in containers yet"):
        Loop(
            settings, world.db, host=host(), executor=VenvExecutor(settings), broker=LocalBroker(),
            listener=lambda event: None,
        )  # fmt: skip
