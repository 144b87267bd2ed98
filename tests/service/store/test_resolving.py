"""Submissions before they have jobs, on both databases."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from service import store
from service.claims import AGE_S, LEASE_S
from service.matrix import plan
from service.models import CheckoutPart, Submission
from service.store.checkouts import PART_BYTES
from service.store.resolving import AGAIN_S, MAX_LOST, MAX_TRIES, Resolving
from tests.support.stored import World, at, case, checkout, runtime

ONE = checkout("deepspeed==1")


def ask(world: World, seconds: float = 0.0, **more: Any) -> int:
    asked = {"requester": "someone", "reason": "manual", "priority": 0, "request": {"subjects": ["x"]}, **more}
    with world.db.session() as session:
        return store.open_submission(session, **asked, now=at(seconds)).id


def take(world: World, seconds: float = 0.0) -> Resolving | None:
    with world.db.session() as session:
        return store.claim_resolution(session, at(seconds))


def taken(world: World, seconds: float = 0.0) -> Resolving:
    task = take(world, seconds)
    assert task is not None
    return task


def planned(world: World, task: Resolving, seconds: float = 0.0) -> store.SubmissionView:
    matrix = plan([ONE], [runtime("2.11.0")], ["gloo"], [2], [case("a")], ["eager"])
    with world.db.session() as session:
        return store.plan_resolved(
            session, task, checkouts=[ONE], runtimes=[runtime("2.11.0")], plan=matrix, now=at(seconds)
        )


def test_asked_taken_on_planned_and_run(world: World) -> None:
    asked = ask(world)
    assert (world.view(asked).state, world.view(asked).cells) == ("resolving", 0)
    task = taken(world)
    assert (task.submission, task.fence, task.request) == (asked, 1, {"subjects": ["x"]})
    assert take(world) is None, "it is taken"
    view = planned(world, task)
    assert (view.state, view.cells, view.requester) == ("queued", 1, "someone")
    assert take(world, 10 * LEASE_S) is None, "it is done"
    world.run()
    assert world.view(asked).state == "done"


def test_the_higher_priority_first_and_of_equals_the_older(world: World) -> None:
    low, high, later = ask(world, priority=0), ask(world, priority=30), ask(world, priority=30)
    assert [taken(world).submission for _ in range(3)] == [high, later, low]


def test_a_fetcher_that_is_gone_is_followed_by_another_under_a_new_fence(world: World) -> None:
    ask(world)
    first = taken(world)
    with world.db.session() as session:
        store.report_resolution(session, first, "fetching", 5, 10, at(50))
    assert take(world, 50 + LEASE_S - 1) is None, "a report renews the lease"
    second = taken(world, 50 + LEASE_S + 1)
    assert second.fence == 2
    late: list[Callable[[Any], Any]] = [
        lambda session: store.report_resolution(session, first, "late", 1, 2, at(0)),
        lambda session: store.fail_resolution(session, first, "late", at(0)),
        lambda session: store.give_back_resolution(session, first, "late", at(0)),
    ]
    for act in late:
        with (
            pytest.raises(store.StaleFence, match="no longer fetched for under fence 1"),
            world.db.session() as session,
        ):
            act(session)
    with pytest.raises(store.StaleFence):
        planned(world, first)
    assert planned(world, second).state == "queued"


def test_what_cannot_be_resolved_has_failed_and_says_why(world: World) -> None:
    asked = ask(world)
    with world.db.session() as session:
        store.fail_resolution(session, taken(world), "there is no branch x", at(3))
    view = world.view(asked)
    assert (view.state, view.note, view.finished_at, view.live) == ("failed", "there is no branch x", at(3), False)
    assert take(world, 10 * LEASE_S) is None


def test_an_unreachable_network_is_tried_again_later_and_not_for_ever(world: World) -> None:
    asked, now = ask(world), 0.0
    for count in range(1, MAX_TRIES):
        with world.db.session() as session:
            assert store.give_back_resolution(session, taken(world, now), "no network", at(now))
        assert (world.view(asked).state, world.view(asked).note) == ("resolving", "no network")
        assert take(world, now + AGAIN_S * count - 1) is None
        now += AGAIN_S * count
    with world.db.session() as session:
        assert not store.give_back_resolution(session, taken(world, now), "no network", at(now))
    assert (world.view(asked).state, world.view(asked).note) == ("failed", "no network")


def test_restarts_of_its_fetchers_use_up_no_try(world: World) -> None:
    asked, now = ask(world), 0.0
    for _ in range(2 * MAX_LOST):
        with world.db.session() as session:
            store.release_resolution(session, taken(world, now))
    for _ in range(MAX_TRIES):  # gone without a word: a lease has to run out
        taken(world, now)
        now += LEASE_S + 1
    with world.db.session() as session:
        assert store.give_back_resolution(session, taken(world, now), "no network", at(now)), "the first that ended"
    assert take(world, now + AGAIN_S - 1) is None
    assert taken(world, now + AGAIN_S).fence == 2 * MAX_LOST + MAX_TRIES + 2
    assert world.view(asked).state == "resolving"


def test_a_cancelled_submission_is_fetched_for_by_nobody(world: World) -> None:
    before, during = ask(world), ask(world)
    with world.db.session() as session:
        store.cancel(session, before, at(1))
    task = taken(world)
    assert task.submission == during
    with world.db.session() as session:
        store.cancel(session, during, at(1))
    with pytest.raises(store.StaleFence):
        planned(world, task)
    assert world.view(during).state == "cancelled"


def test_a_held_submission_waits_for_its_approval(world: World) -> None:
    asked = ask(world, held="of a stranger")
    assert (world.view(asked).state, world.view(asked).note, world.view(asked).live) == ("held", "of a stranger", True)
    assert take(world) is None
    with world.db.session() as session:
        assert store.approve(session, asked, at(1)).state == "resolving"
    assert taken(world).submission == asked
    for wrong, why in ((asked, "it is resolving"), (99, "there is no submission 99")):
        with pytest.raises(store.StoreError, match=why), world.db.session() as session:
            store.approve(session, wrong, at(2))


def test_a_hint_is_there_until_it_is_sent(world: World) -> None:
    ask(world)
    ask(world, held="of a stranger")
    with world.db.session() as session:
        ((number, kind),) = store.hints(session)
        assert kind == "fetch"
        store.drop_hints(session, [number])
    with world.db.read() as session:
        assert store.hints(session) == []


def test_a_checkout_is_kept_once_and_read_back_piece_by_piece(world: World) -> None:
    world.submit(["a"], checkouts=[ONE])
    data = bytes(range(256)) * 4096 + b"the end"
    for _ in range(2):
        with world.db.session() as session:
            store.keep_checkout(session, ONE, io.BytesIO(data))
    with world.db.read() as session:
        pieces = [store.checkout_part(session, ONE.digest, position) for position in range(3)]
        assert session.scalar(sa.select(sa.func.count()).select_from(CheckoutPart)) == 2
    assert pieces == [data[:PART_BYTES], data[PART_BYTES:], None]
    with pytest.raises(store.StoreError, match="no checkout ffff"), world.db.read() as session:
        store.checkout_part(session, "f" * 64, 0)


def test_a_failed_plan_leaves_the_submission_to_be_failed(world: World) -> None:
    """Planning is one transaction with the submission's state: half a plan is never seen."""
    asked = ask(world)
    task = taken(world)
    with pytest.raises(store.CaseChangedError), world.db.session() as session:
        changed = plan([ONE], [runtime("2.11.0")], ["gloo"], [2], [case("a")], ["eager"])
        store.submit(
            session, checkouts=[ONE], runtimes=[runtime("2.11.0")], plan=changed, requester="x", reason="manual",
            priority=0, request={},
        )  # fmt: skip
        other = plan([ONE], [runtime("2.11.0")], ["gloo"], [2], [case("a", dtype="float64")], ["eager"])
        store.plan_resolved(session, task, checkouts=[ONE], runtimes=[runtime("2.11.0")], plan=other)
    with world.db.read() as session:
        assert session.scalar(sa.select(sa.func.count()).select_from(Submission)) == 1
    assert world.view(asked).state == "resolving"


def test_what_is_planned_while_it_is_cancelled_is_cancelled_too(world: World) -> None:
    asked = ask(world)
    task, planning = taken(world), threading.Event()

    def slowly() -> None:
        matrix = plan([ONE], [runtime("2.11.0")], ["gloo"], [2], [case("a")], ["eager"])
        with world.db.session() as session:
            store.plan_resolved(session, task, checkouts=[ONE], runtimes=[runtime("2.11.0")], plan=matrix)
            planning.set()
            time.sleep(0.5)

    planner = threading.Thread(target=slowly)
    planner.start()
    planning.wait()
    with world.db.session() as session:
        store.cancel(session, asked)
    planner.join()
    view = world.view(asked)
    assert (view.state, [job.state for job in view.jobs]) == ("cancelled", ["cancelled"])
    assert world.claim() is None


def test_what_ends_its_fetchers_is_given_up(world: World) -> None:
    asked: dict[str, Any] = {"requester": "x", "reason": "manual", "priority": 0, "request": {}}
    with world.db.session() as session:
        number = store.open_submission(session, **asked, now=at(0)).id
        other = store.open_submission(session, **asked, now=at(0)).id
    for claims in range(MAX_LOST):
        with world.db.session() as session:
            task = store.claim_resolution(session, at(claims * (LEASE_S + 1)))
        assert task is not None and task.submission == number
    with world.db.session() as session:
        task = store.claim_resolution(session, at(MAX_LOST * (LEASE_S + 1)))
    assert task is not None and task.submission == other
    view = world.view(number)
    assert (view.state, view.note) == ("failed", f"given up: whoever fetched for it was gone {MAX_LOST} times")


@pytest.mark.parametrize(("waited", "first"), [(AGE_S * 2 - 2, "urgent"), (AGE_S * 2 + 2, "patient")])
def test_whoever_waits_long_enough_is_fetched_for_first(world: World, waited: float, first: str) -> None:
    asked: dict[str, Any] = {"reason": "manual", "request": {}}
    with world.db.session() as session:
        store.open_submission(session, **asked, requester="patient", priority=1, now=at(0))
        store.open_submission(session, **asked, requester="urgent", priority=3, now=at(waited))
        task = store.claim_resolution(session, at(waited + 1))
    assert task is not None and world.view(task.submission).requester == first
