"""What GitHub says, and what of it is acted upon."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from service.config import Settings, Webhook
from service.webhook import Asked, Closed, Ignored, read, signed
from tests.support import github
from tests.support.github import SECRET, pull_request, push, sign

REPOSITORY = "https://github.com/owner/name.git"
SHA, OLDER = "a" * 40, "b" * 40
HOOK = Webhook()


def test_the_signature_is_the_one_of_githubs_public_example() -> None:
    """Of "Validating webhook deliveries" in GitHub's documentation: a secret, a payload and their signature."""
    public = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
    assert signed("It's a Secret to Everybody", b"Hello, World!", public)
    assert sign(b"Hello, World!", "It's a Secret to Everybody") == public, "so does the stand-in for GitHub"


@pytest.mark.parametrize(
    "signature",
    [None, "", "sha256=", "sha1=" + "0" * 40, sign(b"x").upper(), sign(b"x")[7:], sign(b"y"), "ü", sign(b"x")[:-1]],
)
def test_any_other_signature_is_wrong(signature: str | None) -> None:
    assert not signed(SECRET, b"x", signature)
    assert signed(SECRET, b"x", sign(b"x"))
    assert not signed(SECRET + "!", b"x", sign(b"x"))


def told(event: str, payload: dict[str, Any], hook: Webhook = HOOK) -> Asked | Closed | Ignored:
    return read(event, json.dumps(payload), hook)


def test_a_push_asks_for_its_newest_commit() -> None:
    asked = told("push", push(REPOSITORY, SHA))
    assert asked == Asked(REPOSITORY, SHA, "push", False, {"event": "push", "branch": "master"})
    assert isinstance(told("push", push(REPOSITORY, SHA, "main")), Asked)
    assert isinstance(told("push", push(REPOSITORY, SHA, "release/1"), Webhook(branches=("release/1",))), Asked)


@pytest.mark.parametrize(
    ("event", "payload", "reason"),
    [
        ("push", push(REPOSITORY, SHA, "mine"), "the branch mine is not tested: webhook.branches has master, main"),
        ("push", push(REPOSITORY, SHA, ref="refs/tags/master"), "refs/tags/master is no branch"),
        ("push", push(REPOSITORY, "0" * 40), "the branch master was deleted"),
        (
            "pull_request",
            pull_request(REPOSITORY, SHA, action="labeled"),
            "a pull request that is labeled is not tested",
        ),
        ("issues", {"action": "opened"}, "nothing follows from the event 'issues'"),
        ("", {}, "nothing follows from the event ''"),
    ],
)
def test_what_is_not_acted_upon_has_a_reason(event: str, payload: dict[str, Any], reason: str) -> None:
    found = told(event, payload)
    assert isinstance(found, Ignored)
    assert found.reason.startswith(reason)


@pytest.mark.parametrize("action", ["opened", "synchronize", "reopened", "ready_for_review"])
def test_a_pull_request_asks_for_its_head_in_the_base_repository(action: str) -> None:
    before: dict[str, Any] = {"before": OLDER} if action == "synchronize" else {}
    asked = told("pull_request", pull_request(REPOSITORY, SHA, action=action, by="MEMBER", **before))
    assert isinstance(asked, Asked)
    assert (asked.repository, asked.sha, asked.event, asked.pull) == (REPOSITORY, SHA, "pull_request/7", True)
    assert (asked.before, asked.reopened) == (OLDER if before else None, action == "reopened")
    assert github.FORK not in str(asked)


@pytest.mark.parametrize(
    ("by", "free"),
    [
        ("OWNER", True), ("MEMBER", True), ("COLLABORATOR", True), ("CONTRIBUTOR", False), ("FIRST_TIMER", False),
        ("FIRST_TIME_CONTRIBUTOR", False), ("MANNEQUIN", False), ("NONE", False), ("owner", False), ("", False),
    ],
)  # fmt: skip
def test_strangers_are_held_and_told_what_for(by: str, free: bool) -> None:
    asked = told("pull_request", pull_request(REPOSITORY, SHA, by=by))
    assert isinstance(asked, Asked)
    assert (asked.held == "") is free
    if not free:
        assert f"pull request 7 is by stranger, of whom GitHub says {by}: an admin has to approve it" in asked.held
        assert SHA in asked.held


def test_an_author_of_whom_nothing_is_said_is_a_stranger() -> None:
    payload = pull_request(REPOSITORY, SHA)
    del payload["pull_request"]["author_association"]
    payload["pull_request"]["user"] = None
    asked = told("pull_request", payload)
    assert isinstance(asked, Asked)
    assert "by an account that is gone, of whom GitHub says NONE" in asked.held
    trusting = told("pull_request", pull_request(REPOSITORY, SHA, by="CONTRIBUTOR"), Webhook(trusted=("CONTRIBUTOR",)))
    assert isinstance(trusting, Asked)
    assert trusting.held == ""


def test_a_closed_pull_request_is_waited_for_by_nobody() -> None:
    assert told("pull_request", pull_request(REPOSITORY, SHA, action="closed")) == Closed(
        REPOSITORY, SHA, "pull_request/7"
    )


@pytest.mark.parametrize("sha", ["a" * 39, "a" * 41, "A" * 40, "master", "", "a" * 39 + "g", "a" * 40 + "\n", None, 7])
def test_only_a_full_sha_is_one(sha: Any) -> None:
    for event, payload in (("push", push(REPOSITORY, sha)), ("pull_request", pull_request(REPOSITORY, sha))):
        with pytest.raises(ValidationError):
            told(event, payload)


@pytest.mark.parametrize("number", [0, -1, 2**31, "x", None])
def test_only_a_number_is_a_pull_requests(number: Any) -> None:
    with pytest.raises(ValidationError):
        told("pull_request", pull_request(REPOSITORY, SHA, number=number))


def test_no_secret_is_shown_with_the_settings() -> None:
    assert SECRET not in repr(Settings(webhook=Webhook(secret=SECRET)))
