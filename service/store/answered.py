"""Which cells of a job have an answer.

On the straight line this stands behind every claim and every acceptance. An answer that says that the machine failed
is none until it has been given :data:`INFRA_TRIES` times: the cell is run again, on another host where there is one.
"""

from __future__ import annotations

import sqlalchemy as sa

from service.models import Attempt, Result
from service.verdicts import Verdict

INFRA_TRIES = 3
"""How many attempts at a cell may end with the machine's failure: the first, and two that are made again."""


def answered(job: int) -> sa.Select[int]:
    """The cells that ``job`` has an answer for."""
    first = Result.judged_at == Result.created_at  # later judgements of an answer are no further tries
    infra = sa.func.sum(sa.case((sa.and_(Result.verdict == Verdict.INFRA, first), 1), else_=0))
    other = sa.func.sum(sa.case((Result.verdict != Verdict.INFRA, 1), else_=0))
    return (
        sa.select(Result.cell_id)
        .join(Attempt, Attempt.id == Result.attempt_id)
        .where(Attempt.job_id == job)
        .group_by(Result.cell_id)
        .having(sa.or_(other > 0, infra >= INFRA_TRIES))
    )
