"""The hint that there is work. The database is the truth: a lost hint costs a few seconds, never a job.

On the straight line this stands between ``service.store`` (after its commit) and ``workers.loop`` (which looks at the
queue on a hint, on a freed device, or when ``BEAT_S`` have passed). This one serves a worker in the same process.
"""

from __future__ import annotations

import threading
from typing import Protocol


class Broker(Protocol):
    """What a submitter and a worker need of any broker."""

    def publish(self) -> None:
        """Say that there is work. Call it after the commit: a worker that looks before finds nothing."""

    def wait(self, timeout: float) -> bool:
        """Wait for a hint, at most ``timeout`` seconds; whether there was one since the last call."""


class LocalBroker:
    """A hint between threads of one process. A hint given while nobody waits is kept for the next who does."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def publish(self) -> None:
        """Say that there is work."""
        self._event.set()

    def wait(self, timeout: float) -> bool:
        """Wait for a hint, at most ``timeout`` seconds; whether there was one."""
        hinted = self._event.wait(timeout)
        # cleared before the queue is read: a hint that comes meanwhile is seen by the next call
        self._event.clear()
        return hinted
