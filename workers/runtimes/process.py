"""A job's process on this machine, and its end: nothing that it started stays behind.

On the straight line this is what ``workers.loop`` holds while a job runs. A job is a session of its own whose
processes carry ``GRADMATRIX_ATTEMPT`` in their environment. Killed is whatever is in the session, carries the mark, or
descends from such a process; only code that sets out to hide can escape, and this executor is for trusted code only.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self, cast

from workers.runtimes import LeftRunningError

MARK = "GRADMATRIX_ATTEMPT"
_TAIL_BYTES = 64 * 1024
_GONE_S = 10.0
_PROC = Path("/proc")
_PASSED = ("PATH", "CC", "CXX", "LD_LIBRARY_PATH", "OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")
"""What a job sees of our environment: where compilers are, and settings without which this machine computes wrongly."""


@dataclass(frozen=True)
class _Seen:
    """One process at one moment; ``born`` tells it from a later one with the same number."""

    pid: int
    parent: int
    session: int
    born: int
    dead: bool


class JobProcess:
    """A running job; see :class:`workers.runtimes.Process`."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        workdir: Path,
        wall_s: float,
        extra: Mapping[str, str] | None = None,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        """Start ``command``; ``on_end`` is called once, when it is known to have ended."""
        self.mark = f"{os.getpid()}-{_born(os.getpid())}-{_namespace()}-{uuid.uuid4().hex}"
        self._on_end = on_end
        self._popen = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=workdir,
            env={**clean_environment(workdir), **(extra or {}), MARK: self.mark},
            start_new_session=True,
        )
        self.pid = self._popen.pid
        self._leader = (self.pid, _born(self.pid))
        self.stdin = cast(BinaryIO, self._popen.stdin)
        self.stdout = cast(BinaryIO, self._popen.stdout)
        self._tail = b""
        self._reader = threading.Thread(target=self._keep_tail, daemon=True, name=f"stderr of {self.pid}")
        self._reader.start()
        self.timed_out = False
        self._timer = threading.Timer(wall_s, self._time_out)
        self._timer.daemon = True
        self._timer.start()

    def _time_out(self) -> None:
        self.timed_out = self._popen.poll() is None
        self.kill()

    def pids(self) -> frozenset[int]:
        """Its processes that run."""
        found = _members(_processes(), leader=self._leader, mark=self.mark)
        return frozenset(process.pid for process in found if not process.dead)

    def stderr_tail(self) -> str:
        """The end of what it wrote to standard error, complete once it has ended."""
        if self._popen.poll() is not None:
            self._reader.join(1.0)
        return self._tail.decode("utf-8", "replace")

    def wait(self, timeout: float | None = None) -> int | None:
        """Its exit status, or None if it still runs after ``timeout`` seconds."""
        try:
            status = self._popen.wait(timeout)
        except subprocess.TimeoutExpired:
            return None
        self._ended()
        return status

    def kill(self) -> None:
        """End it with everything that it started. Raises LeftRunningError if something stays."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if self._popen.poll() is None:
                os.killpg(self.pid, signal.SIGKILL)
        end_all(partial(_members, leader=self._leader, mark=self.mark), reap=self._popen.poll)
        self._popen.wait()
        self._ended()

    def close(self) -> None:
        """End it as :meth:`kill` does, and close its streams; what was not read of them is lost."""
        self.kill()
        self._reader.join(1.0)  # one that hid from us may hold the pipe for ever
        for stream in (self.stdin, self.stdout):
            with contextlib.suppress(BrokenPipeError):
                stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _ended(self) -> None:
        self._timer.cancel()
        on_end, self._on_end = self._on_end, lambda: None
        on_end()

    def _keep_tail(self) -> None:
        """Read standard error to its end, so that the job never waits for us, and keep little of it."""
        stream = cast(BinaryIO, self._popen.stderr)
        with stream:
            while chunk := os.read(stream.fileno(), 65536):
                self._tail = (self._tail + chunk)[-_TAIL_BYTES:]


def clean_environment(workdir: Path) -> dict[str, str]:
    """What a job sees: nothing of ours beyond a short list, everything it writes in ``workdir``."""
    folders = dict.fromkeys(("HOME", "TMPDIR"), str(workdir))
    passed = {name: os.environ[name] for name in _PASSED if name in os.environ}
    return {**passed, **folders, "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8"}


def sweep_orphans() -> int:
    """End jobs whose worker is gone without having ended them (killed, or its machine slept). Returns how many."""
    marks = {mark for process in _processes() if (mark := _mark(process.pid))}
    # Looked up after the marks, so that a job that started in between has its worker among the living.
    living = {(process.pid, process.born) for process in _processes() if not process.dead}
    owners = {mark: owner for mark in marks if (owner := _owner(mark)) is not None}
    lost = {mark for mark, owner in owners.items() if owner not in living}
    for mark in lost:
        end_all(partial(_members, leader=None, mark=mark))
    return len(lost)


def end_all(members: Callable[[list[_Seen]], set[_Seen]], reap: Callable[[], object] = lambda: None) -> None:
    """Kill ``members`` until there are none, looking anew each time. Raises LeftRunningError after ten seconds."""
    deadline = time.monotonic() + _GONE_S
    known: set[tuple[int, int]] = set()
    while True:
        reap()
        processes = _processes()
        found = {process for process in processes if (process.pid, process.born) in known} | members(processes)
        found = {process for process in found if not process.dead and process.pid != os.getpid()}
        if not found:
            return
        if time.monotonic() > deadline:
            raise LeftRunningError(f"still running after SIGKILL: {sorted(process.pid for process in found)}")
        known |= {(process.pid, process.born) for process in found}
        for process in found:
            _kill(process)
        time.sleep(0.01)


def _members(processes: list[_Seen], *, leader: tuple[int, int] | None, mark: str) -> set[_Seen]:
    """The job's processes: by session, by mark, and whatever descends from those.

    The session of ``leader`` (its number and birth) counts only if no later process has taken over that number.
    """
    births = {process.pid: process.born for process in processes}
    ours = leader is not None and births.get(leader[0], leader[1]) == leader[1]
    session = leader[0] if leader and ours else None
    found = {process for process in processes if process.session == session or _mark(process.pid) == mark}
    while True:
        pids = {process.pid for process in found}
        more = {process for process in processes if process.parent in pids} - found
        if not more:
            return found
        found |= more


def _processes() -> list[_Seen]:
    numbers = [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdecimal()]
    return [seen for pid in numbers if (seen := _look(pid))]


def _look(pid: int) -> _Seen | None:
    try:
        text = (_PROC / str(pid) / "stat").read_text("utf-8", "replace")
    except OSError:
        return None
    fields = text[text.rindex(")") + 2 :].split()  # the name before may hold blanks and parentheses
    return _Seen(pid, int(fields[1]), int(fields[3]), int(fields[19]), fields[0] in ("Z", "X"))


def _born(pid: int) -> int:
    seen = _look(pid)
    return seen.born if seen else 0


def _mark(pid: int) -> str | None:
    try:
        content = (_PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return None
    start = f"{MARK}=".encode()
    marks = [part[len(start) :] for part in content.split(b"\0") if part.startswith(start)]
    return marks[0].decode("ascii", "replace") if marks else None


def _owner(mark: str) -> tuple[int, int] | None:
    """The worker that started the job: its number and birth; None where they are numbers of another namespace.

    A worker in a container counts its processes from one: outside, those numbers are other processes or none.
    """
    parts = mark.split("-")
    if len(parts) != 4 or parts[2] != _namespace() or not (parts[0].isdecimal() and parts[1].isdecimal()):
        return None
    return int(parts[0]), int(parts[1])


def _namespace() -> str:
    """The namespace that this process' numbers are of, or nothing where it cannot be told."""
    try:
        return "".join(filter(str.isdigit, str((_PROC / "self" / "ns" / "pid").readlink())))
    except OSError:
        return ""


def _kill(process: _Seen) -> None:
    """SIGKILL to exactly this process: the descriptor holds the number while we look again."""
    with contextlib.suppress(OSError):
        descriptor = os.pidfd_open(process.pid)
        try:
            if _born(process.pid) == process.born:
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        finally:
            os.close(descriptor)
