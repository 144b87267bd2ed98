"""Everything about one cell: found by its number or by words, with evidence, blobs and every attempt."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from service.models import (
    Attempt,
    AttemptBlob,
    Blob,
    CaseVersion,
    Cell,
    Checkout,
    ControlResult,
    Evidence,
    Host,
    Result,
    ResultBlob,
    Runtime,
)
from service.store.read import cell_query, cell_row
from service.store.sql import NotFound, StoreError, chunks, unpack
from service.store.views import AttemptView, BlobView, CellDetail, CellRow, ControlRow, JudgementView

SHOWN = 8


def find_cells(session: Session, text: str, limit: int = SHOWN) -> list[CellRow]:
    """The cells that every word of ``text`` fits: a number, or label, digest, torch, runtime, transport, world size,
    case (with or without its parameters) and mode, in any order.
    """
    query = cell_query()
    words = text.split()
    if len(words) == 1 and words[0].isdigit():
        query = query.where(Cell.id == int(words[0]))
    else:
        for word in words:
            query = query.where(_says(word))
    return [cell_row(row) for row in session.execute(query.order_by(Cell.id).limit(limit))]


def _says(word: str) -> sa.ColumnElement[bool]:
    columns = (Checkout.label, Checkout.ref, Runtime.torch, Runtime.name, Cell.transport, Cell.mode)
    either: list[sa.ColumnElement[bool]] = [column == word for column in columns]
    either += [CaseVersion.case_id == word, CaseVersion.case_id.startswith(word + "[", autoescape=True)]
    if word.isdigit():
        either.append(Cell.world_size == int(word))
    if len(word) >= 6 and set(word) <= set("0123456789abcdef"):
        either.append(Checkout.digest.startswith(word, autoescape=True))
    return sa.or_(*either)


def find_cell(session: Session, text: str | int) -> CellDetail:
    """The one cell that ``text`` names (see :func:`find_cells`). Raises StoreError for none and for several."""
    rows = find_cells(session, str(text))
    if not rows:
        raise NotFound(_why_none(session, str(text)))
    if len(rows) > 1:
        lines = [f"  {r.cell}: {r.label} {r.runtime} {r.transport} {r.world_size} {r.case} {r.mode}" for r in rows]
        more = [] if len(rows) < SHOWN else ["  …"]
        raise StoreError("\n".join([f"more than one cell fits {str(text)!r}:", *lines, *more]))
    return _detail(session, rows[0])


def _why_none(session: Session, text: str) -> str:
    if text.isdigit():
        newest = session.scalar(sa.select(sa.func.max(Cell.id)))
        return f"there is no cell {text}: " + (f"the newest is {newest}" if newest else "nothing is stored yet")
    odd = [word for word in text.split() if not (word.isdigit() or find_cells(session, word, limit=1))]
    why = f"nothing is called {', '.join(odd)}" if odd else "no cell has all of these words"
    return (
        f"no cell fits {text!r}: {why}; give a cell's number, or words such as label, torch version, world size, mode, "
        "and a case by its whole id or up to its bracket"
    )


def _detail(session: Session, row: CellRow) -> CellDetail:
    cell = session.get_one(Cell, row.cell)
    case = session.get_one(CaseVersion, cell.case_version_id)
    current = row.evidence_digest is not None
    return CellDetail(
        row=row,
        info=case.info,
        evidence=evidence(session, row.evidence_digest) if row.evidence_digest else {},
        blobs=_blobs_of_answer(session, cell) if current else (),
        attempts=_attempts(session, cell),
        judgements=_judgements(session, cell) if current else (),
    )


def _blobs_of_answer(session: Session, cell: Cell) -> tuple[BlobView, ...]:
    """What was kept with the cell's answer: it belongs to the first judgement of that."""
    now = session.get_one(Result, cell.result_id)
    first = (
        sa.select(Result.id)
        .where(Result.cell_id == cell.id, Result.attempt_id == now.attempt_id)
        .order_by(Result.judged_at, Result.id)
    )
    return _blobs(session, ResultBlob, ResultBlob.result_id, session.scalars(first.limit(1)).one())


def _judgements(session: Session, cell: Cell) -> tuple[JudgementView, ...]:
    """Every judgement of the answer that counts, oldest first."""
    now = session.get_one(Result, cell.result_id)
    query = sa.select(Result).where(Result.cell_id == cell.id, Result.attempt_id == now.attempt_id)
    columns = (
        *("policy_version", "verdict", "forward_ok", "signature", "detail", "error", "alpha"),
        *("nonzero_got", "nonzero_expected", "judged_at"),
    )
    return tuple(
        JudgementView(**{name: getattr(row, name) for name in columns}, current=row.id == now.id)
        for row in session.scalars(query.order_by(Result.judged_at, Result.id))
    )


def case_infos(session: Session, rows: Iterable[CellRow]) -> dict[tuple[str, int], dict[str, Any]]:
    """The definitions of the cases of ``rows``, by id and version, as they were when they were planned."""
    wanted = {row.case for row in rows}
    found = {}
    for some in chunks(wanted):
        for case in session.scalars(sa.select(CaseVersion).where(CaseVersion.case_id.in_(some))):
            found[case.case_id, case.version] = case.info
    return found


def evidence(session: Session, digest: str) -> dict[str, Any]:
    """The JSON document under ``digest``."""
    row = session.get(Evidence, digest)
    if row is None:
        raise NotFound(f"there is no evidence {digest}")
    document: dict[str, Any] = json.loads(unpack(row.data, row.size))
    return document


def blob(session: Session, digest: str) -> bytes:
    """The bytes under ``digest``."""
    row = session.get(Blob, digest)
    if row is None:
        raise NotFound(f"there is no blob {digest}")
    return unpack(row.data, row.size)


def _blobs(
    session: Session, table: type[ResultBlob] | type[AttemptBlob], column: Any, owner: int
) -> tuple[BlobView, ...]:
    rows: Iterable[Any] = session.scalars(sa.select(table).where(column == owner).order_by(table.position))
    return tuple(BlobView(row.kind, row.name, row.rank, row.size, row.meta, row.digest) for row in rows)


def _attempts(session: Session, cell: Cell) -> tuple[AttemptView, ...]:
    """The attempts that answered the cell, and those of its newest job, which may have ended before it."""
    query = (
        sa.select(Attempt, Host.name, Result.verdict)
        .join(Host, Host.id == Attempt.host_id)
        .outerjoin(Result, sa.and_(Result.attempt_id == Attempt.id, Result.cell_id == cell.id))
    )
    answered = query.where(Attempt.id.in_(sa.select(Result.attempt_id).where(Result.cell_id == cell.id)))
    newest = query.where(Attempt.job_id == cell.job_id)
    # Of several judgements of an answer the newest.
    parts = [part.order_by(Result.judged_at, Result.id) for part in (answered, newest)]
    found = {row.Attempt.id: row for part in parts for row in session.execute(part)}
    columns = ("job_id", "fence", "container", "state", "note", "started_at", "ended_at", "facts")
    views = []
    for key in sorted(found):
        attempt, host, verdict = found[key]
        values = {name.removesuffix("_id"): getattr(attempt, name) for name in columns}
        blobs = _blobs(session, AttemptBlob, AttemptBlob.attempt_id, key)
        views.append(
            AttemptView(key, host=host, verdict=verdict, controls=_controls(session, key), blobs=blobs, **values)
        )
    return tuple(views)


def _controls(session: Session, attempt: int) -> tuple[ControlRow, ...]:
    rows = session.scalars(
        sa.select(ControlResult).where(ControlResult.attempt_id == attempt).order_by(ControlResult.id)
    )
    columns = ("control", "mode", "world_size", "stage", "verdict", "as_expected", "detail")
    return tuple(ControlRow(**{name: getattr(row, name) for name in columns}) for row in rows)
