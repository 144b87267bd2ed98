"""Reading in: records of ``service.store.records`` become rows, where they are not stored already.

An import adds and never changes: whatever is known under its natural key stays as it is. It is all or nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from jobs.contract import CaseInfo, ControlInfo, Limits
from service.evidence import Evidence as EvidenceDocument
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
from service.policy import policy_from_data
from service.schema import Base
from service.store.held import recount
from service.store.judging import policies
from service.store.records import ImportRefusedError, checked
from service.store.retaining import BLOBS
from service.store.sql import insert_missing, lock, unpack
from service.store.submit import changed_fields

_Document = Evidence | ControlSet | Blob
"""Rows that are known by the digest of what they hold."""

MOST_BYTES = Limits().job_bytes
"""Cap on what one stored document or blob may unpack to."""


@dataclass(frozen=True)
class Imported:
    """How many records of each kind were added, and how many were stored already."""

    added: Counter[str] = field(default_factory=Counter)
    known: Counter[str] = field(default_factory=Counter)


class _Field(ValueError):  # noqa: N818 - never leaves this module
    """One field of a record does not fit what is stored."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(why)
        self.name = name


def import_records(session: Session, records: Iterable[Any]) -> Imported:
    """Store ``records``, the first of which is line 1. Raises ImportRefusedError, and then nothing is stored."""
    counts, reader = Imported(), _Reader(session)
    lock(session, BLOBS, shared=True)  # what is referred to here is not removed meanwhile
    with session.begin_nested():
        for line, record in enumerate(records, 1):
            kind, values = checked(line, record)
            try:
                added = reader.take(kind, values)
            except _Field as error:
                raise ImportRefusedError(line, f"{kind}: field {error.name!r}", str(error)) from error
            (counts.added if added else counts.known)[kind] += 1
        reader.close()
    return counts


class _Reader:
    """One import: what natural keys mean here, and what has to be brought up to date at the end."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._ids: dict[tuple[Any, ...], int] = {}
        self._cells: set[int] = set()
        self._jobs: set[int] = set()

    def take(self, kind: str, values: dict[str, Any]) -> bool:
        """Store one record; whether it was new."""
        return _READERS[kind](self, values)

    def close(self) -> None:
        """The newest answer is the current one, and counts are what the results say."""
        for cell in sorted(self._cells):
            # The newest answer, and of that the newest judgement.
            order = (Result.created_at.desc(), Result.judged_at.desc(), Result.id.desc())
            newest = sa.select(Result.id).where(Result.cell_id == cell).order_by(*order)
            self.session.get_one(Cell, cell).result_id = self.session.scalars(newest.limit(1)).first()
        for job in sorted(self._jobs):
            recount(self.session, self.session.get_one(Job, job))
        self.session.flush()

    def find(self, table: Any, name: str, /, **key: Any) -> int:
        """The row with this natural key. Raises when there is none: a record stands after all that it refers to."""
        known = (table, *key.values())
        if known not in self._ids:
            found = self._look(table, key)
            if found is None:
                shown = " ".join(str(value) for value in key.values())
                raise _Field(name, f"refers to {table.__tablename__} {shown}, which is neither stored nor above")
            self._ids[known] = found
        return self._ids[known]

    def add(self, table: Any, key: dict[str, Any], values: dict[str, Any]) -> int | None:
        """Insert the row unless its natural key is known; the new row's id."""
        if self._look(table, key) is not None:
            return None
        row = table(**key, **values)
        self.session.add(row)
        self.session.flush()
        return int(row.id)

    def _look(self, table: Any, key: dict[str, Any]) -> int | None:
        return self.session.scalars(sa.select(table.id).filter_by(**key)).first()

    def cell(self, key: tuple[Any, ...], name: str) -> int:
        """The cell with this natural key."""
        return self.find(Cell, name, **self.cell_columns(key, name))

    def cell_columns(self, key: tuple[Any, ...], name: str) -> dict[str, Any]:
        """The natural key as columns."""
        checkout, runtime, transport, world_size, case, version, mode = key
        return {
            "checkout_id": self.find(Checkout, name, digest=checkout),
            "runtime_id": self.find(Runtime, name, digest=runtime),
            "transport": transport,
            "world_size": world_size,
            "case_version_id": self.find(CaseVersion, name, case_id=case, version=version),
            "mode": mode,
        }

    def attempt(self, key: tuple[str, int]) -> int:
        """The attempt with this natural key."""
        return self.find(Attempt, "attempt", job_id=self.find(Job, "attempt", key=key[0]), fence=key[1])

    def stored(self, table: type[_Document], digest: str | None, name: str) -> str | None:
        """``digest``, which must be stored."""
        if digest is not None and self.session.get(table, digest) is None:
            raise _Field(name, f"refers to {table.__tablename__} {digest}, which is neither stored nor above")
        return digest

    def document(self, table: type[_Document], values: dict[str, Any]) -> bool:
        """Bytes under their digest, which must be theirs."""
        if self.session.get(table, values["digest"]) is not None:
            return False
        if values["size"] > MOST_BYTES:
            raise _Field("size", f"is above {MOST_BYTES}")
        try:
            data = unpack(values["data"], values["size"])
        except ValueError as error:
            raise _Field("data", str(error)) from error
        if hashlib.sha256(data).hexdigest() != values["digest"]:
            raise _Field("digest", "is not that of the data")
        if (readable := _READABLE.get(table)) is not None:
            _readable(data, *readable)
        self.session.add(table(**values))
        self.session.flush()
        return True

    def links(self, table: type[ResultBlob] | type[AttemptBlob], owner: dict[str, int], blobs: list[Any]) -> None:
        """The blobs of one result or attempt."""
        for position, (kind, name, rank, size, meta, digest) in enumerate(blobs):
            row = table(**owner, position=position, kind=kind, name=name, rank=rank, size=size, meta=meta)
            row.digest = self.stored(Blob, digest, "blobs")
            self.session.add(row)

    def answered(self, cell: int, attempt: int) -> None:
        """Remember that a cell and a job have one more answer."""
        self._cells.add(cell)
        self._jobs.add(self.session.get_one(Attempt, attempt).job_id)

    def touch(self, job: int) -> None:
        """Remember that a job is new: its counts come from the results that follow."""
        self._jobs.add(job)


def _controls(document: Any) -> None:
    for one in document:
        ControlInfo.from_json(one["control"])
        CaseInfo.from_json(one["case"])


_READABLE: dict[type[_Document], tuple[Callable[[Any], Any], str]] = {
    Evidence: (EvidenceDocument.from_json, "evidence"),
    ControlSet: (_controls, "a set of controls"),
}
"""What has to be understood, for it is to be judged again."""


def _readable(data: bytes, parse: Callable[[Any], Any], what: str) -> None:
    try:
        parse(json.loads(data))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _Field("data", f"is not {what}: {type(error).__name__} {error}") from error


def _by_digest(table: type[Base]) -> Callable[[_Reader, dict[str, Any]], bool]:
    return lambda reader, values: reader.add(table, {"digest": values.pop("digest")}, values) is not None


def _case(reader: _Reader, values: dict[str, Any]) -> bool:
    key = {"case_id": values.pop("case"), "version": values.pop("version")}
    if [values["info"][name] for name in ("id", "version", "family")] != [*key.values(), values["family"]]:
        raise _Field("info", "describes another case than the record names")
    if reader.add(CaseVersion, key, values) is not None:
        return True
    stored = reader.session.scalars(sa.select(CaseVersion.info).filter_by(**key)).one()
    if changed := changed_fields(stored, values["info"]):
        raise _Field("info", f"asks another question than the stored case of that version: {', '.join(changed)} differ")
    return False


def _job(reader: _Reader, values: dict[str, Any]) -> bool:
    place = {
        "checkout_id": reader.find(Checkout, "checkout", digest=values.pop("checkout")),
        "runtime_id": reader.find(Runtime, "runtime", digest=values.pop("runtime")),
    }
    job = reader.add(Job, {"key": values.pop("key")}, {**values, **place, "cells_done": 0, "counts": {}})
    if job is not None:
        reader.touch(job)
    return job is not None


def _cell(reader: _Reader, values: dict[str, Any]) -> bool:
    job = None if values["job"] is None else reader.find(Job, "job", key=values["job"])
    columns = reader.cell_columns(values["cell"], "cell")
    if reader.add(Cell, columns, {"job_id": job}) is not None:
        return True
    stored = reader.session.get_one(Cell, reader.cell(values["cell"], "cell"))
    stored.job_id = job if stored.job_id is None else stored.job_id
    return False


def _submission(reader: _Reader, values: dict[str, Any]) -> bool:
    names = dict(reversed(values.pop("checkouts")))
    jobs, cells = values.pop("jobs"), values.pop("cells")
    submission = reader.add(Submission, {"key": values.pop("key")}, {**values, "note": "", "pinned": False})
    if submission is None:
        return False
    for position, (digest, label) in enumerate(reversed(names.items())):
        checkout = reader.find(Checkout, "checkouts", digest=digest)
        row = SubmissionCheckout(submission_id=submission, checkout_id=checkout, position=position, label=label)
        reader.session.add(row)
    links = [{"submission_id": submission, "job_id": reader.find(Job, "jobs", key=key)} for key in jobs]
    insert_missing(reader.session, SubmissionJob, links, ["submission_id", "job_id"])
    rows = [{"submission_id": submission, "cell_id": reader.cell(key, "cells")} for key in cells]
    insert_missing(reader.session, SubmissionCell, rows, ["submission_id", "cell_id"])
    return True


def _attempt(reader: _Reader, values: dict[str, Any]) -> bool:
    job, fence = values.pop("attempt")
    blobs, host = values.pop("blobs"), values.pop("host")
    seen = {"name": host, "devices": 0, "transports": [], "seen_at": values["started_at"]}
    insert_missing(reader.session, Host, [seen], ["name"])
    values |= {"host_id": reader.find(Host, "host", name=host), "machine": "", "pid": 0, "pid_started": ""}
    reader.stored(ControlSet, values["control_set_digest"], "control_set_digest")
    key = {"job_id": reader.find(Job, "attempt", key=job), "fence": fence}
    attempt = reader.add(Attempt, key, values)
    if attempt is not None:
        reader.links(AttemptBlob, {"attempt_id": attempt}, blobs)
    return attempt is not None


def _result(reader: _Reader, values: dict[str, Any]) -> bool:
    blobs = values.pop("blobs")
    cell, attempt = reader.cell(values.pop("cell"), "cell"), reader.attempt(values.pop("attempt"))
    for name in ("evidence_digest", "first_digest", "alone_digest"):
        reader.stored(Evidence, values[name], name)
    key = {"cell_id": cell, "attempt_id": attempt, "judged_at": values.pop("judged_at") or values["created_at"]}
    result = reader.add(Result, key, values)
    if result is not None:
        reader.links(ResultBlob, {"result_id": result}, blobs)
        reader.answered(cell, attempt)
    return result is not None


def _policy(reader: _Reader, values: dict[str, Any]) -> bool:
    version = values["version"]
    if values["content"]["version"] != version:
        raise _Field("content", f"is of version {values['content']['version']!r}")
    known = policies(reader.session)
    if version in known and known[version] != policy_from_data(values["content"]):
        raise _Field("content", f"is another policy than the one that is known here as version {version!r}")
    if reader.session.get(Policy, version) is not None:
        return False
    reader.session.add(Policy(**values))
    reader.session.flush()
    return True


def _control(reader: _Reader, values: dict[str, Any]) -> bool:
    reader.stored(Evidence, values["evidence_digest"], "evidence_digest")
    key = {name: values.pop(name) for name in ("control", "mode", "world_size", "stage")}
    return reader.add(ControlResult, {"attempt_id": reader.attempt(values.pop("attempt")), **key}, values) is not None


_READERS: dict[str, Callable[[_Reader, dict[str, Any]], bool]] = {
    "checkout": _by_digest(Checkout),
    "runtime": _by_digest(Runtime),
    "case": _case,
    "job": _job,
    "cell": _cell,
    "submission": _submission,
    "policy": _policy,
    "control_set": lambda reader, values: reader.document(ControlSet, values),
    "evidence": lambda reader, values: reader.document(Evidence, values),
    "blob": lambda reader, values: reader.document(Blob, values),
    "attempt": _attempt,
    "result": _result,
    "control": _control,
}
