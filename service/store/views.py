"""What the store hands out: frozen rows, detached from the database.

On the straight line this stands between ``service.store`` and everything that shows or runs what is stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from jobs.contract import CellSpec
from service.models import OVER


@dataclass(frozen=True)
class BlobView:
    """A stored blob without its bytes; ``digest`` is None where they were over the cap and not kept."""

    kind: str
    name: str
    rank: int | None
    size: int
    meta: dict[str, Any]
    digest: str | None


@dataclass(frozen=True)
class ClaimedJob:
    """A job to run under ``fence``, with the cells that still lack an answer, in the order in which they run.

    submissions  those that wait for it
    """

    job: int
    fence: int
    attempt: int
    world_size: int
    cells: tuple[CellSpec, ...]
    submissions: tuple[int, ...] = ()

    @property
    def ids(self) -> dict[str, Any]:
        """What its log lines name."""
        return {"submissions": self.submissions, "job": self.job, "attempt": self.attempt}


@dataclass(frozen=True)
class Claim:
    """Jobs of one container, and all the devices it may use.

    container  names this execution; all its attempts carry it
    checkout   the digest; ``runtime`` is the digest too, beside its name
    wall_s     the longest that the container may live
    """

    container: str
    checkout: str
    subject: str
    label: str
    runtime: str
    runtime_name: str
    transport: str
    devices: tuple[str, ...]
    wall_s: float
    jobs: tuple[ClaimedJob, ...]


@dataclass(frozen=True)
class SubmissionView:
    """A submission and how far it is.

    cells, done    its cells, and those with an answer
    note           why it is held, has failed, was superseded, or is to be fetched once more
    waiting        why no host takes its jobs, where that is for whose code they run
    pinned         whether what it cites is never removed
    jobs           what it waits for, own and shared
    counts         its answered cells per verdict
    """

    id: int
    key: str
    state: str
    requester: str
    reason: str
    priority: int
    request: dict[str, Any]
    note: str
    waiting: str
    pinned: bool
    created_at: datetime
    finished_at: datetime | None
    cells: int
    done: int
    jobs: tuple[JobView, ...]
    counts: dict[str, int]

    @property
    def live(self) -> bool:
        """Whether anything of it is still to be run."""
        return self.state not in OVER

    @property
    def standstill(self) -> str:
        """Its state and why, where it has no cells yet or nobody runs them; nothing for any other."""
        why = self.note if self.state in ("held", "resolving", "failed") else self.waiting
        if self.state in ("held", "resolving", "failed") or why:
            return f"{self.state}: {why}" if why else self.state
        return ""


@dataclass(frozen=True)
class JobView:
    """A job and how far it is; ``counts`` holds its answered cells per verdict."""

    id: int
    state: str
    checkout: str
    runtime: str
    torch: str
    transport: str
    world_size: int
    priority: int
    fence: int
    host: str | None
    cells_total: int
    cells_done: int
    counts: dict[str, int]
    note: str

    @property
    def live(self) -> bool:
        """Whether anything of it is still to be run."""
        return self.state not in ("done", "cancelled")


@dataclass(frozen=True)
class DeviceView:
    """A device of a host: a GPU by its UUID, or a CPU slot.

    state  ``well``, or ``sick``: it gets no job until a person says that it is well
    since  when it came into that state, and ``reason`` is why
    jobs   what it is leased to
    """

    name: str
    model: str
    state: str
    reason: str
    since: datetime
    jobs: tuple[int, ...]


@dataclass(frozen=True)
class HostView:
    """A host of the fleet as its last look for work left it: its devices in their places, and what can run there.

    ``trusted_only``: not what only a webhook asked for.
    """

    name: str
    devices: tuple[DeviceView, ...]
    transports: tuple[str, ...]
    trusted_only: bool
    seen_at: datetime


@dataclass(frozen=True)
class RuntimeView:
    """A runtime that something was planned for, and how many cells have an answer in it."""

    name: str
    torch: str
    variant: str
    channel: str
    python: str
    digest: str
    answered: int


@dataclass(frozen=True)
class CellRow:
    """A cell with its current answer.

    state    of its job while the answer is due, else ``done`` (answered), ``cancelled`` or ``missing`` (its job
             ended without an answer)
    verdict  None until the job that is due has answered: an older answer is history then
    label    the name under which the submission asked for the checkout
    """

    cell: int
    job: int | None
    state: str
    subject: str
    checkout: str
    label: str
    torch: str
    runtime: str
    channel: str
    transport: str
    world_size: int
    case: str
    version: int
    family: str
    mode: str
    verdict: str | None = None
    forward_ok: bool | None = None
    signature: str = ""
    detail: str = ""
    worst_tensor: str | None = None
    error: float | None = None
    alpha: float | None = None
    nonzero_got: int | None = None
    nonzero_expected: int | None = None
    evidence_digest: str | None = None
    policy_version: str | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class ControlRow:
    """What a control answered in an attempt."""

    control: str
    mode: str
    world_size: int
    stage: str
    verdict: str
    as_expected: bool
    detail: str


@dataclass(frozen=True)
class AttemptView:
    """One execution of a cell's job; ``verdict`` is what it answered for that cell, if it did.

    facts  what the container said about itself: torch, flags, how the subject was loaded, phases
    """

    attempt: int
    job: int
    fence: int
    container: str
    host: str
    state: str
    note: str
    started_at: datetime
    ended_at: datetime | None
    verdict: str | None
    facts: dict[str, Any]
    controls: tuple[ControlRow, ...]
    blobs: tuple[BlobView, ...]


@dataclass(frozen=True)
class JudgementView:
    """One judgement of an answer; ``current``: the one that counts."""

    policy_version: str
    verdict: str
    forward_ok: bool | None
    signature: str
    detail: str
    error: float | None
    alpha: float | None
    nonzero_got: int | None
    nonzero_expected: int | None
    judged_at: datetime
    current: bool


@dataclass(frozen=True)
class Answer:
    """A cell's current answer with all that is kept to judge it again.

    info             the case as it was when the cell was planned
    then             verdict, signature and detail of the judgement that came with the answer; ``row`` has the newest
    evidence         what the judgement rests on; ``first`` and ``alone`` are the passes among others and in fresh
                     ranks: None where there was none, or where it is not known which one the evidence is of
    """

    result: int
    attempt: int
    row: CellRow
    then: tuple[str, str, str]
    info: dict[str, Any]
    evidence: dict[str, Any]
    first: dict[str, Any] | None
    alone: dict[str, Any] | None


@dataclass(frozen=True)
class KeptControl:
    """A control's answer in an attempt; ``evidence`` is None where an older program kept only that it behaved."""

    control: str
    mode: str
    world_size: int
    stage: str
    verdict: str
    as_expected: bool
    detail: str
    policy_version: str
    evidence: dict[str, Any] | None


@dataclass(frozen=True)
class KeptControls:
    """The controls of an attempt. ``due``: which had to answer, each with its case; None where that was not kept."""

    due: tuple[dict[str, Any], ...] | None
    answers: tuple[KeptControl, ...]


@dataclass(frozen=True)
class CellDetail:
    """Everything about one cell. ``evidence`` is the JSON document of its current result, {} without one.

    ``judgements`` are all of that answer, the oldest first.
    """

    row: CellRow
    info: dict[str, Any]
    evidence: dict[str, Any]
    blobs: tuple[BlobView, ...]
    attempts: tuple[AttemptView, ...]
    judgements: tuple[JudgementView, ...] = ()
