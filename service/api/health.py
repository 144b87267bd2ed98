"""Whether the service is there and ready, and its numbers for Prometheus."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError

from service import db
from service.api.problems import answer, documented
from service.api.state import state_of
from service.errors import GradmatrixError

router = APIRouter(tags=["operations"])
OPEN = {"x-scope": "none"}


@router.get("/healthz", openapi_extra=OPEN)
def healthz() -> dict[str, str]:
    """The process answers. It asks nothing else, so that a database that is away does not get it restarted."""
    return {"status": "ok"}


@router.get("/readyz", openapi_extra=OPEN, responses=documented(503))
def readyz(request: Request) -> JSONResponse:
    """The database answers, and has the schema that this program knows."""
    database = state_of(request).database
    try:
        with database.read() as session:
            session.execute(text("SELECT 1"))
        db.check(database.engine)
    except (SQLAlchemyError, GradmatrixError) as error:
        return answer(503, str(getattr(error, "orig", None) or error), headers={"Retry-After": "5"})
    return JSONResponse({"status": "ready"})
