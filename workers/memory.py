"""How much memory one rank may take: enough for what is right, and not so much that a leak takes the machine along.

On the straight line this stands between the settings and ``workers.attempt``, which writes the limit into the spec.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from service.config import Settings

SHARE = 0.75
"""Of the machine's memory, what all ranks together may take: the rest is the system's, and ours."""
LEAST = 2 * 2**30
"""Importing torch and a library takes most of one gibibyte: with less than this, nothing would run at all."""
CGROUPS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
MEMORY = Path("/proc/meminfo")


def rank_bytes(settings: Settings, world_sizes: Iterable[int], machine: int | None = None) -> int:
    """The limit for one rank: its share among as many as may run at once. ``machine``: the memory to be shared."""
    if settings.rank_memory_bytes:
        return settings.rank_memory_bytes
    whole = machine_bytes() if machine is None else machine
    at_once = max(settings.slots, *world_sizes)
    return max(LEAST, int(SHARE * whole) // at_once) if whole else 0


def machine_bytes() -> int:
    """What this machine, or the container that this runs in, has; 0 where nothing says so."""
    said = []
    with suppress(OSError, ValueError):
        line = next(line for line in MEMORY.read_text().splitlines() if line.startswith("MemTotal:"))
        said.append(int(line.split()[1]) * 1024)
    for path in CGROUPS:
        with suppress(OSError, ValueError):  # "max" is no number
            said.append(int(path.read_text()))
    return min(said, default=0)
