"""What a host leases out, and which process of it holds a claim.

On the straight line this describes the host to ``workers.choose``. A host without GPUs offers CPU slots through the
same code; an inventory of GPUs names them by UUID.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from service.claims import Holder, HostView
from service.config import Settings


class Inventory(Protocol):
    """The devices of one host.

    shares      whether a job larger than the host may run on all of it
    transports  what can run on them
    """

    @property
    def shares(self) -> bool: ...  # noqa: D102

    @property
    def transports(self) -> tuple[str, ...]: ...  # noqa: D102

    def devices(self) -> tuple[str, ...]:
        """The names of the devices, the same at every call and after every boot."""


@dataclass(frozen=True)
class CpuSlots:
    """Slots for ranks on a host without GPUs: a limit on load, not on the number of ranks."""

    count: int
    shares: bool = True
    transports: tuple[str, ...] = ("gloo", "nccl-dispatch")

    def devices(self) -> tuple[str, ...]:
        """``cpu:0`` …"""
        return tuple(f"cpu:{slot}" for slot in range(self.count))


def local_host(settings: Settings, inventory: Inventory | None = None) -> HostView:
    """This machine and this process, as a claim sees them."""
    inventory = inventory or CpuSlots(settings.slots)
    return HostView(
        name=socket.gethostname(),
        devices=inventory.devices(),
        holder=this_process(),
        shares=inventory.shares,
        transports=inventory.transports,
        wall_cap_s=settings.deadlines.attempt_s,
    )


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
