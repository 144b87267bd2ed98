"""When a GPU is sick, and when it is only busy: what was read of it, and a table of rules. Pure.

On the straight line ``workers.gpus.monitor`` reads, and ``workers.gpus.guard`` acts on what is found here.

Which Xids are the fault of a program and say nothing about the GPU, and that every other one takes a GPU out of
service, is what NVIDIA's own device plugin for Kubernetes does (k8s-device-plugin, internal/rm/health.go); so is that
a GPU that cannot be listened to is not used. What each number means is in NVIDIA's document "Xid Errors".
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Literal

APPLICATION_XIDS = {
    13: "graphics engine exception",
    31: "memory page fault",
    43: "the GPU stopped processing",
    45: "preemptive cleanup after an earlier error",
    68: "video processor exception",
    109: "context switch timeout",
}
"""Faults of the program that ran. A subject under test may well cause them; they never drain a GPU."""

Blame = Literal["sick", "busy"]


@dataclass(frozen=True)
class Reading:
    """What was found of one GPU at one moment. What a GPU does not count is zero.

    lost            why it does not answer; empty where it does
    deaf            why nothing that it reports would be heard; empty where it would
    divided         whether it is divided by MIG
    uncorrected     uncorrectable memory errors since the driver was loaded
    remap_pending   whether a row of its memory waits for a reset to be replaced
    remap_failed    whether one could not be replaced
    xids            what it reported since that was last told
    processes       who computes on it
    """

    lost: str = ""
    deaf: str = ""
    divided: bool = False
    uncorrected: int = 0
    remap_pending: bool = False
    remap_failed: bool = False
    xids: tuple[int, ...] = ()
    processes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Rule:
    """One thing that can be wrong.

    blame   ``sick`` GPUs get no job until a person says that they are well, ``busy`` ones until they are free
    says    a sentence behind the GPU's name, with what was found at {}
    found   what is wrong, from the reading that it is held against, the new one, and who may compute there; or nothing
    """

    name: str
    blame: Blame
    says: str
    found: Callable[[Reading, Reading, Collection[int]], object]


RULES = (
    Rule("lost", "sick", "does not answer any more: {}", lambda was, now, ours: now.lost),
    Rule("deaf", "sick", "cannot be listened to: {}", lambda was, now, ours: now.deaf),
    Rule("divided", "sick", "is divided by MIG, and only whole ones are leased", lambda was, now, ours: now.divided),
    Rule(
        "uncorrected", "sick", "has {} uncorrectable memory errors more than before",
        lambda was, now, ours: max(now.uncorrected - was.uncorrected, 0),
    ),
    Rule(
        "remap_failed", "sick", "could not replace a faulty row of its memory",
        lambda was, now, ours: now.remap_failed,
    ),
    Rule(
        "remap_pending", "sick", "waits for a reset to replace a faulty row of its memory",
        lambda was, now, ours: now.remap_pending,
    ),
    Rule(
        "xid", "sick", "reported Xid {}",
        lambda was, now, ours: ", ".join(str(xid) for xid in now.xids if xid not in APPLICATION_XIDS),
    ),
    Rule(
        "foreign", "busy", "is in use by others: process {}",
        lambda was, now, ours: ", ".join(str(pid) for pid in now.processes if pid not in ours),
    ),
)  # fmt: skip
"""In the order in which they are told; the first is the reason of a quarantine."""


@dataclass(frozen=True)
class Problem:
    """What is wrong with one GPU."""

    device: str
    rule: str
    blame: Blame
    says: str

    def __str__(self) -> str:
        return f"{self.device} {self.says}"


def problems(device: str, was: Reading, now: Reading, ours: Collection[int] = ()) -> tuple[Problem, ...]:
    """What is wrong with a GPU, held against how it was; ``ours`` are the processes that may compute on it."""
    found = ((rule, rule.found(was, now, ours)) for rule in RULES)
    return tuple(Problem(device, rule.name, rule.blame, rule.says.format(what)) for rule, what in found if what)
