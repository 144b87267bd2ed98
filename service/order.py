"""What was asked for, checked word by word before anything is fetched or stored.

On the straight line this stands in ``service.api`` and in the command line, before ``service.subjects`` and
``service.matrix``: both take the same words and refuse the same mistakes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from jobs.contract import MODES, SUITES, TORCH, TRANSPORTS, WORLD_SIZES, CaseInfo
from service import catalog
from service.cases import catalogue, fits, usual_suite
from service.catalog import RuntimeSpec
from service.config import Settings
from service.errors import UsageError, nearest
from service.matrix import Plan, Rule, asked_for, check_family, existing, plan
from service.subjects import Checkout, SubjectRequest, parse_subject

DEFAULT_WORLD_SIZES = (2,)


@dataclass(frozen=True)
class Wanted:
    """The words, as they were written; an empty list means what is usual."""

    subjects: tuple[str, ...] = ()
    torch: tuple[str, ...] = ()
    world_sizes: tuple[str, ...] = ()
    transports: tuple[str, ...] = ()
    modes: tuple[str, ...] = ()
    families: tuple[str, ...] = ()
    cases: tuple[str, ...] = ()
    suite: str | None = None
    include: tuple[Rule, ...] = ()
    exclude: tuple[Rule, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types, as a submission keeps them."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Wanted:
        """The inverse of :meth:`to_json`."""
        lists = {name: tuple(value) for name, value in data.items() if name != "suite"}
        return cls(**lists, suite=data["suite"])


@dataclass(frozen=True)
class Order:
    """The same, checked: every part of it exists."""

    subjects: tuple[SubjectRequest, ...]
    runtimes: tuple[RuntimeSpec, ...]
    transports: tuple[str, ...]
    world_sizes: tuple[int, ...]
    modes: tuple[str, ...]
    suite: str
    cases: tuple[CaseInfo, ...]
    include: tuple[Rule, ...] = ()
    exclude: tuple[Rule, ...] = ()
    globs: tuple[str, ...] = ()

    @property
    def at_most(self) -> int:
        """How many cells it can be, if every case ran everywhere."""
        axes = (self.subjects, self.runtimes, self.transports, self.world_sizes, self.cases, self.modes)
        return math.prod(map(len, axes))

    def plan(self, checkouts: Sequence[Checkout], runtimes: Sequence[RuntimeSpec]) -> Plan:
        """The cells, once the subjects are found and the runtimes locked. Raises UsageError where none is left, be it
        of one of the globs that were named.
        """
        planned = plan(
            checkouts,
            runtimes,
            self.transports,
            self.world_sizes,
            self.cases,
            self.modes,
            suite=self.suite,
            include=self.include,
            exclude=self.exclude,
        )
        there = {case.id for case in planned.cases}
        for glob in self.globs:
            named = [case for case in self.cases if fits(glob, case.id)]
            if not there & {case.id for case in named}:
                asked = asked_for(self.transports, self.world_sizes, self.modes)
                raise UsageError(f"nothing to run for {glob!r} {asked}: {existing(named)}")
        return planned


def check(wanted: Wanted, settings: Settings, have: Sequence[str]) -> Order:
    """Raise UsageError, naming the nearest known, unless every word is right. ``have``: the transports there are."""
    if not wanted.subjects:
        raise UsageError("name at least one subject to test: deepspeed==0.18.3, git+https://…@REF, a path, or torch")
    known = catalog.load(settings)
    torch = split(wanted.torch)
    if not torch:
        versions = ", ".join(spec.torch for spec in known.bare())
        raise UsageError(f"say on which torch (--torch V): a version, a range, latest or all; there are {versions}")
    runtimes = known.select(torch)
    modes = _known(split(wanted.modes), MODES, "mode") or MODES
    world_sizes = _world_sizes(split(wanted.world_sizes)) or DEFAULT_WORLD_SIZES
    suite = _known((wanted.suite,), SUITES, "suite")[0] if wanted.suite is not None else usual_suite(wanted.cases)
    cases = catalogue().select(wanted.cases, wanted.families, suite=suite)
    subjects = tuple(parse_subject(text, settings) for text in dict.fromkeys(wanted.subjects))
    for subject in subjects:
        check_family(subject.text, subject.kind == TORCH, cases)
    transports = _transports(split(wanted.transports), have)
    order = Order(subjects, runtimes, transports, world_sizes, modes, suite, cases)
    return Order(**{**vars(order), "include": wanted.include, "exclude": wanted.exclude, "globs": wanted.cases})


def split(words: Iterable[str]) -> tuple[str, ...]:
    """Options may be repeated, or hold several values with commas; each value once."""
    return tuple(dict.fromkeys(part.strip() for word in words for part in word.split(",") if part.strip()))


def _known(words: Sequence[str], known: Sequence[str], what: str) -> tuple[str, ...]:
    for word in words:
        if word not in known:
            hint = f"{near} " if (near := nearest(word, known)).startswith("did") else ""
            raise UsageError(f"{what} {word!r} is not known: {hint}there are {', '.join(known)}")
    return tuple(word for word in known if word in words)


def _transports(words: Sequence[str], have: Sequence[str]) -> tuple[str, ...]:
    """All that there are, or those of them that were asked for."""
    asked = _known(words, TRANSPORTS, "transport")
    if lacking := [word for word in asked if word not in have]:
        raise UsageError(f"no host here has {', '.join(lacking)}, for want of a GPU; there is: {', '.join(have)}")
    return asked or tuple(have)


def _world_sizes(words: Sequence[str]) -> tuple[int, ...]:
    sizes = []
    for word in words:
        if not word.isdecimal() or int(word) not in WORLD_SIZES:
            there = ", ".join(map(str, WORLD_SIZES))
            close = min(WORLD_SIZES, key=lambda size: abs(size - int(word))) if word.isdecimal() else None
            hint = f"the nearest is {close}; " if close else ""
            raise UsageError(f"world size {word!r} is not known: {hint}there are {there}")
        sizes.append(int(word))
    return tuple(sorted(sizes))
