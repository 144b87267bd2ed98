"""Results side by side: a grid of checkouts over torch versions, and what changed between two submissions."""

from __future__ import annotations

from typing import Annotated, Literal, cast

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel
from sqlalchemy.orm import Session

from service import store
from service.api.access import READ, Reader, scoped
from service.api.paging import Plain
from service.api.problems import ApiError, documented
from service.api.state import state_of
from service.compare import Kind, diff
from service.edges import version_order
from service.errors import UsageError
from service.store import CellRow
from service.words import cell_says

router = APIRouter(tags=["results"])
MOST_CHECKOUTS = 50


class GridCell(BaseModel):
    """One cell of the grid, in a word, the number that matters, and its number for everything else."""

    cell: int
    verdict: str | None
    says: str
    forward_ok: bool | None


class GridRow(BaseModel):
    """One question in every runtime; ``cells`` by the runtime's name, without an entry where it was not asked."""

    checkout: str
    label: str
    transport: str
    world_size: int
    case: str
    version: int
    mode: str
    cells: dict[str, GridCell]


class Grid(BaseModel):
    """Rows over runtimes, the columns in the order of their torch versions."""

    runtimes: list[str]
    rows: list[GridRow]


class ChangeRow(BaseModel):
    """One cell before and after; ``identical``: bit for bit the same evidence."""

    kind: Kind
    before: CellRow | None
    after: CellRow | None
    identical: bool
    reason: str


class Changes(BaseModel):
    """What changed, the gravest first, and the one axis that differs.

    compared                 how many cells had an answer both times
    only_before, only_after  cells that the other side was never asked to run
    """

    axis: Literal["checkout", "runtime", "nothing"]
    compared: int
    changes: list[ChangeRow]
    only_before: list[int]
    only_after: list[int]


@router.get("/grid", openapi_extra=scoped(READ), responses=documented(401, 404, 422))
def grid(
    request: Request,
    _: Reader,
    submission: Annotated[int | None, Query(ge=1, lt=2**31, description="The cells of one submission.")] = None,
    checkout: Annotated[
        list[Plain] | None,
        Query(description="The cells of checkouts: label, full SHA, version or digest.", max_length=MOST_CHECKOUTS),
    ] = None,
    family: Annotated[list[str] | None, Query()] = None,
    mode: Annotated[list[str] | None, Query()] = None,
    world_size: Annotated[list[int] | None, Query()] = None,
) -> Grid:
    """Every answer that there is, a row per question and a column per runtime."""
    if (submission is None) == (not checkout):
        raise UsageError("name either a submission or at least one checkout")
    with state_of(request).database.read() as session:
        if submission is not None:
            rows = store.cells_of(session, submission)
        else:
            rows = store.cells_of_checkouts(session, [_digest(session, text) for text in checkout or ()])
    kept = [
        row
        for row in rows
        if (not family or row.family in family)
        and (not mode or row.mode in mode)
        and (not world_size or row.world_size in world_size)
    ]
    return _grid(kept)


def _digest(session: Session, text: str) -> str:
    digest = store.newest_checkout(session, text)
    if digest is None:
        raise ApiError(404, f"no checkout is called {text!r}")
    return digest


def _grid(rows: list[CellRow]) -> Grid:
    found: dict[tuple[str, str, int, str, int, str], GridRow] = {}
    for row in rows:
        key = (row.checkout, row.transport, row.world_size, row.case, row.version, row.mode)
        if key not in found:
            axes = ("checkout", "label", "transport", "world_size", "case", "version", "mode")
            found[key] = GridRow(**{name: getattr(row, name) for name in axes}, cells={})
        said = GridCell(cell=row.cell, verdict=row.verdict, says=cell_says(row), forward_ok=row.forward_ok)
        found[key].cells[row.runtime] = said
    columns = {row.runtime: (version_order(row.torch), row.runtime) for row in rows}
    return Grid(runtimes=sorted(columns, key=columns.__getitem__), rows=list(found.values()))


@router.get("/compare", openapi_extra=scoped(READ), responses=documented(401, 404, 422))
def compare(
    request: Request,
    _: Reader,
    before: Annotated[int, Query(ge=1, lt=2**31, description="A submission's number.")],
    after: Annotated[int, Query(ge=1, lt=2**31, description="Another's.")],
    unchanged: Annotated[bool, Query(description="Also what did not change.")] = False,
) -> Changes:
    """What is worse, better or new between two submissions of which one axis differs."""
    with state_of(request).database.read() as session:
        old, new = (store.cells_of(session, number) for number in (before, after))
    found = diff(old, new)
    changes = [
        ChangeRow(
            kind=one.kind,
            before=cast("CellRow | None", one.before),
            after=cast("CellRow | None", one.after),
            identical=one.identical,
            reason=one.reason,
        )
        for one in found.changes
        if unchanged or one.kind is not Kind.UNCHANGED
    ]
    return Changes(
        axis=found.axis,
        compared=found.compared,
        changes=changes,
        only_before=[row.cell for row in found.only_before],
        only_after=[row.cell for row in found.only_after],
    )
