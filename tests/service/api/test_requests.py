"""What is wrong with a request is said in one shape: misspelt parameters on every route, and fields of every kind."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from service.config import Webhook
from service.db import Database
from service.main import create_app
from tests.service.api.conftest import Api, api_over
from tests.service.api.test_access import PARTS, routes
from tests.support.github import SECRET

ASKED: dict[str, Any] = {"subjects": ["deepspeed==0.18.3"], "torch": ["2.11.0"]}


def test_no_route_leaves_out_a_parameter_that_it_does_not_know(tmp_path: Path, database: Database) -> None:
    api = api_over(tmp_path / "home", database, webhook=Webhook(secret=SECRET))
    document = api.client.get("/openapi.json").json()
    there = [(method, path) for method, path, _, _ in routes(api)] + [("get", "/docs"), ("get", "/openapi.json")]
    assert len(there) > 20
    for method, path in there:
        asked = api.client.request(
            method, path.format(**PARTS) + "?limit=1&submision=3&zz=1", json={}, headers=api.headers("admin")
        )
        assert (asked.status_code, asked.json()["type"]) == (422, "/problems/invalid"), (method, path)
        wrong = {one["where"]: one["why"] for one in asked.json()["errors"] if one["where"].startswith("query")}
        known = document["paths"].get(path, {}).get(method, {}).get("parameters", [])
        names = [one["name"] for one in known if one["in"] == "query"]
        assert ("query.limit" in wrong) == ("limit" not in names), (method, path)
        if "submission" in names:
            assert wrong["query.submision"] == "is no parameter of this; did you mean submission?"
        if not names:
            assert wrong["query.zz"] == "is no parameter of this; it takes none"


@pytest.mark.parametrize(
    ("body", "where", "why"),
    [
        ({"subjects": ["x"]}, "body.torch", "is missing"),
        ({**ASKED, "torch": "2.11.0"}, "body.torch", "is to be a list, not '2.11.0'"),
        ({**ASKED, "torch": []}, "body.torch", "is to have 1 entries or more, not [] (0 of them)"),
        ({**ASKED, "torch": ["x" * 301]}, "body.torch.0", "may have 300 characters at most, not '" + "x" * 59 + "…"),
        ({**ASKED, "world_sizes": ["two"]}, "body.world_sizes.0", "is to be a whole number, not 'two'"),
        ({**ASKED, "priority": 101}, "body.priority", "is to be 100 or less, not 101"),
        ({**ASKED, "priority": -1}, "body.priority", "is to be 0 or more, not -1"),
        ({**ASKED, "rerun": "perhaps"}, "body.rerun", "is to be true or false, not 'perhaps'"),
        ({**ASKED, "suite": "whole"}, "body.suite", "is to be 'default' or 'full', not 'whole'"),
        ({**ASKED, "torchs": ["2.11.0"]}, "body.torchs", "is no field of this; did you mean torch?"),
        ([], "body", "is to be an object, not [] (0 of them)"),
    ],
)
def test_a_wrong_field_is_told_with_what_would_be_right(api: Api, body: Any, where: str, why: str) -> None:
    answer = api.post("/submissions", body)
    assert answer.status_code == 422
    assert {"where": where, "why": why} in answer.json()["errors"]
    assert f"{where}: {why}" in answer.json()["detail"]


def test_what_is_no_json_is_told(api: Api) -> None:
    headers = {**api.headers("submit"), "Content-Type": "application/json"}
    answer = api.client.post("/api/v1/submissions", content=b"{", headers=headers)
    assert answer.status_code == 400
    assert answer.json()["errors"][0]["why"].startswith("is no JSON: ")


def test_a_repository_that_is_not_allowed_is_refused_without_a_folder_of_this_host(
    tmp_path: Path, database: Database
) -> None:
    api = api_over(tmp_path / "home", database, repositories=("https://github.com/owner/name",))
    for address in ("https://github.com/owner/nam", "/srv/secret"):
        answer = api.post("/submissions", {**ASKED, "subjects": [f"git+{address}@main"]})
        said = answer.json()["detail"]
        assert (answer.status_code, address in said) == (422, True)
        assert "allow-list" in said and "https://github.com/owner/name" in said
        assert str(tmp_path) not in said and "config.toml" not in said


def test_the_owner_is_told_what_to_write_where(tmp_path: Path, database: Database) -> None:
    api = api_over(tmp_path / "home", database, embedded=True)
    state = api.client.app.state.gradmatrix  # type: ignore[attr-defined]
    here = TestClient(create_app(state), base_url="http://127.0.0.1:8470", client=("127.0.0.1", 5))
    body = {**ASKED, "subjects": ["git+https://github.com/owner/name@main"]}
    assert "config.toml" in here.post("/api/v1/submissions", json=body).json()["detail"]


def test_the_page_loads_nothing_from_elsewhere(api: Api) -> None:
    page = api.client.get("/docs")
    assert page.status_code == 200
    loaded = re.findall(r"""(?:src|href)=["']([^"']+)["']""", page.text)
    assert len(loaded) == 3
    (document,) = re.findall(r"url: '([^']+)'", page.text)
    for link in (*loaded, document):
        assert link.startswith("/") and not link.startswith("//"), link
        assert api.client.get(link).status_code == 200, link
    assert not re.search(r"https?://", page.text)
    assert api.client.get("/docs/core.py").status_code == 422
    assert api.client.get("/docs/..%2fcore.py").status_code == 404
