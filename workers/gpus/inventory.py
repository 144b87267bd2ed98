"""What a host leases out: its GPUs, or CPU slots through the same code.

On the straight line this describes the host to ``workers.choose``.

A host with GPUs leases them for the transport ``nccl`` alone. What runs over gloo computes on the processor: it would
keep GPUs idle that others wait for, and needs more ranks than a small host has GPUs. A machine that is to run both has
``gpus = false`` in the settings of whatever runs the other.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

from service.claims import SLOT, HostView
from service.config import Settings
from workers.gpus.holder import this_process
from workers.gpus.monitor import Monitor
from workers.gpus.nvml import Library, NvmlBrokenError, NVMLError, load

log = logging.getLogger(__name__)


class Inventory(Protocol):
    """The devices of one host.

    shares      whether a job larger than the host may run on all of it
    transports  what can run on them
    models      what each device is, where that is known
    """

    @property
    def shares(self) -> bool: ...  # noqa: D102

    @property
    def transports(self) -> tuple[str, ...]: ...  # noqa: D102

    @property
    def models(self) -> Mapping[str, str]: ...  # noqa: D102

    def devices(self) -> tuple[str, ...]:
        """The names of the devices, the same at every call and after every boot."""

    def watched(self) -> AbstractContextManager[Monitor | None]:
        """Their health, for as long as this lasts; None for devices that have none to speak of."""


@dataclass(frozen=True)
class CpuSlots:
    """Slots for ranks on a host without GPUs: a limit on load, not on the number of ranks."""

    count: int
    shares: bool = True
    transports: tuple[str, ...] = ("gloo", "nccl-dispatch")

    @property
    def models(self) -> Mapping[str, str]:
        """A slot is not a thing that has a model."""
        return {}

    def devices(self) -> tuple[str, ...]:
        """``cpu:0`` …"""
        return tuple(f"{SLOT}{slot}" for slot in range(self.count))

    def watched(self) -> AbstractContextManager[Monitor | None]:
        """Nothing to watch."""
        return nullcontext()


@dataclass(frozen=True)
class Gpus:
    """The GPUs that NVML listed, by UUID, in the order of the PCI bus: so neighbours are wired to each other."""

    library: Library
    models: Mapping[str, str]
    driver: str
    shares: bool = False
    transports: tuple[str, ...] = ("nccl",)

    def devices(self) -> tuple[str, ...]:
        """``GPU-…``, all that there were when the worker began: one that is lost meanwhile keeps its place."""
        return tuple(self.models)

    def watched(self) -> AbstractContextManager[Monitor | None]:
        """Listens to what they report."""
        return Monitor(self.library, self.devices())


def gpus_of(library: Library) -> Gpus:
    """The GPUs of this machine. One that does not say who it is is left out: where it was known, it is missed.

    Raises NvmlBrokenError where NVML cannot say how many there are.
    """
    named: list[tuple[str, str, str]] = []
    try:
        driver, count = library.nvmlSystemGetDriverVersion(), library.nvmlDeviceGetCount()
    except NVMLError as error:
        raise NvmlBrokenError(f"the NVIDIA driver does not list its GPUs: {error}") from error
    for index in range(count):
        try:
            handle = library.nvmlDeviceGetHandleByIndex(index)
            bus = library.nvmlDeviceGetPciInfo(handle).busId
            named.append((bus, library.nvmlDeviceGetUUID(handle), library.nvmlDeviceGetName(handle)))
        except NVMLError as error:
            log.error("GPU %d of %d does not answer and is not leased: %s", index, count, error)
    return Gpus(library, {uuid: model for _, uuid, model in sorted(named)}, driver)


def find_inventory(settings: Settings, *, gpus: bool = False, library: Library | None = None) -> Inventory:
    """What this machine leases out. ``gpus``: whether its GPUs, if it has some, where the settings leave that open.

    ``library`` stands in for NVML. Raises NvmlBrokenError where NVML is there and does not work, and where the settings
    ask for GPUs and there are none.
    """
    wanted = gpus if settings.gpus is None else settings.gpus
    there = load(library) if wanted else None
    found = None if there is None else gpus_of(there)
    if found is not None and found.models:
        log.info(
            "leasing %d GPUs (driver %s): %s", len(found.models), found.driver, ", ".join(set(found.models.values()))
        )
        return found
    if settings.gpus:
        why = "its driver lists none" if found is not None else "no NVIDIA driver is installed"
        raise NvmlBrokenError(f"this host is to lease its GPUs (gpus = true), and has none: {why}")
    return CpuSlots(settings.slots)


def local_host(settings: Settings, inventory: Inventory | None = None) -> HostView:
    """This machine and this process, as a claim sees them."""
    inventory = inventory or find_inventory(settings)
    return HostView(
        name=settings.host_name,
        devices=inventory.devices(),
        holder=this_process(),
        shares=inventory.shares,
        transports=inventory.transports,
        wall_cap_s=settings.deadlines.attempt_s,
    )
