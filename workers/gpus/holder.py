"""Which process holds a claim, and whether it still runs.

On the straight line this is what a claim is signed with, and how whoever comes next on the same machine sees at once
that its holder is gone.
"""

from __future__ import annotations

import os
from pathlib import Path

from service.claims import Holder


def this_process() -> Holder:
    """The holder that this process is."""
    return Holder(_machine(), os.getpid(), _started(os.getpid()) or "")


def alive(holder: Holder) -> bool | None:
    """Whether ``holder`` still runs; None when it is of another machine or boot, or nothing here can tell."""
    machine = _machine()
    if not machine or machine != holder.machine or not holder.started:
        return None
    return _started(holder.pid) == holder.started


def _machine() -> str:
    """This boot, and the namespace of its process ids: in a container the same numbers are other processes."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def _started(pid: int) -> str | None:
    """When the process started, in ticks since boot; None when there is none, or only its remains."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("utf-8", errors="replace")
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()  # the name before it may hold anything
    return None if fields[0] in "ZX" else fields[19]
