"""Requests made from the OpenAPI document, right and wrong ones: none is answered with a fault of the service."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance
from sqlalchemy.exc import OperationalError

from service.config import Webhook
from service.db import Database
from tests.service.api.conftest import Api, api_over
from tests.support.github import SECRET

CHECKS = [not_a_server_error, response_schema_conformance, content_type_conformance]
EXAMPLES = 15
"""Per route; the stream of events never ends by itself and has a test of its own."""


@pytest.fixture
def over(tmp_path: Path, database: Database) -> Api:
    made = api_over(tmp_path / "home", database, webhook=Webhook(secret=SECRET))
    made.world.submit(["a"])
    made.world.run()
    return made


def test_no_request_is_a_fault_of_the_service(over: Api) -> None:
    schema = schemathesis.openapi.from_asgi("/openapi.json", over.client.app).exclude(path_regex="/events$")
    operations: list[Any] = [result.ok() for result in schema.get_all_operations() if isinstance(result, Ok)]
    assert len(operations) > 20
    for operation in operations:

        @settings(
            max_examples=EXAMPLES, deadline=None, database=None, derandomize=True,
            suppress_health_check=list(HealthCheck), phases=[Phase.explicit, Phase.generate],
        )  # fmt: skip
        @given(case=operation.as_strategy())
        def ask(case: Any) -> None:
            case.call_and_validate(headers=over.headers("admin"), checks=CHECKS)

        ask()


def answers_in(document: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    """Operation, type and content of every answer that is no error and has a body."""
    return [
        (operation["operationId"], kind, content)
        for path in document["paths"].values()
        for operation in path.values()
        for status, said in operation["responses"].items()
        if int(status) < 300
        for kind, content in said["content"].items()
    ]


def test_every_answer_has_an_example_that_is_one(over: Api) -> None:
    document = over.client.get("/openapi.json").json()
    found = answers_in(document)
    assert len(found) > 25
    for operation, kind, content in found:
        if kind != "application/json":
            assert isinstance(content["example"], str) and content["example"], operation
            continue
        schema = {**content["schema"], "components": document["components"]}
        jsonschema_rs.validate(schema, content["example"])
        for field, value in fields_of(document, content["schema"], content["example"]):
            assert set(field) <= set(value), (operation, "every field is shown")


def fields_of(document: dict[str, Any], schema: dict[str, Any], value: Any) -> Iterator[tuple[Any, Any]]:
    """Every object in ``value`` with the properties that its schema has."""
    if "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    if isinstance(value, list) and "items" in schema:
        for item in value:
            yield from fields_of(document, schema["items"], item)
    if isinstance(value, dict) and "properties" in schema:
        yield schema["properties"], value
        for name, inner in schema["properties"].items():
            yield from fields_of(document, inner, value.get(name))


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/api/v1/submissions/1/events", {}, 200),
        ("/api/v1/submissions/1/events", {"Authorization": ""}, 401),
        ("/api/v1/submissions/1/events", {"Authorization": "Bearer gm_wrong"}, 401),
        ("/api/v1/submissions/99/events", {}, 404),
        ("/api/v1/submissions/0/events", {}, 422),
        ("/api/v1/submissions/one/events", {}, 422),
        ("/api/v1/submissions/1/events?since=1", {}, 422),
    ],
)
def test_the_stream_of_events_answers_as_it_is_documented(
    over: Api, path: str, headers: dict[str, str], status: int
) -> None:
    answer = over.client.get(path, headers={**over.headers("read"), **headers})  # of what is done it ends by itself
    assert answer.status_code == status
    document = over.client.get("/openapi.json").json()
    responses = document["paths"]["/api/v1/submissions/{submission}/events"]["get"]["responses"]
    (documented,) = responses[str(status)]["content"]
    assert answer.headers["content-type"].partition(";")[0] == documented
    if status == 200:
        kinds = re.findall(r"^event: (\w+)$", answer.text, re.MULTILINE)
        assert (kinds[0], kinds[-1]) == ("submission", "end")
        example = responses["200"]["content"][documented]["example"]
        assert example.rstrip() in answer.text.replace('{"state":"done"}', '{"state": "done"}')
    else:
        assert answer.json()["status"] == status


def test_the_stream_of_events_says_when_the_database_is_away(over: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object) -> None:
        raise OperationalError("select", {}, Exception("away"))

    monkeypatch.setattr("service.api.events.store.submission", away)
    answer = over.client.get("/api/v1/submissions/1/events", headers=over.headers("read"))
    assert (answer.status_code, answer.headers["content-type"]) == (503, "application/problem+json")


def test_the_document_speaks_of_one_kind_of_error(over: Api) -> None:
    document = over.client.get("/openapi.json").json()
    assert {"Problem", "FieldError"} <= set(document["components"]["schemas"])
    assert "HTTPValidationError" not in over.client.get("/openapi.json").text
    for path in document["paths"].values():
        for operation in path.values():
            errors = {status: said for status, said in operation["responses"].items() if int(status) >= 400}
            assert {"422", "503"} <= set(errors)
            assert all(list(said["content"]) == ["application/problem+json"] for said in errors.values())
