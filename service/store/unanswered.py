"""What a job that is given up leaves unanswered is answered after all: its machines failed, and here is how.

On the straight line this stands behind ``service.store.held``. Such an answer is never red and says nothing about the
subject; without it a cell would have no verdict in grids, reports and exit statuses, and nobody would know why.
"""

from __future__ import annotations

import hashlib
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.orm import Session

from jobs.contract import CaseInfo
from service.evidence import Evidence as EvidenceFound
from service.evidence import Stop
from service.judge import judge
from service.models import Attempt, CaseVersion, Cell, Evidence, Result
from service.policy import load_policy
from service.store.accept import judged
from service.store.sql import chunks, insert_missing, pack, touched
from service.verdicts import Verdict


def answer_infra(session: Session, attempt: Attempt, reason: str, now: datetime) -> None:
    """Answer every cell of the attempt's job that this job never answered with ``infra``, for ``reason``.

    The evidence says the same, so that whoever judges it again comes to the same verdict.
    """
    evidence = EvidenceFound(stop=Stop(Verdict.INFRA.value, reason))
    data = evidence.canonical()
    digest = hashlib.sha256(data).hexdigest()
    insert_missing(session, Evidence, [{"digest": digest, "size": len(data), "data": pack(data)}], ["digest"])
    known = sa.select(Result.cell_id).join(Attempt, Attempt.id == Result.attempt_id)
    open_cells = sa.select(Cell.id, CaseVersion.info).join(CaseVersion, CaseVersion.id == Cell.case_version_id)
    open_cells = open_cells.where(
        Cell.job_id == attempt.job_id, Cell.id.not_in(known.where(Attempt.job_id == attempt.job_id))
    )
    rows = [
        {
            "cell_id": cell,
            "attempt_id": attempt.id,
            **judged(judge(evidence, CaseInfo.from_json(info), load_policy())),
            "evidence_digest": digest,
            "first_digest": digest,
            "seconds": 0.0,
            "created_at": now,
            "judged_at": now,
        }
        for cell, info in session.execute(open_cells.order_by(Cell.id))
    ]
    for some in chunks(rows):
        session.execute(sa.insert(Result), some)
    mine = sa.select(Result.id).where(Result.cell_id == Cell.id, Result.attempt_id == attempt.id).scalar_subquery()
    for cells in chunks(row["cell_id"] for row in rows):
        touched(session, sa.update(Cell).where(Cell.id.in_(cells)).values(result_id=mine))
