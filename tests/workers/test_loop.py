"""The worker's loop where something is not as it should be: it goes on, and the job says why."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from service.broker import LocalBroker
from service.config import Settings
from tests.support.stored import World, host, open_world
from workers.loop import Loop
from workers.runtimes import Executor


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    opened = open_world(tmp_path)
    yield opened
    opened.db.dispose()


def test_a_job_of_a_runtime_that_this_host_does_not_know_is_given_back_and_in_the_end_given_up(
    world: World, tmp_path: Path
) -> None:
    view = world.submit(["a"], torch=["0.0.1"])
    nothing = cast("Executor", None)  # nothing may be run
    loop = Loop(
        Settings(home=tmp_path), world.db, host=host(), executor=nothing, broker=LocalBroker(),
        listener=lambda event: None, lasting=True,
    )  # fmt: skip
    for _ in range(3):
        assert loop._claim() is False
    (job,) = world.view(view.id).jobs
    assert job.state == "done"
    assert "given up with 1 cells unanswered: this host knows no runtime 0.0.1-index of digest" in job.note
