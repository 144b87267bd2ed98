"""An executor whose containers say what a script says, over real pipes, to the real loop, attempt, judge and store."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from jobs.contract import AttemptSpec
from service.catalog import RuntimeSpec
from tests.workers.matter import line
from workers.runtimes import Progress

Script = Callable[[AttemptSpec, tuple[str, ...]], Iterator[Mapping[str, Any]]]
PID = 4_200_000
"""The number that the one process of such a container has: higher than any real one."""


class Scripted:
    """See :class:`workers.runtimes.Executor`. A script gets the spec and the devices, and yields events."""

    name = "scripted"
    trusted_only = True

    def __init__(self, *scripts: Script) -> None:
        """One script per container, in the order in which they start; the last one goes on for all others."""
        self.scripts = list(scripts)
        self.started: list[tuple[str, ...]] = []
        self.played: list[Played] = []

    def ensure(self, runtime: RuntimeSpec, progress: Progress) -> bool:
        return False

    def start(self, runtime: RuntimeSpec, *, workdir: Path, wall_s: float, devices: Sequence[str] = ()) -> Played:
        self.started.append(tuple(devices))
        script = self.scripts.pop(0) if len(self.scripts) > 1 else self.scripts[0]
        self.played.append(Played(script, tuple(devices)))
        return self.played[-1]


class Played:
    """See :class:`workers.runtimes.Process`."""

    def __init__(self, script: Script, devices: tuple[str, ...]) -> None:
        self._script, self._devices = script, devices
        (read, write), (heard, said) = os.pipe(), os.pipe()
        self._in, self._out = os.fdopen(read, "rb"), os.fdopen(said, "wb")
        self.stdin: BinaryIO = os.fdopen(write, "wb")
        self.stdout: BinaryIO = os.fdopen(heard, "rb")
        self.timed_out = False
        self._killed = threading.Event()
        self._thread = threading.Thread(target=self._play)
        self._thread.start()

    def _play(self) -> None:
        with self._in, self._out, suppress(BrokenPipeError):
            spec = AttemptSpec.parse(self._in.readline())
            self._in.read(spec.tar_bytes)
            for said in self._script(spec, self._devices):
                if self._killed.is_set():
                    return
                self._out.write(line(said))
                self._out.flush()
                if said["t"] == "ask" and not self._answered():
                    return

    def _answered(self) -> bool:
        """Wait for a word of the worker's; whether it came before the end."""
        while not select.select([self._in], [], [], 0.02)[0]:
            if self._killed.is_set():
                return False
        return bool(self._in.readline())

    @property
    def killed(self) -> bool:
        """Whether it was told to end."""
        return self._killed.is_set()

    def pids(self) -> frozenset[int]:
        return frozenset({PID} if self._thread.is_alive() and not self._killed.is_set() else ())

    def stderr_tail(self) -> str:
        return ""

    def kill(self) -> None:
        self._killed.set()
        self._thread.join()

    def close(self) -> None:
        self.kill()
        for stream in (self.stdin, self.stdout):
            with suppress(BrokenPipeError):
                stream.close()

    def wait(self, timeout: float | None = None) -> int | None:
        self._thread.join(timeout)
        return None if self._thread.is_alive() else 0
