"""Named points at which a process kills itself, and the journal that says that it did. Standard library only."""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path

DIE_AT, JOURNAL = "CAMPAIGN_DIE_AT", "CAMPAIGN_JOURNAL"
ANYWHERE = "anywhere"
"""The point of one that was killed from outside, wherever it was."""

EVENTS = ("hello", "oracle", "control", "subject", "tensor", "case", "ask", "bye")
_COMMITS = {
    "api": ("open_submission", "drop_hints"),
    "beat": ("reclaim", "forget_keys", "settle_all", "hints"),
    "child": (),
    "worker": (
        "reclaim", "claim", "beat", "start", "record_controls", "accept", "finish", "claim_resolution", "keep_checkout",
        "plan_resolved", "drop_hints",
    ),
}  # fmt: skip
_OTHERS = {
    "api": ("before publish", "after publish"),
    "beat": (),
    "worker": (
        "before publish", "after publish", "before container", "after container", "before accept", "after bye",
    ),
    "child": tuple(f"{when} {event}" for event in EVENTS for when in ("before", "after")),
}  # fmt: skip
POINTS = {
    role: (*(f"{when} commit of {act}" for act in acts for when in ("before", "after")), *_OTHERS[role])
    for role, acts in _COMMITS.items()
}
"""Of each role what can be chosen: around the commits of what it does to the store, and around what else it does."""
EVERY = frozenset((role, point) for role, points in POINTS.items() for point in points)
ACTS = frozenset(act for acts in _COMMITS.values() for act in acts)
MANY = {
    "api": {},
    "beat": dict.fromkeys(("reclaim", "forget_keys", "settle_all", "hints"), 10),
    "worker": {"accept": 3, "beat": 6, "claim": 3, "start": 2, "record_controls": 2, "finish": 3},
    "child": {"tensor": 6, "case": 4, "oracle": 6},
}
"""How often, at most, a point is passed before it kills; once where nothing is said."""


@dataclass(frozen=True)
class Death:
    """The ``number``-th pass of ``point``."""

    point: str
    number: int

    def __str__(self) -> str:
        return f"{self.number}:{self.point}"

    @classmethod
    def parse(cls, text: str) -> Death:
        """The inverse of ``str``."""
        number, _, point = text.partition(":")
        return cls(point, int(number))


@dataclass(frozen=True)
class Kill:
    """A kill that happened, at a moment of the wall clock."""

    at: float
    role: str
    point: str


class Reaper:
    """Kills when its death's point has been passed often enough."""

    def __init__(self, role: str, death: Death | None, journal: Path, group: bool = False) -> None:
        """``group``: kill the whole process group, as a machine does that runs out of memory."""
        self._role, self._death, self._journal, self._group = role, death, journal, group
        self._left = death.number if death else 0
        self._guard = threading.Lock()

    def passes(self, point: str) -> None:
        """Say that ``point`` is passed now; does not return if this was the pass."""
        if self._death is None or point != self._death.point:
            return
        with self._guard:
            self._left -= 1
            if self._left == 0:
                note(self._journal, Kill(time.time(), self._role, point))
                (os.killpg if self._group else os.kill)(0 if self._group else os.getpid(), signal.SIGKILL)


def note(journal: Path, kill: Kill) -> None:
    """Write a kill down: one line by one write, so that processes need no lock."""
    with journal.open("ab", buffering=0) as file:
        file.write(f"{kill.at}\t{kill.role}\t{kill.point}\n".encode())


def kills(journal: Path) -> list[Kill]:
    """The kills so far."""
    if not journal.exists():
        return []
    lines = (line.split("\t") for line in journal.read_text().splitlines())
    return [Kill(float(at), role, point) for at, role, point in lines]
