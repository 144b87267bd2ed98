"""What GitHub says in a delivery of its webhook, and what of it is acted upon. Pure.

On the straight line this stands beside ``service.api.webhooks``, which has the bytes and their signature, and before
``service.store.deliveries``, which acts once however often it is told. Only fields that are used are read; all of them
are held to a form.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, Field, StringConstraints

from service.config import Webhook

NOWHERE = "0" * 40
"""What GitHub gives for a commit that there is none of: a branch that was deleted."""
BRANCH = "refs/heads/"
PULLS = ("opened", "synchronize", "reopened", "ready_for_review")
"""Actions of a pull request that bring a commit to test."""

Sha = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{40}$")]
Line = Annotated[str, StringConstraints(max_length=255, pattern=r"^[^\x00-\x1f\x7f]*$")]


class Repository(BaseModel):
    """Where it happened; of a pull request that is where it would be merged to."""

    clone_url: Line


class PushEvent(BaseModel):
    """Commits were pushed. ``after`` is the newest of them."""

    ref: Line
    after: Sha
    repository: Repository


class Head(BaseModel):
    """The commit that a pull request proposes."""

    sha: Sha


class User(BaseModel):
    """Whoever opened it; accounts can be gone."""

    login: Line


class PullRequest(BaseModel):
    """A pull request as far as it matters here."""

    head: Head
    author_association: Line = "NONE"
    user: User | None = None


class PullRequestEvent(BaseModel):
    """Something happened to a pull request. ``before`` is the head that a push to it replaced."""

    action: Line
    number: Annotated[int, Field(gt=0, lt=2**31)]
    pull_request: PullRequest
    repository: Repository
    before: Sha | None = None


@dataclass(frozen=True)
class Asked:
    """A commit to be tested.

    event     what brought it: of one event the same commit of the same repository is asked for once
    pull      whether the event is a pull request, of which only the newest commit is waited for
    about     what people are told of it
    held      why somebody has to approve it first, or nothing
    before    the head that this one replaced
    reopened  whether it is a pull request that was closed
    """

    repository: str
    sha: str
    event: str
    pull: bool
    about: dict[str, Any]
    held: str = ""
    before: str | None = None
    reopened: bool = False


@dataclass(frozen=True)
class Closed:
    """A pull request that nobody waits for any more, with the commit that it proposed last."""

    repository: str
    sha: str
    event: str


@dataclass(frozen=True)
class Ignored:
    """Nothing to do, and why."""

    reason: str


def signed(secret: str, body: bytes, signature: str | None) -> bool:
    """Whether ``signature``, the header X-Hub-Signature-256, is of ``body``. Takes as long for every wrong one."""
    right = "sha256=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    return hmac.compare_digest(right.encode(), (signature or "").encode())


def read(event: str, payload: str, hook: Webhook) -> Asked | Closed | Ignored:
    """What the delivery of ``event`` asks for. Raises pydantic's ValidationError where ``payload`` is none of it."""
    if event == "push":
        return _push(PushEvent.model_validate_json(payload), hook)
    if event == "pull_request":
        return _pull_request(PullRequestEvent.model_validate_json(payload), hook)
    return Ignored(f"nothing follows from the event {event!r}: only push and pull_request are acted upon")


def _push(push: PushEvent, hook: Webhook) -> Asked | Ignored:
    branch = push.ref.removeprefix(BRANCH)
    if branch == push.ref:
        return Ignored(f"{push.ref} is no branch")
    if branch not in hook.branches:
        return Ignored(f"the branch {branch} is not tested: webhook.branches has {', '.join(hook.branches)}")
    if push.after == NOWHERE:
        return Ignored(f"the branch {branch} was deleted")
    return Asked(push.repository.clone_url, push.after, "push", False, {"event": "push", "branch": branch})


def _pull_request(told: PullRequestEvent, hook: Webhook) -> Asked | Closed | Ignored:
    event, repository = f"pull_request/{told.number}", told.repository.clone_url
    if told.action == "closed":
        return Closed(repository, told.pull_request.head.sha, event)
    if told.action not in PULLS:
        return Ignored(f"a pull request that is {told.action} is not tested anew: only {', '.join(PULLS)} count")
    sha, by = told.pull_request.head.sha, told.pull_request.author_association
    author = told.pull_request.user.login if told.pull_request.user else "an account that is gone"
    about = {"event": "pull_request", "pull": told.number, "author": author, "association": by}
    held = "" if by in hook.trusted else _held(told.number, author, by, sha)
    return Asked(repository, sha, event, True, about, held, told.before, told.action == "reopened")


def _held(number: int, author: str, association: str, sha: str) -> str:
    who = f"pull request {number} is by {author}, of whom GitHub says {association}"
    return f"{who}: an admin has to approve it (POST …/approve), which lets commit {sha} run and no other"
