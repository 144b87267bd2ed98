"""GitHub's webhook over HTTP: who is believed, what is answered, and which commit is tested."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy.exc import OperationalError

from service import store
from service.config import Webhook
from service.db import Database
from service.errors import UsageError
from service.store.trust import WAITS
from tests.service.api.conftest import Api, api_over
from tests.support.github import FORK, SECRET, GitHub, pull_request, push, sign
from tests.support.stored import host
from tests.support.trees import commit_all, git, write_folder
from workers.choose import choose
from workers.fetch import Fetcher

REPOSITORY = "https://github.com/deepspeedai/DeepSpeed"
SHA, OTHER = "1" * 40, "2" * 40


@pytest.fixture
def hooked(tmp_path: Path, database: Database) -> Api:
    """A service that takes deliveries of two repositories, and asks for little."""
    asked = Webhook(secret=SECRET, torch=("2.11.0",), modes=("eager",), transports=("gloo",), world_sizes=(2, 4))
    return api_over(tmp_path / "home", database, webhook=asked, repositories=(REPOSITORY,))


@pytest.fixture
def hub(hooked: Api) -> GitHub:
    return GitHub(hooked.client)


def stored(api: Api) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = api.get("/submissions").json()["items"]
    return found


def test_a_push_becomes_a_submission_of_that_commit(hooked: Api, hub: GitHub) -> None:
    answer = hub.deliver("push", push(REPOSITORY + ".git", SHA))
    (made,) = stored(hooked)
    assert answer.status_code == 202, answer.text
    assert answer.json() == {
        "outcome": "submitted",
        "reason": f"commit {SHA}",
        "submission": made["id"],
        "key": made["key"],
        "state": "resolving",
    }
    assert answer.headers["location"] == f"/api/v1/submissions/{made['id']}"
    assert (made["requester"], made["reason"], made["priority"]) == ("github", "webhook", 20)
    assert made["request"]["webhook"] == {"event": "push", "branch": "master"}
    wanted = made["request"]["wanted"]
    assert wanted["subjects"] == [f"git+{REPOSITORY}@{SHA}"]
    assert (wanted["torch"], wanted["world_sizes"]) == (["2.11.0"], ["2", "4"])
    assert (wanted["modes"], wanted["transports"], wanted["suite"]) == (["eager"], ["gloo"], None)
    assert hooked.broker.wait(0), "whoever fetches is told"


@pytest.mark.parametrize("form", [False, True])
def test_it_is_signed_over_the_bytes_as_they_came_in_either_form(hooked: Api, hub: GitHub, form: bool) -> None:
    payload = push(REPOSITORY, SHA)
    assert hub.deliver("push", payload, form=form).status_code == 202
    spaced = json.dumps(payload, indent=3).encode()
    headers = {"X-GitHub-Event": "push", "X-GitHub-Delivery": "d", "Content-Type": "application/json; charset=utf-8"}
    for signature, status in ((sign(spaced), 202), (sign(json.dumps(payload).encode()), 401)):
        answer = hooked.client.post(
            "/webhooks/github", content=spaced, headers={**headers, "X-Hub-Signature-256": signature}
        )
        assert answer.status_code == status, answer.text


@pytest.mark.parametrize(
    "headers",
    [
        {"X-Hub-Signature-256": ""},
        {"X-Hub-Signature-256": "sha256=" + "0" * 64},
        {"X-Hub-Signature-256": "", "X-Hub-Signature": "sha1=0123456789012345678901234567890123456789"},
        {"X-Hub-Signature-256": "", "Authorization": "Bearer admin"},
    ],
)
def test_without_the_right_signature_nothing_is_believed(hooked: Api, hub: GitHub, headers: dict[str, str]) -> None:
    if "Authorization" in headers:
        headers = {**headers, **hooked.headers("admin")}
    for event in ("push", "ping", "issues"):
        answer = hub.deliver(event, push(REPOSITORY, SHA), headers=headers)
        assert (answer.status_code, answer.headers["content-type"]) == (401, "application/problem+json")
        assert "X-Hub-Signature-256" in answer.json()["detail"]
        assert answer.headers["www-authenticate"] == "X-Hub-Signature-256"
    assert GitHub(hooked.client, "another secret").deliver("ping", {}).status_code == 401
    assert stored(hooked) == []


def test_without_a_secret_there_is_no_webhook(api: Api) -> None:
    for secret in ("", SECRET):
        answer = GitHub(api.client, secret).deliver("push", push(REPOSITORY, SHA))
        assert (answer.status_code, answer.json()["type"]) == (404, "/problems/not-found")
        assert "set secret in the table [webhook]" in answer.json()["detail"]


def test_on_ones_own_machine_the_signature_is_asked_for_as_well(tmp_path: Path, database: Database) -> None:
    from starlette.testclient import TestClient

    api = api_over(tmp_path / "home", database, embedded=True, webhook=Webhook(secret=SECRET))
    client = TestClient(api.client.app, base_url="http://127.0.0.1:8470", client=("127.0.0.1", 5))
    assert GitHub(client).deliver("ping", {}, headers={"X-Hub-Signature-256": ""}).status_code == 401
    assert GitHub(client).deliver("ping", {}, form=True).json()["outcome"] == "pong"


def test_what_is_not_acted_upon_is_answered_with_the_reason(hooked: Api, hub: GitHub) -> None:
    for event, payload, reason in (
        ("push", push(REPOSITORY, SHA, "mine"), "the branch mine is not tested"),
        ("pull_request", pull_request(REPOSITORY, SHA, action="labeled"), "a pull request that is labeled"),
        ("star", {}, "nothing follows from the event 'star'"),
    ):
        answer = hub.deliver(event, payload)
        assert (answer.status_code, answer.json()["outcome"]) == (200, "ignored")
        assert answer.json()["reason"].startswith(reason)
    assert hub.deliver("ping", {"zen": "Design for failure.", "hook_id": 1}).json()["outcome"] == "pong"
    assert stored(hooked) == []


@pytest.mark.parametrize(
    ("payload", "headers", "status", "said"),
    [
        (
            push(REPOSITORY, "1" * 39),
            {},
            422,
            "this is no payload of the event push: after: is to be of the form ^[0-9a-f]{40}$",
        ),
        (push(REPOSITORY, "master"), {}, 422, "after: "),
        ({"ref": "refs/heads/master"}, {}, 422, "after: is missing; repository: is missing"),
        (push(REPOSITORY, SHA), {"Content-Type": "text/plain"}, 415, "is application/json or application/x-www-form"),
        (push(REPOSITORY, SHA), {"Content-Type": ""}, 415, "not without a type"),
        (
            push(REPOSITORY, SHA),
            {"Content-Type": "application/x-www-form-urlencoded"},
            400,
            "without the field payload",
        ),
        (push(REPOSITORY, SHA), {"X-GitHub-Delivery": ""}, 400, "X-GitHub-Delivery, which names the delivery"),
        (push(REPOSITORY, SHA), {"X-GitHub-Delivery": "a b"}, 400, "is no GUID"),
        (push(REPOSITORY, SHA), {"X-GitHub-Delivery": "a" * 65}, 400, "is no GUID"),
        (push("https://github.com/else/where", SHA), {}, 403, "add it to the setting repositories"),
        (push(FORK, SHA), {}, 403, "is not on the allow-list"),
        (push("https://[", SHA), {}, 403, "is not on the allow-list"),
        (push("ssh://git@github.com/deepspeedai/DeepSpeed", SHA), {}, 403, "is not on the allow-list"),
        (push("", SHA), {}, 403, "is not on the allow-list"),
    ],
)
def test_a_wrong_delivery_is_a_problem_that_says_what_is_wrong(
    hooked: Api, hub: GitHub, payload: dict[str, Any], headers: dict[str, str], status: int, said: str
) -> None:
    answer = hub.deliver("push", payload, headers=headers)
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json"), answer.text
    assert said in answer.json()["detail"]
    assert stored(hooked) == []


@pytest.mark.parametrize("body", [b"{", b"\xff", b"[" * 100_000, b"null", b'{"ref": 1}'])
def test_what_is_signed_and_unreadable_is_no_fault_of_the_service(hooked: Api, body: bytes) -> None:
    headers = {"X-GitHub-Event": "push", "X-GitHub-Delivery": "d", "Content-Type": "application/json"}
    answer = hooked.client.post(
        "/webhooks/github", content=body, headers={**headers, "X-Hub-Signature-256": sign(body)}
    )
    assert answer.status_code in (400, 422)
    assert answer.headers["content-type"] == "application/problem+json"


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=50),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
"""Anything that JSON can say, and NaN."""
FIELDS = (
    ("push", ("ref",)), ("push", ("after",)), ("push", ("repository",)), ("push", ("repository", "clone_url")),
    ("pull_request", ("action",)), ("pull_request", ("number",)), ("pull_request", ("before",)),
    ("pull_request", ("pull_request",)), ("pull_request", ("pull_request", "head", "sha")),
    ("pull_request", ("pull_request", "user", "login")), ("pull_request", ("pull_request", "author_association")),
)  # fmt: skip


def test_whatever_a_field_holds_is_no_fault_of_the_service(hooked: Api, hub: GitHub) -> None:
    @settings(max_examples=150, deadline=None, database=None, derandomize=True)
    @given(field=st.sampled_from(FIELDS), value=ANYTHING)
    def deliver(field: tuple[str, tuple[str, ...]], value: Any) -> None:
        event, path = field
        payload = push(REPOSITORY, SHA) if event == "push" else pull_request(REPOSITORY, SHA)
        inner = payload
        for name in path[:-1]:
            inner = inner[name]
        inner[path[-1]] = value
        answer = hub.deliver(event, payload)
        assert answer.status_code < 500, (payload, answer.text)

    deliver()


@pytest.mark.parametrize("chunked", [False, True])
def test_a_delivery_that_is_too_large_is_not_read(hooked: Api, hub: GitHub, chunked: bool) -> None:
    body = json.dumps(push(REPOSITORY, SHA, padding="x" * 2**20)).encode()
    headers = {"X-GitHub-Event": "push", "X-Hub-Signature-256": sign(body), "Content-Type": "application/json"}
    content: Any = iter([body[:1000], body[1000:]]) if chunked else body
    answer = hooked.client.post("/webhooks/github", content=content, headers=headers)
    assert (answer.status_code, answer.json()["type"]) == (413, "/problems/too-large")


@pytest.mark.parametrize(
    "spelling", ["", ".git", "/", ".git/", "HTTPS://GITHUB.COM/DeepSpeedAI/deepspeed", "https://github.com/deepspeedai/DEEPSPEED.git"]
)  # fmt: skip
def test_one_repository_has_many_spellings(hooked: Api, hub: GitHub, spelling: str) -> None:
    address = spelling if "://" in spelling else REPOSITORY + spelling
    assert hub.deliver("push", push(REPOSITORY, SHA)).json()["outcome"] == "submitted"
    assert hub.deliver("push", push(address, SHA)).json()["outcome"] == "known"
    assert hub.deliver("push", push(address, OTHER)).json()["outcome"] == "submitted"
    assert {one["request"]["wanted"]["subjects"][0] for one in stored(hooked)} == {
        f"git+{REPOSITORY}@{SHA}",
        f"git+{REPOSITORY}@{OTHER}",
    }


def test_a_delivery_that_comes_again_is_the_same_submission(hooked: Api, hub: GitHub) -> None:
    first = hub.deliver("push", push(REPOSITORY, SHA), guid="one").json()
    for guid in ("one", "two"):
        again = hub.deliver("push", push(REPOSITORY, SHA), guid=guid)
        assert (again.status_code, again.json()["outcome"]) == (202, "known")
        assert again.json()["key"] == first["key"]
    assert len(stored(hooked)) == 1


def test_many_at_once_are_one_submission(hooked: Api, hub: GitHub) -> None:
    answers: list[Any] = []
    threads = [
        threading.Thread(target=lambda: answers.append(hub.deliver("push", push(REPOSITORY, SHA)))) for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [answer.status_code for answer in answers] == [202] * 6
    assert len({answer.json()["key"] for answer in answers}) == 1
    assert len(stored(hooked)) == 1


def test_a_stranger_is_held_until_an_admin_approves_just_that_commit(hooked: Api, hub: GitHub) -> None:
    first = hub.deliver("pull_request", pull_request(REPOSITORY, SHA))
    assert (first.status_code, first.json()["state"]) == (202, "held")
    number = first.json()["submission"]
    assert (
        "pull request 7 is by stranger, of whom GitHub says NONE: an admin has to approve it" in first.json()["reason"]
    )
    for scope, status in (("read", 403), ("submit", 403), (None, 401)):
        assert hooked.post(f"/submissions/{number}/approve", scope=scope).status_code == status
    newer = pull_request(REPOSITORY, OTHER, action="synchronize", before=SHA, after=OTHER)
    second = hub.deliver("pull_request", newer).json()
    assert second["state"] == "held"
    old = hooked.get(f"/submissions/{number}").json()
    assert (old["state"], old["note"]) == (
        "cancelled",
        f"superseded by submission {second['submission']}, of commit {OTHER}",
    )
    assert hooked.post(f"/submissions/{number}/approve", scope="admin").status_code == 409
    approved = hooked.post(f"/submissions/{second['submission']}/approve", scope="admin").json()
    assert (approved["state"], approved["request"]["wanted"]["subjects"]) == (
        "resolving",
        [f"git+{REPOSITORY}@{OTHER}"],
    )
    third = hub.deliver("pull_request", pull_request(REPOSITORY, "3" * 40, action="synchronize", before=OTHER)).json()
    assert third["state"] == "held", "an approval says nothing of the next commit"


def test_a_member_waits_for_nobody_and_a_closed_request_is_let_go(hooked: Api, hub: GitHub) -> None:
    member = hub.deliver("pull_request", pull_request(REPOSITORY, SHA, number=8, by="MEMBER")).json()
    assert member["state"] == "resolving"
    held = hub.deliver("pull_request", pull_request(REPOSITORY, OTHER)).json()["submission"]
    closed = hub.deliver("pull_request", pull_request(REPOSITORY, OTHER, action="closed"))
    assert (closed.status_code, closed.json()["outcome"]) == (200, "withdrawn")
    assert closed.json()["reason"] == f"the pull request was closed; cancelled: s{held}"
    assert (
        hub.deliver("pull_request", pull_request(REPOSITORY, SHA, number=8, action="closed"))
        .json()["reason"]
        .endswith("cancelled: nothing")
    )
    assert hooked.get(f"/submissions/{member['submission']}").json()["state"] == "resolving"


def test_settings_that_ask_for_what_there_is_not_are_named(tmp_path: Path, database: Database) -> None:
    api = api_over(tmp_path / "home", database, webhook=Webhook(secret=SECRET, transports=("nccl",)))
    with database.session() as session:
        store.claim(session, host(), choose)  # a host that has gloo alone
    answer = GitHub(api.client).deliver("push", push(str(api.repository), SHA))
    assert answer.status_code == 422
    assert (
        "the table [webhook] of this service's settings does not fit: no host here has nccl" in answer.json()["detail"]
    )


def test_a_database_that_is_away_is_tried_again_by_github(
    hooked: Api, hub: GitHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> None:
        raise OperationalError("x", {}, Exception("away"))

    with monkeypatch.context() as patched:
        patched.setattr(store, "act_once", away)
        assert hub.deliver("push", push(REPOSITORY, SHA), guid="one").status_code == 503
    assert hub.deliver("push", push(REPOSITORY, SHA), guid="one").json()["outcome"] == "submitted"


def fetched(api: Api, number: int) -> dict[str, Any]:
    assert Fetcher(api.settings, api.world.db, api.broker).one()
    view: dict[str, Any] = api.get(f"/submissions/{number}").json()
    return view


def proposed(api: Api) -> str:
    """A commit that is in no branch: only refs/pull/7/head of the base repository has it."""
    git(api.repository, "checkout", "--quiet", "--detach")
    write_folder(api.repository, {"deepspeed/new.py": b"a stranger's"})
    sha = commit_all(api.repository)
    git(api.repository, "update-ref", "refs/pull/7/head", sha)
    git(api.repository, "checkout", "--quiet", "main")
    return sha


def test_a_pull_request_is_fetched_from_the_base_repository_and_is_for_no_bare_host(hooked: Api, hub: GitHub) -> None:
    """From the delivery to the job: refs/pull/7/head of a real repository, and never the fork, which is nowhere."""
    sha = proposed(hooked)
    number = hub.deliver("pull_request", pull_request(str(hooked.repository), sha)).json()["submission"]
    assert not Fetcher(hooked.settings, hooked.world.db, hooked.broker).one(), "it is held"
    hooked.post(f"/submissions/{number}/approve", scope="admin")
    view = fetched(hooked, number)
    assert (view["state"], view["note"]) == ("queued", "")
    (row, *_) = hooked.get(f"/submissions/{number}/cells", limit=1).json()["items"]
    assert row["label"] == f"deepspeed@{sha[:12]}"
    assert hooked.world.claim() is None
    assert hooked.get(f"/submissions/{number}").json()["waiting"] == WAITS
    assert [one["trusted_only"] for one in hooked.get("/workers").json()] == [True]


def test_what_counts_is_the_commit_and_not_where_its_name_has_gone(hooked: Api, hub: GitHub) -> None:
    sha = proposed(hooked)
    main = git(hooked.repository, "rev-parse", "main")
    git(hooked.repository, "update-ref", "refs/pull/7/head", main)
    git(hooked.repository, "update-ref", f"refs/heads/{sha}", main)
    by: dict[str, Any] = {"by": "OWNER"}
    number = hub.deliver("pull_request", pull_request(str(hooked.repository), sha, **by)).json()["submission"]
    assert fetched(hooked, number)["state"] == "queued"
    (row, *_) = hooked.get(f"/submissions/{number}/cells", limit=1).json()["items"]
    assert row["label"] == f"deepspeed@{sha[:12]}"
    gone = hub.deliver("pull_request", pull_request(str(hooked.repository), "9" * 40, number=9, **by)).json()
    view = fetched(hooked, gone["submission"])
    assert view["state"] == "failed"
    assert f"has no commit {'9' * 40}, or no longer hands it out" in view["note"]


def test_who_keeps_the_service_reads_what_was_refused(hooked: Api, caplog: pytest.LogCaptureFixture) -> None:
    headers = {"X-GitHub-Event": "push", "X-GitHub-Delivery": "a-guid", "Content-Type": "application/json"}
    assert hooked.client.post("/webhooks/github", content=b"{}", headers=headers).status_code == 401
    (said,) = caplog.messages
    assert said.startswith("delivery a-guid of event 'push' was refused: the signature, the header X-Hub-Signature-256")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"torch": ("2.99",)}, "torch 2.99"),
        ({"suite": "foo"}, "suite 'foo'"),
        ({"world_sizes": (3,)}, "world size '3'"),
    ],
)
def test_a_service_does_not_start_with_what_no_delivery_could_ask_for(
    tmp_path: Path, database: Database, wrong: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError, match=re.escape("the table [webhook] of this service's settings")) as caught:
        api_over(tmp_path / "home", database, webhook=Webhook(**{"secret": SECRET, "torch": ("2.11.0",), **wrong}))
    assert said in str(caught.value)
