"""Requests made from the OpenAPI document, right and wrong ones: none is answered with a fault of the service."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance

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


def test_the_document_speaks_of_one_kind_of_error(over: Api) -> None:
    document = over.client.get("/openapi.json").json()
    assert {"Problem", "FieldError"} <= set(document["components"]["schemas"])
    assert "HTTPValidationError" not in over.client.get("/openapi.json").text
    for path in document["paths"].values():
        for operation in path.values():
            errors = {status: said for status, said in operation["responses"].items() if int(status) >= 400}
            assert {"422", "503"} <= set(errors)
            assert all(list(said["content"]) == ["application/problem+json"] for said in errors.values())
