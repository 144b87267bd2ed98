"""What the store knows beside a submission: the same rows in other runtimes, and which runtimes import a checkout.

On the straight line this is what ``service.edges`` and ``service.imports`` reckon with. A question about any number
of cells is one query.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session, aliased

from jobs.contract import MODES
from service.edges import shows_import
from service.imports import Import, current
from service.models import LIVE, Attempt, CaseVersion, Cell, Checkout, Job, Result, Runtime, SubmissionCell
from service.store.read import ANSWER, answer_of
from service.store.sql import chunks
from service.store.views import CellRow
from service.verdicts import Verdict

RELEASE = "release"
ROW = ("checkout_id", "transport", "world_size", "case_version_id", "mode")
"""What cells have in common that differ only in their runtime."""


def history(session: Session, *, submission: int | None = None, cell: int | None = None) -> list[CellRow]:
    """The answers to the rows of ``submission``, or of one ``cell``, in runtimes beside its own, oldest first.

    Whichever submission asked for them. Of several runtimes of one name (its lock was renewed) the newest answer
    counts. A cell that a live job is to answer anew says nothing, as everywhere. ``label`` is the checkout's first.
    """
    own = sa.select(SubmissionCell.cell_id).where(SubmissionCell.submission_id == submission)
    if cell is not None:
        own = sa.select(Cell.id).where(Cell.id == cell)
    mine = aliased(Cell)
    rows = sa.select(*(getattr(mine, name) for name in ROW)).where(mine.id.in_(own)).distinct().subquery()
    query = (
        _answered()
        .join(rows, sa.and_(*(getattr(Cell, name) == rows.c[name] for name in ROW)))
        .where(Cell.id.not_in(own))
        .order_by(Attempt.id, Result.id)  # an answer that was judged again is as old as it was
    )
    newest = {(*row[: len(ROW)], row.name): _row(row) for row in session.execute(query)}
    return list(newest.values())


def relatives(session: Session, *, submission: int | None = None, cell: int | None = None) -> list[CellRow]:
    """What stands beside the failing cells of ``submission``, or beside one ``cell``, in their own runtime.

    The eager answers to the same cases, and the same cells of other releases of the subject.
    """
    own = sa.select(SubmissionCell.cell_id).where(SubmissionCell.submission_id == submission)
    if cell is not None:
        own = sa.select(Cell.id).where(Cell.id == cell)
    mine, content = aliased(Cell), aliased(Checkout)
    failing = [str(verdict) for verdict in Verdict if verdict.failing]
    rows = (
        sa.select(*(getattr(mine, name) for name in (*ROW, "runtime_id")), content.subject, content.kind)
        .join(content, content.id == mine.checkout_id)
        .join(Result, Result.id == mine.result_id)
        .where(mine.id.in_(own), Result.verdict.in_(failing))
        .distinct()
        .subquery()
    )
    place = [
        getattr(Cell, name) == rows.c[name] for name in ("runtime_id", "transport", "world_size", "case_version_id")
    ]
    eager = sa.and_(*place, Cell.checkout_id == rows.c.checkout_id, Cell.mode == MODES[0], rows.c.mode != MODES[0])
    release = sa.and_(
        *(*place, Cell.mode == rows.c.mode, Cell.checkout_id != rows.c.checkout_id),
        *(Checkout.subject == rows.c.subject, Checkout.kind == RELEASE, rows.c.kind == RELEASE),
    )
    found = {row.cell: _row(row) for on in (eager, release) for row in session.execute(_answered().join(rows, on))}
    return list(found.values())


def _answered() -> sa.Select[*tuple[Any, ...]]:
    """Cells with a current answer, as plain columns: a submission's history is tens of thousands of rows."""
    return (
        sa.select(
            *(getattr(Cell, name) for name in ROW),
            Cell.id.label("cell"),
            Cell.job_id.label("job"),
            *(Checkout.digest, Checkout.subject, Checkout.label),
            *(Runtime.name, Runtime.torch, Runtime.channel),
            *(CaseVersion.case_id, CaseVersion.version, CaseVersion.family),
            *(getattr(Result, name) for name in ANSWER),
        )
        .select_from(Cell)
        .join(Checkout, Checkout.id == Cell.checkout_id)
        .join(Runtime, Runtime.id == Cell.runtime_id)
        .join(CaseVersion, CaseVersion.id == Cell.case_version_id)
        .join(Result, Result.id == Cell.result_id)
        .join(Attempt, Attempt.id == Result.attempt_id)
        .outerjoin(Job, Job.id == Cell.job_id)
        .where(sa.or_(Job.id.is_(None), Job.state.not_in(LIVE), Attempt.job_id == Cell.job_id))
    )


def _row(row: Any) -> CellRow:
    same = ("cell", "job", "subject", "label", "torch", "channel", "transport", "world_size", "version", "family")
    return CellRow(
        **{name: getattr(row, name) for name in same},
        mode=row.mode,
        state="done",
        checkout=row.digest,
        runtime=row.name,
        case=row.case_id,
        **answer_of(row),
    )


def imports(session: Session, checkouts: Iterable[str]) -> list[Import]:
    """In which runtimes the checkouts with these digests could be imported, and why not in the others.

    Of several runtimes of one name the one that answered last counts. Where imports of one runtime failed and went
    well, it is told as failing.
    """
    found: list[Import] = []
    failing = Result.verdict == Verdict.UNIMPORTABLE
    signature = sa.case((failing, Result.signature), else_="")
    last = sa.func.max(Result.attempt_id)
    columns = (Checkout.digest, Runtime.name, Runtime.id.label("runtime_id"), Runtime.torch, Runtime.channel)
    for some in chunks(dict.fromkeys(checkouts)):
        query = (
            sa.select(*columns, Result.verdict, signature.label("signature"), last.label("last"))
            .select_from(Checkout)
            .join(Cell, Cell.checkout_id == Checkout.id)
            .join(Runtime, Runtime.id == Cell.runtime_id)
            .join(Result, Result.id == Cell.result_id)
            .where(Checkout.digest.in_(some))
            .group_by(*columns, Result.verdict, signature)
        )
        found += _facts(session.execute(query).all())
    return found


def _facts(rows: Iterable[Any]) -> list[Import]:
    given = list(rows)
    last: dict[tuple[str, str], tuple[int, int]] = {}
    for row in given:
        key = row.digest, row.name
        last[key] = max(last.get(key, (0, 0)), (row.last, row.runtime_id))
    told: dict[tuple[str, str], dict[str, Import]] = {}
    for row in given:
        if row.runtime_id != last[row.digest, row.name][1]:
            continue
        if row.verdict == Verdict.UNIMPORTABLE or shows_import(row.verdict):
            fact = Import(row.digest, row.torch, row.name, row.channel, current(row.signature))
            told.setdefault((row.digest, row.name), {})[fact.signature] = fact
    failed = ({text: fact for text, fact in facts.items() if text} or facts for facts in told.values())
    return [fact for facts in failed for fact in facts.values()]
