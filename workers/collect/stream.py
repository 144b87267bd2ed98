"""Reads one attempt's stream of events, believing nothing, and hands out each cell's evidence when it is complete.

On the straight line this is ``workers.collect``: between the process that ``workers.runtimes`` started and
``service.store``. The order of events is part of what is checked: from the moment that subject code may have run, no
oracle and no control that could vouch for anything is taken.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from jobs.contract import TORCH_FAMILY, TRACED_MODES, AttemptSpec, CaseInfo, CellSpec, ControlInfo, JobSpec
from service.evidence import Blob, ErrorInfo, Evidence, RankOutcome, StopKind
from workers.collect import assemble
from workers.collect.notices import Ask, Bye, CaseDone, ControlDone, Hello, Log, Notice, PhaseDone, SubjectLoaded
from workers.collect.schema import Reader, Sent, Violation
from workers.collect.truth import RankTensors, Truth


@dataclass
class _Open:
    """What has arrived for one pass of one cell."""

    tensors: list[RankTensors]
    log: list[str] = field(default_factory=list)
    by_rank: dict[int, list[str]] = field(default_factory=dict)
    stacks: dict[int, str] = field(default_factory=dict)


class Collector:
    """The state of one attempt. Call :meth:`feed` with every line, and :meth:`close` for what it left unanswered."""

    def __init__(self, spec: AttemptSpec, cases: Iterable[CaseInfo], controls: Iterable[ControlInfo]) -> None:
        self._limits = spec.limits
        self._reader = Reader(spec.limits)
        self._cases = {case.id: case for case in cases}
        self._controls = {control.id: control for control in controls}
        self._jobs: dict[int, JobSpec] = {job.job: job for job in spec.jobs}
        self._cells: dict[tuple[int, int], CellSpec] = {(j.job, c.cell): c for j in spec.jobs for c in j.cells}
        self._worlds = {job.world_size for job in spec.jobs}
        # Held against every tensor of the oracle: tens of thousands.
        self._used = {cell.case for cell in self._cells.values()} | {one.case for one in self._controls.values()}
        self._truth = Truth()
        self._open: dict[tuple[int, int, int], _Open] = {}
        self._done: set[tuple[int, int, int]] = set()
        self._controls_done: set[tuple[str, str, int, str]] = set()
        self._asked: set[int] = set()
        self._bytes: dict[int | None, int] = {}
        self._log_left = spec.limits.log_bytes
        self._stacks_left = spec.limits.log_bytes
        self._hello = self._tainted = self._loaded = self._ended = False
        self._violation: Violation | None = None
        self._state_changes: tuple[str, ...] = ()
        for cell in self._cells.values():
            case = self._cases.get(cell.case)
            if case is None or case.version != cell.version:
                raise ValueError(f"the attempt has {cell.case} version {cell.version}, which is not in the catalogue")

    @property
    def subject_may_have_run(self) -> bool:
        """Whether subject code may have run by now."""
        return self._tainted

    def feed(self, line: bytes) -> list[Notice]:
        """Take one line of the stream. Raises Violation, and again on every later call."""
        if self._violation is not None:
            raise self._violation
        fields: dict[str, Any] = {}
        try:
            kind, fields = self._reader.read(line)
            if self._ended:
                raise Violation(f"{kind} after bye")
            handle: Any = getattr(self, f"_on_{kind}")
            notices: list[Notice] = handle(fields)
            return notices
        except Violation as violation:
            violation.blame = "crash" if self._tainted else "infra"
            job = fields.get("job")
            violation.job = job if job in self._jobs else None
            self._violation = violation
            raise

    def close(
        self, kind: StopKind, reason: str, job: int | None = None, error: ErrorInfo | None = None
    ) -> list[CaseDone]:
        """Every cell (of ``job``, or of all) that was not answered, answered by why it never will be."""
        return [
            self._stop(key, kind, reason, error)
            for key in self._cells
            if (job is None or key[0] == job) and (*key, 1) not in self._done
        ]

    def _stop(self, key: tuple[int, int], kind: StopKind, reason: str, error: ErrorInfo | None) -> CaseDone:
        self._done.add((*key, 1))
        evidence = Evidence.stopped(kind, reason, error)
        return CaseDone(*key, False, evidence, self._texts(self._open.pop((*key, 1), None)), 0.0)

    # -- before the subject --------------------------------------------------------------------------------------

    def _on_hello(self, said: dict[str, Any]) -> list[Notice]:
        if self._hello:
            raise Violation("a second hello")
        self._hello = True
        return [Hello({key: value for key, value in said.items() if key not in ("v", "t")})]

    def _on_phase(self, said: dict[str, Any]) -> list[Notice]:
        self._tainted = self._tainted or said["name"] == "subject"
        return [PhaseDone(said["name"], said["seconds"])]

    def _on_oracle(self, said: dict[str, Any]) -> list[Notice]:
        self._want_trust("an oracle")
        case, world, rank, sent = self._case(said["case"]), said["world_size"], said["rank"], said["tensor"]
        if said["version"] != case.version:
            raise Violation(f"the oracle is of version {said['version']} of {case.id}; asked for was {case.version}")
        if world not in self._worlds or rank >= world:
            raise Violation(f"the oracle speaks of rank {rank} of {world}, which this attempt has not")
        self._count(None, sent)
        self._truth.learn(case, world, rank, sent)
        return []

    def _on_control(self, said: dict[str, Any]) -> list[Notice]:
        stage, world = said["stage"], said["world_size"]
        if stage == "before":
            self._want_trust("a control")
        elif not self._loaded:
            raise Violation("a control of stage after before the subject was imported")
        control = self._controls.get(said["control"])
        if control is None or said["mode"] not in control.modes or world not in self._worlds:
            raise Violation(f"no control {said['control'][:200]!r} in mode {said['mode']} with {world} ranks")
        key = (control.id, said["mode"], world, stage)
        if key in self._controls_done:
            raise Violation(f"control {control.id} answered twice")
        self._controls_done.add(key)
        outcomes = self._outcomes(said["ranks"], world)
        if len(said["tensors"]) != world:
            raise Violation(f"control {control.id} has tensors of {len(said['tensors'])} ranks, not {world}")
        case = self._case(control.case)
        sent: list[RankTensors] = [{} for _ in range(world)]
        for rank, tensors in enumerate(said["tensors"]):
            for one in tensors:
                self._count(None, one)
                self._truth.take(sent[rank], case, world, rank, one)
        evidence = self._evidence(case, world, said["mode"], outcomes, sent, said["trace"], ())
        return [ControlDone(control.id, said["mode"], world, stage, evidence)]

    def _want_trust(self, what: str) -> None:
        if self._tainted:
            raise Violation(f"{what} after subject code may have run")
        if not self._hello:
            raise Violation(f"{what} before hello")

    # -- the subject ---------------------------------------------------------------------------------------------

    def _on_subject(self, said: dict[str, Any]) -> list[Notice]:
        if self._loaded or not self._hello:
            raise Violation("a second subject event" if self._loaded else "a subject event before hello")
        self._tainted = self._loaded = True
        self._state_changes = said["changed"]
        error = assemble.error(said["error"])
        facts = {key: said[key] for key in ("adapter", "method", "changed", "started")}
        notices: list[Notice] = [SubjectLoaded(said["status"] == "ok", said["version"], error, facts, said["seconds"])]
        if said["status"] == "unimportable":
            reason = "the subject cannot be imported"
            notices += [
                self._stop(key, "unimportable", reason, error)
                for key, cell in self._cells.items()
                if (*key, 1) not in self._done and self._cases[cell.case].family != TORCH_FAMILY
            ]
        return notices

    def _on_tensor(self, said: dict[str, Any]) -> list[Notice]:
        key, cell = self._at(said)
        world, sent = self._jobs[key[0]].world_size, said["tensor"]
        if said["rank"] >= world:
            raise Violation(f"a tensor of rank {said['rank']} of {world}")
        self._count(key[0], sent)
        self._truth.take(self._opened(key).tensors[said["rank"]], self._cases[cell.case], world, said["rank"], sent)
        return []

    def _on_case(self, said: dict[str, Any]) -> list[Notice]:
        key, cell = self._at(said)
        world, case = self._jobs[key[0]].world_size, self._cases[cell.case]
        opened = self._opened(key)
        outcomes = assemble.with_last_words(self._outcomes(said["ranks"], world), opened.by_rank)
        evidence = self._evidence(case, world, cell.mode, outcomes, opened.tensors, said["trace"], self._state_changes)
        kept = assemble.blobs(opened.tensors, self._truth.of(case, world))
        del self._open[key]
        self._done.add(key)
        notice = CaseDone(*key[:2], key[2] == 2, evidence, (*kept, *self._texts(opened)), said["seconds"])
        return [notice]

    def _on_stacks(self, said: dict[str, Any]) -> list[Notice]:
        key, _ = self._at(said)
        if said["rank"] >= self._jobs[key[0]].world_size or said["rank"] in self._opened(key).stacks:
            raise Violation(f"stacks of rank {said['rank']} of cell {key[1]} twice, or of no such rank")
        text = _cut(said["text"], self._stacks_left, "stacks")
        self._stacks_left -= len(text)
        self._opened(key).stacks[said["rank"]] = text
        return []

    def _on_log(self, said: dict[str, Any]) -> list[Notice]:
        job, cell = said["job"], said["cell"]
        if (job is not None and job not in self._jobs) or (cell is not None and (job, cell) not in self._cells):
            raise Violation(f"a log line of job {job} and cell {cell}, which this attempt has not")
        if self._log_left <= 0:
            return []
        text = _cut(said["text"], self._log_left, "log")
        self._log_left -= len(said["text"].encode())
        open_pass = next((n for n in (2, 1) if (job, cell, n) in self._open), None)
        if job is not None and cell is not None:
            key = (job, cell, open_pass or (1 if (job, cell, 1) not in self._done else 2))
            if key not in self._done:
                opened = self._opened(key)
                opened.log.append(text)
                if said["rank"] is not None:
                    opened.by_rank.setdefault(said["rank"], []).append(text)
        return [Log(text, said["stream"], said["rank"], job, cell)]

    def _on_ask(self, said: dict[str, Any]) -> list[Notice]:
        job = self._jobs.get(said["job"])
        if job is None or job.job in self._asked or not (self._loaded or all(map(self._is_torch, job.cells))):
            raise Violation(f"job {said['job']} is unknown, asks twice, or asks before the subject was imported")
        self._asked.add(job.job)
        return [Ask(said["job"])]

    def _on_bye(self, said: dict[str, Any]) -> list[Notice]:
        self._ended = True
        return [Bye(said["ok"], said["reason"])]

    # -- what every event is held against --------------------------------------------------------------------------

    def _case(self, case_id: str) -> CaseInfo:
        if case_id not in self._used or case_id not in self._cases:
            raise Violation(f"no case {case_id[:200]!r} in this attempt")
        return self._cases[case_id]

    def _at(self, said: dict[str, Any]) -> tuple[tuple[int, int, int], CellSpec]:
        """The pass of the cell that an event is about, if it may still be spoken of."""
        key = (said["job"], said["cell"], said["pass"])
        cell = self._cells.get(key[:2])
        if cell is None:
            raise Violation(f"no cell {key[1]} of job {key[0]} in this attempt")
        if self._is_torch(cell):  # it exercises no subject, and is complete before there is one
            self._want_trust(f"cell {key[1]} of torch itself")
        elif not self._loaded:
            raise Violation(f"cell {key[1]} before the subject was imported")
        if key in self._done:
            raise Violation(f"cell {key[1]} is complete, and is spoken of again")
        if key[2] == 2 and ((*key[:2], 1) not in self._done or key[0] not in self._asked):
            raise Violation(f"a second pass of cell {key[1]} that nobody asked for")
        return key, cell

    def _is_torch(self, cell: CellSpec) -> bool:
        return self._cases[cell.case].family == TORCH_FAMILY

    def _opened(self, key: tuple[int, int, int]) -> _Open:
        if key not in self._open:
            self._open[key] = _Open([{} for _ in range(self._jobs[key[0]].world_size)])
        return self._open[key]

    def _count(self, job: int | None, sent: Sent) -> None:
        """Hold a job's tensors (None: the oracle's and controls' together) under the cap."""
        total = self._bytes.get(job, 0) + (len(sent.raw.data) if sent.raw is not None else 0)
        if total > self._limits.job_bytes:
            raise Violation(f"the tensors of one job may have {self._limits.job_bytes} bytes together; these have more")
        self._bytes[job] = total

    @staticmethod
    def _outcomes(said: tuple[dict[str, Any], ...], world: int) -> list[RankOutcome]:
        outcomes = sorted((assemble.outcome(one) for one in said), key=lambda one: one.rank)
        if [one.rank for one in outcomes] != list(range(world)):
            raise Violation(f"outcomes of ranks {[one.rank for one in outcomes][:9]}; there are {world} ranks")
        return outcomes

    def _evidence(
        self,
        case: CaseInfo,
        world: int,
        mode: str,
        outcomes: list[RankOutcome],
        sent: list[RankTensors],
        trace: dict[str, Any] | None,
        changes: tuple[str, ...],
    ) -> Evidence:
        if (silence := self._truth.silence(case, world)) is not None:
            return Evidence.stopped("invalid", silence)
        traced = assemble.trace(trace) if mode in TRACED_MODES else None
        truth = self._truth
        right, noise = truth.of(case, world), truth.noise(case, world)
        return assemble.assemble(case, outcomes, sent, right, noise, traced, changes)

    @staticmethod
    def _texts(opened: _Open | None) -> tuple[Blob, ...]:
        if opened is None:
            return ()
        log = [Blob("log", "log", "\n".join(opened.log).encode())] if opened.log else []
        return (
            *log,
            *(Blob("stacks", f"stacks/rank{rank}", text.encode(), rank) for rank, text in opened.stacks.items()),
        )


def _cut(text: str, room: int, what: str) -> str:
    """``text`` within ``room`` bytes, saying so where that is not all of it."""
    data = text.encode()
    if len(data) <= room:
        return text
    return data[: max(0, room)].decode(errors="ignore") + f" [the cap on {what} is reached: nothing more is kept]"
