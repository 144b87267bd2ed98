"""Answers come in: each completed cell once, in a transaction of its own, guarded by fence and state.

On the straight line this stands between ``workers.collect`` and ``service.judge`` (which made evidence and judgement)
and everything that reads.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

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
from service.store.sql import AlreadyAccepted, StaleFence, StoreError, held_job, insert_missing, lock, pack, utcnow
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


def accept(
    session: Session,
    *,
    job: int,
    fence: int,
    attempt: int,
    cell: int,
    judgement: Judgement,
    evidence: EvidenceFound,
    first: EvidenceFound | None = None,
    alone: EvidenceFound | None = None,
    blobs: Sequence[BlobFound] = (),
    seconds: float = 0.0,
    now: datetime | None = None,
) -> int:
    """Store the answer to one cell and count it; the result's id.

    ``evidence`` is what the judgement rests on; ``first`` is that of the pass among other cases and ``alone`` that of
    the one in fresh ranks, if there was one: both are needed to judge again.

    An answer that says that the machine failed is kept, and the cell stays open until it has been tried often enough.

    Raises StaleFence where the job is no longer held under ``fence``, AlreadyAccepted where this job has answered
    the cell before, and StoreError where the cell is not one of the job's.
    """
    now = now or utcnow()
    row = _held(session, job, fence, attempt)
    here = sa.exists().where(Result.cell_id == cell, Result.attempt_id == attempt)
    before = sa.or_(here, answered(job).where(Result.cell_id == cell).exists())
    found = session.execute(sa.select(Cell, before).where(Cell.id == cell, Cell.job_id == job)).first()
    if found is None:
        raise StoreError(f"cell {cell} is not one of job {job}")
    asked, has_answer = found
    if has_answer:
        raise AlreadyAccepted(f"cell {cell} has an answer from job {job} already")
    kept = {id(each): each for each in (evidence, first, alone) if each is not None}  # one of the two is the first
    digests = dict(zip(kept, _evidence(session, kept.values()), strict=True))
    result = Result(
        cell_id=cell,
        attempt_id=attempt,
        **judged(judgement),
        evidence_digest=digests[id(evidence)],
        first_digest=None if first is None else digests[id(first)],
        alone_digest=None if alone is None else digests[id(alone)],
        seconds=seconds,
        created_at=now,
        judged_at=now,
    )
    session.add(result)
    session.flush()
    _link(session, ResultBlob, {"result_id": result.id}, blobs)
    asked.result_id = result.id
    row.state = "running"
    if judgement.verdict is not Verdict.INFRA or _answered(session, job, cell):
        row.counts = {**row.counts, result.verdict: row.counts.get(result.verdict, 0) + 1}
        row.cells_done += 1
        row.failures = 0
    session.flush()
    return result.id


def _answered(session: Session, job: int, cell: int) -> bool:
    return session.scalars(answered(job).where(Result.cell_id == cell)).first() is not None


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


def record_control(
    session: Session,
    *,
    job: int,
    fence: int,
    attempt: int,
    control: str,
    mode: str,
    world_size: int,
    stage: str,
    judgement: Judgement,
    as_expected: bool,
    evidence: EvidenceFound | None = None,
) -> int:
    """Store what a control answered; ``stage`` is before or after the subject was imported."""
    _held(session, job, fence, attempt)
    row = ControlResult(
        attempt_id=attempt,
        control=control,
        mode=mode,
        world_size=world_size,
        stage=stage,
        verdict=str(judgement.verdict),
        as_expected=as_expected,
        detail=judgement.detail or "",
        policy_version=judgement.policy_version,
        evidence_digest=None if evidence is None else _evidence(session, [evidence])[0],
    )
    session.add(row)
    session.flush()
    return row.id


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


def _evidence(session: Session, documents: Iterable[EvidenceFound]) -> list[str]:
    """Keep ``documents``; their digests."""
    rows: list[dict[str, Any]] = []
    for document in documents:
        data = document.canonical()
        rows.append({"digest": hashlib.sha256(data).hexdigest(), "size": len(data), "data": pack(data)})
    # in one order: two that keep the same documents must not wait for each other
    insert_missing(session, Evidence, sorted(rows, key=lambda row: row["digest"]), ["digest"])
    return [row["digest"] for row in rows]


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
