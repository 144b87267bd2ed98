"""One rank: joins its group, then runs the cells that the launcher names, one after the other.

It speaks to the launcher over three descriptors of its own: events out, commands in, and a log that stands in for
stdout and stderr. What it says is evidence and never a verdict.
"""

from __future__ import annotations

import dataclasses
import datetime
import faulthandler
import gc
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobs import accelerator, faults, housekeeping, probes
from jobs.bootstrap import read_line
from jobs.channel import die_with_parent
from jobs.contract import TRACED_MODES, CaseInfo, ControlInfo
from jobs.housekeeping import Surroundings
from jobs.stream import encode, tensor_message, write_all
from jobs.subject.base import RankContext, Subject, Unsupported
from jobs.trace import Recorder

FLIGHT, ASKED = ".flight", ".asked"
"""What a stacks file's name ends with, for NCCL's record of collectives and for the launcher's wish to have it."""


@dataclass(frozen=True)
class RankSetup:
    """What a rank is told before it starts.

    store    a file that the ranks of the group meet through
    sps      the sequence-parallel sizes in use, the world's own size among them
    subject  the adapter's name, or "" for a group without one: of controls, or of torch's own cells
    stacks   the file that faulthandler writes every thread's stack into
    wait_s   how long a collective may take
    """

    rank: int
    world_size: int
    transport: str
    store: str
    sps: tuple[int, ...]
    subject: str
    checkout: str
    stacks: str
    wait_s: float

    def to_json(self) -> dict[str, Any]:
        """The set-up as plain JSON types."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> RankSetup:
        """The inverse of :meth:`to_json`."""
        return cls(**{**data, "sps": tuple(data["sps"])})


def main(setup: RankSetup, events: int, commands: int, log: int, subject: Subject | None) -> None:
    """Run one rank until its launcher closes ``commands``."""
    die_with_parent()
    housekeeping.adopt()
    os.dup2(log, 1)
    os.dup2(log, 2)
    with Path(setup.stacks).open("w") as stacks:
        faulthandler.enable(file=stacks)
        faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True, chain=False)
        rank = Rank(setup, events, commands, subject)
        joined = rank.join()
        # One that failed stays too: leaving would cut connections that others are still setting up.
        while (command := read_line(commands)) and joined:
            rank.run(json.loads(command))


class Rank:
    """The state that outlives a cell: the group, its contexts, and torch's switches as they should be."""

    def __init__(self, setup: RankSetup, events: int, commands: int, subject: Subject | None) -> None:
        self.setup = setup
        self.subject = subject
        self._events, self._commands = events, commands
        self._contexts: dict[int, RankContext] = {}
        self._set_up: list[str] = []
        self._cases = {case.id: case for case in probes.catalogue()}
        self._controls = {control.id: control for control in probes.controls()}
        self._used = False

    def say(self, kind: str, **fields: Any) -> None:
        """Send one line to the launcher."""
        write_all(self._events, encode({"e": kind, **fields}))

    def join(self) -> bool:
        """Join the group and set up the subject; tells the launcher how it went."""
        try:
            self._make_groups()
            before = Surroundings()
            if self.subject is not None:
                self.subject.setup(list(self._contexts.values()))
        except BaseException as error:  # noqa: BLE001 - the subject may raise anything, SystemExit included
            self.say("ready", error=faults.describe(housekeeping.explained(error), self.setup.checkout))
            return False
        # What the subject's set-up changes is its own doing once per group, not the next case's: every case is told.
        self._set_up = before.changes()
        self._around = Surroundings()
        # What was set up stays for as long as this process: it is no garbage to look through after every case.
        gc.freeze()
        self.say("ready", error=None)
        return True

    def _make_groups(self) -> None:
        import torch
        import torch.distributed as dist

        setup = self.setup
        torch.set_num_threads(1)  # before anything else: see facts, on thread pools after a fork
        store = dist.FileStore(setup.store, setup.world_size)
        backend = "nccl" if setup.transport == accelerator.NCCL else "gloo"
        if backend == accelerator.NCCL:
            accelerator.take(setup.rank, setup.world_size, setup.wait_s)
            flight, asked = Path(f"{setup.stacks}{FLIGHT}"), Path(f"{setup.stacks}{ASKED}")
            threading.Thread(target=accelerator.watch_flight, args=(flight, asked), daemon=True).start()
        wait = datetime.timedelta(seconds=setup.wait_s)
        dist.init_process_group(backend, store=store, rank=setup.rank, world_size=setup.world_size, timeout=wait)
        for size in setup.sps:
            self._contexts[size] = self._context(size, dist)
        if setup.transport == "nccl-dispatch":
            from jobs.dispatch import take_nccl_branches  # imports torch

            take_nccl_branches()

    def _context(self, size: int, dist: Any) -> RankContext:
        setup = self.setup
        first = setup.rank - setup.rank % size
        ranks = tuple(range(first, first + size))
        if size == setup.world_size:
            group = dist.group.WORLD
        else:
            # Every rank creates every group, in the same order: new_group is itself a collective.
            groups = [dist.new_group(list(range(start, start + size))) for start in range(0, setup.world_size, size)]
            group = groups[setup.rank // size]
        return RankContext(
            rank=setup.rank,
            world_size=setup.world_size,
            transport=setup.transport,
            sp_size=size,
            sp_rank=setup.rank - first,
            group=group,
            ranks=ranks,
        )

    def run(self, command: dict[str, Any]) -> None:
        """Run one cell or control and say how it ended; nothing that it raises ends this process."""
        if self._used:
            housekeeping.clean_up()  # not after a cell: most ranks run only one, and looking for garbage takes a while
        self._used = True
        case = self._cases[command["case"]]
        control = self._controls[command["control"]] if command.get("control") else None
        run = CellRun(self, case, control, command["mode"])
        began = time.monotonic()
        status, phase, error, reason = "ok", "run", None, None
        try:
            run.execute()
        except Unsupported as unsupported:
            status, phase, reason = "unsupported", run.phase, str(unsupported)
        except BaseException as raised:  # noqa: BLE001 - the subject may raise anything, SystemExit included
            raised = housekeeping.explained(raised)
            status, phase, error = "raised", run.phase, faults.describe(raised, self.setup.checkout)
        changed = [*self._set_up, *self._around.settle()]
        for message in run.tensors:
            self.say("tensor", tensor=message)
        answer = {
            "status": status,
            "phase": phase,
            "error": error,
            "reason": reason,
            "changed": changed,
            "seconds": round(time.monotonic() - began, 6),
            "repeat_equal": run.repeat_equal,
        }
        self.say("answered", **answer, trace=run.trace())
        if status == "ok" and command.get("whole") and run.recorder is not None:
            # After the answer: an attempt at one whole graph that hangs or crashes takes nothing with it.
            run.try_fullgraph()
        trace = run.trace()
        self.say("end", trace=trace, seconds=round(time.monotonic() - began, 6))

    def context(self, case: CaseInfo) -> RankContext:
        """Where this rank stands in the groups that ``case`` uses."""
        return self._contexts[case.sp or self.setup.world_size]

    def barrier(self, phase: str) -> None:
        """Wait until the launcher has seen every rank reach this point."""
        self.say("phase", name=phase)
        if not read_line(self._commands):
            os._exit(0)


class CellRun:
    """One cell on one rank: built once and exercised twice, so that a run that differs from itself is seen.

    Then, once, the case's own check of its gradient: what a small step changes the loss by.
    """

    def __init__(self, rank: Rank, case: CaseInfo, control: ControlInfo | None, mode: str) -> None:
        self.phase = "build"
        self.repeat_equal: bool | None = None
        self.recorder: Recorder | None = None
        self.tensors: list[dict[str, Any]] = []
        self._rank, self._case, self._control, self._mode = rank, case, control, mode
        self._module = probes.module(case.family)
        self._function: Callable[..., Any] | None = None
        self._stretch: Callable[[], None] = _nothing

    def execute(self) -> None:
        """Build the function, exercise it, and keep the tensors of the second pass."""
        self._context = self._rank.context(self._case)
        if self._control is not None:
            function = self._module.build_control(self._control, self._case, self._context)
        else:
            self._reset_subject()
            function = self._module.build(self._case, self._context, self._rank.subject)
        self._function = function
        if self._mode in TRACED_MODES:
            self.recorder = Recorder(self._mode)
            function = self.recorder.wrap(function)
            self.phase = "compile"
        else:
            self.phase = "forward"
        self._exercise(function)
        first = self.tensors
        self._enter("repeat")
        housekeeping.poison_free_memory()
        self._reset_subject()
        self._exercise(function)
        # On a GPU sums may be made in another order every time.
        on_gpu = self._context.device == "cuda"
        self.repeat_equal = accelerator.same(first, self.tensors) if on_gpu else first == self.tensors
        if on_gpu and self._case.params.get("overlap") == "stream":
            self._enter("delays")
            self.repeat_equal = self.repeat_equal and self._holds_when_late(function)
        self._enter("check")
        self._module.difference(self._case, self._context, function, self._keep)
        self.phase = "run"

    def _holds_when_late(self, function: Callable[..., Any]) -> bool:
        """Whether the answer stays what it is while one of the streams is late, whichever that is."""
        expected, holds = self.tensors, True
        for where in ("main", "side"):
            for _ in range(accelerator.DELAYED_RUNS):
                self._reset_subject()
                with accelerator.delayed(where) as self._stretch:
                    self._exercise(function)
                holds = holds and accelerator.same(expected, self.tensors)
        self._stretch = _nothing
        self.tensors = expected
        return holds

    def _enter(self, phase: str) -> None:
        """Go on only when every rank has come here: a rank that skipped a collective is then seen where it did."""
        self._rank.barrier(phase)
        self.phase = phase.partition(" ")[0]

    def _reset_subject(self) -> None:
        if self._control is None and self._rank.subject is not None:
            self._rank.subject.reset()

    def _exercise(self, function: Callable[..., Any]) -> None:
        """One pass; what it emitted before it raised is kept, since a right forward before a fault is evidence."""
        self.tensors = []
        self._stretch()
        pass_of = "" if self.phase == "forward" else f"{self.phase} "

        def keep(role: str, name: str, tensor: Any) -> None:
            self._keep(role, name, tensor)
            if len(self.tensors) == 1:  # the first output
                self._enter(f"{pass_of}backward")
                self._stretch()

        self._module.exercise(self._case, self._context, function, keep)

    def _keep(self, role: str, name: str, tensor: Any) -> None:
        self.tensors.append(tensor_message(role, name, tensor))

    def try_fullgraph(self) -> None:
        """See whether the function can be captured as one graph."""
        function, recorder = self._function, self.recorder
        if function is None or recorder is None:
            return
        self._reset_subject()
        recorder.try_fullgraph(
            function, lambda whole: self._module.exercise(self._case, self._context, whole, lambda *_: None)
        )

    def trace(self) -> dict[str, Any] | None:
        """The tracer's facts, where there was a tracer."""
        return self.recorder.facts() if self.recorder is not None else None


def _nothing() -> None:
    """Nobody is late."""


def spawned() -> None:
    """Entry of a rank that was spawned instead of forked: ``python -m jobs --rank``, the set-up on argv."""
    # Before the checkout is on the path: a torch.py in it must not be taken for torch.
    import torch.distributed

    from jobs.subject import load_adapter

    torch.set_num_threads(1)
    data = json.loads(sys.argv[2])
    setup = RankSetup.from_json(data["setup"])
    os.dup2(data["log"], 1)
    os.dup2(data["log"], 2)
    subject = load_adapter(setup.subject, setup.checkout)
    subject.prepare_import(setup.checkout)
    sys.path.insert(0, setup.checkout)
    subject.load(setup.checkout)
    main(setup, data["events"], data["commands"], data["log"], subject)
