"""The OpenAPI document as it is true: every error is problem+json, any route may need a token or a database, and every
other answer has an example.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from service.api.examples import example_of
from service.api.problems import MEDIA_TYPE, TITLES, Problem

ANY = ("422", "503")
"""What every route may answer: a wrong parameter, and a database that is away."""
WITH_TOKEN = ("401", "403")
CHANGING = ("415",)
"""What every route that changes something may answer besides: what a page's form sends is not taken."""


def describe(app: FastAPI) -> None:
    """Have ``app`` hand out this document."""
    made = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _with_problems(made())
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _with_problems(document: dict[str, Any]) -> dict[str, Any]:
    schema = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas = document["components"]["schemas"]
    schemas |= {**schema.pop("$defs"), "Problem": schema}
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    for path, method, operation in [(path, *one) for path, said in document["paths"].items() for one in said.items()]:
        scope = operation.get("x-scope", "none")
        told = (*ANY, *(WITH_TOKEN if scope != "none" else ()), *(CHANGING if method != "get" else ()))
        for status in told:
            operation["responses"].setdefault(status, {"description": TITLES[int(status)][1]})
        for status, response in operation["responses"].items():
            if int(status) >= 400:
                response["content"] = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
            for content in response.get("content", {}).values() if int(status) < 300 else ():
                content["example"] = example_of(method, path, str(status))
    return document
