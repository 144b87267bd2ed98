"""The numbers that operators watch, asked for when they are scraped: whichever process did the work, the store knows.

On the straight line this stands behind ``service.api.health``.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.orm import Session

from service.models import Act, Attempt, CaseVersion, Cell, Device, GpuLease, Host, Job, Result, Submission
from service.store.sql import insert_missing, touched


@dataclass(frozen=True)
class Numbers:
    """Everything at one moment.

    queued       per world size, how many jobs wait, and since when the oldest of them does
    jobs         per state, how many there are
    submissions  the same of submissions
    hosts        per host, the devices that it leases out, how many of them are leased, and when it was seen last
    sick         per host, its devices that get no job
    verdicts     per verdict, how many answers ever had it when they came in
    cases        per family and mode, how many answers came in and how many seconds they took in all
    attempts     per state that they ended in, how many there were and how many seconds they took in all
    acts         per act of the reconciler, how many things it put right
    """

    queued: dict[int, tuple[int, datetime]]
    jobs: dict[str, int]
    submissions: dict[str, int]
    hosts: dict[str, tuple[int, int, datetime]]
    sick: dict[str, int]
    verdicts: dict[str, int]
    cases: dict[tuple[str, str], tuple[int, float]]
    attempts: dict[str, tuple[int, float]]
    acts: dict[str, int]


def numbers(session: Session) -> Numbers:
    """Ask for all of them."""
    count = sa.func.count()
    queued = session.execute(
        sa.select(Job.world_size, count, sa.func.min(Job.queued_at))
        .where(Job.state == "queued")
        .group_by(Job.world_size)
    )
    leased = sa.select(count).where(GpuLease.host_id == Host.id).scalar_subquery()
    hosts = session.execute(sa.select(Host.name, Host.devices, leased, Host.seen_at))
    sick = session.execute(
        sa.select(Host.name, count)
        .join(Device, Device.host_id == Host.id)
        .where(Device.state == "sick")
        .group_by(Host.name)
    )
    first = Result.judged_at == Result.created_at  # later judgements of an answer are no answers
    cases = session.execute(
        sa.select(CaseVersion.family, Cell.mode, count, sa.func.sum(Result.seconds))
        .select_from(Result)
        .join(Cell, Cell.id == Result.cell_id)
        .join(CaseVersion, CaseVersion.id == Cell.case_version_id)
        .where(first)
        .group_by(CaseVersion.family, Cell.mode)
    )
    took = sa.extract("epoch", Attempt.ended_at) - sa.extract("epoch", Attempt.started_at)
    ended = session.execute(
        sa.select(Attempt.state, count, sa.func.sum(took)).where(Attempt.ended_at.is_not(None)).group_by(Attempt.state)
    )
    return Numbers(
        queued={size: (number, oldest) for size, number, oldest in queued},
        jobs=_by(session, Job.state),
        submissions=_by(session, Submission.state),
        hosts={name: (devices, used, seen) for name, devices, used, seen in hosts},
        sick={name: number for name, number in sick},  # noqa: C416
        verdicts=_by(session, Result.verdict, first),
        cases={(family, mode): (number, float(seconds)) for family, mode, number, seconds in cases},
        attempts={state: (number, float(seconds)) for state, number, seconds in ended},
        acts={name: number for name, number in session.execute(sa.select(Act.name, Act.number))},  # noqa: C416
    )


def _by(session: Session, column: sa.orm.InstrumentedAttribute[str], *where: sa.ColumnElement[bool]) -> dict[str, int]:
    found = session.execute(sa.select(column, sa.func.count()).where(*where).group_by(column))
    return {name: number for name, number in found}  # noqa: C416 - rows, not pairs


def count_act(session: Session, name: str, number: int) -> None:
    """Add what the reconciler put right to what it ever did."""
    insert_missing(session, Act, [{"name": name, "number": 0}], ["name"])
    touched(session, sa.update(Act).where(Act.name == name).values(number=Act.number + number))
