"""One container from its claim to its last accepted cell: start it, believe nothing it says, judge, store.

On the straight line this is where ``workers.loop`` (which claimed the jobs) hands over to ``workers.runtimes``,
``jobs``, ``workers.collect``, ``service.judge`` and ``service.store``, in this order.

On GPUs an answer that is not as it should be is stored only when its job has ended and the GPUs are found well: a GPU
that falls sick is never taken for a fault of the subject.
"""

from __future__ import annotations

import dataclasses
import json
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jobs.contract import (
    PHASE_CONTROLS,
    PHASE_JOB,
    PHASE_RANKS,
    PHASE_STARTS,
    SUITES,
    TORCH,
    AttemptSpec,
    CaseInfo,
    ControlInfo,
    JobSpec,
    Limits,
)
from service import store
from service.cases import CaseCatalogue
from service.catalog import RuntimeSpec
from service.config import Settings
from service.db import Database
from service.evidence import Blob, Evidence
from service.judge import (
    ControlResult,
    Judgement,
    asks_again,
    control_faults,
    first_stands,
    judge,
    judge_control,
    merge_passes,
)
from service.logs import bound
from service.policy import Policy
from service.store import CellAnswer, Claim, ClaimedJob, ControlAnswer, StaleFence
from workers import collect, events, package
from workers.gpus import Guard
from workers.memory import rank_bytes
from workers.pipes import lines, send
from workers.runtimes import Executor, Process
from workers.scratch import scratch_of
from workers.writer import Writer

MAX_STDERR = 2000


@dataclass(eq=False)
class _Job:
    """A claimed job while it runs.

    waiting   answers that are asked for once more, alone
    held      answers that are stored once the devices are known to have been well
    """

    claimed: ClaimedJob
    began: float = 0.0
    waiting: dict[int, tuple[Judgement, collect.CaseDone]] = field(default_factory=dict)
    held: list[CellAnswer] = field(default_factory=list)
    answered: set[int] = field(default_factory=set)
    over: bool = False

    @property
    def unanswered(self) -> list[int]:
        """Its cells without an answer, in the order in which they run."""
        return [cell.cell for cell in self.claimed.cells if cell.cell not in self.answered]


class Attempt:
    """Runs one claim. :meth:`run` blocks; :meth:`stop` and :meth:`cancel` may be called from another thread."""

    def __init__(
        self,
        claim: Claim,
        *,
        settings: Settings,
        database: Database,
        executor: Executor,
        runtime: RuntimeSpec,
        checkout: Callable[[], Path],
        catalogue: CaseCatalogue,
        policy: Policy,
        listener: events.Listener,
        guard: Guard,
    ) -> None:
        self.claim = claim
        self._devices = guard
        self._settings, self._database, self._executor = settings, database, executor
        self._runtime, self._checkout = runtime, checkout
        self._policy, self._listener = policy, listener
        self._cases: dict[str, CaseInfo] = {case.id: case for case in catalogue.cases}
        self._controls: dict[str, ControlInfo] = {control.id: control for control in catalogue.controls}
        self._jobs = {job.job: _Job(job) for job in claim.jobs}
        self._cells = {cell.cell: cell for job in claim.jobs for cell in job.cells}
        self._facts: dict[str, Any] = {"jobs": package.jobs_digest(), "executor": executor.name, "phases": {}}
        self._control_results: list[ControlResult] = []
        self._control_faults: dict[tuple[str, str, int], tuple[str, ...]] = {}
        self._process: Process | None = None
        self._in_cells = False
        self._reason = ""
        self._guard = threading.Lock()
        self._writer: Writer[tuple[_Job, CellAnswer | ControlAnswer]] = Writer(self._store, self._not_stored)

    # -- from other threads --------------------------------------------------------------------------------------

    def stop(self, reason: str) -> None:
        """End the container now; jobs that are not complete go back to the queue."""
        with self._guard:
            self._reason = self._reason or reason
            process = self._process
        if process is not None:
            process.kill()

    def held(self) -> list[tuple[int, int]]:
        """The jobs that are still ours, with their fences: what a beat renews."""
        return [(job.claimed.job, job.claimed.fence) for job in self._jobs.values() if not job.over]

    # -- the run -------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run the container and store what it answers. Raises what the runtime's build raised, jobs given back."""
        problem = "its worker failed"
        with self._writer:
            try:
                self._executor.ensure(self._runtime, self._progress)
                if fault := self._devices.fault():
                    self.stop(fault)  # nothing has run yet: given back, and no failure of the job's
                problem = fault or self._run_container()
            except StaleFence as error:  # cancelled, or claimed anew: told by what could not be stored, before the beat
                problem = str(error)
                self.stop(problem)
            except Exception as error:
                problem = str(error) or type(error).__name__
                raise
            finally:
                self._leave(problem)

    def _progress(self, what: str, done: int, total: int | None) -> None:
        self._listener(events.RuntimeBuilding(self._runtime.name, what, done, total))
        if self._reason:
            raise InterruptedError(self._reason)

    def _run_container(self) -> str:
        """Run it to its end; the answer is what was wrong with it, or nothing."""
        scratch = scratch_of(self._settings)
        scratch.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=scratch, ignore_cleanup_errors=True) as work:
            tar = package.pack(self._checkout())
            spec = self._spec(len(tar))
            process = self._executor.start(
                self._runtime, workdir=Path(work), wall_s=self.claim.wall_s, devices=self.claim.devices
            )
            with self._guard:
                self._process = process
            if self._reason:  # asked to stop while it was being started
                process.kill()
            sender = threading.Thread(target=send, args=(process, spec.line() + tar))
            sender.start()
            try:
                return self._follow(spec, process)
            finally:
                process.kill()
                sender.join()
                process.close()

    def _spec(self, tar_bytes: int) -> AttemptSpec:
        return AttemptSpec(
            attempt=self.claim.container,
            subject=self.claim.subject,
            label=self.claim.label,
            transport=self.claim.transport,
            jobs=tuple(JobSpec(job.job, job.world_size, job.cells) for job in self.claim.jobs),
            tar_bytes=tar_bytes,
            deadlines=self._settings.deadlines,
            limits=Limits(rank_bytes=rank_bytes(self._settings, (job.world_size for job in self.claim.jobs))),
        )

    def _follow(self, spec: AttemptSpec, process: Process) -> str:
        collector = collect.Collector(spec, self._cases.values(), self._controls.values())
        bye: collect.Bye | None = None
        try:
            for line in lines(process, spec.limits.line_bytes):
                for notice in collector.feed(line):
                    if isinstance(notice, collect.Bye):
                        bye = notice
                    self._handle(notice, process)
        except collect.Violation as violation:
            process.kill()
            self._writer.flush()
            if violation.blame == "crash":
                self._blame_running_cell(collector, f"the job broke the agreed form of its events: {violation}")
            return str(violation)
        self._writer.flush()  # what could not be stored ends the container: no fault of what ran in it
        if bye is not None:
            return "" if bye.ok else str(bye.reason)
        process.kill()
        ended = f"the job's process ended early ({process.wait(timeout=5)})"
        if process.timed_out:
            # Its own deadlines come first: when they did not hold, it is not known what kept it.
            ended = f"the container was ended at its limit of {self.claim.wall_s:g} s"
        elif not self._reason and collector.subject_may_have_run:
            self._blame_running_cell(collector, ended)
        return f"{ended}: {process.stderr_tail()[-MAX_STDERR:].strip()}"

    def _blame_running_cell(self, collector: collect.Collector, reason: str) -> None:
        """Answer the cell that was running with ``crash``; the others are run again without it."""
        for job in self._jobs.values():
            running = next((cell for cell in job.unanswered if cell not in job.waiting), None)
            if not job.over and running is not None:
                for done in collector.close("crash", reason, job=job.claimed.job):
                    if done.cell == running:
                        self._accept(job, done, judge(done.evidence, self._case(done.cell), self._policy))
                        return
                return

    # -- notices -------------------------------------------------------------------------------------------------

    def _handle(self, notice: collect.Notice, process: Process) -> None:
        handlers: dict[type, Callable[[Any], None]] = {
            collect.Hello: self._on_hello,
            collect.PhaseDone: self._on_phase,
            collect.ControlDone: self._on_control,
            collect.SubjectLoaded: self._on_subject,
            collect.CaseDone: self._on_case,
            collect.Log: lambda log: self._listener(events.LogLine(log.text)),
            collect.Ask: lambda ask: self._on_ask(ask, process),
            collect.Bye: lambda _: None,
        }
        handlers[type(notice)](notice)

    def _on_hello(self, hello: collect.Hello) -> None:
        self._facts["hello"] = hello.facts
        first = next(iter(self._jobs.values()))
        self._start(first)

    def _on_phase(self, phase: collect.PhaseDone) -> None:
        self._facts["phases"][phase.name] = phase.seconds
        for job in self._jobs.values():
            if phase.name == PHASE_JOB.format(job.claimed.job):
                following = next((other for other in self._jobs.values() if not other.over and other is not job), None)
                if following is None and self._devices.watches:
                    return  # it ends with its container, when nothing may compute on its devices any more
                self._finish(job, "")
                if following is not None:
                    self._start(following)
                return
        current = next((job for job in self._jobs.values() if not job.over), None)
        # Sums are not steps, and a phase without duration is only a mark in the stream.
        if current is not None and phase.seconds > 0 and phase.name not in (PHASE_RANKS, PHASE_STARTS):
            self._listener(events.PhaseDone(current.claimed.job, phase.name, phase.seconds))
        if phase.name == PHASE_CONTROLS and self.claim.subject == TORCH:
            self._enter_cells(0.0)

    def _on_subject(self, subject: collect.SubjectLoaded) -> None:
        self._facts["subject"] = {**subject.facts, "version": subject.version, "seconds": subject.seconds}
        self._enter_cells(subject.seconds)

    def _enter_cells(self, seconds: float) -> None:
        self._in_cells = True
        for job in self._jobs.values():
            if job.began and not job.over:
                self._listener(events.PhaseDone(job.claimed.job, events.LAST_PHASE, seconds))

    def _on_control(self, done: collect.ControlDone) -> None:
        control = self._controls[done.control]
        found = judge_control(done.evidence, self._cases[control.case], control, self._policy)
        self._control_results.append(ControlResult(control.id, done.mode, done.world_size, done.stage, found))
        for job in self._jobs.values():
            if job.claimed.world_size == done.world_size:
                said = (control.id, done.mode, done.world_size, done.stage)
                self._writer.put((job, ControlAnswer(*said, found.judgement, found.ok, done.evidence)))

    def _on_case(self, done: collect.CaseDone) -> None:
        job = self._jobs[done.job]
        self._start(job)
        case, mode = self._case(done.cell), self._cells[done.cell].mode
        judgement = judge(done.evidence, case, self._policy, self._faults(case.family, mode, job.claimed.world_size))
        if not judgement.verdict.settled and (fault := self._fault()):
            self.stop(fault)
        if done.again:
            first, seen = job.waiting.pop(done.cell)
            alone = _with_whole_graph(done, seen)
            done = seen if first_stands(first, judgement) else alone
            self._accept(job, done, merge_passes(first, judgement), first=seen.evidence, alone=alone.evidence)
        elif asks_again(judgement, done.evidence):
            job.waiting[done.cell] = (judgement, done)
        else:
            self._accept(job, done, judgement)

    def _faults(self, family: str, mode: str, world_size: int) -> tuple[str, ...]:
        """Why nothing here can be judged. Controls that fail without the tracer vouch for nothing under it either."""
        key = (family, mode, world_size)
        if key not in self._control_faults:
            results = self._control_results
            controls = [control for control, case in self._controls_due() if case.runs_at(world_size)]
            found = [control_faults(controls, results, family, m, world_size) for m in dict.fromkeys(("eager", mode))]
            self._control_faults[key] = tuple(text for texts in found for text in texts)
        return self._control_faults[key]

    def _controls_due(self) -> list[tuple[ControlInfo, CaseInfo]]:
        """The controls that stand beside every run, each with the case whose oracle it uses."""
        return [(c, self._cases[c.case]) for c in self._controls.values() if c.suite == SUITES[0]]

    def _on_ask(self, ask: collect.Ask, process: Process) -> None:
        answer = {"again": sorted(self._jobs[ask.job].waiting)}
        with suppress(BrokenPipeError):
            process.stdin.write(json.dumps(answer).encode() + b"\n")
            process.stdin.flush()

    # -- the store -----------------------------------------------------------------------------------------------

    def _start(self, job: _Job) -> None:
        if job.began:
            return
        job.began = time.monotonic()
        with self._database.session() as session:
            held = job.claimed
            store.start(session, held.job, held.fence)
            controls = self._controls_due()
            store.record_control_set(session, job=held.job, fence=held.fence, attempt=held.attempt, controls=controls)
        started = events.JobStarted(
            job.claimed.job, self.claim.label, self._runtime.torch, job.claimed.world_size, len(job.claimed.cells)
        )
        with bound(**job.claimed.ids):
            self._listener(started)
        if self._in_cells:  # so far already, for the container's job before
            self._listener(events.PhaseDone(job.claimed.job, events.LAST_PHASE, 0.0))

    def _accept(
        self,
        job: _Job,
        done: collect.CaseDone,
        judgement: Judgement,
        *,
        first: Evidence | None = None,
        alone: Evidence | None = None,
    ) -> None:
        """Have an answer stored, or hold it until the devices are known to have been well while it came about.

        Both passes are kept where there were two, for another policy may judge them otherwise.
        """
        job.answered.add(done.cell)
        agrees = not judgement.verdict.failing
        blobs = [blob for blob in done.blobs if _worth_keeping(blob, agrees)]
        answer = CellAnswer(done.cell, judgement, done.evidence, first or done.evidence, alone, blobs, done.seconds)
        if self._devices.watches and not judgement.verdict.settled:
            job.held.append(answer)
        else:
            self._writer.put((job, answer))

    def _store(self, given: Sequence[tuple[_Job, CellAnswer | ControlAnswer]]) -> None:
        """Store what the container said, each job's in one transaction."""
        failure: Exception | None = None
        for job in dict.fromkeys(job for job, _ in given):
            mine = [answer for whose, answer in given if whose is job]
            try:
                self._store_of(job.claimed, mine)
            except Exception as error:  # noqa: BLE001 - what is another job's is stored all the same
                failure = failure or error
        if failure is not None:
            raise failure

    def _store_of(self, held: ClaimedJob, given: Sequence[CellAnswer | ControlAnswer]) -> None:
        controls = [answer for answer in given if isinstance(answer, ControlAnswer)]
        answers = [answer for answer in given if isinstance(answer, CellAnswer)]
        with self._database.session() as session:
            under = (held.job, held.fence, held.attempt)
            if controls:
                store.record_controls(session, *under, controls)
            if answers:
                store.accept(session, *under, answers)
        for answer in answers:
            said = answer.judgement
            self._listener(events.CellDone(held.job, answer.cell, str(said.verdict), said.detail))

    def _not_stored(self, _: Exception) -> None:
        """End the container; who reads its events is told why."""
        with self._guard:
            process = self._process
        if process is not None:
            process.kill()

    def _fault(self) -> str:
        """What is wrong with the devices while the container runs, or when it has ended."""
        process = self._process
        return "" if process is None or not self._devices.watches else self._devices.fault(process.pids)

    def _finish(self, job: _Job, reason: str) -> None:
        """End the job: complete, or given back to the queue."""
        if job.over:
            return
        fault = self._fault()
        if fault:
            self.stop(fault)  # what comes behind it in this container would run on the same devices
        with suppress(StaleFence):
            for answer in () if fault else job.held:
                self._writer.put((job, answer))
            self._writer.flush()
        job.over = True
        held = job.claimed
        with suppress(StaleFence), self._database.session() as session:
            store.record_attempt_facts(session, job=held.job, fence=held.fence, attempt=held.attempt, facts=self._facts)
        with suppress(StaleFence), self._database.session() as session:  # of a cancelled job only this is still taken
            # A job that has begun on faulty devices has failed there; one that has not is only given back.
            leave = store.requeue if fault and job.began else store.release if self._reason else store.finish
            # Who stopped it knows why: that its process then ended is no news.
            why = fault or self._reason or reason
            state = leave(session, held.job, held.fence, why)
            seconds = time.monotonic() - job.began if job.began else 0.0
            stopped = self._reason if state != "done" else ""
            outcome = stopped or (f"{state}: {reason}" if reason else state)
            with bound(**held.ids):
                self._listener(events.JobDone(held.job, seconds, outcome))

    def _leave(self, problem: str) -> None:
        for job in self._jobs.values():
            for cell, (judgement, done) in list(job.waiting.items()):
                # Run once and never again alone: the container died first. What was seen stands.
                if not self._reason and not job.over:
                    self._accept(job, done, judgement)
                job.waiting.pop(cell, None)
            self._finish(job, problem)

    def _case(self, cell: int) -> CaseInfo:
        return self._cases[self._cells[cell].case]


def _with_whole_graph(done: collect.CaseDone, seen: collect.CaseDone) -> collect.CaseDone:
    """A second pass with what the first said of one whole graph, which is asked only once."""
    trace, before = done.evidence.trace, seen.evidence.trace
    if trace is None or before is None:
        return done
    asked = dataclasses.replace(trace, fullgraph=before.fullgraph)
    return dataclasses.replace(done, evidence=dataclasses.replace(done.evidence, trace=asked))


def _worth_keeping(blob: Blob, agrees: bool) -> bool:
    return not agrees or blob.kind not in ("got", "expected")
