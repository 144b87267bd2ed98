"""One self-test of the controls: an attempt without a subject and without cells, judged and kept nowhere.

On the straight line this takes the way of ``workers.attempt`` (``workers.runtimes``, ``jobs``, ``workers.collect``,
``service.judge``) up to the verdicts, and leaves the store out: what is asked about is gradmatrix itself.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jobs.contract import SUITES, TORCH, AttemptSpec, JobSpec, Limits
from service.cases import CaseCatalogue
from service.catalog import RuntimeSpec
from service.config import Settings
from service.detection import Trial
from service.errors import GradmatrixError
from service.judge import ControlVerdict, judge_control
from service.policy import Policy
from workers import collect, package
from workers.pipes import lines, send
from workers.runtimes import Executor, Process

TRANSPORT = "gloo"
LIMITS = Limits(job_bytes=2 * 2**30)
"""Every control of every family in one attempt, and nothing but our own code: more than the controls beside a run."""
MAX_STDERR = 2000


class SelfTestError(GradmatrixError):
    """The controls could not be run to their end."""


@dataclass
class Tried:
    """What one seed gave: the verdict of every trial, and what the runtime says of itself."""

    found: dict[Trial, ControlVerdict] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class SelfTest:
    """Runs every control of some families in one runtime, once per seed."""

    settings: Settings
    executor: Executor
    runtime: RuntimeSpec
    catalogue: CaseCatalogue
    policy: Policy
    families: tuple[str, ...]
    world_sizes: tuple[int, ...]

    def run(self, seed: int, heard: Callable[[int], None] = lambda count: None) -> Tried:
        """Try every control with the values of ``seed``; ``heard`` is told how many have answered.

        Raises SelfTestError where the job does not come to its end: an oracle that fails, a stream of another form.
        """
        scratch = self.settings.home / "work"
        scratch.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=scratch, ignore_cleanup_errors=True) as work:
            tar = package.pack(None)
            spec = self._spec(seed, len(tar))
            process = self.executor.start(self.runtime, workdir=Path(work), wall_s=spec.deadlines.attempt_s)
            sender = threading.Thread(target=send, args=(process, spec.line() + tar))
            sender.start()
            try:
                return self._follow(spec, process, heard)
            finally:
                process.kill()
                sender.join()
                process.close()

    def _spec(self, seed: int, tar_bytes: int) -> AttemptSpec:
        return AttemptSpec(
            attempt="selftest",
            subject=TORCH,  # no subject is imported
            label="selftest",
            transport=TRANSPORT,
            jobs=tuple(JobSpec(number, size, ()) for number, size in enumerate(self.world_sizes)),
            tar_bytes=tar_bytes,
            suite=SUITES[-1],
            families=self.families,
            seed=seed,
            deadlines=self.settings.deadlines,
            limits=LIMITS,
        )

    def _follow(self, spec: AttemptSpec, process: Process, heard: Callable[[int], None]) -> Tried:
        collector = collect.Collector(spec, self.catalogue.cases, self.catalogue.controls)
        tried, bye = Tried(), None
        try:
            for line in lines(process, spec.limits.line_bytes):
                for notice in collector.feed(line):
                    if isinstance(notice, collect.Hello):
                        tried.facts = notice.facts
                    elif isinstance(notice, collect.ControlDone):
                        trial = (notice.control, notice.mode, notice.world_size, spec.seed)
                        tried.found[trial] = self._judged(notice)
                        heard(len(tried.found))
                    elif isinstance(notice, collect.Bye):
                        bye = notice
        except collect.Violation as violation:
            raise SelfTestError(f"seed {spec.seed}: the job broke the agreed form of its events: {violation}") from None
        if bye is not None and bye.ok:
            return tried
        process.kill()
        why = bye.reason if bye is not None else f"its process ended early ({process.wait(timeout=5)})"
        if process.timed_out:
            why = f"its process was ended at its limit of {spec.deadlines.attempt_s:g} s"
        told = process.stderr_tail()[-MAX_STDERR:].strip()
        raise SelfTestError(f"seed {spec.seed}: the controls did not come to their end: {why}\n{told}")

    def _judged(self, done: collect.ControlDone) -> ControlVerdict:
        control = next(one for one in self.catalogue.controls if one.id == done.control)
        case = next(one for one in self.catalogue.cases if one.id == control.case)
        return judge_control(done.evidence, case, control, self.policy)


def families_of(catalogue: CaseCatalogue, asked: Sequence[str]) -> tuple[str, ...]:
    """The families that were asked for, or all that have controls. Raises UsageError for one that has none."""
    with_controls = tuple(dict.fromkeys(control.family for control in catalogue.controls))
    if not asked:
        return with_controls
    catalogue.select(families=asked)  # names the nearest known
    return tuple(family for family in with_controls if family in asked)
