"""The border to NVIDIA's management library: what is used of it, under the names that ``pynvml`` has.

On the straight line this stands beneath ``workers.gpus``; nothing else imports pynvml. Whatever has these functions can
stand in for it where there is no GPU.
"""
# ruff: noqa: N802, N803 - the names are the library's

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, cast

import pynvml

from service.errors import GradmatrixError

Handle = Any
NVMLError: type[Exception] = pynvml.NVMLError
"""What every call raises; ``value`` is NVML's return code."""
NOT_SUPPORTED = (int(pynvml.NVML_ERROR_NOT_SUPPORTED), int(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND))
"""Return codes of a GPU, or of a driver, that does not have what was asked for."""
TIMEOUT = int(pynvml.NVML_ERROR_TIMEOUT)
LIBRARY_NOT_FOUND = int(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)
UNCORRECTED = int(pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED)
VOLATILE = int(pynvml.NVML_VOLATILE_ECC)
XID_EVENTS = int(pynvml.nvmlEventTypeXidCriticalError)


class NvmlBrokenError(GradmatrixError):
    """NVML is installed and does not work, or has no GPU where one must be."""


class Running(Protocol):
    """A process that computes on a GPU."""

    @property
    def pid(self) -> int: ...  # noqa: D102


class Place(Protocol):
    """Where a GPU is plugged in; ``busId`` sorts as the PCI bus does."""

    @property
    def busId(self) -> str: ...  # noqa: D102


class Event(Protocol):
    """Something that a GPU reported; of an Xid, ``eventData`` is its number."""

    @property
    def device(self) -> Handle: ...  # noqa: D102

    @property
    def eventType(self) -> int: ...  # noqa: D102

    @property
    def eventData(self) -> int: ...  # noqa: D102


class Library(Protocol):
    """The functions of NVML that are used. Each raises NVMLError."""

    def nvmlInit(self) -> None:
        """Start; loads the driver's library."""

    def nvmlSystemGetDriverVersion(self) -> str:
        """The driver's version."""

    def nvmlDeviceGetCount(self) -> int:
        """How many GPUs are listed."""

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Handle:
        """A GPU by a number that may be another one after the next boot."""

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Handle:
        """A GPU by its own name."""

    def nvmlDeviceGetPciInfo(self, handle: Handle) -> Place:
        """Where it is plugged in."""

    def nvmlDeviceGetUUID(self, handle: Handle) -> str:
        """Its own name."""

    def nvmlDeviceGetName(self, handle: Handle) -> str:
        """Its model."""

    def nvmlDeviceGetMigMode(self, device: Handle) -> Sequence[int]:
        """Whether it is divided by MIG: now, and after the next reset."""

    def nvmlDeviceGetComputeRunningProcesses(self, handle: Handle) -> Sequence[Running]:
        """Which processes compute on it."""

    def nvmlDeviceGetTotalEccErrors(self, handle: Handle, errorType: int, counterType: int) -> int:
        """How many memory errors were counted."""

    def nvmlDeviceGetRemappedRows(self, device: Handle) -> tuple[int, int, int, int]:
        """Rows remapped after corrected and uncorrected errors, whether one waits for a reset, whether one failed."""

    def nvmlEventSetCreate(self) -> Handle:
        """A new set of events to wait for."""

    def nvmlDeviceRegisterEvents(self, handle: Handle, eventTypes: int, eventSet: Handle) -> None:
        """Have a GPU's events come into the set."""

    def nvmlEventSetWait_v2(self, eventSet: Handle, timeoutms: int) -> Event:
        """The next event."""

    def nvmlEventSetFree(self, eventSet: Handle) -> None:
        """Give the set back."""


def code(error: Exception) -> int:
    """NVML's return code."""
    return int(getattr(error, "value", 0))


def load(library: Library | None = None) -> Library | None:
    """The library, ready to be asked; None where this machine has none. Raises NvmlBrokenError where it does not work.

    A host whose driver is broken must not become one without GPUs: that would be seen only by what is not run any more.
    """
    found = library or cast("Library", pynvml)
    try:
        found.nvmlInit()
    except NVMLError as error:
        if code(error) == LIBRARY_NOT_FOUND:
            return None
        raise NvmlBrokenError(
            f"the NVIDIA driver is installed here and does not work: {error}; mend it (nvidia-smi says the same), or "
            "set GRADMATRIX_GPUS=false to offer CPU slots on this host"
        ) from error
    return found
