"""What the store promises whatever happened to it, each promise held to an own query. No code of the store is used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import sqlalchemy as sa
from sqlalchemy.orm import Session

from service.claims import HostView
from service.models import (
    LIVE,
    Attempt,
    Cell,
    GpuLease,
    Hint,
    Job,
    Resolution,
    Result,
    Submission,
    SubmissionCell,
    SubmissionJob,
)
from service.store import ClaimedJob

TRIES = 3
"""A cell at which the machine fails is run twice more."""


@dataclass(frozen=True)
class Held:
    """A job as a worker holds it, or believes that it does."""

    host: HostView
    container: str
    devices: tuple[str, ...]
    job: ClaimedJob


@dataclass
class Memory:
    """What its users remember of it.

    held    every claim that there ever was
    fences  the newest fence of every job, when last looked at
    unsent  how many hints were written and not sent
    """

    held: list[Held] = field(default_factory=list)
    fences: dict[int, int] = field(default_factory=dict)
    unsent: int = 0


def one_live_job(session: Session, memory: Memory) -> None:
    key = (Job.checkout_id, Job.runtime_id, Job.transport, Job.world_size, Job.cells_digest)
    twice = sa.select(*key).where(Job.state.in_(LIVE)).group_by(*key).having(sa.func.count() > 1)
    assert not session.execute(twice).all(), "one live job per key"
    own = session.execute(sa.select(Cell.job_id, sa.func.count()).group_by(Cell.job_id))
    cells = {job: number for job, number in own}  # noqa: C416 - rows are no pairs to a type checker
    for job, total in session.execute(sa.select(Job.id, Job.cells_total).where(Job.state.in_(LIVE))):
        assert cells.get(job) == total, "a live job has all of its cells"


def fences_count_claims(session: Session, memory: Memory) -> None:
    tries = sa.select(sa.func.count()).where(Attempt.job_id == Job.id).scalar_subquery()
    fences: dict[int, int] = {}
    for job, fence, claims in session.execute(sa.select(Job.id, Job.fence, tries)):
        assert fence >= memory.fences.get(job, 0), "a fence never goes back"
        assert fence == claims, "a fence counts the claims"
        fences[job] = fence
    memory.fences = fences


def one_answer_each(session: Session, memory: Memory) -> None:
    said = session.execute(
        sa.select(Result.id, Result.cell_id, Result.attempt_id, Attempt.job_id, Result.verdict)
        .join(Attempt)
        .order_by(Result.id)
    ).all()
    pairs = [(row.attempt_id, row.cell_id) for row in said]
    assert len(pairs) == len(set(pairs)), "one answer per cell and attempt"
    newest = {row.cell_id: row.id for row in said}
    shown = session.execute(sa.select(Cell.id, Cell.result_id).where(Cell.result_id.is_not(None)))
    assert {row.id: row.result_id for row in shown} == newest, "a cell shows its newest answer"
    answers: dict[tuple[int, int], list[str]] = {}
    for row in said:
        answers.setdefault((row.job_id, row.cell_id), []).append(row.verdict)
    counts: dict[int, Counter[str]] = {}
    given_up = set(session.scalars(sa.select(Job.id).where(Job.note.startswith("given up"))))
    for (job, _), given in answers.items():
        *tried, last = given
        assert set(tried) <= {"infra"} and len(given) <= TRIES, "one answer per cell and job, but of a failing machine"
        if last != "infra" or len(given) == TRIES or job in given_up:
            counts.setdefault(job, Counter())[last] += 1
    for found in session.scalars(sa.select(Job)):
        mine = counts.get(found.id, Counter())
        assert (Counter(found.counts), found.cells_done) == (mine, mine.total()), "counts are those of the answers"


def nothing_is_lost(session: Session, memory: Memory) -> None:
    asked = session.execute(
        sa.select(Cell.result_id, Job.state, Job.note)
        .select_from(SubmissionCell)
        .join(Submission, Submission.id == SubmissionCell.submission_id)
        .join(Cell, Cell.id == SubmissionCell.cell_id)
        .outerjoin(Job, Job.id == Cell.job_id)
        .where(Submission.state.not_in(("cancelled", "failed")))
    )
    for result, state, note in asked:
        said = f"what was asked for is answered or on its way, not {state}: {note}"
        assert result is not None or state in LIVE, said
    waiting = sa.select(Submission.id).where(Submission.state == "resolving")
    tasks = sa.select(Resolution.submission_id).where(Resolution.state.in_(("waiting", "fetching")))
    assert set(session.scalars(waiting)) <= set(session.scalars(tasks)), "a submission is always somebody's task"


def all_devices_or_none(session: Session, memory: Memory) -> None:
    leases = session.execute(sa.select(GpuLease.container, GpuLease.device))
    leased = Counter((container, device) for container, device in leases)
    running = set(session.scalars(sa.select(Attempt.container).where(Attempt.state == "running")))
    containers = {held.container: held for held in memory.held if held.container in running}
    wanted = Counter((name, device) for name, held in containers.items() for device in held.devices)
    assert leased == wanted, "a container holds its devices until its last job has ended, and no longer"
    in_use = [(held.host.name, device) for held in containers.values() for device in held.devices]
    assert len(in_use) == len(set(in_use)), "a device is given out once"


def as_far_as_their_jobs(session: Session, memory: Memory) -> None:
    live = set(session.scalars(sa.select(SubmissionJob.submission_id).join(Job).where(Job.state.in_(LIVE))))
    planned = sa.select(Submission.id, Submission.state).where(Submission.state.in_(("queued", "running", "done")))
    for number, state in session.execute(planned):
        assert (state != "done") == (number in live), "a submission is as far as its jobs"


def hints_wait(session: Session, memory: Memory) -> None:
    there = session.scalar(sa.select(sa.func.count()).select_from(Hint))
    assert there == memory.unsent, "a hint is gone only once it was sent"


PROMISES: tuple[Callable[[Session, Memory], None], ...] = (
    one_live_job,
    fences_count_claims,
    one_answer_each,
    nothing_is_lost,
    all_devices_or_none,
    as_far_as_their_jobs,
    hints_wait,
)
