"""One shape for every error: application/problem+json, as RFC 9457 has it.

``type`` is a path below /problems that names the kind and never changes, ``title`` says the kind in words, ``detail``
what was wrong this time and what would be right. Wrong fields are listed in ``errors``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from starlette.exceptions import HTTPException

from service.api.wording import UNREADABLE, where, why
from service.errors import GradmatrixError, UsageError
from service.store import KeyReusedError, NotFound, StoreError

MEDIA_TYPE = "application/problem+json"
TITLES = {
    400: ("bad-request", "The request cannot be read"),
    401: ("unauthorized", "This needs a token, or a signature"),
    403: ("forbidden", "The token does not allow this"),
    404: ("not-found", "There is no such thing"),
    405: ("method-not-allowed", "The method is not allowed here"),
    409: ("conflict", "This cannot be done in its present state"),
    413: ("too-large", "The request is too large"),
    415: ("unsupported-media-type", "The request's body is of a type that is not taken here"),
    422: ("invalid", "What was asked for does not exist or does not fit"),
    500: ("internal", "The service failed"),
    503: ("unavailable", "The database cannot be reached at the moment"),
}
"""Per status the last part of the problem's type, and its title."""
log = logging.getLogger(__name__)


class FieldError(BaseModel):
    """One field that is wrong: where it is, and why."""

    where: str = Field(examples=["body.torch"])
    why: str = Field(examples=["is missing"])


class Problem(BaseModel):
    """An error."""

    type: str = Field(examples=["/problems/invalid"])
    title: str = Field(examples=["What was asked for does not exist or does not fit"])
    status: int = Field(examples=[422])
    detail: str = Field(examples=["torch 2.11.9 is not in the catalogue: did you mean 2.11.0?"])
    errors: list[FieldError] = []


class ApiError(GradmatrixError):
    """An error of this interface's own, with its status and the headers that belong to it."""

    def __init__(self, status: int, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status, self.headers = status, dict(headers or {})


def answer(
    status: int, detail: str, *, errors: Sequence[FieldError] = (), headers: Mapping[str, str] | None = None
) -> JSONResponse:
    """The response that says so."""
    kind, title = TITLES.get(status, TITLES[400] if status < 500 else TITLES[500])
    problem = Problem(type=f"/problems/{kind}", title=title, status=status, detail=detail, errors=list(errors))
    return JSONResponse(problem.model_dump(), status, headers=dict(headers or {}), media_type=MEDIA_TYPE)


def install(app: FastAPI) -> None:
    """Have every error of ``app`` answered in this shape."""
    app.add_exception_handler(GradmatrixError, _ours)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(DBAPIError, _database)
    app.add_exception_handler(PoolTimeoutError, _database)
    app.add_exception_handler(Exception, _unexpected)


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The error responses of a route, for the OpenAPI document."""
    return {status: {"description": TITLES[status][1]} for status in statuses}


def _ours(_: Request, error: Exception) -> JSONResponse:
    if isinstance(error, ApiError):
        return answer(error.status, str(error), headers=error.headers)
    if isinstance(error, NotFound):
        return answer(404, str(error))
    if isinstance(error, UsageError | KeyReusedError):
        return answer(422, str(error))
    if isinstance(error, StoreError):
        return answer(409, str(error))
    return answer(422, str(error))


def field_errors(found: Iterable[Mapping[str, Any]], route: object = None) -> tuple[list[FieldError], str, int]:
    """Pydantic's errors in this shape, all of them in one sentence, and the status that they are answered with."""
    errors = list(found)
    names = _fields(route)
    wrong = [
        FieldError(where=where(one), why=why(one, names if tuple(one["loc"])[:-1] == ("body",) else ()))
        for one in errors
    ]
    said = "; ".join(f"{one.where}: {one.why}" for one in wrong) or "the request is not of the documented form"
    return wrong, said, 400 if any(one["type"] == UNREADABLE for one in errors) else 422


def _fields(route: object) -> list[str]:
    """The names of the fields of the body that ``route`` takes."""
    body = getattr(route, "body_field", None)
    return list(getattr(getattr(getattr(body, "field_info", None), "annotation", None), "model_fields", ()))


def _invalid(request: Request, error: Exception) -> JSONResponse:
    found = error.errors() if isinstance(error, RequestValidationError) else []
    wrong, said, status = field_errors(found, request.scope.get("route"))
    return answer(status, said, errors=wrong)


def _http(request: Request, error: Exception) -> JSONResponse:
    status = error.status_code if isinstance(error, HTTPException) else 500
    detail = str(error.detail) if isinstance(error, HTTPException) else ""
    if status == 404:
        detail = f"there is nothing at {request.url.path}; /docs lists what there is"
    return answer(status, detail, headers=getattr(error, "headers", None))


def _database(_: Request, error: Exception) -> JSONResponse:
    log.warning("the database failed: %s", error)
    lost = isinstance(error, DBAPIError) and error.connection_invalidated
    if lost or isinstance(error, OperationalError | PoolTimeoutError):
        return answer(
            503, "try again in a few seconds; nothing was stored of this request", headers={"Retry-After": "5"}
        )
    return answer(500, "the request could not be carried out; nothing of it was stored")


def _unexpected(request: Request, error: Exception) -> JSONResponse:
    log.exception("%s %s failed", request.method, request.url.path, exc_info=error)
    return answer(500, "this is a fault of the service, and it was logged")
