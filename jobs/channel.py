"""Processes: the launcher's end of the channel to a zygote, signals, life and death, and whether one does anything.

Everything that comes up the channel was said by a process that may run a stranger's code.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import socket
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from jobs.contract import Limits
from jobs.stream import LineReader, decode

PR_SET_PDEATHSIG = 1


class ZygoteLostError(Exception):
    """The process that forks ranks is gone."""


class Zygote:
    """The launcher's end of the channel to a zygote; ``subject`` is what that imports, or "" where that is nothing."""

    def __init__(self, pid: int, subject: str, channel: socket.socket, log: LineReader, limits: Limits) -> None:
        self.pid = pid
        self.subject = subject
        self.channel = channel
        self.log = log
        self.limits = limits
        self._lines = LineReader(channel.fileno(), limits.line_bytes)
        self._exits: dict[int, int] = {}

    def messages(self, wait: float) -> Iterator[dict[str, Any]]:
        """Messages that arrive within ``wait`` seconds; exits of ranks are remembered and not yielded."""
        select.select([self.channel], [], [], wait)
        for line in self._lines.read():
            try:
                message = decode(line)
                if message.get("z") == "exit":
                    self._exits[int(message["pid"])] = int(message["status"])
                    continue
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                # It runs a stranger's code: a message of another form means that it is no longer itself.
                raise ZygoteLostError from error
            yield message

    def receive(self, kind: str, deadline: float) -> dict[str, Any]:
        """The next message of ``kind``. Raises TimeoutError at ``deadline`` and ZygoteLostError when it is gone."""
        while time.monotonic() < deadline:
            for message in self.messages(0.05):
                if message.get("z") == kind:
                    return message
            if self._lines.closed:
                raise ZygoteLostError
        raise TimeoutError

    def exit_of(self, pid: int) -> int | None:
        """The wait status of a rank that ended, if it has."""
        for _ in self.messages(0):
            pass
        return self._exits.get(pid)

    def close(self) -> None:
        """Kill it and reap it; its ranks die with it."""
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        self.channel.close()
        self.log.close()


class Idle:
    """Watches processes: for how long all of them have slept without using the processor."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._pids = tuple(pids)
        self._used: list[str] = []
        self._at = time.monotonic()

    def since(self) -> float:
        """Seconds since any of them was last seen to do something."""
        used = [self._usage(pid) for pid in self._pids]
        if used != self._used or any(usage.startswith(("R", "D")) for usage in used):  # it runs, or waits for the disk
            self._used, self._at = used, time.monotonic()
        return time.monotonic() - self._at

    @staticmethod
    def _usage(pid: int) -> str:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return ""
        return f"{fields[0]} {fields[11]} {fields[12]}"  # state, and ticks in user and in kernel mode


def believable(pids: Any, count: int) -> bool:
    """Whether these may be the ranks: the sender runs a stranger's code, and what it names will be sent signals."""
    return (
        isinstance(pids, list)
        and len(pids) == len({pid for pid in pids if isinstance(pid, int)}) == count
        and all(pid > 1 and pid not in (os.getpid(), os.getppid()) for pid in pids)
    )


def send_signal(pid: int, number: int) -> None:
    """Send it, if the process is still there and ours."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def take_long_turns() -> None:
    """Let this process, and each that it starts, wait its turn instead of pushing others off a processor.

    Where ranks outnumber cores, each message that arrives would wake a thread that takes the core from the rank which
    still has others to wake: on two cores an all_reduce over 4 ranks then takes 5 ms instead of 0.8.
    """
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent goes; never leave a rank behind."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
