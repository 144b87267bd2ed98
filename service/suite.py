"""Which cells of its cases the default suite runs.

On the straight line this stands beside ``service.matrix``, which asks it. Eager, every case of the suite runs at every
world size that is asked for. A traced call costs ten times as much, on every rank. So it runs at the smallest of the
world sizes, in as few cases as have every value that any traced one has; and at the others in one case of each
exchange, which all other families are built on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from jobs.contract import SUITES, TORCH_FAMILY, TRACED_MODES, CaseInfo

WHOLE = (TORCH_FAMILY,)
"""Families that run traced in every case and at every world size: what is torch's own explains what is not."""
ONCE_PER_SIZE = ("exchange",)
"""Families of which one case of each probe runs traced at the further world sizes too."""
Cell = tuple[str, str, int]
"""Case, mode and world size."""


def default_cells(cases: Sequence[CaseInfo], world_sizes: Iterable[int]) -> frozenset[Cell]:
    """What the default suite runs of ``cases`` where ``world_sizes`` are asked for."""
    probes: dict[str, list[CaseInfo]] = defaultdict(list)
    for case in cases:
        if case.suite == SUITES[0]:
            probes[case.id.partition("[")[0]].append(case)
    return frozenset(cell for group in probes.values() for cell in _cells(group, sorted(set(world_sizes))))


def _cells(probe: Sequence[CaseInfo], sizes: Sequence[int]) -> Iterator[Cell]:
    family = probe[0].family
    for size in sizes:
        here = [case for case in probe if case.runs_at(size)]
        for mode in dict.fromkeys(mode for case in here for mode in case.modes):
            chosen = [case for case in here if mode in case.modes]
            if mode in TRACED_MODES and family not in WHOLE:
                seen = [case for case in chosen if any(case.runs_at(smaller) for smaller in sizes if smaller < size)]
                fresh = [case for case in chosen if case not in seen]
                chosen = showing(fresh) + (seen[:1] if family in ONCE_PER_SIZE else [])
            yield from ((case.id, mode, size) for case in chosen)


def showing(cases: Sequence[CaseInfo]) -> list[CaseInfo]:
    """Few of ``cases`` that together have every value that any of them has on any axis; the first is one of them."""
    left = {pair for case in cases for pair in case.params.items()}
    chosen: list[CaseInfo] = []
    while left:
        best = max(cases, key=lambda case: len(left & case.params.items())) if chosen else cases[0]
        chosen.append(best)
        left -= best.params.items()
    return chosen
