"""The matrix: axes, exclusions and inclusions become jobs and cells. Pure.

On the straight line this stands between ``service.subjects`` (which found the checkouts) and ``service.store``
(which keeps the plan, less what is already known).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

from jobs.contract import MODES, SUITES, TORCH, TORCH_FAMILY, TRANSPORTS, WORLD_SIZES, CaseInfo
from service.errors import UsageError, nearest
from service.globs import matches
from service.suite import default_cells

if TYPE_CHECKING:
    from service.catalog import RuntimeSpec
    from service.subjects import Checkout

Rule = Mapping[str, str | int]
"""Values or globs per axis (:data:`AXES`); a cell falls under the rule where all of them fit."""


@dataclass(frozen=True)
class PlannedCell:
    """A case in a mode."""

    case_id: str
    version: int
    mode: str


@dataclass(frozen=True)
class PlannedJob:
    """The cells of one checkout and runtime (by digest) at one transport and world size."""

    checkout: str
    runtime: str
    transport: str
    world_size: int
    cells: tuple[PlannedCell, ...]


@dataclass(frozen=True)
class Plan:
    """What to run, and the definition of every case that occurs in it."""

    jobs: tuple[PlannedJob, ...]
    cases: tuple[CaseInfo, ...]

    @property
    def cells(self) -> int:
        """How many cells there are in all."""
        return sum(len(job.cells) for job in self.jobs)


class _Point(NamedTuple):
    checkout: Checkout
    runtime: RuntimeSpec
    transport: str
    world_size: int
    case: CaseInfo
    mode: str


AXES: dict[str, Callable[[_Point], tuple[str, ...]]] = {
    "checkout": lambda p: (p.checkout.label, p.checkout.digest),
    "torch": lambda p: (p.runtime.torch, p.runtime.name),
    "transport": lambda p: (p.transport,),
    "world_size": lambda p: (str(p.world_size),),
    "family": lambda p: (p.case.family,),
    "case": lambda p: (p.case.id, p.case.id.partition("[")[0]),
    "mode": lambda p: (p.mode,),
}
"""What a rule may speak of, and the names that a cell has on each axis."""


def plan(
    checkouts: Sequence[Checkout],
    runtimes: Sequence[RuntimeSpec],
    transports: Sequence[str],
    world_sizes: Sequence[int],
    cases: Sequence[CaseInfo],
    modes: Sequence[str],
    *,
    suite: str = SUITES[-1],
    include: Sequence[Rule] = (),
    exclude: Sequence[Rule] = (),
) -> Plan:
    """All cells of the axes, without those under any rule of ``exclude``, with those under any rule of ``include``.

    An inclusion is stronger than every exclusion, and may name a world size or a mode that the axes leave out: that
    is how one runtime gets one more mode. On the axes that it does not name it is held to what was asked for.
    In the default suite a case runs neither in every mode nor at every world size (:mod:`service.suite`).
    A case exists only in its own modes, over its own transports and at the world sizes that hold its
    sequence-parallel size; those of torch's own family exist for the subject torch alone, and no others do.
    Raises UsageError on unknown values, on rules that fit nothing, when a checkout has no cell even before any
    exclusion, and when none remains.
    """
    _check_axes(checkouts, runtimes, transports, world_sizes, cases, modes)
    space = [_Point(*point) for point in product(checkouts, runtimes, transports, WORLD_SIZES, cases, MODES)]
    space = list({_key(point): point for point in space if _exists(point)}.values())  # no cell twice
    for rule in (*include, *exclude):
        _check_rule(rule, space)
    asked = [p for p in space if _asked(p, world_sizes, modes)]
    if suite == SUITES[0]:
        # Over each transport by itself: what exists over another one stands for nothing here.
        brief = {t: default_cells([case for case in cases if t in case.transports], world_sizes) for t in transports}
        asked = [p for p in asked if (p.case.id, p.mode, p.world_size) in brief[p.transport]]
    chosen = [p for p in asked if not any(_under(rule, p) for rule in exclude)]
    if include:
        kept = set(map(_key, chosen))
        chosen = [p for p in space if _key(p) in kept or any(_included(r, p, world_sizes, modes) for r in include)]
    there = {point.checkout.digest for point in (*asked, *chosen)}
    for checkout in checkouts:
        check_family(checkout.label, checkout.subject == TORCH, cases)
        if not chosen or checkout.digest not in there:
            raise UsageError(
                f"nothing to run for {checkout.label}: {_why(checkout, cases, transports, world_sizes, modes)}"
            )
    wanted = {(point.case.id, point.case.version) for point in chosen}
    return Plan(tuple(_jobs(chosen)), tuple(c for c in cases if (c.id, c.version) in wanted))


def _exists(point: _Point) -> bool:
    case = point.case
    there = _has(point.checkout, case) and point.transport in case.transports
    return there and point.mode in case.modes and case.runs_at(point.world_size)


def check_family(label: str, is_torch: bool, cases: Iterable[CaseInfo]) -> None:
    """Raise UsageError where none of ``cases`` is of a subject at all: it need not be fetched to know that."""
    if not any(_is_of(is_torch, case) for case in cases):
        whose = (
            f"only family {TORCH_FAMILY} is" if is_torch else f"family {TORCH_FAMILY} is of the subject {TORCH} alone"
        )
        raise UsageError(f"nothing to run for {label}: none of the cases that were asked for is of it; {whose}")


def _has(checkout: Checkout, case: CaseInfo) -> bool:
    return _is_of(checkout.subject == TORCH, case)


def _is_of(is_torch: bool, case: CaseInfo) -> bool:
    return is_torch == (case.family == TORCH_FAMILY)


def _why(
    checkout: Checkout,
    cases: Sequence[CaseInfo],
    transports: Sequence[str],
    world_sizes: Sequence[int],
    modes: Sequence[str],
) -> str:
    """Why a checkout has no cell."""
    asked = asked_for(transports, world_sizes, modes)
    return (
        f"none of the cases that were asked for is left {asked} ({existing([c for c in cases if _has(checkout, c)])})"
    )


def asked_for(transports: Sequence[str], world_sizes: Sequence[int], modes: Sequence[str]) -> str:
    """The axes in words."""
    sizes = ", ".join(map(str, world_sizes))
    return f"over {', '.join(transports)} in mode {', '.join(modes)} at world size {sizes}"


def existing(cases: Sequence[CaseInfo]) -> str:
    """Where cases exist at all, for an error of those that were asked for elsewhere."""
    over = sorted({transport for case in cases for transport in case.transports})
    modes = [mode for mode in MODES if any(mode in case.modes for case in cases)]
    sizes = [str(size) for size in WORLD_SIZES if any(case.runs_at(size) for case in cases)]
    return f"they exist over {', '.join(over)}, in mode {', '.join(modes)}, at world size {', '.join(sizes)}"


def _key(p: _Point) -> tuple[str, str, str, int, str, int, str]:
    return (p.checkout.digest, p.runtime.digest, p.transport, p.world_size, p.case.id, p.case.version, p.mode)


def _under(rule: Rule, point: _Point) -> bool:
    return all(_fits(axis, value, point) for axis, value in rule.items())


def _fits(axis: str, value: str | int, point: _Point) -> bool:
    return any(matches(str(value), name) for name in AXES[axis](point))


def _asked(point: _Point, world_sizes: Sequence[int], modes: Sequence[str]) -> bool:
    return point.world_size in world_sizes and point.mode in modes


def _included(rule: Rule, point: _Point, world_sizes: Sequence[int], modes: Sequence[str]) -> bool:
    size_fits = "world_size" in rule or point.world_size in world_sizes
    return size_fits and ("mode" in rule or point.mode in modes) and _under(rule, point)


def _jobs(points: Sequence[_Point]) -> Iterator[PlannedJob]:
    """The points as jobs, in their order: by checkout, runtime, transport, world size."""
    jobs: dict[tuple[str, str, str, int], list[PlannedCell]] = {}
    for point in points:
        place = (point.checkout.digest, point.runtime.digest, point.transport, point.world_size)
        jobs.setdefault(place, []).append(PlannedCell(point.case.id, point.case.version, point.mode))
    for place, cells in jobs.items():
        yield PlannedJob(*place, tuple(cells))


def _check_axes(
    checkouts: Sequence[Checkout],
    runtimes: Sequence[RuntimeSpec],
    transports: Sequence[str],
    world_sizes: Sequence[int],
    cases: Sequence[CaseInfo],
    modes: Sequence[str],
) -> None:
    axes: dict[str, Sequence[object]] = {
        "checkout": checkouts,
        "runtime": runtimes,
        "transport": transports,
        "world size": world_sizes,
        "case": cases,
        "mode": modes,
    }
    for name, values in axes.items():
        if not values:
            raise UsageError(f"no {name} was asked for")
    known: dict[str, tuple[Sequence[object], Sequence[object]]] = {
        "transport": (transports, TRANSPORTS),
        "world size": (world_sizes, WORLD_SIZES),
        "mode": (modes, MODES),
    }
    for name, (asked, possible) in known.items():
        for value in asked:
            if value not in possible:
                raise UsageError(f"unknown {name} {value}: {nearest(str(value), map(str, possible))}")


def _check_rule(rule: Rule, space: Sequence[_Point]) -> None:
    """Refuse a rule that can never fit: a misspelt exclusion would silently exclude nothing."""
    if not rule:
        raise UsageError(f"an empty rule would fit every cell; name at least one of {', '.join(AXES)}")
    for axis, value in rule.items():
        if axis not in AXES:
            raise UsageError(f"unknown axis {axis!r} in a rule: {nearest(axis, AXES)}")
        if not any(_fits(axis, value, point) for point in space):
            names = {AXES[axis](point)[0] for point in space}
            raise UsageError(f"the rule {axis}={value} fits nothing here: {nearest(str(value), names)}")
