"""Who may do what: every route of the OpenAPI document, for every role."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from service import store
from service.config import Webhook
from service.db import Database
from service.models import SCOPES
from tests.service.api.conftest import Api, api_over
from tests.support.github import SECRET, GitHub

ROLES = (None, *SCOPES)
PARTS = {"submission": 1, "cell": 1, "job": 1, "subject": "deepspeed", "host": "here", "device": "cpu:0"}
"""What stands in a path."""
BODIES: dict[str, Any] = {
    "submit": {"subjects": ["deepspeed==0.18.3"], "torch": ["2.11.0"]},
    "pin": {"pinned": True},
    "set_device": {"state": "well"},
}
SIGNED = "signature"
"""The scope of a route that believes neither a token nor the machine, but a signature: its own tests have more."""
FOREIGN: tuple[dict[str, str], ...] = (
    {"origin": "https://elsewhere.invalid"},
    {"origin": "null"},
    {"origin": "http://localhost:3000", "sec-fetch-site": "same-site"},
    {"origin": "http://localhost:8470.elsewhere.invalid"},
    {"origin": "http://["},
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site"},
    {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"},
    {"sec-fetch-site": "made-up"},
    {"host": "rebound.invalid:8470"},
    {"host": "127.0.0.1.rebound.invalid"},
    {"host": "localhost@rebound.invalid"},
    {"host": "0.0.0.0:8470"},
    {"x-forwarded-for": "192.0.2.7"},
    {"forwarded": "for=192.0.2.7"},
    {"x-real-ip": "192.0.2.7"},
    {"via": "1.1 somewhere"},
)
"""What a request says that comes to this machine and is not its owner's."""
OWN: tuple[dict[str, str], ...] = (
    {},
    {"origin": "http://localhost:8470", "sec-fetch-site": "same-origin", "sec-fetch-mode": "cors"},
    {"sec-fetch-site": "none", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"},
    {"host": "127.0.0.1:8470", "origin": "http://127.0.0.1:8470"},
)


def routes(api: Api) -> list[tuple[str, str, str, str]]:
    """Method, path, operation and needed scope of every route, as the document states them."""
    document = api.client.get("/openapi.json").json()
    return [
        (method, path, operation["operationId"], operation["x-scope"])
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]


def test_every_route_states_its_scope_and_holds_every_role_to_it(tmp_path: Path, database: Database) -> None:
    api = api_over(tmp_path / "home", database, webhook=Webhook(secret=SECRET))
    client, table = api.client, routes(api)
    assert len(table) > 20
    for method, path, operation, scope in table:
        if path.endswith("/events"):
            continue  # an endless answer; its own test has it
        number = api.world.submit(["a"], seconds=1).id
        filled = path.format(**{**PARTS, "submission": number})
        body = next((body for name, body in BODIES.items() if operation.startswith(name)), None)
        if scope == SIGNED:
            refusals = [client.request(method, filled, json={}, headers=api.headers(role)) for role in ROLES]
            assert {answer.status_code for answer in refusals} == {401}, path
            assert GitHub(client).deliver("ping", {}).status_code == 200
            continue
        for role in ROLES:
            allowed = scope == "none" or (role is not None and SCOPES.index(role) >= SCOPES.index(scope))
            answer = client.request(method, filled, json=body, headers=api.headers(role))
            refused = 401 if role is None else 403
            said = (method, path, role, answer.status_code, answer.text[:200])
            assert (answer.status_code not in (401, 403)) if allowed else (answer.status_code == refused), said
            assert answer.status_code < 500, said


def test_events_need_reading_too(api: Api) -> None:
    number = api.world.submit(["a"]).id
    assert api.get(f"/submissions/{number}/events", scope=None).status_code == 401


@pytest.mark.parametrize("sent", ["Bearer gm_wrong", "Bearer", "Basic YTpi", "gm_x"])
def test_a_token_that_opens_nothing_is_told_so_even_where_reading_is_free(
    tmp_path: Any, database: Any, sent: str
) -> None:
    api = api_over(tmp_path / "home", database, public_reading=True)
    assert api.get("/submissions", scope=None).status_code == 200
    answer = api.client.get("/api/v1/submissions", headers={"Authorization": sent})
    assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")


def test_a_revoked_token_opens_nothing_and_use_is_noted(api: Api) -> None:
    assert api.get("/submissions").status_code == 200
    with api.world.db.session() as session:
        (reader, *_) = store.tokens(session)
        assert reader.used_at is not None
        assert api.secrets["read"].startswith(reader.prefix)
        store.revoke_token(session, reader.id)
    assert api.get("/submissions").status_code == 401


def test_no_secret_is_in_the_database(api: Api) -> None:
    raw = (api.settings.home / "gradmatrix.db").read_bytes()
    for secret in api.secrets.values():
        assert secret.encode() not in raw


def test_on_ones_own_machine_one_needs_no_token(tmp_path: Any, database: Any) -> None:
    api = api_over(tmp_path / "home", database, embedded=True)
    app = api.client.app

    def status(client: str, host: str, method: str = "post") -> int:
        caller = TestClient(app, base_url=f"http://{host}", client=(client, 50000))
        return caller.request(method, "/api/v1/submissions", json=BODIES["submit"]).status_code

    assert status("127.0.0.1", "localhost:1234") == 202
    assert status("127.0.0.1", "127.0.0.1:1234") == 202
    assert status("::1", "[::1]:1234") == 202
    assert status("127.0.0.1", "rebound.invalid") == 401, "a name that somebody else pointed here"
    assert status("192.0.2.7", "localhost") == 401
    assert status("192.0.2.7", "here", "get") == 401
    assert status("127.0.0.1", "[") == 401


def test_a_foreign_page_cannot_post(tmp_path: Any, database: Any) -> None:
    """Neither what a form may send without being asked, which is not JSON by its media type, nor a bare POST."""
    api = api_over(tmp_path / "home", database, embedded=True)
    caller = TestClient(api.client.app, base_url="http://localhost", client=("127.0.0.1", 5))
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
        body = b'{"subjects": ["deepspeed==0.18.3"], "torch": ["2.11.0"]}'
        assert caller.post("/api/v1/submissions", content=body, headers={"content-type": kind}).status_code == 415
    number = api.world.submit(["a"]).id
    bare = caller.post(f"/api/v1/submissions/{number}/cancel", headers={"origin": "https://elsewhere.invalid"})
    assert bare.status_code == 401
    assert caller.post(f"/api/v1/submissions/{number}/cancel").status_code == 200


@pytest.fixture
def mine(tmp_path: Path, database: Database) -> Api:
    """One person's own service, as a program on the same machine reaches it."""
    api = api_over(tmp_path / "home", database, embedded=True)
    api.client = TestClient(api.client.app, base_url="http://localhost:8470", client=("127.0.0.1", 5))
    api.world.submit(["a"])
    return api


def changing(api: Api) -> list[tuple[str, str, Any]]:
    """Method, path and body of every route that changes something in its owner's name."""
    table = [row for row in routes(api) if row[0] != "get" and row[3] != SIGNED]
    assert len(table) >= 7
    return [
        (
            method,
            path.format(**PARTS),
            next((body for name, body in BODIES.items() if operation.startswith(name)), None),
        )
        for method, path, operation, _ in table
    ]


@pytest.mark.parametrize("headers", FOREIGN, ids=str)
def test_nothing_is_changed_for_a_page_or_a_caller_from_elsewhere(mine: Api, headers: dict[str, str]) -> None:
    before = rows(mine)
    for method, path, body in changing(mine):
        answer = mine.client.request(method, path, json=body, headers=headers)
        assert (answer.status_code, answer.headers["content-type"]) == (401, "application/problem+json"), (
            path,
            headers,
        )
    assert rows(mine) == before


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"])
def test_nothing_is_changed_by_what_a_form_sends(mine: Api, kind: str) -> None:
    """Even where a browser says nothing of whose page it is."""
    before = rows(mine)
    for method, path, _ in changing(mine):
        for sent in (kind, kind.upper()):
            answer = mine.client.request(method, path, content=b"pinned=true", headers={"content-type": sent})
            assert (answer.status_code, answer.json()["type"]) == (415, "/problems/unsupported-media-type"), path
    assert rows(mine) == before
    with_token = mine.client.post("/api/v1/submissions/1/cancel", data={"a": "b"}, headers=mine.headers("submit"))
    assert with_token.status_code == 200, "whoever sends a token is no page's form"


@pytest.mark.parametrize("headers", OWN, ids=str)
def test_the_owner_is_let_in(mine: Api, headers: dict[str, str]) -> None:
    assert mine.client.post("/api/v1/submissions/1/cancel", headers=headers).status_code == 200


def test_a_page_of_elsewhere_may_link_here_and_read_nothing(mine: Api) -> None:
    cross = {"sec-fetch-site": "cross-site"}
    for dest, status in (("document", 200), ("image", 401), ("script", 401), ("iframe", 401), ("empty", 401)):
        answer = mine.client.get("/api/v1/submissions", headers={**cross, "sec-fetch-dest": dest})
        assert answer.status_code == status, dest


def rows(api: Api) -> list[Any]:
    with api.world.db.read() as session:
        return store.submissions(session)
