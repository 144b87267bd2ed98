"""Deliveries of a webhook on both databases: acted upon once, whatever the order, and of a pull request the newest."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from service import store
from service.claims import WEBHOOK
from service.models import Delivery, Submission
from service.store import SubmissionView
from service.webhook import Asked, Closed
from tests.support.stored import World, at

HERE = "https://github.com/owner/name"
A, B, C = "a" * 40, "b" * 40, "c" * 40


def pull(sha: str, number: int = 7, **more: Any) -> Asked:
    about = {"event": "pull_request", "pull": number}
    return Asked(HERE, sha, f"pull_request/{number}", True, about, **{"held": "of a stranger", **more})


def push(sha: str) -> Asked:
    return Asked(HERE, sha, "push", False, {"event": "push", "branch": "master"})


def make(session: Session, asked: Asked) -> Callable[[], SubmissionView]:
    def opened() -> SubmissionView:
        return store.open_submission(
            session, requester="github", reason=WEBHOOK, priority=20, request={WEBHOOK: asked.about}, held=asked.held
        )

    return opened


class Hook:
    """Deliveries a second apart."""

    def __init__(self, world: World) -> None:
        self.world, self._count = world, 0

    def __call__(self, asked: Asked, guid: str = "", repository: str = HERE) -> tuple[SubmissionView, bool]:
        found = self.tell(asked, guid, repository)
        assert found is not None
        return found

    def tell(self, asked: Asked, guid: str = "", repository: str = HERE) -> tuple[SubmissionView, bool] | None:
        """The same, where the pull request may have been closed."""
        self._count += 1
        with self.world.db.session() as session:
            guid = guid or f"guid-{self._count}"
            return store.act_once(session, guid, repository, asked, make(session, asked), at(self._count))

    def close(self, sha: str, number: int = 7, guid: str = "") -> list[int]:
        self._count += 1
        with self.world.db.session() as session:
            closed = Closed(HERE, sha, f"pull_request/{number}")
            return store.withdraw(session, guid or f"guid-{self._count}", HERE, closed, at(self._count))

    def state(self, view: SubmissionView) -> tuple[str, str]:
        now = self.world.view(view.id)
        return now.state, now.note


@pytest.fixture
def hook(world: World) -> Hook:
    return Hook(world)


def test_a_delivery_is_acted_upon_once(hook: Hook) -> None:
    first, made = hook(push(A), "one")
    assert (made, first.state) == (True, "resolving")
    for guid in ("one", "two"):
        again, made = hook(push(A), guid)
        assert (made, again.key) == (False, first.key)
    assert hook(push(B), "one")[0].key == first.key, "a delivery says one thing, whatever is said to be in it"


def test_another_commit_event_or_repository_is_another_submission(hook: Hook) -> None:
    views = [hook(push(A)), hook(push(B)), hook(pull(A)), hook(pull(A, 8)), hook(push(A), repository="https://x/y")]
    assert all(made for _, made in views)
    assert len({view.key for view, _ in views}) == 5


def test_a_new_push_to_a_pull_request_supersedes_what_waits_of_it_and_nothing_else(hook: Hook) -> None:
    old, other = hook(pull(A))[0], hook(pull(A, 8))[0]
    pushed, elsewhere = hook(push(A))[0], hook(pull(A), repository="https://x/y")[0]
    new, made = hook(pull(B, before=A))
    assert (made, new.state) == (True, "held")
    assert hook.state(old) == ("cancelled", f"superseded by submission {new.id}, of commit {B}")
    assert [hook.state(view)[0] for view in (other, pushed, elsewhere, new)] == ["held", "resolving", "held", "held"]


def test_a_push_supersedes_none_before_it(hook: Hook) -> None:
    views = [hook(push(sha))[0] for sha in (A, B, C)]
    assert [hook.state(view)[0] for view in views] == ["resolving"] * 3


def test_an_approval_says_nothing_of_the_next_commit(hook: Hook) -> None:
    old = hook(pull(A))[0]
    with hook.world.db.session() as session:
        store.approve(session, old.id, at(50))
    new = hook(pull(B, before=A))[0]
    assert (hook.state(old)[0], hook.state(new)[0]) == ("cancelled", "held")
    late = pytest.raises(store.StoreError, match="waits for no approval: it is cancelled")
    with late, hook.world.db.session() as session:
        store.approve(session, old.id, at(51))


def test_what_runs_already_is_not_superseded(hook: Hook) -> None:
    old = hook(pull(A))[0]
    with hook.world.db.session() as session:
        session.get_one(Submission, old.id).state = "running"
    hook(pull(B, before=A))
    assert hook.state(old)[0] == "running"


def test_a_commit_that_is_the_head_once_more_is_asked_for_anew(hook: Hook) -> None:
    """A, then B, then A again, pushed with force."""
    first, second = hook(pull(A))[0], hook(pull(B, before=A))[0]
    third, made = hook(pull(A, before=B), "back")
    assert made
    assert third.key != first.key
    assert (hook.state(first)[0], hook.state(second)[0], hook.state(third)[0]) == ("cancelled", "cancelled", "held")
    assert hook(pull(A, before=B), "back") == (third, False)
    fourth, made = hook(pull(B, before=A))
    assert (made, hook.state(third)[0], hook.state(fourth)[0]) == (True, "cancelled", "held")


def test_a_commit_with_an_answer_is_the_head_once_more_without_a_new_one(hook: Hook) -> None:
    first = hook(pull(A))[0]
    with hook.world.db.session() as session:
        session.get_one(Submission, first.id).state = "done"
    second = hook(pull(B, before=A))[0]
    assert hook(pull(A, before=B))[0].key == first.key
    assert (hook.state(first)[0], hook.state(second)[0]) == ("done", "cancelled")


def test_a_delivery_that_comes_late_moves_nothing(hook: Hook) -> None:
    first, second = hook(pull(A))[0], hook(pull(B, before=A))[0]
    for late in (pull(A), pull(A, before=C)):
        assert hook(late) == (hook.world.view(first.id), False)
    assert (hook.state(first)[0], hook.state(second)[0]) == ("cancelled", "held")


def test_a_closed_pull_request_is_held_no_longer_and_reopened_it_is_again(hook: Hook) -> None:
    held, other, pushed = hook(pull(A))[0], hook(pull(A, 8))[0], hook(push(A))[0]
    assert [hook.close(A), hook.close(A)] == [[held.id], []]
    assert hook.state(held) == ("cancelled", "the pull request was closed")
    assert [hook.state(view)[0] for view in (other, pushed)] == ["held", "resolving"]
    again, made = hook(pull(A, reopened=True), "reopened")
    assert (made, again.state) == (True, "held")
    assert hook(pull(A, reopened=True), "reopened") == (again, False)
    newer = hook(pull(B, before=A))[0]
    late, made = hook(pull(A, reopened=True), "reopened")
    assert (made, late.key, late.state) == (False, again.key, "cancelled"), "sent once more, it moves nothing"
    assert hook.state(newer)[0] == "held"


def test_closing_lets_run_what_was_approved(hook: Hook) -> None:
    view = hook(pull(A))[0]
    with hook.world.db.session() as session:
        store.approve(session, view.id, at(50))
    assert hook.close(A) == []
    assert hook.state(view)[0] == "resolving"


@pytest.mark.parametrize("late", [pull(A), pull(A, before=C), pull(A, held="")])
def test_what_comes_after_its_pull_request_was_closed_is_neither_held_nor_queued(hook: Hook, late: Asked) -> None:
    assert hook.close(A, guid="closed") == hook.close(A, guid="closed") == []
    assert hook.tell(late) is None
    assert hook.tell(pull(A), "closed") is None, "a delivery says one thing"
    assert hook(pull(A, 8))[1] and hook(push(A))[1] and hook(pull(A), repository="https://x/y")[1]
    view, made = hook(pull(A, reopened=True))
    assert (made, view.state) == (True, "held")
    assert hook(pull(A)) == (view, False), "late once more, it is the one that was reopened"
    assert hook.close(A) == [view.id]


def test_all_of_a_closed_pull_request_comes_late(hook: Hook) -> None:
    hook.close(B)
    older, made = hook(pull(A))
    assert (made, older.state) == (True, "held"), "of this commit nothing is known yet"
    assert hook.tell(pull(B, before=A)) is None
    assert hook.state(older) == ("cancelled", "the pull request was closed")


@pytest.mark.parametrize("same_guid", [True, False])
def test_two_at_once_are_one_submission(world: World, same_guid: bool) -> None:
    started, answers = threading.Barrier(8), []

    def deliver(number: int) -> None:
        started.wait()
        with world.db.session() as session:
            asked = push(A)
            guid = "one" if same_guid else f"guid-{number}"
            found = store.act_once(session, guid, HERE, asked, make(session, asked))
            assert found is not None
            answers.append(found)

    threads = [threading.Thread(target=deliver, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 8, "none failed"
    assert len({view.key for view, _ in answers}) == 1
    assert sorted(made for _, made in answers) == [False] * 7 + [True]
    with world.db.read() as session:
        for table in (Submission, Delivery):
            assert session.scalar(sa.select(sa.func.count()).select_from(table)) == 1


def test_a_head_that_is_told_of_late_moves_nothing(hook: Hook) -> None:
    new, _ = hook(pull(B, before=A))
    late, made = hook(pull(A), "late")
    assert (made, late.id) == (False, new.id)
    assert hook.state(new)[0] == "held"
    assert hook(pull(A), "later still")[0].id == new.id
    newest, made = hook(pull(C, before=B))
    assert made
    assert hook.state(new) == ("cancelled", f"superseded by submission {newest.id}, of commit {C}")
    assert hook(pull(A, 8))[1], "of another pull request"


def test_what_could_not_be_fetched_is_asked_for_anew_when_it_is_sent_once_more(hook: Hook) -> None:
    def fail(view: SubmissionView) -> None:
        with hook.world.db.session() as session:
            session.get_one(Submission, view.id).state = "failed"

    first, _ = hook(push(A), "one")
    fail(first)
    again, made = hook(push(A), "one")
    assert made and again.id != first.id
    assert hook(push(A), "one")[0].id == again.id
    old, _ = hook(pull(A))
    fail(old)
    hook(pull(B, before=A))
    assert hook(pull(A)) == (hook.world.view(old.id), False), "its pull request has moved on"
