"""What a running worker tells whoever watches it; on the straight line beside ``workers.loop``, which sends these.

Events are for people's eyes only: nothing is decided by them, and the database stays the truth. A listener is called
from the worker's threads and must return quickly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

LAST_PHASE = "subject"
"""The last step before cells: the subject, if there is one, is imported."""


@dataclass(frozen=True)
class RuntimeBuilding:
    """A runtime is being built: ``what`` is the step, with bytes where they are known."""

    name: str
    what: str
    bytes_done: int = 0
    bytes_total: int | None = None


@dataclass(frozen=True)
class JobStarted:
    """A job was claimed and its process is starting."""

    job: int
    label: str
    torch: str
    world_size: int
    cells: int


@dataclass(frozen=True)
class PhaseDone:
    """A part of the job that is not a cell (importing torch, the oracle, importing the subject) ended."""

    job: int
    name: str
    seconds: float


@dataclass(frozen=True)
class CellDone:
    """One cell's result was accepted into the store."""

    job: int
    cell: int
    verdict: str
    detail: str


@dataclass(frozen=True)
class JobDone:
    """A job ended; ``outcome`` is ``done``, or why it is not."""

    job: int
    seconds: float
    outcome: str


@dataclass(frozen=True)
class LogLine:
    """Something the job's processes wrote, as they wrote it (untrusted text)."""

    text: str


Event = RuntimeBuilding | JobStarted | PhaseDone | CellDone | JobDone | LogLine
Listener = Callable[[Event], None]
