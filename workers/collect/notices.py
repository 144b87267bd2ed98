"""What the collector tells its caller: a valid event each, with whatever was measured about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from service.evidence import Blob, ErrorInfo, Evidence


@dataclass(frozen=True)
class Hello:
    """The runtime as it found itself: torch, Python, GPUs, flags."""

    facts: dict[str, Any]


@dataclass(frozen=True)
class PhaseDone:
    """A part of the attempt that is not a cell took this long."""

    name: str
    seconds: float


@dataclass(frozen=True)
class SubjectLoaded:
    """The subject was imported, or could not be (``error``); ``facts`` are method, started, changed, adapter."""

    ok: bool
    version: str | None
    error: ErrorInfo | None
    facts: dict[str, Any]
    seconds: float


@dataclass(frozen=True)
class ControlDone:
    """A control of ours was measured. One of stage ``after`` can only ever invalidate."""

    control: str
    mode: str
    world_size: int
    stage: Literal["before", "after"]
    evidence: Evidence


@dataclass(frozen=True)
class CaseDone:
    """A cell is complete; ``again``: its second pass, alone in fresh ranks. ``blobs`` are offered, not yet kept."""

    job: int
    cell: int
    again: bool
    evidence: Evidence
    blobs: tuple[Blob, ...]
    seconds: float


@dataclass(frozen=True)
class Ask:
    """The job has run all its cells and waits to hear which to run again."""

    job: int


@dataclass(frozen=True)
class Log:
    """Untrusted text that somebody in there wrote."""

    text: str
    stream: str
    rank: int | None
    job: int | None
    cell: int | None


@dataclass(frozen=True)
class Bye:
    """The stream ended as it should; ``ok`` False: our own side of the job failed."""

    ok: bool
    reason: str | None


Notice = Hello | PhaseDone | SubjectLoaded | ControlDone | CaseDone | Ask | Log | Bye
