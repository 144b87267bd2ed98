"""A stand-in for NVIDIA's library on machines without a GPU: the same functions, answered from plain data.

It raises pynvml's own errors, and behaves where it matters as NVML does: a GPU is named by UUID or by a number that is
no place, and of several events that nobody waited for only the newest Xid is told.
"""
# ruff: noqa: N802, N803

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import pynvml


@dataclass
class Gpu:
    """One GPU. ``errors`` are return codes by the function that raises them; ``lost``: the code of all of them."""

    uuid: str
    bus: str
    model: str = "NVIDIA H200"
    processes: set[int] = field(default_factory=set)
    uncorrected: int = 0
    rows: tuple[int, int, int, int] = (0, 0, 0, 0)
    mig: int = 0
    lost: int = 0
    errors: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Process:
    pid: int


@dataclass(frozen=True)
class Place:
    busId: str  # noqa: N815


@dataclass(frozen=True)
class Event:
    device: Gpu
    eventType: int  # noqa: N815
    eventData: int  # noqa: N815


@dataclass
class EventSet:
    gpus: list[Gpu] = field(default_factory=list)
    waiting: list[Event] = field(default_factory=list)
    awaited: bool = False
    freed: bool = False


class FakeNvml:
    """A machine with these GPUs; without ``init`` its driver works."""

    def __init__(self, gpus: Sequence[Gpu] = (), *, init: int = 0, wait: int = 0) -> None:
        """``init`` and ``wait`` are return codes of starting and of waiting for events."""
        self.gpus, self.init, self.wait = list(gpus), init, wait
        self.sets: list[EventSet] = []
        self._told = threading.Condition()

    # -- what happens on the machine -----------------------------------------------------------------------------

    def report(self, gpu: Gpu, xid: int) -> None:
        """The GPU reports an Xid; returns when whoever listens has taken it and waits for the next one."""
        with self._told:
            listening = [one for one in self.sets if gpu in one.gpus and not one.freed]
            for one in listening:
                one.waiting.append(Event(gpu, pynvml.nvmlEventTypeXidCriticalError, xid))
                one.awaited = False
            self._told.notify_all()
            if not self._told.wait_for(lambda: all(one.awaited for one in listening), timeout=10):
                raise AssertionError("nobody listens to the GPUs")

    # -- NVML ----------------------------------------------------------------------------------------------------

    def nvmlInit(self) -> None:
        if self.init:
            raise pynvml.NVMLError(self.init)

    def nvmlSystemGetDriverVersion(self) -> str:
        return "570.0"

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Gpu:
        return self._asked(self.gpus[index], "nvmlDeviceGetHandleByIndex")

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Gpu:
        found = next((gpu for gpu in self.gpus if gpu.uuid == uuid), None)
        if found is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return self._asked(found, "nvmlDeviceGetHandleByUUID")

    def nvmlDeviceGetPciInfo(self, handle: Gpu) -> Place:
        return Place(self._asked(handle, "nvmlDeviceGetPciInfo").bus)

    def nvmlDeviceGetUUID(self, handle: Gpu) -> str:
        return self._asked(handle, "nvmlDeviceGetUUID").uuid

    def nvmlDeviceGetName(self, handle: Gpu) -> str:
        return self._asked(handle, "nvmlDeviceGetName").model

    def nvmlDeviceGetMigMode(self, device: Gpu) -> list[int]:
        return [self._asked(device, "nvmlDeviceGetMigMode").mig] * 2

    def nvmlDeviceGetComputeRunningProcesses(self, handle: Gpu) -> list[Process]:
        return [Process(pid) for pid in sorted(self._asked(handle, "nvmlDeviceGetComputeRunningProcesses").processes)]

    def nvmlDeviceGetTotalEccErrors(self, handle: Gpu, errorType: int, counterType: int) -> int:
        gpu = self._asked(handle, "nvmlDeviceGetTotalEccErrors")
        asked = (errorType, counterType) == (pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC)
        return gpu.uncorrected if asked else 1000  # of corrected ones there are always some

    def nvmlDeviceGetRemappedRows(self, device: Gpu) -> tuple[int, int, int, int]:
        return self._asked(device, "nvmlDeviceGetRemappedRows").rows

    def nvmlEventSetCreate(self) -> EventSet:
        self.sets.append(EventSet())
        return self.sets[-1]

    def nvmlDeviceRegisterEvents(self, handle: Gpu, eventTypes: int, eventSet: EventSet) -> None:
        gpu = self._asked(handle, "nvmlDeviceRegisterEvents")
        if eventTypes & pynvml.nvmlEventTypeXidCriticalError:
            eventSet.gpus.append(gpu)

    def nvmlEventSetWait_v2(self, eventSet: EventSet, timeoutms: int) -> Event:
        with self._told:
            if self.wait:
                raise pynvml.NVMLError(self.wait)
            if not eventSet.waiting:
                eventSet.awaited = True
                self._told.notify_all()
            if not self._told.wait_for(lambda: bool(eventSet.waiting), timeoutms / 1000):
                raise pynvml.NVMLError(pynvml.NVML_ERROR_TIMEOUT)
            newest = eventSet.waiting[-1]
            event = eventSet.waiting.pop(0)
            return Event(event.device, event.eventType, newest.eventData)

    def nvmlEventSetFree(self, eventSet: EventSet) -> None:
        eventSet.freed = True

    def _asked(self, gpu: Gpu, function: str) -> Gpu:
        code = gpu.lost or gpu.errors.get(function, 0)
        if code:
            raise pynvml.NVMLError(code)
        return gpu


def machine(count: int = 8, name: str = "") -> FakeNvml:
    """A machine whose GPUs are numbered from the far end of the bus, for their numbers are not their places."""
    gpus = [Gpu(f"GPU-{name}{place}", f"00000000:{16 + place:02X}:00.0") for place in range(count)]
    return FakeNvml(gpus[::-1])
