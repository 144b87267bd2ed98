"""From a plan to cells and jobs, less what is known or already on its way.

On the straight line this stands between ``service.matrix`` (which planned) and ``service.broker`` (which says after
the commit that there is work).
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from jobs.contract import CaseInfo, Deadlines
from service.claims import wall_s as longest
from service.matrix import Plan, PlannedCell, PlannedJob
from service.models import (
    LIVE,
    CaseVersion,
    Cell,
    Checkout,
    Job,
    Result,
    Runtime,
    Submission,
    SubmissionCell,
    SubmissionCheckout,
    SubmissionJob,
)
from service.store.read import submission as read_submission
from service.store.settle import settle
from service.store.sql import StoreError, chunks, insert_missing, lock, utcnow
from service.store.views import SubmissionView

if TYPE_CHECKING:
    from service.catalog import RuntimeSpec
    from service.subjects import Checkout as CheckoutFound

ASK_AGAIN = frozenset({"infra", "invalid"})
"""Verdicts that say nothing about the subject: the next submission runs these cells again."""
IDENTITY = ("family", "probe", "params", "dtype", "sp", "expect", "exact", "scale")
"""What of a case may not change under one version."""


class CaseChangedError(StoreError):
    """A case was changed without its version, so that old answers would be taken for answers to the new question."""


def submit(
    session: Session,
    *,
    checkouts: Sequence[CheckoutFound],
    runtimes: Sequence[RuntimeSpec],
    plan: Plan,
    requester: str,
    reason: str,
    priority: int,
    request: dict[str, Any],
    rerun: bool = False,
    deadlines: Deadlines = Deadlines(),  # noqa: B008 - frozen
    now: datetime | None = None,
) -> SubmissionView:
    """Store a submission and plan it: :func:`add_plan` says what becomes of its cells."""
    now = now or utcnow()
    lock(session, "plan")
    row = new_submission(
        session, "queued", requester=requester, reason=reason, priority=priority, request=request, now=now
    )
    return add_plan(
        session, row, checkouts=checkouts, runtimes=runtimes, plan=plan, rerun=rerun, deadlines=deadlines, now=now
    )


def new_submission(
    session: Session,
    state: str,
    *,
    requester: str,
    reason: str,
    priority: int,
    request: dict[str, Any],
    now: datetime,
    note: str = "",
) -> Submission:
    """The row of a submission, without any cell yet."""
    row = Submission(key=uuid.uuid4().hex, state=state, requester=requester, reason=reason, priority=priority)
    row.request, row.note, row.pinned, row.created_at = request, note, False, now
    session.add(row)
    session.flush()
    return row


def add_plan(
    session: Session,
    row: Submission,
    *,
    checkouts: Sequence[CheckoutFound],
    runtimes: Sequence[RuntimeSpec],
    plan: Plan,
    rerun: bool,
    deadlines: Deadlines,
    now: datetime,
) -> SubmissionView:
    """Link every cell of ``plan`` to the submission, share what live jobs will answer, and queue the rest.

    A cell whose newest answer is ``infra`` or ``invalid`` counts as missing, since that says nothing about the
    subject. A cell with any other answer is linked and not run, unless ``rerun``. A cell of a live job is never run
    twice, not even by ``rerun``: its answer is as new as this submission.
    """
    lock(session, "plan")
    checkout_ids = name_checkouts(session, checkouts)
    runtime_ids = _runtimes(session, runtimes)
    case_ids = _cases(session, plan.cases)
    row.state = "queued"
    _name(session, row.id, checkouts, checkout_ids)
    cells: list[int] = []
    waits: set[int] = set()
    for planned in plan.jobs:
        place = {
            "checkout_id": checkout_ids[planned.checkout],
            "runtime_id": runtime_ids[planned.runtime],
            "transport": planned.transport,
            "world_size": planned.world_size,
        }
        linked, shared, missing = _sort_out(session, place, planned, case_ids, rerun)
        cells += linked
        waits |= shared
        if missing:
            waits.add(queue_job(session, place, missing, row.priority, longest(deadlines), now))
    for some in chunks(dict.fromkeys(cells)):
        session.execute(sa.insert(SubmissionCell), [{"submission_id": row.id, "cell_id": cell} for cell in some])
    for some_jobs in chunks(sorted(waits)):
        session.execute(sa.insert(SubmissionJob), [{"submission_id": row.id, "job_id": job} for job in some_jobs])
        session.execute(
            sa.update(Job)
            .where(Job.id.in_(some_jobs), Job.priority < row.priority)
            .values(priority=row.priority)
            .execution_options(synchronize_session=False)
        )
    session.flush()
    settle(session, [row.id], now)
    return read_submission(session, row.id)


def _sort_out(
    session: Session, place: dict[str, Any], planned: PlannedJob, case_ids: dict[tuple[str, int], int], rerun: bool
) -> tuple[list[int], set[int], dict[int, PlannedCell]]:
    """The cells of a planned job: all of them, the live jobs that answer some, and those that nobody answers."""
    wanted = [(case_ids[cell.case_id, cell.version], cell.mode) for cell in planned.cells]
    keys = [{**place, "case_version_id": case, "mode": mode} for case, mode in wanted]
    insert_missing(session, Cell, keys, list(keys[0]))
    here = [getattr(Cell, column) == value for column, value in place.items()]
    jobs = sa.select(Cell.job_id).where(*here, Cell.job_id.is_not(None))
    # locked, so that a job that ends meanwhile waits for this submission and then tells it
    live = set(
        session.scalars(
            sa.select(Job.id).where(Job.id.in_(jobs), Job.state.in_(LIVE)).order_by(Job.id).with_for_update()
        )
    )
    found = session.execute(
        sa.select(Cell.id, Cell.case_version_id, Cell.mode, Cell.job_id, Result.verdict)
        .outerjoin(Result, Result.id == Cell.result_id)
        .where(*here)
    )
    known = {(case, mode): (cell, job, verdict) for cell, case, mode, job, verdict in found}
    linked, shared, missing = [], set(), {}
    for key, asked in zip(wanted, planned.cells, strict=True):
        cell, job, verdict = known[key]
        linked.append(cell)
        if job in live:
            shared.add(job)
        elif rerun or verdict is None or verdict in ASK_AGAIN:
            missing[cell] = asked
    return linked, shared, missing


def queue_job(
    session: Session,
    place: dict[str, Any],
    missing: dict[int, PlannedCell],
    priority: int,
    wall_s: float,
    now: datetime,
) -> int:
    """A job of ``missing``, in the queue; its number."""
    row = Job(
        **place,
        key=uuid.uuid4().hex,
        cells_digest=_digest(missing.values()),
        state="queued",
        priority=priority,
        wall_s=wall_s,
        fence=0,
        failures=0,
        note="",
        cells_total=len(missing),
        cells_done=0,
        counts={},
        created_at=now,
        queued_at=now,
    )
    session.add(row)
    session.flush()
    for some in chunks(missing):
        session.execute(
            sa.update(Cell).where(Cell.id.in_(some)).values(job_id=row.id).execution_options(synchronize_session=False)
        )
    return row.id


def _digest(cells: Iterable[PlannedCell]) -> str:
    """The identity of a set of cells, the same in every database."""
    names = sorted([cell.case_id, cell.version, cell.mode] for cell in cells)
    return hashlib.sha256(json.dumps(names).encode()).hexdigest()


def _name(session: Session, submission: int, checkouts: Sequence[CheckoutFound], ids: dict[str, int]) -> None:
    """Keep what each checkout was asked for as; of two names for the same content the first."""
    first = {found.digest: found.label for found in reversed(checkouts)}
    rows = [
        {"submission_id": submission, "checkout_id": ids[digest], "position": position, "label": first[digest]}
        for position, digest in enumerate(dict.fromkeys(found.digest for found in checkouts))
    ]
    session.execute(sa.insert(SubmissionCheckout), rows)


def name_checkouts(session: Session, checkouts: Sequence[CheckoutFound]) -> dict[str, int]:
    """The numbers of checkouts, by digest; those that were not known are stored."""
    columns = ("digest", "subject", "kind", "label", "ref", "size")
    rows = [{**{name: getattr(c, name) for name in columns}, "meta": dict(c.meta)} for c in checkouts]
    insert_missing(session, Checkout, rows, ["digest"])
    found = session.execute(
        sa.select(Checkout.digest, Checkout.id).where(Checkout.digest.in_([c.digest for c in checkouts]))
    )
    return {row.digest: row.id for row in found}


def _runtimes(session: Session, runtimes: Sequence[RuntimeSpec]) -> dict[str, int]:
    columns = ("digest", "name", "torch", "variant", "channel", "python")
    insert_missing(session, Runtime, [{name: getattr(r, name) for name in columns} for r in runtimes], ["digest"])
    found = session.execute(
        sa.select(Runtime.digest, Runtime.id).where(Runtime.digest.in_([r.digest for r in runtimes]))
    )
    return {row.digest: row.id for row in found}


def _cases(session: Session, cases: Sequence[CaseInfo]) -> dict[tuple[str, int], int]:
    """The ids of the cases. Raises CaseChangedError where a stored one asks another question."""
    rows = [{"case_id": c.id, "version": c.version, "family": c.family, "info": c.to_json()} for c in cases]
    insert_missing(session, CaseVersion, rows, ["case_id", "version"])
    ids: dict[tuple[str, int], int] = {}
    for some in chunks(cases):
        given = {(case.id, case.version): case for case in some}
        found = session.execute(
            sa.select(CaseVersion.id, CaseVersion.case_id, CaseVersion.version, CaseVersion.info).where(
                CaseVersion.case_id.in_([case.id for case in some])
            )
        )
        for key, case_id, version, info in found:
            if case := given.get((case_id, version)):
                if changed := changed_fields(info, case.to_json()):
                    raise CaseChangedError(
                        f"the case {case_id} changed ({', '.join(changed)}) but is still version {version}: raise it"
                    )
                ids[case_id, version] = key
    return ids


def changed_fields(stored: dict[str, Any], given: dict[str, Any]) -> list[str]:
    """Where two definitions of a case ask different questions."""
    return [name for name in IDENTITY if stored.get(name) != given.get(name)]
