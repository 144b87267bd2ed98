"""Judging again: answers with all that is kept of them, and judgements that come later than their answers.

On the straight line this stands on both sides of ``service.rejudging``: it reads what that judges and appends what it
says. Results are never changed: a later judgement is one more row, and the cell points at it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from service.models import Attempt, Cell, ControlResult, ControlSet, Evidence, Job, Policy, Result
from service.policy import Policy as Known
from service.policy import load_policy, policy_from_data, policy_to_data, shipped
from service.store.accept import judged
from service.store.held import recount
from service.store.read import cell_query, cell_row
from service.store.sql import chunks, unpack, utcnow
from service.store.views import Answer, KeptControl, KeptControls

if TYPE_CHECKING:
    from service.judge import Judgement
    from service.rejudging import Rests


TICK = timedelta(microseconds=1)


def policies(session: Session) -> dict[str, Known]:
    """Every policy that is known by its version: those that this program brings, and those that judged something."""
    stored = {row.version: policy_from_data(row.content) for row in session.scalars(sa.select(Policy))}
    return stored | {version: load_policy(version) for version in shipped()}


def keep_policy(session: Session, policy: Known, now: datetime | None = None) -> None:
    """Keep ``policy`` under its version, if it is not yet."""
    if session.get(Policy, policy.version) is None:
        session.add(Policy(version=policy.version, content=policy_to_data(policy), created_at=now or utcnow()))
        session.flush()


def count_answers(session: Session) -> int:
    """How many cells have an answer."""
    return session.scalar(sa.select(sa.func.count()).select_from(Cell).where(Cell.result_id.is_not(None))) or 0


def answers(session: Session, after: int = 0, limit: int = 200) -> list[Answer]:
    """The current answers of the next ``limit`` cells whose number is above ``after``, by that number."""
    query = cell_query().where(Cell.id > after, Cell.result_id.is_not(None)).order_by(Cell.id).limit(limit)
    rows = session.execute(query).all()
    passes = ("evidence_digest", "first_digest", "alone_digest")
    documents = _documents(session, {getattr(row.Result, name) for row in rows for name in passes} - {None})
    then = _with_their_answers(session, [row.Cell.id for row in rows])
    return [
        Answer(
            result=row.Result.id,
            attempt=row.Result.attempt_id,
            row=cell_row(row, only_latest=False),
            then=then.get((row.Cell.id, row.Result.attempt_id)) or _said(row.Result),
            info=row.CaseVersion.info,
            evidence=documents[row.Result.evidence_digest],
            first=documents.get(row.Result.first_digest),
            alone=documents.get(row.Result.alone_digest),
        )
        for row in rows
    ]


def _with_their_answers(session: Session, cells: Sequence[int]) -> dict[tuple[int, int], tuple[str, str, str]]:
    """By cell and attempt, the judgement that came with the answer."""
    query = sa.select(Result).where(Result.cell_id.in_(cells), Result.judged_at == Result.created_at)
    return {(row.cell_id, row.attempt_id): _said(row) for row in session.scalars(query)}


def _said(row: Result) -> tuple[str, str, str]:
    return row.verdict, row.signature, row.detail


def controls_of(session: Session, attempt: int) -> KeptControls:
    """What is kept of an attempt's controls."""
    digest = session.get_one(Attempt, attempt).control_set_digest
    kept = None if digest is None else session.get_one(ControlSet, digest)
    due = None if kept is None else tuple(json.loads(unpack(kept.data, kept.size)))
    rows = session.scalars(
        sa.select(ControlResult).where(ControlResult.attempt_id == attempt).order_by(ControlResult.id)
    ).all()
    documents = _documents(session, {row.evidence_digest for row in rows} - {None})
    columns = ("control", "mode", "world_size", "stage", "verdict", "as_expected", "detail", "policy_version")
    return KeptControls(
        due,
        tuple(
            KeptControl(
                **{name: getattr(row, name) for name in columns}, evidence=documents.get(row.evidence_digest or "")
            )
            for row in rows
        ),
    )


def _documents(session: Session, digests: Iterable[str | None]) -> dict[str | None, dict[str, Any]]:
    found: dict[str | None, dict[str, Any]] = {}
    for some in chunks(digests):
        for row in session.scalars(sa.select(Evidence).where(Evidence.digest.in_(some))):
            found[row.digest] = json.loads(unpack(row.data, row.size))
    return found


def append_judgements(
    session: Session, judgements: Sequence[tuple[int, Judgement, Rests]], now: datetime | None = None
) -> list[int]:
    """Judge answers again: (result, judgement, on which pass it rests) each; the cells of which it became the answer.

    An answer that meanwhile is not its cell's current one any more is left alone, and so is one that has been judged
    just so already. Jobs' counts follow.
    """
    moment = now or utcnow()
    cells, jobs = [], set()
    for number, judgement, rests in judgements:
        before = session.get_one(Result, number)
        cell = session.get_one(Cell, before.cell_id, with_for_update=True)
        columns = judged(judgement)
        if cell.result_id != number or all(getattr(before, name) == value for name, value in columns.items()):
            continue
        same = ("cell_id", "attempt_id", "evidence_digest", "first_digest", "alone_digest", "seconds", "created_at")
        row = Result(**{name: getattr(before, name) for name in same}, **columns)
        row.judged_at = max(moment, before.judged_at + TICK)  # later, whatever the clock says
        if rests:
            row.evidence_digest = getattr(before, f"{rests}_digest")
        session.add(row)
        session.flush()
        cell.result_id = row.id
        cells.append(cell.id)
        jobs.add(session.get_one(Attempt, before.attempt_id).job_id)
    session.flush()
    for job in sorted(jobs):
        recount(session, session.get_one(Job, job, with_for_update=True))
    session.flush()
    return cells
