"""The detection table: which controls were caught, by family, mutant and type, and which right ones raised an alarm.

On the straight line this stands behind ``service.judge``, which judges every control of a self-test; whatever shows the
table reads it from here. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jobs.contract import DTYPES, CaseInfo, ControlInfo
from service.judge import ControlVerdict
from service.verdicts import Verdict, parse_verdict

SCHEMA = 1
Trial = tuple[str, str, int, int]
"""A control, its mode, the number of ranks and the seed: what is tried once."""


@dataclass(frozen=True)
class Setting:
    """Where and how often the controls were tried.

    compiler  whether there is one: without it nothing runs in inductor
    """

    torch: str
    world_sizes: tuple[int, ...]
    seeds: int
    compiler: bool = True


@dataclass
class Count:
    """Trials of one line in one type: how many there were, and how many had a verdict that is right for the control."""

    of: int = 0
    right: int = 0
    absent: int = 0
    hidden: str = ""


@dataclass
class Line:
    """One mutant or one right implementation of a family, over all types."""

    family: str
    name: str
    expected: tuple[str, ...]
    summary: str
    counts: dict[str, Count] = field(default_factory=dict)


@dataclass(frozen=True)
class Miss:
    """A trial that did not go as it should."""

    control: str
    mode: str
    world_size: int
    seed: int
    verdict: str
    expected: tuple[str, ...]
    detail: str

    @property
    def sentence(self) -> str:
        """The trial in words."""
        where = f"{self.control} {self.mode}, {self.world_size} ranks, seed {self.seed}"
        return f"{where}: {self.verdict}, should be {' or '.join(self.expected)}: {self.detail}"


@dataclass(frozen=True)
class Detection:
    """The whole table.

    mutants, clean  the lines, in the order of the catalogue
    missed          trials of mutants that were not caught; those of hidden ones are not among them
    alarms          trials of right implementations that were not said to be right
    absent          per reason, the controls that this runtime cannot carry out
    """

    setting: Setting
    mutants: tuple[Line, ...]
    clean: tuple[Line, ...]
    missed: tuple[Miss, ...]
    alarms: tuple[Miss, ...]
    absent: Mapping[str, tuple[str, ...]]

    @property
    def ok(self) -> bool:
        """Whether every mutant was caught and no right implementation raised an alarm."""
        return not self.missed and not self.alarms

    @property
    def types(self) -> tuple[str, ...]:
        """The types that occur, widest first."""
        used = {dtype for line in (*self.mutants, *self.clean) for dtype in line.counts}
        return tuple(dtype for dtype in DTYPES if dtype in used)

    @property
    def hidden(self) -> Iterator[tuple[str, Count]]:
        """Mutants that a type hides: line and type in words, and its count with the reason."""
        for line in self.mutants:
            for dtype in self.types:
                count = line.counts.get(dtype)
                if count and count.hidden:
                    yield f"{line.family}/{line.name} in {dtype}", count

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""

        def told(line: Line) -> dict[str, Any]:
            counts = {dtype: vars(count) for dtype, count in line.counts.items()}
            return {"family": line.family, "name": line.name, "expected": list(line.expected), "types": counts}

        return {
            "schema": SCHEMA,
            "torch": self.setting.torch,
            "world_sizes": list(self.setting.world_sizes),
            "seeds": self.setting.seeds,
            "ok": self.ok,
            "mutants": [told(line) for line in self.mutants],
            "clean": [told(line) for line in self.clean],
            "missed": [vars(miss) for miss in self.missed],
            "alarms": [vars(miss) for miss in self.alarms],
            "absent": {reason: list(names) for reason, names in self.absent.items()},
        }


def is_clean(control: ControlInfo) -> bool:
    """Whether the control is an implementation that must be said to be right."""
    return all(parse_verdict(word).settled for word in control.expected)


def trials(controls: Iterable[ControlInfo], cases: Mapping[str, CaseInfo], setting: Setting) -> Iterator[Trial]:
    """Everything that has to be tried."""
    for control in controls:
        for mode in control.modes:
            for world_size in setting.world_sizes:
                if cases[control.case].runs_at(world_size) and (mode != "inductor" or setting.compiler):
                    for seed in range(setting.seeds):
                        yield control.id, mode, world_size, seed


def detection(
    controls: Sequence[ControlInfo],
    cases: Mapping[str, CaseInfo],
    setting: Setting,
    found: Mapping[Trial, ControlVerdict],
) -> Detection:
    """The table from what each trial was judged to be. A trial without an answer did not go as it should."""
    known = {control.id: control for control in controls}
    lines: dict[tuple[str, str], Line] = {}
    missed: list[Miss] = []
    alarms: list[Miss] = []
    absent: dict[str, dict[str, None]] = {}
    for trial in trials(controls, cases, setting):
        control, verdict = known[trial[0]], found.get(trial)
        name = name_of(control)
        line = lines.setdefault((control.family, name), Line(control.family, name, control.expected, control.summary))
        count = line.counts.setdefault(cases[control.case].dtype, Count())
        count.hidden = count.hidden or control.hidden
        if verdict is not None and verdict.judgement.verdict is Verdict.UNSUPPORTED and not verdict.ok:
            count.absent += 1
            absent.setdefault(verdict.judgement.detail, {})[control.id] = None
            continue
        count.of += 1
        count.right += verdict is not None and verdict.ok
        if verdict is None or not verdict.ok:
            miss = _miss(control, trial, verdict)
            if is_clean(control):
                alarms.append(miss)
            elif not control.hidden:
                missed.append(miss)
    clean = {id(line) for line in lines.values() if all(parse_verdict(word).settled for word in line.expected)}
    return Detection(
        setting,
        tuple(line for line in lines.values() if id(line) not in clean),
        tuple(line for line in lines.values() if id(line) in clean),
        tuple(missed),
        tuple(alarms),
        {reason: tuple(names) for reason, names in absent.items()},
    )


def name_of(control: ControlInfo) -> str:
    """The control's name without its family and the parameters of its case."""
    return control.id.partition("[")[0].partition("/")[2]


def _miss(control: ControlInfo, trial: Trial, verdict: ControlVerdict | None) -> Miss:
    said, detail = ("nothing", "it gave no answer") if verdict is None else (
        verdict.judgement.verdict.value, verdict.judgement.detail
    )  # fmt: skip
    return Miss(*trial, said, control.expected, detail)
