"""The devices of a host: which there are, whether they are well, and which process holds a claim on them.

On the straight line this stands between ``workers.choose``, which leases them, and ``workers.attempt``, which uses
them::

    nvml       the border to NVIDIA's library
    inventory  what there is to lease: GPUs by UUID, or CPU slots
    health     when a GPU is sick, and when it is only busy: a table, and pure
    monitor    looks at GPUs, and listens to what they report
    guard      stands between one claim's answers and its devices
    holder     the process that holds a claim
"""

from __future__ import annotations

from workers.gpus.guard import Guard
from workers.gpus.holder import alive, this_process
from workers.gpus.inventory import CpuSlots, Gpus, Inventory, find_inventory, gpus_of, local_host
from workers.gpus.monitor import Monitor
from workers.gpus.nvml import NvmlBrokenError

__all__ = [
    "CpuSlots",
    "Gpus",
    "Guard",
    "Inventory",
    "Monitor",
    "NvmlBrokenError",
    "alive",
    "find_inventory",
    "gpus_of",
    "local_host",
    "this_process",
]
