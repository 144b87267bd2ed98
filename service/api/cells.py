"""Cells: with their evidence, their history, what they wrote, and the script that shows them; a job or cell anew."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request, Response
from pydantic import BaseModel

from service import repro, store
from service.api.access import READ, SUBMIT, Caller, Reader, Submitter, scoped
from service.api.once import Key, accepted, once
from service.api.problems import ApiError, documented
from service.api.state import state_of
from service.cases import catalogue
from service.checkouts import ensure_checkout
from service.claims import PRIORITIES
from service.diagnosis import Diagnosis
from service.reports.beside import beside, diagnoses
from service.repro.gather import given_of
from service.store import AttemptView, CellDetail, CellRow, JudgementView, SubmissionView

router = APIRouter(tags=["cells"])
Id = Annotated[int, Path(ge=1, lt=2**31, description="The cell's number.", examples=[17])]


class CellDocument(BaseModel):
    """A cell: its row, how its case is defined, the evidence of its current answer, and what that means."""

    row: CellRow
    case: dict[str, Any]
    evidence: dict[str, Any]
    diagnosis: Diagnosis | None
    judgements: list[JudgementView]


class CellHistory(BaseModel):
    """The executions of a cell, the oldest first, and the answers to the same question in other runtimes."""

    attempts: list[AttemptView]
    other_runtimes: list[CellRow]


@router.get("/cells/{cell}", openapi_extra=scoped(READ), responses=documented(401, 404))
def cell(cell: Id, request: Request, _: Reader) -> CellDocument:
    """One cell with everything that its verdict rests on."""
    state = state_of(request)
    with state.database.read() as session:
        detail = store.find_cell(session, cell)
        known = beside(session, state.settings, [detail.row], cell=cell)
        documents = {detail.row.evidence_digest or "": detail.evidence}
        found = diagnoses(session, [detail.row], documents, known, cell=cell)
    return CellDocument(
        row=detail.row,
        case=detail.info,
        evidence=detail.evidence,
        diagnosis=found.get(cell),
        judgements=list(detail.judgements),
    )


@router.get("/cells/{cell}/history", openapi_extra=scoped(READ), responses=documented(401, 404))
def history(cell: Id, request: Request, _: Reader) -> CellHistory:
    """Every execution of the cell, and its neighbours on other torch versions."""
    with state_of(request).database.read() as session:
        detail = store.find_cell(session, cell)
        others = store.history(session, cell=cell)
    return CellHistory(attempts=list(detail.attempts), other_runtimes=others)


@router.get(
    "/cells/{cell}/logs",
    openapi_extra=scoped(READ),
    response_class=Response,
    responses={200: {"content": {"text/plain": {}}, "description": "The text."}, **documented(401, 404)},
)
def logs(cell: Id, request: Request, _: Reader) -> Response:
    """What its ranks wrote, and the stacks of those that hung. Untrusted text."""
    with state_of(request).database.read() as session:
        detail = store.find_cell(session, cell)
        text = "\n".join(_written(session, detail))
    return Response(text, media_type="text/plain; charset=utf-8", headers={"X-Content-Type-Options": "nosniff"})


def _written(session: Any, detail: CellDetail) -> list[str]:
    parts = []
    for blob in detail.blobs:
        if blob.kind in ("log", "stacks") and blob.digest:
            head = f"== {blob.name}" + ("" if blob.rank is None else f", rank {blob.rank}")
            parts += [head, store.blob(session, blob.digest).decode(errors="replace")]
    return parts


@router.get(
    "/cells/{cell}/repro",
    openapi_extra=scoped(READ),
    response_class=Response,
    responses={200: {"content": {"text/x-python": {}}, "description": "The script."}, **documented(401, 404, 422)},
)
def script(cell: Id, request: Request, _: Reader) -> Response:
    """A Python file of torch and the subject alone that prints the same numbers."""
    state = state_of(request)
    with state.database.read() as session:
        detail = store.find_cell(session, cell)
    with suppress(store.StoreError):  # kept nowhere: whether it is needed is seen below
        ensure_checkout(state.settings, state.database, detail.row.checkout)
    with state.database.read() as session:
        given = given_of(session, state.settings, detail)
    name = f'attachment; filename="repro-{cell}.py"'
    return Response(
        repro.script(given), media_type="text/x-python; charset=utf-8", headers={"Content-Disposition": name}
    )


@router.post("/cells/{cell}/rerun", status_code=202, openapi_extra=scoped(SUBMIT), responses=documented(401, 404, 409))
def rerun_cell(cell: Id, request: Request, response: Response, who: Submitter, key: Key = None) -> SubmissionView:
    """Run this one cell again."""
    state = state_of(request)
    with state.database.read() as session:
        store.find_cell(session, cell)
    return _again(request, response, who, key, [cell], f"cell {cell}")


@router.post("/jobs/{job}/rerun", status_code=202, openapi_extra=scoped(SUBMIT), responses=documented(401, 404, 409))
def rerun_job(job: Id, request: Request, response: Response, who: Submitter, key: Key = None) -> SubmissionView:
    """Run all cells of a job again."""
    with state_of(request).database.read() as session:
        found = store.cells_of_job(session, job)
    if not found:
        raise ApiError(404, f"there is no job {job}")
    return _again(request, response, who, key, found, f"job {job}")


def _again(
    request: Request, response: Response, who: Caller, key: str | None, cells: list[int], what: str
) -> SubmissionView:
    state = state_of(request)
    with state.database.session() as session:
        make = partial(store.rerun_cells, session, cells, requester=who.name, priority=PRIORITIES["manual"])
        known = frozenset((case.id, case.version) for case in catalogue().cases)
        make = partial(make, request={"rerun_of": what}, deadlines=state.settings.deadlines, known=known)
        view = once(session, who, key, f"rerun of {what}", make)
    return accepted(state, response, view)
