"""Which cells of its cases the default suite runs.

On the straight line this stands beside ``service.matrix``, which asks it. The cases that the tables of ``jobs`` mark
are those that people chose; beside them stand as few others as make every two values of two axes, which any case of a
probe has together, be had together (but for those that a costly compiler runs). The chosen ones run eagerly at the
smallest of the world sizes that are asked for. At each further one as few cases run as show every value of theirs, by
preference some of the others, which then do not run at the smallest: each of those runs once. A traced call costs ten
times as much, on every rank: there the chosen ones run that have every value, at the smallest world size, and at the
others one case of each exchange, which all other families are built on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import combinations
from typing import Any

from jobs.contract import SUITES, TORCH_FAMILY, TRACED_MODES, CaseInfo

WHOLE = (TORCH_FAMILY,)
"""Families that run in every case and mode at every world size: what is torch's own explains what is not."""
ONCE_PER_SIZE = ("exchange",)
"""Families of which one case of each probe runs traced at the further world sizes too."""
COSTLY = ("inductor",)
"""Compilers that take too long for a case that is only there for its pairs."""
DERIVED = ("effective",)
"""Parameters that follow from others: no axes of their own."""
Cell = tuple[str, str, int]
"""Case, mode and world size."""
Things = Callable[[CaseInfo], set[Any]]


def default_cases(cases: Sequence[CaseInfo]) -> tuple[CaseInfo, ...]:
    """The chosen ones of ``cases``, and those that complete the pairs; in the same order."""
    there = [case for case in cases if _chosen(case) or case.compiles not in COSTLY]
    wanted = {case.id for probe in _probes(there) for case in covering(probe, pairs, [c for c in probe if _chosen(c)])}
    return tuple(case for case in cases if case.id in wanted)


def default_cells(cases: Iterable[CaseInfo], world_sizes: Iterable[int]) -> frozenset[Cell]:
    """What the default suite runs of ``cases``, which are of it, where ``world_sizes`` are asked for."""
    sizes = sorted(set(world_sizes))
    return frozenset(cell for probe in _probes(cases) for cell in _cells(probe, sizes))


def _cells(probe: Sequence[CaseInfo], sizes: Sequence[int]) -> Iterator[Cell]:
    family = probe[0].family
    for mode in dict.fromkeys(mode for case in probe for mode in case.modes):
        there = [case for case in probe if mode in case.modes]
        if family in WHOLE:
            run = {size: [case for case in there if case.runs_at(size)] for size in sizes}
        elif mode in TRACED_MODES:
            run = _traced([case for case in there if _chosen(case)], sizes, again=family in ONCE_PER_SIZE)
        else:
            run = _eager(there, sizes)
        yield from ((case.id, mode, size) for size, cases in run.items() for case in cases)


def _traced(chosen: Sequence[CaseInfo], sizes: Sequence[int], *, again: bool) -> dict[int, list[CaseInfo]]:
    """Per size as few as have every value of those that exist from there on; ``again``: and one of the earlier ones."""
    run = {}
    for size in sizes:
        fresh, seen = _at(size, sizes, chosen)
        run[size] = covering(fresh, values) + seen[:again]
    return run


def _eager(probe: Sequence[CaseInfo], sizes: Sequence[int]) -> dict[int, list[CaseInfo]]:
    """Per size what runs there: what people chose at its smallest and perhaps again, each of the others once."""
    run: dict[int, list[CaseInfo]] = {}
    placed: set[str] = set()
    for size in reversed(sizes):
        fresh, seen = _at(size, sizes, [case for case in probe if case.id not in placed])
        # What a compiler runs is traced whatever its mode is: it stays where it first exists.
        seen = [case for case in seen if not case.compiles]
        again = [case for case in seen if _chosen(case)]
        others = [case for case in seen if not _chosen(case)]
        start = fresh or again[:1]
        run[size] = covering([*start, *others, *again], showing([*filter(_chosen, fresh), *again]), start)
        placed |= {case.id for case in run[size] if not _chosen(case)}
    return run


def _at(size: int, sizes: Sequence[int], cases: Iterable[CaseInfo]) -> tuple[list[CaseInfo], list[CaseInfo]]:
    """Those of ``cases`` that exist at ``size``: those at none of ``sizes`` that is smaller, and the rest."""
    here = [case for case in cases if case.runs_at(size)]
    seen = [case for case in here if any(case.runs_at(smaller) for smaller in sizes if smaller < size)]
    return [case for case in here if case not in seen], seen


def showing(cases: Sequence[CaseInfo]) -> Things:
    """What a case shows of the values of ``cases``: one that must be refused shows only what no other of them does."""
    answered = set().union(*(values(case) for case in cases if case.expect == "values"))
    wanted = answered.union(*(values(case) for case in cases))
    return lambda case: values(case) & (wanted if case.expect == "values" else wanted - answered)


def values(case: CaseInfo) -> set[Any]:
    """Every value that the case has on any axis."""
    return {(axis, value) for axis, value in case.params.items() if axis not in DERIVED}


def pairs(case: CaseInfo) -> set[Any]:
    """Every two values that the case has on two axes."""
    return set(combinations(sorted(values(case)), 2))


def covering(cases: Sequence[CaseInfo], things: Things, start: Iterable[CaseInfo] = ()) -> list[CaseInfo]:
    """Few of ``cases`` that together have every thing that any of them has: those of ``start``, or else the first."""
    each = {case.id: things(case) for case in cases}
    chosen = list(start) or list(cases[:1])
    left: set[Any] = set().union(*each.values()) - set().union(*(each[case.id] for case in chosen))
    while left:
        best = max(cases, key=lambda case: len(left & each[case.id]))
        chosen.append(best)
        left -= each[best.id]
    return chosen


def _probes(cases: Iterable[CaseInfo]) -> list[list[CaseInfo]]:
    probes: dict[str, list[CaseInfo]] = defaultdict(list)
    for case in cases:
        probes[case.id.partition("[")[0]].append(case)
    return list(probes.values())


def _chosen(case: CaseInfo) -> bool:
    return case.suite == SUITES[0]
