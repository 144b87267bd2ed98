"""Whether the service is there and ready, and its numbers for Prometheus."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST
from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError

from service import db, store
from service.api.access import READ, Reader, scoped
from service.api.problems import answer, documented
from service.api.state import state_of
from service.errors import GradmatrixError
from service.metrics import text
from service.store.sql import utcnow

router = APIRouter(tags=["operations"])
OPEN = {"x-scope": "none"}


@router.get("/healthz", openapi_extra=OPEN)
async def healthz() -> dict[str, str]:
    """The process answers. It asks nothing else, so that a database that is away does not get it restarted."""
    return {"status": "ok"}


@router.get("/readyz", openapi_extra=OPEN, responses=documented(503))
def readyz(request: Request) -> JSONResponse:
    """The database answers, and has the schema that this program knows."""
    database = state_of(request).database
    try:
        with database.read() as session:
            session.execute(select(1))
        db.check(database.engine)
    except (SQLAlchemyError, GradmatrixError) as error:
        return answer(503, str(getattr(error, "orig", None) or error), headers={"Retry-After": "5"})
    return JSONResponse({"status": "ready"})


@router.get(
    "/metrics",
    openapi_extra=scoped(READ),
    response_class=Response,
    responses={200: {"content": {"text/plain": {}}, "description": "The numbers."}, **documented(401)},
)
def metrics(request: Request, _: Reader) -> Response:
    """Queue, leases, durations, verdicts and what the reconciler did, for Prometheus."""
    with state_of(request).database.read() as session:
        found = store.numbers(session)
    return Response(text(found, utcnow()), media_type=CONTENT_TYPE_LATEST)
