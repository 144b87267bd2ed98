"""Badges over HTTP."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from httpx2 import Response
from starlette.testclient import TestClient

from service import store
from service.api import state
from service.db import Database
from service.main import create_app
from service.reports.badge import COLOURS, State
from service.verdicts import Verdict
from tests.service.api.conftest import Api, api_over
from tests.support.stored import checkout

HERE, FORK = "https://x/y", "https://x/fork"
PUSHED = {"webhook": {"event": "push", "branch": "master"}, "wanted": {"subjects": [f"git+{HERE}@" + "1" * 40]}}
ELSEWHERE = {"webhook": {"event": "push", "branch": "master"}, "wanted": {"subjects": [f"git+{FORK}.git@" + "3" * 40]}}
NAMED = {"wanted": {"subjects": [f"git+{HERE}@refs/heads/dev"]}}
PROPOSED = {"webhook": {"event": "pull_request", "pull": 7}, "wanted": {"subjects": [f"git+{HERE}@" + "2" * 40]}}


@pytest.fixture
def api(tmp_path: Path, database: Database) -> Api:
    """A service of two repositories, of which the first is the default one."""
    made = api_over(tmp_path / "home", database, repositories=(FORK,))
    settings = made.settings.model_copy(update={"default_repository": HERE})
    return dataclasses.replace(made, client=TestClient(create_app(state.State(settings, database, made.broker, False))))


def get(api: Api, path: str, scope: str | None = "read", headers: dict[str, str] | None = None) -> Response:
    return api.client.get(path, headers={**api.headers(scope), **(headers or {})})


def says(api: Api, path: str) -> tuple[str, State]:
    """The badge's words, and what its colour stands for."""
    answer = get(api, path)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "image/svg+xml"), answer.text
    root = ElementTree.fromstring(answer.text)  # noqa: S314 - our own
    title = root.find("{http://www.w3.org/2000/svg}title")
    assert title is not None and title.text is not None
    (state,) = (state for state, colour in COLOURS.items() if colour in answer.text)
    return title.text, state


def test_a_badge_follows_a_submission(api: Api) -> None:
    number = api.world.submit(["a", "b"]).id
    path = f"/badges/deepspeed.svg?submission={number}"
    assert says(api, path) == ("deepspeed gradients: incomplete, 0 of 2", "incomplete")
    api.world.run()
    assert says(api, path) == ("deepspeed gradients: agree on 2 of 2", "agree")
    worse = api.world.submit(["a", "b"], checkouts=[checkout("deepspeed==2")])
    api.world.run(Verdict.ZERO_GRADIENT)
    assert says(api, f"/badges/deepspeed.svg?submission={worse.id}") == (
        "deepspeed gradients: failing on 2 of 2",
        "failing",
    )


def test_one_torch_version_or_runtime_alone(api: Api) -> None:
    number = api.world.submit(["a"], torch=["2.10.0"]).id
    api.world.run(Verdict.ZERO_GRADIENT)
    number = api.world.submit(["a"], torch=["2.10.0", "2.11.0"]).id
    api.world.run(Verdict.AGREE)
    path = f"/badges/deepspeed.svg?submission={number}"
    assert says(api, path) == ("deepspeed gradients: failing on 1 of 2", "failing")
    for word in ("2.11.0", "2.11.0-index", "2.11", "2.11-index"):
        assert says(api, f"{path}&torch={word}") == (f"deepspeed gradients, torch {word}: agree on 1 of 1", "agree")
    assert says(api, f"{path}&torch=2.10.0")[1] == "failing"
    assert says(api, f"{path}&torch=2.9.1") == ("deepspeed gradients, torch 2.9.1: unknown", "unknown")


def test_of_several_subjects_in_a_submission_one_is_shown(api: Api) -> None:
    tiny = dataclasses.replace(checkout("tinysp==1"), subject="tinysp")
    api.world.submit(["a", "b"], checkouts=[tiny])
    api.world.run(Verdict.SCALED)
    api.world.submit(["a", "b"], checkouts=[checkout("deepspeed==1"), tiny])
    api.world.run(Verdict.AGREE)
    for subject, words in (("deepspeed", "agree on 2 of 2"), ("tinysp", "failing on 2 of 2"), ("another", "unknown")):
        assert says(api, f"/badges/{subject}.svg?submission=2")[0] == f"{subject} gradients: {words}"


def test_a_branch_is_its_newest_commit_and_never_a_pull_request(api: Api) -> None:
    first, second, third = (checkout(f"deepspeed@{digit}") for digit in "123")
    api.world.submit(["a"], checkouts=[first], request=PUSHED)
    api.world.run(Verdict.ZERO_GRADIENT)
    assert says(api, "/badges/deepspeed.svg")[1] == "failing"
    api.world.submit(["a"], checkouts=[second], request=PUSHED)
    api.world.run(Verdict.AGREE)
    api.world.submit(["a"], checkouts=[third], request=PROPOSED)
    api.world.submit(["b"], checkouts=[third], request=NAMED)
    for branch in ("", "?branch=master"):
        assert says(api, f"/badges/deepspeed.svg{branch}") == ("deepspeed gradients: agree on 1 of 1", "agree"), branch
    assert says(api, "/badges/deepspeed.svg?branch=dev")[1] == "incomplete"
    assert says(api, "/badges/deepspeed.svg?branch=pull_request")[1] == "unknown"


def test_a_branch_is_one_of_one_repository(api: Api) -> None:
    api.world.submit(["a"], request=PUSHED)
    api.world.run()
    api.world.submit(["a"], checkouts=[checkout("deepspeed@fork")], request=ELSEWHERE)
    api.world.run(Verdict.ZERO_GRADIENT)
    for query, word in {
        "": "agree",
        "?branch=master": "agree",
        f"?repository={HERE}.git": "agree",
        f"?repository={FORK}": "failing",
        f"?repository={FORK}/&branch=master": "failing",
        f"?repository={FORK}&branch=dev": "unknown",
        "?repository=https://x/neither": "unknown",
    }.items():
        assert says(api, f"/badges/deepspeed.svg{query}")[1] == word, query


def test_another_subject_has_its_own_newest_submission(api: Api) -> None:
    tiny = dataclasses.replace(checkout("tinysp==1"), subject="tinysp")
    api.world.submit(["a"], request=PUSHED)
    api.world.run()
    api.world.submit(["a"], checkouts=[tiny], request=PUSHED)
    assert says(api, "/badges/deepspeed.svg")[1] == "agree"
    assert says(api, "/badges/tinysp.svg")[1] == "incomplete"


def test_what_was_cancelled_says_nothing_of_a_branch(api: Api) -> None:
    api.world.submit(["a"], request=PUSHED)
    api.world.run()
    newer = api.world.submit(["b"], request=PUSHED).id
    assert says(api, "/badges/deepspeed.svg")[1] == "incomplete"
    with api.world.db.session() as session:
        store.cancel(session, newer)
    assert says(api, "/badges/deepspeed.svg")[1] == "agree"


@pytest.mark.parametrize(
    "path",
    [
        "/badges/deepspeed.svg",
        "/badges/nobody.svg",
        "/badges/deepspeed.svg?submission=99",
        "/badges/deepspeed.svg?branch=none",
        "/badges/deepspeed.svg?branch=%3Cscript%3E%F0%9F%92%A9",
        "/badges/deepspeed.svg?torch=%22%3E%3Cscript%3E",
    ],
)
def test_what_is_not_known_is_a_grey_picture_as_a_readme_wants_it(api: Api, path: str) -> None:
    words, state = says(api, path)
    assert (state, words.endswith(": unknown")) == ("unknown", True)
    assert "<script>" not in get(api, path).text


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/badges/%20.svg", 404),
        ("/badges/-x.svg", 404),
        (f"/badges/{'x' * 65}.svg", 404),
        ("/badges/a%0Ab.svg", 404),
        ("/badges/.svg", 404),
        ("/badges/deepspeed", 404),
        ("/badges/deepspeed.png", 404),
        ("/badges/a/b.svg", 404),
        ("/badges/deepspeed.svg?submission=0", 422),
        ("/badges/deepspeed.svg?submission=1&branch=master", 422),
        ("/badges/deepspeed.svg?torch=%00", 422),
        ("/badges/deepspeed.svg?submission=1&repository=https://x/y", 422),
        ("/badges/deepspeed.svg?repository=https://[", 422),
    ],
)
def test_an_address_that_could_be_none_is_a_problem(api: Api, path: str, status: int) -> None:
    answer = get(api, path)
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")


def test_a_badge_that_has_not_changed_is_not_sent_again(api: Api) -> None:
    number = api.world.submit(["a"]).id
    path = f"/badges/deepspeed.svg?submission={number}"
    first = get(api, path)
    tag = first.headers["etag"]
    for known in (tag, f"W/{tag}", f'"x", {tag}', "*"):
        again = get(api, path, headers={"If-None-Match": known})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
        assert again.headers["cache-control"] == first.headers["cache-control"]
    assert get(api, path, headers={"If-None-Match": '"x"'}).status_code == 200
    api.world.run()
    changed = get(api, path, headers={"If-None-Match": tag})
    assert (changed.status_code, changed.headers["etag"] != tag) == (200, True)


@pytest.mark.parametrize(
    ("public", "status", "kept"), [(True, 200, "public, max-age=60"), (False, 401, "private, max-age=60")]
)
def test_strangers_see_it_where_reading_is_free(
    tmp_path: Path, database: Database, public: bool, status: int, kept: str
) -> None:
    api = api_over(tmp_path / "home", database, public_reading=public)
    assert get(api, "/badges/deepspeed.svg", scope=None).status_code == status
    assert get(api, "/badges/deepspeed.svg").headers["cache-control"] == kept


def test_nothing_in_a_badge_may_run(api: Api) -> None:
    headers: Any = get(api, "/badges/deepspeed.svg").headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["content-security-policy"] == "default-src 'none'"
