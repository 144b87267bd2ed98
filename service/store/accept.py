"""Answers come in: each completed cell once, those that come together in one transaction, guarded by fence and state.

On the straight line this stands between ``workers.collect`` and ``service.judge`` (which made evidence and judgement)
and everything that reads.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

import sqlalchemy as sa
from sqlalchemy.orm import Session

from jobs.contract import CaseInfo, ControlInfo, Limits
from service.models import (
    Attempt,
    AttemptBlob,
    Blob,
    Cell,
    ControlResult,
    ControlSet,
    Evidence,
    Job,
    Result,
    ResultBlob,
)
from service.store.answered import answered
from service.store.retaining import BLOBS
from service.store.sql import StaleFence, StoreError, chunks, held_job, insert_missing, lock, pack, touched, utcnow
from service.verdicts import Verdict

if TYPE_CHECKING:
    from service.evidence import Blob as BlobFound
    from service.evidence import Evidence as EvidenceFound
    from service.judge import Judgement

BLOB_BYTES = Limits().tensor_bytes
"""Cap on one blob; of a text that is longer its end is kept."""
BLOBS_BYTES = 32 * 2**20
"""Cap on all blobs of a result together."""
TEXT_KINDS = frozenset({"log", "stacks"})
PASSES = ("evidence_digest", "first_digest", "alone_digest")


@dataclass(frozen=True)
class CellAnswer:
    """The answer to one cell.

    evidence  what the judgement rests on
    first     the evidence of the pass among other cases, and
    alone     that of the pass in fresh ranks, if there was one: both are needed to judge again
    blobs     what is kept of its bytes
    seconds   that it took
    """

    cell: int
    judgement: Judgement
    evidence: EvidenceFound
    first: EvidenceFound | None = None
    alone: EvidenceFound | None = None
    blobs: Sequence[BlobFound] = ()
    seconds: float = 0.0

    @property
    def passes(self) -> tuple[EvidenceFound | None, ...]:
        """In the order of a result's three digests."""
        return self.evidence, self.first, self.alone


@dataclass(frozen=True)
class ControlAnswer:
    """What a control answered; ``stage`` is before or after the subject was imported."""

    control: str
    mode: str
    world_size: int
    stage: str
    judgement: Judgement
    as_expected: bool
    evidence: EvidenceFound | None = None


def accept(
    session: Session, job: int, fence: int, attempt: int, answers: Iterable[CellAnswer], now: datetime | None = None
) -> dict[int, int]:
    """Store answers and count them; the results' ids, by cell.

    Each cell is answered once: what this job has answered before is left out. An answer that says that the machine
    failed is kept, and the cell stays open until it has been tried often enough.

    Raises StaleFence where the job is no longer held under ``fence``, and StoreError where a cell is not one of the
    job's; nothing is stored then.
    """
    now = now or utcnow()
    row = _held(session, job, fence, attempt)
    fresh = _unanswered(session, job, attempt, {answer.cell: answer for answer in answers})
    if not fresh:
        return {}
    digests = _evidence(session, [each for answer in fresh for each in answer.passes if each is not None])
    results = [
        {
            "cell_id": answer.cell,
            "attempt_id": attempt,
            **judged(answer.judgement),
            **dict(zip(PASSES, (each and digests[id(each)] for each in answer.passes), strict=True)),
            "seconds": answer.seconds,
            "created_at": now,
            "judged_at": now,
        }
        for answer in fresh
    ]
    session.connection().execute(sa.insert(cast("sa.Table", Result.__table__)), results)  # needs no id of each
    ids: dict[int, int] = {}
    for some in chunks(answer.cell for answer in fresh):
        mine = sa.and_(Result.attempt_id == attempt, Result.cell_id.in_(some))
        touched(session, sa.update(Cell).where(mine, Cell.id == Result.cell_id).values(result_id=Result.id))
        ids |= {row.cell_id: row.id for row in session.execute(sa.select(Result.cell_id, Result.id).where(mine))}
    for answer in fresh:
        _link(session, ResultBlob, {"result_id": ids[answer.cell]}, answer.blobs)
    row.state = "running"
    _count(session, row, fresh)
    session.flush()
    return ids


def _unanswered(session: Session, job: int, attempt: int, answers: dict[int, CellAnswer]) -> list[CellAnswer]:
    """Those of cells that this attempt has not answered, nor the job before it."""
    mine: set[int] = set()
    over: set[int] = set()
    for some in chunks(answers):
        mine |= set(session.scalars(sa.select(Cell.id).where(Cell.id.in_(some), Cell.job_id == job)))
        here = sa.select(Result.cell_id).where(Result.cell_id.in_(some), Result.attempt_id == attempt)
        over |= set(session.scalars(here)) | set(session.scalars(answered(job).where(Result.cell_id.in_(some))))
    if strange := sorted(answers.keys() - mine):
        raise StoreError(f"cell {strange[0]} is not one of job {job}")
    return [answer for cell, answer in answers.items() if cell not in over]


def _count(session: Session, row: Job, answers: Sequence[CellAnswer]) -> None:
    """Count those that end their cells: all but the failures of the machine, of which the last one does."""
    failed = [answer.cell for answer in answers if answer.judgement.verdict is Verdict.INFRA]
    over = set(session.scalars(answered(row.id).where(Result.cell_id.in_(failed)))) if failed else set()
    counted = [a.judgement.verdict for a in answers if a.judgement.verdict is not Verdict.INFRA or a.cell in over]
    if counted:
        row.counts = dict(Counter(row.counts) + Counter(map(str, counted)))
        row.cells_done += len(counted)
        row.failures = 0


def judged(judgement: Judgement) -> dict[str, Any]:
    """The columns of a result that say what it was judged to be."""
    return {
        "verdict": str(judgement.verdict),
        "policy_version": judgement.policy_version,
        "forward_ok": judgement.forward_ok,
        "signature": judgement.signature or "",
        "detail": judgement.detail or "",
        "worst_tensor": judgement.worst_tensor,
        "error": judgement.error,
        "alpha": judgement.alpha,
        "nonzero_got": judgement.nonzero_got,
        "nonzero_expected": judgement.nonzero_expected,
    }


def record_control_set(
    session: Session, *, job: int, fence: int, attempt: int, controls: Iterable[tuple[ControlInfo, CaseInfo]]
) -> None:
    """Keep which controls have to answer in this attempt, and what they are: to judge again whether they behaved."""
    _held(session, job, fence, attempt)
    document = [{"control": control.to_json(), "case": case.to_json()} for control, case in controls]
    data = json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
    digest = hashlib.sha256(data).hexdigest()
    insert_missing(session, ControlSet, [{"digest": digest, "size": len(data), "data": pack(data)}], ["digest"])
    session.get_one(Attempt, attempt).control_set_digest = digest
    session.flush()


def record_controls(session: Session, job: int, fence: int, attempt: int, controls: Sequence[ControlAnswer]) -> None:
    """Store what controls answered. Raises StaleFence as :func:`accept` does."""
    _held(session, job, fence, attempt)
    digests = _evidence(session, [control.evidence for control in controls if control.evidence is not None])
    rows = [
        {
            "attempt_id": attempt,
            "control": control.control,
            "mode": control.mode,
            "world_size": control.world_size,
            "stage": control.stage,
            "verdict": str(control.judgement.verdict),
            "as_expected": control.as_expected,
            "detail": control.judgement.detail or "",
            "policy_version": control.judgement.policy_version,
            "evidence_digest": control.evidence and digests[id(control.evidence)],
        }
        for control in controls
    ]
    session.execute(sa.insert(ControlResult), rows)


def record_attempt_facts(
    session: Session,
    *,
    job: int,
    fence: int,
    attempt: int,
    facts: dict[str, Any],
    blobs: Sequence[BlobFound] = (),
) -> None:
    """Add to what is known of an attempt; a fact that is said again replaces the older one."""
    _held(session, job, fence, attempt)
    row = session.get_one(Attempt, attempt)
    row.facts = {**row.facts, **facts}
    last = session.scalar(sa.select(sa.func.max(AttemptBlob.position)).where(AttemptBlob.attempt_id == attempt))
    _link(session, AttemptBlob, {"attempt_id": attempt}, blobs, first=0 if last is None else last + 1)
    session.flush()


def _held(session: Session, job: int, fence: int, attempt: int) -> Job:
    row = held_job(session, job, fence)
    found = session.get(Attempt, attempt)
    if found is None or (found.job_id, found.fence) != (job, fence):
        raise StaleFence(f"attempt {attempt} is not the one that holds job {job} under fence {fence}")
    return row


def _evidence(session: Session, documents: Iterable[EvidenceFound]) -> dict[int, str]:
    """Keep ``documents``; their digests, by identity, for the passes of one cell are often one document."""
    digests: dict[int, str] = {}
    rows: dict[str, dict[str, Any]] = {}
    for document in documents:
        if id(document) not in digests:
            data = document.canonical()
            digest = digests[id(document)] = hashlib.sha256(data).hexdigest()
            rows[digest] = {"digest": digest, "size": len(data), "data": pack(data)}
    # in one order: two that keep the same documents must not wait for each other
    insert_missing(session, Evidence, [rows[digest] for digest in sorted(rows)], ["digest"])
    return digests


def _link(
    session: Session,
    table: type[ResultBlob] | type[AttemptBlob],
    owner: dict[str, int],
    blobs: Sequence[BlobFound],
    first: int = 0,
) -> None:
    """Keep ``blobs`` and say whose they are. What is over a cap is named with its size, without its bytes."""
    if not blobs:
        return
    lock(session, BLOBS, shared=True)  # what is referred to here is not removed meanwhile
    room = BLOBS_BYTES
    bytes_kept, links = {}, []
    for position, blob in enumerate(blobs, first):
        data: bytes | None = blob.data
        meta = dict(blob.meta)
        if len(blob.data) > BLOB_BYTES:
            data = blob.data[-BLOB_BYTES:] if blob.kind in TEXT_KINDS else None
            meta["cut"] = True
        if data is not None and len(data) > room:
            data = None
        digest = None
        if data is not None:
            room -= len(data)
            digest = hashlib.sha256(data).hexdigest()
            bytes_kept[digest] = data
        name = str(meta.pop("name", None) or blob.kind)
        said = {"kind": blob.kind, "name": name, "rank": blob.rank, "size": len(blob.data), "meta": meta}
        links.append({**owner, "position": position, **said, "digest": digest})
    rows = [{"digest": key, "size": len(data), "data": pack(data)} for key, data in sorted(bytes_kept.items())]
    insert_missing(session, Blob, rows, ["digest"])
    session.execute(sa.insert(table), links)
