"""A group of ranks as the launcher sees it: it gives them one case at a time, listens, and holds the deadlines."""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jobs import accelerator
from jobs.channel import Idle, Zygote, ZygoteLostError, believable, send_signal
from jobs.contract import RANK_STATUS, Deadlines
from jobs.ranks import ASKED, FLIGHT, RankSetup
from jobs.stream import LineReader, decode, encode, write_all

STACKS_GRACE_S = 1.5
OTHERS_GRACE_S = 2.0
"""How long the ranks of a group may take to answer once one of them raised or died …"""
IDLE_S = 0.4
"""… and how long they may use no processor time meanwhile: then they wait for the one that is gone."""
FLIGHT_LIMIT = 64 * 1024
"""Characters of a rank's record of collectives that are kept: the newest."""
ANSWER_FIELDS = ("status", "phase", "error", "reason", "changed", "seconds", "repeat_equal")


@dataclass
class RankState:
    """One rank, from outside."""

    pid: int
    events: LineReader
    commands: int
    log: LineReader
    stacks: Path
    ready: bool = False
    at: str = "setup"
    setup_error: dict[str, Any] | None = None
    exit_status: int | None = None
    waiting: str = ""
    answer: dict[str, Any] | None = None
    ended: bool = False
    tensors: list[Any] = field(default_factory=list)

    @property
    def gone(self) -> bool:
        """Whether nothing more can come from this rank."""
        return self.events.closed or self.exit_status is not None


@dataclass
class Outcome:
    """How one cell ended in a group: per rank its answer and tensors; stacks where a deadline passed."""

    ranks: list[dict[str, Any]]
    tensors: list[list[Any]]
    trace: dict[str, Any] | None
    seconds: float
    stacks: dict[int, str]


def nobody(world_size: int, status: str, reason: str) -> Outcome:
    """The outcome of a cell that no rank was asked to run."""
    answer = _answer(status, "build", reason=reason)
    ranks = [{"rank": rank, **{name: answer[name] for name in ANSWER_FIELDS}} for rank in range(world_size)]
    return Outcome(ranks, [[] for _ in ranks], None, 0.0, {})


class Group:
    """Ranks that share a process group. Once retired, it is of no more use."""

    def __init__(
        self,
        zygote: Zygote,
        setups: list[RankSetup],
        deadlines: Deadlines,
        on_log: Callable[[int | None, bytes], None],
    ) -> None:
        self._zygote = zygote
        self._deadlines = deadlines
        self._on_log = on_log
        self.world_size = len(setups)
        self.usable = True
        self._ranks = self._start(setups)

    def _start(self, setups: list[RankSetup]) -> list[RankState]:
        limit = self._zygote.limits.line_bytes
        pipes = [[os.pipe() for _ in range(3)] for _ in setups]
        theirs = [fd for events, commands, log in pipes for fd in (events[1], commands[0], log[1])]
        order = {"ranks": [setup.to_json() for setup in setups]}
        socket.send_fds(self._zygote.channel, [encode(order)], theirs)
        for fd in theirs:
            os.close(fd)
        ranks = [
            RankState(0, LineReader(events[0], limit), commands[1], LineReader(log[0], limit), Path(setup.stacks))
            for (events, commands, log), setup in zip(pipes, setups, strict=True)
        ]
        deadline = time.monotonic() + self._deadlines.import_s
        try:
            pids = self._zygote.receive("started", deadline)["pids"]
        except (ZygoteLostError, TimeoutError):
            self.usable = False
            return ranks
        if not believable(pids, len(ranks)):
            self.usable = False
            return ranks
        for rank, pid in zip(ranks, pids, strict=True):
            rank.pid = pid
        self._ranks = ranks
        self._listen(lambda: all(r.ready or r.gone for r in ranks), deadline)
        self.usable = all(r.ready and r.setup_error is None for r in ranks)
        return ranks

    def setup_outcome(self) -> Outcome:
        """The outcome of every cell of a group that never became usable."""
        for rank in self._ranks:
            if rank.setup_error is not None:
                rank.answer = _answer("raised", "setup", error=rank.setup_error)
            elif rank.ready or not rank.gone:
                rank.answer = _answer("lost" if any(r.setup_error for r in self._ranks) else "hang", "setup")
        return self._outcome(0.0, {})

    def run(self, command: dict[str, Any], traced: bool) -> Outcome:
        """Give every rank one case and wait for all of them, or for a deadline."""
        began = time.monotonic()
        for rank in self._ranks:
            rank.waiting, rank.answer, rank.ended, rank.tensors = "", None, False, []
            rank.at = "compile" if traced else "forward"
            self._tell(rank, encode(command))
        stacks: dict[int, str] = {}
        deadline = began + (self._deadlines.compile_s if traced else self._deadlines.case_s)
        while True:
            if not self._wait(lambda r: bool(r.waiting) or r.answer is not None, deadline):
                stacks = self._read_stacks()
                break
            if not all(rank.waiting for rank in self._ranks):
                break
            if traced and self._ranks[0].waiting == "repeat":
                deadline = time.monotonic() + self._deadlines.case_s
            for rank in self._ranks:
                rank.at, rank.waiting = rank.waiting, ""
                self._tell(rank, b"\n")
        if not stacks and all(rank.answer for rank in self._ranks):
            # What follows an answer is only the try for one whole graph: the trace says so if it never ended.
            self._wait(lambda r: r.ended, time.monotonic() + self._deadlines.case_s)
        self._judge_usable()
        return self._outcome(time.monotonic() - began, stacks)

    def _tell(self, rank: RankState, data: bytes) -> None:
        try:
            write_all(rank.commands, data)
        except BrokenPipeError:
            rank.events.closed = True

    def _wait(self, done: Callable[[RankState], bool], deadline: float) -> bool:
        """Wait until every rank is done or gone. One that failed gives the others a short grace, not the deadline."""
        if not self._listen(lambda: self._settled(done), deadline):
            return False
        if all(done(rank) or rank.gone for rank in self._ranks):
            return True
        idle = Idle(rank.pid for rank in self._ranks if not (done(rank) or rank.gone))
        self._listen(
            lambda: all(done(r) or r.gone for r in self._ranks) or idle.since() > IDLE_S,
            time.monotonic() + OTHERS_GRACE_S,
        )
        return True

    def _settled(self, done: Callable[[RankState], bool]) -> bool:
        failed = any(r.gone or (r.answer and r.answer["status"] != "ok") for r in self._ranks)
        return failed or all(done(rank) for rank in self._ranks)

    def _listen(self, until: Callable[[], bool], deadline: float) -> bool:
        """Take in what the ranks say until ``until()`` holds (True) or the deadline passes (False)."""
        while not until():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            readers = [r for rank in self._ranks for r in (rank.events, rank.log) if not r.closed]
            if readers:
                select.select([r.fd for r in readers], [], [], min(left, 0.1))
            for number, rank in enumerate(self._ranks):
                self._take(number, rank)
            if not readers and not until():
                return False
        return True

    def _take(self, number: int, rank: RankState) -> None:
        for line in rank.log.read():
            self._on_log(number, line)
        for line in rank.events.read():
            self._hear(rank, line)
        if rank.exit_status is None and rank.pid:
            status = self._zygote.exit_of(rank.pid)
            if status is not None:
                for line in rank.events.read():
                    self._hear(rank, line)
                rank.exit_status = status

    def _hear(self, rank: RankState, line: bytes) -> None:
        """One line of a rank, which runs a stranger's code: what is not of the agreed form ends the rank."""
        try:
            message = decode(line)
            kind = message["e"]
            if kind == "ready":
                rank.ready, rank.setup_error = True, _checked(message["error"], dict, type(None))
            elif kind == "phase":
                rank.waiting = _checked(message["name"], str)
            elif kind == "tensor" and rank.answer is None:
                rank.tensors.append(_checked(message["tensor"], dict))
            elif kind == "answered" and rank.answer is None and message["status"] in RANK_STATUS:
                _checked(message["seconds"], float, int), _checked(message["error"], dict, type(None))
                rank.answer = {name: message[name] for name in ANSWER_FIELDS} | {"trace": message["trace"]}
            elif kind == "end" and rank.answer is not None:
                rank.ended = True
                rank.answer["seconds"] = float(message["seconds"])
                rank.answer["trace"] = message["trace"]
            else:
                raise ValueError(kind)
        except (ValueError, KeyError, TypeError):
            rank.events.closed = True
            rank.answer = None

    def _read_stacks(self) -> dict[int, str]:
        """Have every live rank write its Python stacks, and collect them."""
        for rank in self._ranks:
            if not rank.gone and rank.pid:
                Path(f"{rank.stacks}{ASKED}").touch()
                send_signal(rank.pid, signal.SIGUSR1)
        self._listen(lambda: False, time.monotonic() + STACKS_GRACE_S)
        stacks = {}
        for number, rank in enumerate(self._ranks):
            text = rank.stacks.read_text(errors="replace") if rank.stacks.exists() else ""
            flight = Path(f"{rank.stacks}{FLIGHT}")
            if flight.exists():
                text += f"\nNCCL's flight recorder:\n{flight.read_text(errors='replace')[-FLIGHT_LIMIT:]}\n"
            stacks[number] = text or "(no stacks: the process was gone or did not answer)"
        return stacks

    def _judge_usable(self) -> None:
        """Keep the group only if every rank is well, or all raised before any collective could be left half done."""
        if not all(rank.ended and not rank.gone for rank in self._ranks):
            self.usable = False
            return
        answers = [rank.answer or {} for rank in self._ranks]
        raised = [answer for answer in answers if answer.get("status") == "raised"]
        if any(accelerator.at_fault(answer.get("error")) for answer in raised):
            self.usable = False
            return
        self.usable = not raised or (len(raised) == len(answers) and not any(map(_inside_a_collective, raised)))

    def _outcome(self, seconds: float, stacks: dict[int, str]) -> Outcome:
        ranks = []
        someone_died = any(rank.gone and rank.answer is None for rank in self._ranks)
        someone_raised = any(rank.answer and rank.answer["status"] == "raised" for rank in self._ranks)
        trace = next((r.answer["trace"] for r in self._ranks if r.answer and r.answer.get("trace")), None)
        for number, rank in enumerate(self._ranks):
            answer = rank.answer
            if answer is None and rank.gone:
                self._await_exit(rank)
                answer = _answer("crash", rank.at, reason=_death(rank))
            elif answer is None:
                # A rank that waits at the end of a phase, or for one that died or raised, is well.
                well = bool(rank.waiting) or someone_died or someone_raised
                answer = _answer("lost" if well else "hang", rank.at)
            ranks.append({"rank": number, **{name: answer[name] for name in ANSWER_FIELDS}})
        tensors = [rank.tensors if rank.answer else [] for rank in self._ranks]
        if trace is not None and not all(rank.ended for rank in self._ranks) and not someone_raised:
            trace = {**trace, "fullgraph": trace.get("fullgraph") or "did not end"}
        return Outcome(ranks, tensors, trace, round(seconds, 6), stacks)

    def _await_exit(self, rank: RankState) -> None:
        """A rank's pipe closes a moment before its parent learns how it died."""
        deadline = time.monotonic() + OTHERS_GRACE_S
        while rank.pid and rank.exit_status is None and time.monotonic() < deadline:
            rank.exit_status = self._zygote.exit_of(rank.pid)
            if rank.exit_status is None:
                time.sleep(0.005)

    def retire(self) -> None:
        """Kill every rank and wait until it is gone."""
        self.usable = False
        for rank in self._ranks:
            if rank.pid and rank.exit_status is None:
                send_signal(rank.pid, signal.SIGKILL)
        for rank in self._ranks:
            self._await_exit(rank)
        for number, rank in enumerate(self._ranks):
            if not rank.log.closed:
                for line in rank.log.read():
                    self._on_log(number, line)
            rank.events.close()
            rank.log.close()
            os.close(rank.commands)


def _answer(status: str, phase: str, **fields: Any) -> dict[str, Any]:
    empty: dict[str, Any] = {
        "error": None,
        "reason": None,
        "changed": [],
        "seconds": 0.0,
        "repeat_equal": None,
        "trace": None,
    }
    return {**empty, "status": status, "phase": phase, **fields}


def _checked(value: Any, *kinds: type) -> Any:
    if not isinstance(value, kinds):
        raise TypeError(f"{type(value).__name__} instead of {kinds[0].__name__}")
    return value


def _death(rank: RankState) -> str:
    if rank.events.overrun:
        return "said more in one line than is allowed"
    status = rank.exit_status
    if status is None:
        return "its event pipe was closed"
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return f"killed by {signal.Signals(number).name}" if number in list(signal.Signals) else f"killed by {number}"
    return f"exited with status {os.WEXITSTATUS(status)}"


def _inside_a_collective(answer: dict[str, Any]) -> bool:
    frames = (answer.get("error") or {}).get("frames") or []
    return any(f["owner"] == "torch" and "distributed" in f["file"] for f in frames)
