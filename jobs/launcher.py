"""The job's parent: warms up, lets oracle and controls finish, then has the subject's ranks run cell by cell.

It alone owns stdout. It imports torch and the tracer once and forks everything else; it runs no subject code, makes no
verdict, and stamps whatever the ranks say with the cell and rank that it knows them by.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobs import accelerator, facts, probes, trace
from jobs.channel import Zygote, ZygoteLostError, die_with_parent, take_long_turns
from jobs.contract import (
    PHASE_CONTROLS,
    PHASE_JOB,
    PHASE_RANKS,
    PHASE_STARTS,
    TORCH,
    TRACED_MODES,
    AttemptSpec,
    CellSpec,
    ControlInfo,
    JobSpec,
)
from jobs.group import Group, Outcome, nobody
from jobs.ranks import RankSetup
from jobs.stream import EventStream, LineReader
from jobs.zygote import STARTED, ZygoteSetup, serve

if TYPE_CHECKING:
    from jobs.oracle.child import OracleChild

NO_COMPILER = "no C++ compiler"
LOG_LINE_LIMIT = 4000
WAIT_S = 600.0
"""How long a collective may take at least: longer than any deadline, which is to say where it hung."""


class Launcher:
    """One attempt from its spec to its ``bye``."""

    def __init__(self, spec: AttemptSpec, out: EventStream, answers: int) -> None:
        self.spec = spec
        self.out = out
        self._answers = answers
        self._checkout = str(Path("checkout").resolve())
        self._scratch = Path("groups").resolve()
        self._scratch.mkdir(exist_ok=True)
        self._groups_made = 0
        self._rank_seconds = self._start_seconds = 0.0
        self._log_left = spec.limits.log_bytes
        self._cases = {case.id: case for case in probes.catalogue()}
        self._at: dict[str, int | None] = {"job": None, "cell": None}
        self._has_compiler = facts.compiler() is not None

    def run(self) -> None:
        """Run everything; whatever goes wrong in here ends in a ``bye`` that says so."""
        self._phase("import torch", self._import_torch)
        self.out.emit("hello", **facts.hello())
        most = max(job.world_size for job in self.spec.jobs)
        if self.spec.transport == accelerator.NCCL and (why := accelerator.lacking(most)):
            self.out.emit("bye", ok=False, reason=why)
            return
        oracle = self._begin_oracle()  # a core of its own for as long as the tracer takes
        self._phase("warm tracer", lambda: trace.warm(self._traced_modes()))
        self._phase("oracle", lambda: oracle.hand_over(lambda fields: self.out.emit("oracle", **fields)))
        zygote = self._fork_zygote(subject="")
        try:
            self._phase(PHASE_CONTROLS, lambda: self._controls(zygote))
            if self.spec.subject == TORCH:
                self._run_jobs(zygote)
        finally:
            self._drain_log(zygote)
            zygote.close()
        if self.spec.subject != TORCH:
            self._subject()
        self.out.emit("bye", ok=True, reason=None)

    def _phase(self, name: str, step: Callable[[], None]) -> None:
        began = time.monotonic()
        step()
        self.out.emit("phase", name=name, seconds=round(time.monotonic() - began, 3))

    def _import_torch(self) -> None:
        import torch
        import torch.distributed

        from jobs import values  # imports torch

        torch.set_num_threads(1)
        if self.spec.transport == accelerator.NCCL:
            accelerator.pin_numerics()  # of the oracle's processes too: all of them are forked from here
        values.take_seed(self.spec.seed)
        for family in {family for job in self.spec.jobs for family in self._families(job)}:
            probes.module(family)  # here once, and not in every rank

    def _families(self, job: JobSpec) -> set[str]:
        """The families of the job's cells, and those that a self-test names."""
        return {self._cases[cell.case].family for cell in job.cells} | set(self.spec.families)

    def _modes(self, job: JobSpec, family: str) -> set[str]:
        """In which modes its controls run: eager and those of its cells here; in a self-test, all that they have."""
        if self.spec.families:
            return {mode for control in self._controls_of(job) for mode in control.modes}
        return {cell.mode for cell in job.cells if self._cases[cell.case].family == family} | {"eager"}

    def _traced_modes(self) -> tuple[str, ...]:
        used = {mode for job in self.spec.jobs for family in self._families(job) for mode in self._modes(job, family)}
        used |= {self._cases[cell.case].compiles for job in self.spec.jobs for cell in job.cells}
        return tuple(m for m in TRACED_MODES if m in used and (m != "inductor" or self._has_compiler))

    # -- before any subject code: the oracle and the controls --------------------------------------------------

    def _begin_oracle(self) -> OracleChild:
        """Have a child compute what is right, for every cell and control."""
        wanted = {(cell.case, cell.version, job.world_size) for job in self.spec.jobs for cell in job.cells}
        for job in self.spec.jobs:
            cases = (self._cases[control.case] for control in self._controls_of(job))
            wanted |= {(case.id, case.version, job.world_size) for case in cases}
        from jobs.oracle.child import OracleChild  # imports torch, which is a phase of its own

        return OracleChild([(self._cases[case], version, world_size) for case, version, world_size in sorted(wanted)])

    def _controls(self, zygote: Zygote) -> None:
        zygote.receive("loaded", self._deadline(self.spec.deadlines.import_s))
        for job in self.spec.jobs:
            self._run_controls(zygote, job, "before")

    def _run_controls(self, zygote: Zygote, job: JobSpec, stage: str) -> None:
        """Run the controls of the families and modes in ``job``; after the import only those that must agree."""
        modes = {family: self._modes(job, family) for family in self._families(job)}
        group: Group | None = None
        for control in self._controls_of(job):
            case = self._cases[control.case]
            if stage == "after" and not _must_agree(control):
                continue
            for mode in control.modes:
                if mode not in modes[control.family] or (stage == "after" and mode != "eager") or self._lacks(mode):
                    continue
                group = self._usable(group, zygote, job)
                if stage == "after" and not group.usable:
                    group.retire()
                    return  # its set-up fails, which the cells will say; torch is not to blame
                command = {"case": case.id, "control": control.id, "mode": mode}
                outcome = group.run(command, traced=mode in TRACED_MODES) if group.usable else group.setup_outcome()
                self._emit_control(control, mode, job.world_size, stage, outcome)
        if group is not None:
            group.retire()

    def _controls_of(self, job: JobSpec) -> list[ControlInfo]:
        """The controls of the families in ``job`` that exist at its world size."""
        families = self._families(job)
        return [
            control
            for control in probes.controls()
            if control.family in families
            and self._cases[control.case].runs_at(job.world_size)
            and control.suite in ("default", self.spec.suite)
        ]

    def _emit_control(self, control: ControlInfo, mode: str, world_size: int, stage: str, outcome: Outcome) -> None:
        self._rank_seconds += _slowest(outcome)
        for rank, text in outcome.stacks.items():
            for line in text.encode().splitlines():
                self._log(rank, line)
        self.out.emit(
            "control",
            control=control.id,
            mode=mode,
            world_size=world_size,
            stage=stage,
            ranks=outcome.ranks,
            tensors=outcome.tensors,
            trace=outcome.trace,
        )

    # -- the subject -------------------------------------------------------------------------------------------

    def _subject(self) -> None:
        """Fork the process that imports the subject; from here on nothing more is believed but tensors."""
        self.out.emit("phase", name="subject", seconds=0.0)
        zygote = self._fork_zygote(subject=self.spec.subject)
        try:
            report = self._await_import(zygote)
            self.out.emit("subject", **report)
            if report["status"] == "ok":
                self._run_jobs(zygote)
        finally:
            self._drain_log(zygote)
            zygote.close()

    def _await_import(self, zygote: Zygote) -> dict[str, Any]:
        lost: dict[str, Any] = {
            "status": "unimportable",
            "adapter": self.spec.subject,
            "version": None,
            "changed": [],
            "method": "fork",
            "started": dict.fromkeys(STARTED, False),
            "seconds": 0.0,
        }
        began = time.monotonic()
        deadline = self._deadline(self.spec.deadlines.import_s)
        try:
            while True:
                self._drain_log(zygote)
                try:
                    report = zygote.receive("loaded", min(deadline, time.monotonic() + 0.5)).get("report")
                    if isinstance(report, dict) and set(report) == {*lost, "error"}:
                        return report
                    return {**lost, "error": _error("Died", "no report of the agreed form")}
                except TimeoutError:
                    if time.monotonic() >= deadline:
                        raise
        except ZygoteLostError:
            error = _error("Died", "the process that imported the subject ended before the import did")
        except TimeoutError:
            error = _error("Timeout", f"the import took longer than {self.spec.deadlines.import_s:g} s")
        return {**lost, "error": error, "seconds": round(time.monotonic() - began, 3)}

    def _run_jobs(self, zygote: Zygote) -> None:
        for job in self.spec.jobs:
            if job.cells:  # a self-test has none, and is over with its controls
                self._run_job(zygote, job)

    def _run_job(self, zygote: Zygote, job: JobSpec) -> None:
        began = time.monotonic()
        deadline = self._deadline(self.spec.deadlines.job_s)
        self._at["job"] = job.job
        if zygote.subject:
            self._run_controls(zygote, job, "after")
        self._run_cells(zygote, job, job.cells, 1, deadline)
        self.out.emit("ask", job=job.job)
        again = set(self._answer()["again"])
        for cell in job.cells:
            if cell.cell in again:
                self._run_cells(zygote, job, (cell,), 2, deadline)
        self._at["job"] = None
        self.out.emit("phase", name=PHASE_STARTS, seconds=round(self._start_seconds, 3))
        self.out.emit("phase", name=PHASE_RANKS, seconds=round(self._rank_seconds, 3))
        self.out.emit("phase", name=PHASE_JOB.format(job.job), seconds=round(time.monotonic() - began, 3))

    def _answer(self) -> dict[str, Any]:
        from jobs.bootstrap import read_line

        line = read_line(self._answers)
        return json.loads(line) if line else {"again": []}

    def _run_cells(
        self, zygote: Zygote, job: JobSpec, cells: Iterable[CellSpec], attempt: int, deadline: float
    ) -> None:
        """Run cells in order, in one group for as long as it is of use."""
        group: Group | None = None
        for cell in cells:
            self._at["cell"] = cell.cell
            if self._lacks(cell.mode) or self._lacks(self._cases[cell.case].compiles):
                self._emit_case(job, cell, attempt, nobody(job.world_size, "unsupported", NO_COMPILER))
                continue
            if time.monotonic() > deadline:
                late = f"the job's time of {self.spec.deadlines.job_s:g} s was used up before this cell began"
                self._emit_case(job, cell, attempt, nobody(job.world_size, "lost", late))
                continue
            group = self._usable(group, zygote, job)
            # Whether there can be one whole graph is asked once: not of controls, and not again alone.
            command = {"case": cell.case, "control": None, "mode": cell.mode, "whole": attempt == 1}
            traced = cell.mode in TRACED_MODES or bool(self._cases[cell.case].compiles)
            outcome = group.run(command, traced) if group.usable else group.setup_outcome()
            self._emit_case(job, cell, attempt, outcome)
        self._at["cell"] = None
        if group is not None:
            group.retire()

    def _lacks(self, mode: str) -> bool:
        return mode == "inductor" and not self._has_compiler

    def _emit_case(self, job: JobSpec, cell: CellSpec, attempt: int, outcome: Outcome) -> None:
        self._rank_seconds += _slowest(outcome)
        at = {"job": job.job, "cell": cell.cell, "pass": attempt}
        for rank, tensors in enumerate(outcome.tensors):
            for tensor in tensors:
                self.out.emit("tensor", **at, rank=rank, tensor=tensor)
        for rank, text in outcome.stacks.items():
            self.out.emit("stacks", **at, rank=rank, text=text[-LOG_LINE_LIMIT * 16 :])
        self.out.emit("case", **at, ranks=outcome.ranks, trace=outcome.trace, seconds=outcome.seconds)

    # -- processes ---------------------------------------------------------------------------------------------

    def _usable(self, group: Group | None, zygote: Zygote, job: JobSpec) -> Group:
        """``group`` while it is of use, else a fresh one."""
        if group is not None and group.usable:
            return group
        if group is not None:
            group.retire()
        self._groups_made += 1
        folder = self._scratch / str(self._groups_made)
        folder.mkdir()
        used = {cell.case for cell in job.cells} | {control.case for control in self._controls_of(job)}
        sizes = {self._cases[case].sp or job.world_size for case in used} | {job.world_size}
        setups = [
            RankSetup(
                rank=rank,
                world_size=job.world_size,
                transport=self.spec.transport,
                store=str(folder / "store"),
                sps=tuple(sorted(size for size in sizes if size <= job.world_size)),
                subject=zygote.subject,
                checkout=self._checkout,
                stacks=str(folder / f"stacks-{rank}"),
                wait_s=max(WAIT_S, 2 * max(self.spec.deadlines.compile_s, self.spec.deadlines.case_s)),
            )
            for rank in range(job.world_size)
        ]
        began = time.monotonic()
        group = Group(zygote, setups, self.spec.deadlines, self._log)
        self._start_seconds += time.monotonic() - began
        return group

    @property
    def _rank_bytes(self) -> int:
        """What a rank may take; CUDA reserves far more than it uses, and there the container's limit has to do."""
        return 0 if self.spec.transport == accelerator.NCCL else self.spec.limits.rank_bytes

    def _fork_zygote(self, subject: str) -> Zygote:
        ours, theirs = socket.socketpair()
        log_read, log_write = os.pipe()
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                # The stream is the launcher's alone, and so are its answers.
                os.close(self.out.fileno())
                os.close(self._answers)
                ours.close()
                os.close(log_read)
                serve(ZygoteSetup(subject, self._checkout, log_write, self._rank_bytes), theirs)
                status = 0
            finally:
                os._exit(status)
        theirs.close()
        os.close(log_write)
        limits = self.spec.limits
        return Zygote(pid, subject, ours, LineReader(log_read, limits.line_bytes), limits)

    def _drain_log(self, zygote: Zygote) -> None:
        for line in zygote.log.read():
            self._log(None, line)

    def _log(self, rank: int | None, line: bytes) -> None:
        """Pass on a line that someone printed, up to the attempt's cap."""
        if self._log_left <= 0 or not line.strip():
            return
        text = line[:LOG_LINE_LIMIT].decode(errors="replace")
        self._log_left -= len(text)
        if self._log_left <= 0:
            text += " [the cap on logs is reached: nothing more is kept]"
        self.out.emit("log", rank=rank, stream="stdout", text=text, job=self._at["job"], cell=self._at["cell"])

    def _deadline(self, seconds: float) -> float:
        return time.monotonic() + seconds


def _slowest(outcome: Outcome) -> float:
    return max(float(rank["seconds"]) for rank in outcome.ranks)


def _must_agree(control: ControlInfo) -> bool:
    return all(verdict.startswith("agree") for verdict in control.expected)


def _error(kind: str, message: str) -> dict[str, Any]:
    return {"type": kind, "message": message, "frames": []}


def launch(spec_path: str) -> int:
    """Run the attempt whose spec lies at ``spec_path``; events go to what stdout is now. Returns the exit status."""
    stream_fd = os.dup(1)
    answers = os.dup(0)
    os.dup2(2, 1)  # from here on a print is only a message on stderr
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    out = EventStream(stream_fd)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    die_with_parent()
    take_long_turns()
    try:
        Launcher(AttemptSpec.parse(Path(spec_path).read_bytes()), out, answers).run()
    except BrokenPipeError:
        return 1
    except Exception as error:  # noqa: BLE001 - the reader must learn of it
        import traceback

        traceback.print_exc()
        out.emit("bye", ok=False, reason=f"{type(error).__name__}: {error}"[:LOG_LINE_LIMIT])
        return 1
    return 0
