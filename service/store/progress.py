"""How far a submission is, for those who watch it: what is new since they last looked."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.orm import Session

from service.models import Cell, Resolution, Result, SubmissionCell
from service.store.read import asked_query, cell_row
from service.store.sql import chunks
from service.store.views import CellRow


@dataclass(frozen=True)
class Progress:
    """What is new.

    newest    the results that count now, to be handed in next time
    cells     those cells whose answer is new
    fetching  what is being fetched, in words, or nothing
    """

    newest: frozenset[int]
    cells: tuple[CellRow, ...]
    fetching: str


def newest_results(session: Session, submission: int) -> frozenset[int]:
    """The results that count now."""
    mine = sa.select(SubmissionCell.cell_id).where(SubmissionCell.submission_id == submission)
    results = sa.select(Cell.result_id).where(Cell.id.in_(mine), Cell.result_id.is_not(None))
    return frozenset(result for result in session.scalars(results) if result is not None)


def progress(session: Session, submission: int, seen: frozenset[int]) -> Progress:
    """What is new in a submission since its results were ``seen``."""
    newest = newest_results(session, submission)
    rows: list[CellRow] = []
    for some in chunks(sorted(newest - seen)):
        query = asked_query(submission).where(Result.id.in_(some)).order_by(Result.id)
        rows += [cell_row(row, label=row.label) for row in session.execute(query)]
    return Progress(newest, tuple(rows), _fetching(session, submission))


def _fetching(session: Session, submission: int) -> str:
    task = session.get(Resolution, submission)
    if task is None or not task.doing:
        return ""
    total = f" of {task.bytes_total:,}" if task.bytes_total else ""
    return task.doing + (f", {task.bytes_done:,}{total} bytes" if task.bytes_done else "")
