"""The few statements that SQLite and PostgreSQL need said differently, and the guards that every write shares."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar, cast

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from service.errors import GradmatrixError
from service.models import HELD, Job
from service.schema import Base

CHUNK = 500
"""Values per statement: below every database's limit on parameters."""

T = TypeVar("T")


class StoreError(GradmatrixError):
    """The store refused."""


class NotFound(StoreError):  # noqa: N818 - as HTTP has it
    """There is nothing of that name or number."""


class StaleFence(StoreError):  # noqa: N818 - the design's word
    """The job was claimed anew, cancelled or finished: whoever still holds this fence may write nothing."""


def utcnow() -> datetime:
    """The time, aware."""
    return datetime.now(UTC)


def chunks(values: Iterable[T]) -> Iterator[list[T]]:
    """``values`` in lists short enough for one statement."""
    whole = list(values)
    for start in range(0, len(whole), CHUNK):
        yield whole[start : start + CHUNK]


def touched(session: Session, statement: sa.Update | sa.Delete) -> int:
    """Execute and say how many rows it touched."""
    statement = statement.execution_options(synchronize_session=False)
    return cast("sa.CursorResult[Any]", session.execute(statement)).rowcount


def insert_missing(session: Session, table: type[Base], rows: Sequence[dict[str, Any]], unique: Sequence[str]) -> None:
    """Insert ``rows``, leaving alone what is there already under the same ``unique`` columns."""
    dialect = session.get_bind().dialect.name
    make = postgresql.insert if dialect == "postgresql" else sqlite.insert
    for some in chunks(rows):
        session.execute(make(table).on_conflict_do_nothing(index_elements=list(unique)), some)


def lock(session: Session, what: str, *, shared: bool = False) -> None:
    """Until the end of the transaction, one process at a time, or those that share. SQLite's writers already are."""
    if session.get_bind().dialect.name == "postgresql":
        take = sa.func.pg_advisory_xact_lock_shared if shared else sa.func.pg_advisory_xact_lock
        session.execute(sa.select(take(zlib.crc32(what.encode()))))


def try_lock(session: Session, what: str) -> bool:
    """As :func:`lock`, without waiting: whether nobody else holds or shares it."""
    if session.get_bind().dialect.name != "postgresql":
        return True
    return bool(session.scalar(sa.select(sa.func.pg_try_advisory_xact_lock(zlib.crc32(what.encode())))))


def held_job(session: Session, job: int, fence: int) -> Job:
    """The job's row, locked. Raises StaleFence unless ``fence`` is its newest and a worker still holds it."""
    row = session.scalars(
        sa.select(Job).where(Job.id == job).with_for_update().execution_options(populate_existing=True)
    ).first()
    if row is None:
        raise StoreError(f"there is no job {job}")
    if row.fence != fence:
        raise StaleFence(f"job {job} was claimed anew: its fence is {row.fence}, not {fence}")
    if row.state not in HELD:
        raise StaleFence(f"job {job} is {row.state}: nothing more is accepted for it")
    return row


def pack(data: bytes) -> bytes:
    """Bytes as they are stored."""
    return zlib.compress(data, 6)


def unpack(data: bytes, size: int) -> bytes:
    """The inverse of :func:`pack`, making at most ``size`` bytes. Raises ValueError unless there are just so many."""
    machine = zlib.decompressobj()
    try:
        plain = machine.decompress(data, size + 1)
    except zlib.error as error:
        raise ValueError(f"not zlib data: {error}") from error
    if len(plain) != size or not machine.eof or machine.unused_data:
        raise ValueError(f"does not hold exactly the {size} bytes that it should")
    return plain
