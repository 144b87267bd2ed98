"""Locks between processes, one per runtime: builders exclude everybody, running jobs only removal.

The lock is the kernel's (flock): it is let go of when the last process that holds the file ends, however it ends. A
builder hands it on to uv, so that after a builder was killed the next one waits until that uv is gone as well.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

_POLL_S = 0.1


class Guard:
    """An open lock file; ``fd`` may be handed on to a child, which then holds the lock too."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def take(self, *, shared: bool = False) -> bool:
        """Take the lock if that is possible at once."""
        try:
            fcntl.flock(self.fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def wait(self, *, shared: bool = False, waiting: Callable[[], None] = lambda: None) -> None:
        """Take the lock however long it takes, calling ``waiting`` now and then."""
        while not self.take(shared=shared):
            waiting()
            time.sleep(_POLL_S)

    def close(self) -> None:
        """Let go."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
