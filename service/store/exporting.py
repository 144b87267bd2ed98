"""Writing out: submissions with everything that their cells rest on, as records of ``service.store.records``.

A job that is still live is written as cancelled, and so is what waits for it: nobody would finish it where the export
arrives. Answers that it has given are in the export like all others.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
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
    ControlSet,
    Evidence,
    Host,
    Job,
    Policy,
    Result,
    ResultBlob,
    Runtime,
    Submission,
    SubmissionCell,
    SubmissionCheckout,
    SubmissionJob,
)
from service.store.records import VERSION
from service.store.sql import StoreError

STREAM = 50
"""Rows in memory at a time."""


class _Scope:
    """What belongs to the export, as subqueries."""

    def __init__(self, session: Session, submissions: Sequence[int] | None) -> None:
        self.session = session
        chosen = sa.select(Submission.id)
        if submissions is not None:
            known = set(session.scalars(sa.select(Submission.id).where(Submission.id.in_(submissions))))
            if unknown := sorted(set(submissions) - known):
                raise StoreError(f"there is no submission {', '.join(map(str, unknown))}")
            chosen = chosen.where(Submission.id.in_(submissions))
        self.submissions = chosen
        self.cells = sa.select(SubmissionCell.cell_id).where(SubmissionCell.submission_id.in_(chosen))
        self.results = sa.select(Result.id).where(Result.cell_id.in_(self.cells))
        self.jobs = sa.union(
            sa.select(SubmissionJob.job_id).where(SubmissionJob.submission_id.in_(chosen)),
            sa.select(Cell.job_id).where(Cell.id.in_(self.cells), Cell.job_id.is_not(None)),
            sa.select(Attempt.job_id).join(Result, Result.attempt_id == Attempt.id).where(Result.id.in_(self.results)),
        ).subquery()
        self.attempts = sa.select(Attempt.id).where(Attempt.job_id.in_(sa.select(self.jobs)))

    def rows(self, query: sa.Select[*tuple[Any, ...]]) -> Iterator[Any]:
        yield from self.session.execute(query.execution_options(yield_per=STREAM))


def export_all(session: Session, submissions: Sequence[int] | None = None) -> Iterator[dict[str, Any]]:
    """The records of ``submissions`` (all of them by default), each a dict to be written as one line of JSON."""
    scope = _Scope(session, submissions)
    for kind, write in _WRITERS.items():
        for record in write(scope):
            yield {"v": VERSION, "record": kind, **{name: _plain(value) for name, value in record.items()}}


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, float) and math.isinf(value):
        return str(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    return value


def _columns(row: Any, names: str) -> dict[str, Any]:
    return {name: getattr(row, name) for name in names.split()}


def _ended(state: str) -> str:
    return state if state in ("done", "released", "lost") else "cancelled"


def _checkouts(scope: _Scope) -> Iterator[dict[str, Any]]:
    ids = sa.union(
        sa.select(Cell.checkout_id).where(Cell.id.in_(scope.cells)),
        sa.select(SubmissionCheckout.checkout_id).where(SubmissionCheckout.submission_id.in_(scope.submissions)),
    ).subquery()
    for (row,) in scope.rows(sa.select(Checkout).where(Checkout.id.in_(sa.select(ids))).order_by(Checkout.digest)):
        yield _columns(row, "digest subject kind label ref size meta")


def _runtimes(scope: _Scope) -> Iterator[dict[str, Any]]:
    ids = sa.select(Cell.runtime_id).where(Cell.id.in_(scope.cells))
    for (row,) in scope.rows(sa.select(Runtime).where(Runtime.id.in_(ids)).order_by(Runtime.digest)):
        yield _columns(row, "digest name torch variant channel python")


def _cases(scope: _Scope) -> Iterator[dict[str, Any]]:
    ids = sa.select(Cell.case_version_id).where(Cell.id.in_(scope.cells))
    order = (CaseVersion.case_id, CaseVersion.version)
    for (row,) in scope.rows(sa.select(CaseVersion).where(CaseVersion.id.in_(ids)).order_by(*order)):
        yield {"case": row.case_id, **_columns(row, "version family info")}


def _jobs(scope: _Scope) -> Iterator[dict[str, Any]]:
    names = "key transport world_size cells_digest priority wall_s fence failures cells_total note"
    query = (
        sa.select(Job, Checkout.digest.label("checkout"), Runtime.digest.label("runtime"))
        .join(Checkout, Checkout.id == Job.checkout_id)
        .join(Runtime, Runtime.id == Job.runtime_id)
        .where(Job.id.in_(sa.select(scope.jobs)))
        .order_by(Job.key)
    )
    for found in scope.rows(query):
        row = found.Job
        yield {
            **_columns(row, names + " created_at queued_at finished_at"),
            "checkout": found.checkout,
            "runtime": found.runtime,
            "state": _ended(row.state),
        }


_CELL = (Checkout.digest, Runtime.digest, Cell.transport, Cell.world_size, CaseVersion.case_id, CaseVersion.version)


def _cell_keys(*more: Any) -> sa.Select[*tuple[Any, ...]]:
    """Cells by their natural keys (the first seven columns), then ``more``, in the order of the keys."""
    return (
        sa.select(*_CELL, Cell.mode, *more)
        .select_from(Cell)
        .join(Checkout, Checkout.id == Cell.checkout_id)
        .join(Runtime, Runtime.id == Cell.runtime_id)
        .join(CaseVersion, CaseVersion.id == Cell.case_version_id)
        .order_by(*_CELL, Cell.mode)
    )


def _cells(scope: _Scope) -> Iterator[dict[str, Any]]:
    query = _cell_keys(Job.key).outerjoin(Job, Job.id == Cell.job_id).where(Cell.id.in_(scope.cells))
    for *key, job in scope.rows(query):
        yield {"cell": key, "job": job}


def _submissions(scope: _Scope) -> Iterator[dict[str, Any]]:
    query = sa.select(Submission).where(Submission.id.in_(scope.submissions)).order_by(Submission.key)
    for (row,) in scope.rows(query):
        named = scope.rows(
            sa.select(Checkout.digest, SubmissionCheckout.label)
            .join(SubmissionCheckout, SubmissionCheckout.checkout_id == Checkout.id)
            .where(SubmissionCheckout.submission_id == row.id)
            .order_by(SubmissionCheckout.position)
        )
        jobs = sa.select(Job.key).join(SubmissionJob).where(SubmissionJob.submission_id == row.id).order_by(Job.key)
        cells = _cell_keys().join(SubmissionCell, SubmissionCell.cell_id == Cell.id)
        yield {
            **_columns(row, "key requester reason priority request created_at finished_at"),
            "state": _ended(row.state),
            "checkouts": [list(pair) for pair in named],
            "jobs": [key for (key,) in scope.rows(jobs)],
            "cells": [list(key) for key in scope.rows(cells.where(SubmissionCell.submission_id == row.id))],
        }


def _policies(scope: _Scope) -> Iterator[dict[str, Any]]:
    used = sa.select(Result.policy_version).where(Result.id.in_(scope.results))
    for (row,) in scope.rows(sa.select(Policy).where(Policy.version.in_(used)).order_by(Policy.version)):
        yield _columns(row, "version content created_at")


def _control_sets(scope: _Scope) -> Iterator[dict[str, Any]]:
    digests = sa.select(Attempt.control_set_digest).where(Attempt.id.in_(scope.attempts))
    for (row,) in scope.rows(sa.select(ControlSet).where(ControlSet.digest.in_(digests)).order_by(ControlSet.digest)):
        yield _columns(row, "digest size data")


def _evidence(scope: _Scope) -> Iterator[dict[str, Any]]:
    passes = (Result.evidence_digest, Result.first_digest, Result.alone_digest)
    digests = sa.union(
        *(sa.select(digest).where(Result.id.in_(scope.results)) for digest in passes),
        sa.select(ControlResult.evidence_digest).where(ControlResult.attempt_id.in_(scope.attempts)),
    ).subquery()
    query = sa.select(Evidence).where(Evidence.digest.in_(sa.select(digests))).order_by(Evidence.digest)
    for (row,) in scope.rows(query):
        yield _columns(row, "digest size data")


def _blobs(scope: _Scope) -> Iterator[dict[str, Any]]:
    digests = sa.union(
        sa.select(ResultBlob.digest).where(ResultBlob.result_id.in_(scope.results)),
        sa.select(AttemptBlob.digest).where(AttemptBlob.attempt_id.in_(scope.attempts)),
    ).subquery()
    for (row,) in scope.rows(sa.select(Blob).where(Blob.digest.in_(sa.select(digests))).order_by(Blob.digest)):
        yield _columns(row, "digest size data")


def _links(scope: _Scope, table: type[ResultBlob] | type[AttemptBlob], owner: Any, key: int) -> list[list[Any]]:
    found: Iterable[Any] = scope.session.scalars(sa.select(table).where(owner == key).order_by(table.position))
    return [[link.kind, link.name, link.rank, link.size, link.meta, link.digest] for link in found]


def _attempts(scope: _Scope) -> Iterator[dict[str, Any]]:
    query = (
        sa.select(Attempt, Job.key.label("job"), Host.name.label("host"))
        .join(Job, Job.id == Attempt.job_id)
        .join(Host, Host.id == Attempt.host_id)
        .where(Attempt.id.in_(scope.attempts))
        .order_by(Job.key, Attempt.fence)
    )
    for found in scope.rows(query):
        row = found.Attempt
        yield {
            "attempt": [found.job, row.fence],
            "host": found.host,
            "state": _ended(row.state),
            **_columns(row, "container note facts started_at ended_at control_set_digest"),
            "blobs": _links(scope, AttemptBlob, AttemptBlob.attempt_id, row.id),
        }


def _results(scope: _Scope) -> Iterator[dict[str, Any]]:
    names = "verdict policy_version forward_ok signature detail worst_tensor error alpha nonzero_got nonzero_expected"
    query = (
        _cell_keys(Job.key, Attempt.fence, Result)
        .join(Result, Result.cell_id == Cell.id)
        .join(Attempt, Attempt.id == Result.attempt_id)
        .join(Job, Job.id == Attempt.job_id)
        .where(Result.id.in_(scope.results))
        .order_by(Job.key, Attempt.fence, Result.judged_at)
    )
    for *cell, job, fence, row in scope.rows(query):
        yield {
            "cell": cell,
            "attempt": [job, fence],
            **_columns(row, names + " evidence_digest first_digest alone_digest seconds created_at judged_at"),
            "blobs": _links(scope, ResultBlob, ResultBlob.result_id, row.id),
        }


def _controls(scope: _Scope) -> Iterator[dict[str, Any]]:
    names = ("control", "mode", "world_size", "stage")
    query = (
        sa.select(ControlResult, Job.key, Attempt.fence)
        .join(Attempt, Attempt.id == ControlResult.attempt_id)
        .join(Job, Job.id == Attempt.job_id)
        .where(ControlResult.attempt_id.in_(scope.attempts))
        .order_by(Job.key, Attempt.fence, *(getattr(ControlResult, name) for name in names))
    )
    for row, job, fence in scope.rows(query):
        rest = "verdict as_expected detail policy_version evidence_digest"
        yield {"attempt": [job, fence], **_columns(row, " ".join(names) + " " + rest)}


_WRITERS = {
    "checkout": _checkouts,
    "runtime": _runtimes,
    "case": _cases,
    "job": _jobs,
    "cell": _cells,
    "submission": _submissions,
    "policy": _policies,
    "control_set": _control_sets,
    "evidence": _evidence,
    "blob": _blobs,
    "attempt": _attempts,
    "result": _results,
    "control": _controls,
}
