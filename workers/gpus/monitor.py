"""Looks at the GPUs of this host when it is asked, and listens all the while to what they report.

On the straight line this is what ``workers.gpus.guard`` asks before, during and after a claim's container, and
``workers.loop`` before it claims.

It listens in a thread of its own, because NVML keeps only the newest Xid for whoever waits too seldom: a fault of the
program that came later would hide one of the GPU.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Self, TypeVar

from workers.gpus import nvml
from workers.gpus.health import APPLICATION_XIDS, Problem, Reading, problems
from workers.gpus.nvml import Event, Handle, Library, NVMLError

WAIT_MS = 200
"""How long one wait for an event lasts; also how long stopping takes."""
PATIENCE_S = 10.0
"""How long the memory of a process that was killed may take to be free."""
LOOK_S = 0.1
T = TypeVar("T")
Ours = Callable[[], Collection[int]]
"""The processes that may compute on the devices; asked anew each time, for a job starts and ends some all the while."""
log = logging.getLogger(__name__)


def nobody() -> Collection[int]:
    """No process may compute there."""
    return ()


class Monitor:
    """The health of ``devices``, from the moment when it is entered. May be asked from several threads."""

    def __init__(self, library: Library, devices: Sequence[str], *, patience_s: float = PATIENCE_S) -> None:
        self._library, self._devices, self._patience_s = library, devices, patience_s
        self._guard = threading.Lock()
        self._xids: dict[str, tuple[int, ...]] = {}
        self._deaf: dict[str, str] = {}
        self._resting: set[str] = set()
        self._stop = threading.Event()
        self._listener = threading.Thread(target=self._listen, name="gpu events")
        self._was: Mapping[str, Reading] = {}

    def __enter__(self) -> Self:
        self._set = self._library.nvmlEventSetCreate()
        for device in self._devices:
            self._register(device)
        self._was = {device: self._read(device) for device in self._devices}
        self._listener.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self._stop.set()
        self._listener.join()
        self._library.nvmlEventSetFree(self._set)

    # -- asked ---------------------------------------------------------------------------------------------------

    def look(self, devices: Iterable[str], ours: Ours = nobody) -> tuple[Problem, ...]:
        """What is wrong with these devices; ``ours`` are the processes that may compute on them.

        What has just been killed is given some time to be gone.
        """
        devices = tuple(devices)
        deadline = time.monotonic() + self._patience_s
        while True:
            found = tuple(one for device in devices for one in self._problems(device, ours()))
            only_busy = found and all(one.blame == "busy" for one in found)
            if not only_busy or time.monotonic() >= deadline or self._stop.wait(LOOK_S):
                return found

    def told(self, devices: Iterable[str]) -> None:
        """What is wrong with these devices was written down: from now on only what comes anew counts.

        Otherwise a device that a person says is well would be found sick for the old reason.
        """
        for device in devices:
            with self._guard:
                self._xids.pop(device, None)
                self._deaf.pop(device, None)
            now = self._read(device)
            if not now.lost:
                self._was = {**self._was, device: now}

    def rest(self, devices: Iterable[str]) -> None:
        """Lease these devices to nobody until no process computes on them any more."""
        with self._guard:
            self._resting |= set(devices)

    def resting(self) -> frozenset[str]:
        """Those that rest still."""
        with self._guard:
            asked = tuple(self._resting)
        free = {device for device in asked if not self._read(device).processes}
        with self._guard:
            self._resting -= free
            return frozenset(self._resting)

    # -- looking -------------------------------------------------------------------------------------------------

    def _problems(self, device: str, ours: Collection[int]) -> tuple[Problem, ...]:
        return problems(device, self._was.get(device, Reading()), self._read(device), ours)

    def _read(self, device: str) -> Reading:
        with self._guard:
            heard = Reading(xids=self._xids.get(device, ()), deaf=self._deaf.get(device, ""))
        library = self._library
        try:
            handle = library.nvmlDeviceGetHandleByUUID(device)
            mig = _where_there_is(lambda: library.nvmlDeviceGetMigMode(handle)[0], 0)
            errors = _where_there_is(
                lambda: library.nvmlDeviceGetTotalEccErrors(handle, nvml.UNCORRECTED, nvml.VOLATILE), 0
            )
            _, _, pending, failed = _where_there_is(lambda: library.nvmlDeviceGetRemappedRows(handle), (0, 0, 0, 0))
            processes = tuple(process.pid for process in library.nvmlDeviceGetComputeRunningProcesses(handle))
        except NVMLError as error:
            return dataclasses.replace(heard, lost=str(error))
        return dataclasses.replace(
            heard,
            divided=bool(mig),
            uncorrected=errors,
            remap_pending=bool(pending),
            remap_failed=bool(failed),
            processes=processes,
        )

    # -- listening -----------------------------------------------------------------------------------------------

    def _register(self, device: str) -> None:
        try:
            handle = self._library.nvmlDeviceGetHandleByUUID(device)
            self._library.nvmlDeviceRegisterEvents(handle, nvml.XID_EVENTS, self._set)
        except NVMLError as error:
            self._note_deaf([device], str(error))

    def _listen(self) -> None:
        while not self._stop.is_set():
            try:
                event = self._library.nvmlEventSetWait_v2(self._set, WAIT_MS)
            except NVMLError as error:
                if nvml.code(error) != nvml.TIMEOUT:
                    self._note_deaf(self._devices, str(error))
                    self._stop.wait(WAIT_MS / 1000)
                continue
            if event.eventType == nvml.XID_EVENTS:
                self._note_xid(event)

    def _note_xid(self, event: Event) -> None:
        """One whose GPU cannot be told may be anybody's."""
        xid = int(event.eventData)
        name = self._name(event.device)
        devices = [device for device in self._devices if name in (device, "")]
        what = f"a fault of the program: {APPLICATION_XIDS[xid]}" if xid in APPLICATION_XIDS else "a fault of the GPU"
        log.warning("%s reported Xid %d, %s", name or "a GPU that is lost", xid, what)
        with self._guard:
            for device in devices:
                self._xids[device] = (*self._xids.get(device, ()), xid)

    def _name(self, handle: Handle) -> str:
        try:
            return self._library.nvmlDeviceGetUUID(handle)
        except NVMLError:
            return ""

    def _note_deaf(self, devices: Iterable[str], why: str) -> None:
        with self._guard:
            for device in devices:
                if device not in self._deaf:
                    log.error("%s cannot be listened to: %s", device, why)
                self._deaf[device] = why


def _where_there_is(ask: Callable[[], T], otherwise: T) -> T:
    """What is asked for, or ``otherwise`` of a GPU that does not count such things."""
    try:
        return ask()
    except NVMLError as error:
        if nvml.code(error) in nvml.NOT_SUPPORTED:
            return otherwise
        raise
