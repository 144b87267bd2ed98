"""Whose code a host runs, on both databases: nothing that only a webhook asked for where nothing contains it."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime

import pytest
import sqlalchemy as sa

from service import store
from service.claims import WEBHOOK, HostView
from service.models import Host
from service.store.trust import WAITS
from tests.support.stored import World, at, checkout, host, migrate

THEIRS = checkout("deepspeed@1f2e3d4c5b6a")
ANOTHER = checkout("deepspeed==1")


def hooked(world: World, names: str = "a") -> store.SubmissionView:
    return world.submit(list(names), checkouts=[THEIRS], reason=WEBHOOK)


def bare() -> HostView:
    return host(name="bare")


def contained() -> HostView:
    return dataclasses.replace(host(name="contained"), trusted_only=False)


def test_a_host_runs_only_what_somebody_vouches_for_unless_it_says_otherwise(world: World) -> None:
    hooked(world)
    assert bare().trusted_only, "what says nothing is not trusted with it"
    assert world.claim(machine=bare()) is None
    assert world.claimed(machine=contained()).label == THEIRS.label


def test_whoever_asks_for_the_same_content_vouches_for_it(world: World) -> None:
    """Also where the jobs are not the same, and where that asking is long over."""
    hooked(world, "a")
    person = world.submit(["b"], checkouts=[THEIRS])
    claim = world.claimed(machine=bare())
    assert {job.job for job in claim.jobs} >= {person.jobs[0].id}
    assert len(claim.jobs) == 2, "the webhook's own job too"
    for job in claim.jobs:
        for spec in job.cells:
            world.answer(job, spec.cell)
        world.finish(job)
    hooked(world, "c")
    assert world.claim(machine=bare()) is not None


def test_nobody_vouches_for_what_another_webhook_brought_or_for_other_content(world: World) -> None:
    hooked(world, "a")
    hooked(world, "b")
    world.submit(["a"], checkouts=[ANOTHER])
    assert world.claimed(machine=bare()).label == ANOTHER.label
    assert world.claim(machine=bare()) is None


def test_one_submission_alone_is_held_to_it_too(world: World) -> None:
    view = hooked(world)
    assert world.claim(machine=bare(), only=view.id) is None


def test_a_submission_says_that_it_waits_for_a_container(world: World) -> None:
    view, mine = hooked(world), world.submit(["a"], checkouts=[ANOTHER])
    assert world.view(view.id).waiting == WAITS, "no host is there at all"
    world.claim(machine=bare())
    assert (world.view(view.id).waiting, world.view(mine.id).waiting) == (WAITS, "")
    with world.db.session() as session:
        session.execute(sa.update(Host).values(seen_at=datetime.now(UTC)))
    assert world.view(view.id).waiting == WAITS, "the one that is up will not"
    world.claim(machine=contained(), seconds=1)
    assert world.view(view.id).waiting == "", "it is on its way"
    another = hooked(world, "b")
    assert world.view(another.id).waiting == WAITS, "the host that would was not seen for long"
    with world.db.session() as session:
        session.execute(sa.update(Host).values(seen_at=datetime.now(UTC)))
    assert world.view(another.id).waiting == ""


def test_a_run_on_this_machine_takes_no_webhooks_work_up(world: World) -> None:
    mine = world.submit(["a"], checkouts=[ANOTHER])
    hooked(world)
    with world.db.read() as session:
        unfinished = store.unfinished_submission(session)
    assert unfinished is not None and unfinished.id == mine.id


def test_the_fleet_says_which_host_takes_what(world: World) -> None:
    world.claim(machine=bare())
    world.claim(machine=contained(), seconds=1)
    with world.db.read() as session:
        assert {one.name: one.trusted_only for one in store.hosts(session)} == {"bare": True, "contained": False}
    world.claim(machine=dataclasses.replace(contained(), trusted_only=True), seconds=2)
    with world.db.read() as session:
        assert all(one.trusted_only for one in store.hosts(session)), "as it last said"


def test_a_host_of_before_is_not_trusted_with_it(world: World) -> None:
    """The migration, back and forth with a row in the table."""
    world.claim(machine=contained())
    url = world.db.engine.url
    world.db.dispose()
    migrate(url, "0004")
    migrate(url, "head")
    with world.db.read() as session:
        assert [one.trusted_only for one in store.hosts(session)] == [True]


@pytest.mark.parametrize("state", ["held", "cancelled"])
def test_nothing_waits_for_a_container_that_does_not_run_anyway(world: World, state: str) -> None:
    view = hooked(world)
    with world.db.session() as session:
        store.cancel(session, view.id, at(1)) if state == "cancelled" else None
        session.execute(sa.text("UPDATE submission SET state = :state"), {"state": state})
    assert world.view(view.id).waiting == ""
