"""Who may do what: every route of the OpenAPI document, for every role."""

from __future__ import annotations

from typing import Any

import pytest

from service import store
from service.models import SCOPES
from tests.service.api.conftest import Api, api_over

ROLES = (None, *SCOPES)
BODIES: dict[str, Any] = {"submit": {"subjects": ["deepspeed==0.18.3"], "torch": ["2.11.0"]}, "pin": {"pinned": True}}


def routes(api: Api) -> list[tuple[str, str, str, str]]:
    """Method, path, operation and needed scope of every route, as the document states them."""
    document = api.client.get("/openapi.json").json()
    return [
        (method, path, operation["operationId"], operation["x-scope"])
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]


def test_every_route_states_its_scope_and_holds_every_role_to_it(api: Api) -> None:
    table = routes(api)
    assert len(table) > 20
    for method, path, operation, scope in table:
        if path.endswith("/events"):
            continue  # an endless answer; its own test has it
        number = api.world.submit(["a"], seconds=1).id
        filled = path.format(submission=number, cell=1, job=1)
        body = next((body for name, body in BODIES.items() if operation.startswith(name)), None)
        for role in ROLES:
            allowed = scope == "none" or (role is not None and SCOPES.index(role) >= SCOPES.index(scope))
            answer = api.client.request(method, filled, json=body, headers=api.headers(role))
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
    from starlette.testclient import TestClient

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
    from starlette.testclient import TestClient

    api = api_over(tmp_path / "home", database, embedded=True)
    caller = TestClient(api.client.app, base_url="http://localhost", client=("127.0.0.1", 5))
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
        body = b'{"subjects": ["deepspeed==0.18.3"], "torch": ["2.11.0"]}'
        assert caller.post("/api/v1/submissions", content=body, headers={"content-type": kind}).status_code == 422
    number = api.world.submit(["a"]).id
    bare = caller.post(f"/api/v1/submissions/{number}/cancel", headers={"origin": "https://elsewhere.invalid"})
    assert bare.status_code == 401
    assert caller.post(f"/api/v1/submissions/{number}/cancel").status_code == 200
