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
    """A hint between threads of one process: all that wait hear it, and one that comes late hears it then."""

    def __init__(self) -> None:
        self._said = threading.Condition()
        self._count = 0
        self._mine = threading.local()

    def publish(self) -> None:
        """Say that there is work."""
        with self._said:
            self._count += 1
            self._said.notify_all()

    def wait(self, timeout: float) -> bool:
        """Wait for a hint that this thread has not heard, at most ``timeout`` seconds; whether there was one."""
        heard = getattr(self._mine, "count", 0)
        with self._said:
            hinted = self._said.wait_for(lambda: self._count > heard, timeout)
            # taken before the queue is read: a hint that comes meanwhile is heard by the next call
            self._mine.count = self._count
        return hinted
