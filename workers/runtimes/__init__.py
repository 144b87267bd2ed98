"""Runtimes: building pinned torch environments and starting jobs in them.

On the straight line this stands between ``workers.loop``, which has claimed a job, and ``jobs``, which runs it. Every
way of doing so is an :class:`Executor`::

    venv     virtual environments on this machine (workers.runtimes.venv); for trusted code only
    docker   containers from the same catalogue
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO, Protocol

from service.catalog import RuntimeSpec
from service.errors import GradmatrixError

Progress = Callable[[str, int, int | None], None]
"""What is being done, bytes done so far, and bytes in all where that is known."""


class RuntimeBuildError(GradmatrixError):
    """A runtime could not be built, or is not what its lock says."""


class SourceUnavailableError(RuntimeBuildError):
    """No index can be reached, or none that is configured holds a package: nothing that this machine can mend."""


class NotEnoughDiskError(RuntimeBuildError):
    """A runtime would not fit on the disk; said before anything is downloaded."""


class RuntimeBusyError(GradmatrixError):
    """A runtime cannot be removed now, because a job runs in it or somebody builds it."""


class LeftRunningError(GradmatrixError):
    """Processes of a job are still there although they were killed."""


class Process(Protocol):
    """One running job."""

    stdin: BinaryIO
    stdout: BinaryIO
    timed_out: bool
    """Whether its wall limit ended it."""

    def pids(self) -> frozenset[int]:
        """The processes of it that run, by the numbers that this host gives them; none once it has ended."""

    def stderr_tail(self) -> str:
        """The end of what it wrote to standard error."""

    def kill(self) -> None:
        """End it with everything that it started, and make sure of it. No error if it is gone already."""

    def close(self) -> None:
        """End it as ``kill`` does, and close its streams. Whoever started it calls this last."""

    def wait(self, timeout: float | None = None) -> int | None:
        """Its exit status, or None if it still runs after ``timeout`` seconds."""


class Executor(Protocol):
    """A way of building runtimes and running jobs in them."""

    name: str
    trusted_only: bool
    """Whether nothing contains the code that runs, so that what only a webhook asked for is not for it."""

    def ensure(self, runtime: RuntimeSpec, progress: Progress) -> bool:
        """Build the runtime if it is not there; whether this call built it. Raises RuntimeBuildError.

        May be called from several threads. What ``progress`` raises ends the build, and nothing of it is left.
        """

    def start(self, runtime: RuntimeSpec, *, workdir: Path, wall_s: float, devices: Sequence[str] = ()) -> Process:
        """Start ``jobs`` in a built runtime, in the empty folder ``workdir``; killed after ``wall_s`` seconds.

        Of this host's GPUs it sees those in ``devices`` and no others.
        """
