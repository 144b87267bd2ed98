"""Which failing cells have one fault: what is wrong in which tensors, or which error at which place, and where.

On the straight line a part of ``service.distinct``; pure. Cells of one kind (an error by its name, else a probe and
what of it is wrong) are one fault if no tensor of both is wrong in another way, and if wherever both gave an answer
both have it or neither: two cases of one probe that are mended in other releases had two faults. What a tensor's
factor is does not tell faults apart: it follows from shards and tokens.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from jobs.contract import TRACED_MODES
from service.alike import same_name
from service.amounts import BY_RANK
from service.diagnosis import RIGHT, WEAK
from service.findings import in_release_order
from service.lastwords import LABEL
from service.naming import KINDS, kind_of
from service.signature import normalise
from service.verdicts import Verdict
from service.wording import OUTSIDE

if TYPE_CHECKING:
    from service.diagnosis import Diagnosis
    from service.store.views import CellRow

_OWN_PLACE = re.compile(r" in \S+\.py \S+$")
"""How a signature ends that names a place of the subject's."""
_LINE = re.compile(r", at (\S+:\d+)")

_Site = tuple[str, int, str, int, str]
Place = tuple[str, str]
"""(release, torch version)."""


@dataclass(frozen=True)
class Known:
    """All answers, and the diagnoses of those that fail."""

    rows: tuple[CellRow, ...]
    diagnoses: Mapping[int, Diagnosis]

    @cached_property
    def labels(self) -> list[str]:
        """Every release, in order."""
        return in_release_order({row.label for row in self.rows})

    @cached_property
    def importing(self) -> dict[str, set[str]]:
        """Per release the torch versions that can import it."""
        found: dict[str, set[str]] = defaultdict(set)
        for row in self.rows:
            if row.verdict not in (None, Verdict.UNIMPORTABLE):
                found[row.label].add(row.torch)
        return found

    @cached_property
    def answered(self) -> dict[_Site, set[Place]]:
        """Per cell without release and torch, where its answer says whether it has a fault: an error may hide one."""
        found: dict[_Site, set[Place]] = defaultdict(set)
        for row in self.rows:
            verdict = Verdict(row.verdict) if row.verdict else None
            if verdict in _RIGHT or (verdict and verdict.info.group in _SHOWN):
                found[_site(row)].add((row.label, row.torch))
        return found


_RIGHT = (Verdict.AGREE, Verdict.REFUSED)
"""What says that a fault is not there. Untraced says so of another call than the one that was asked for."""
_SHOWN = ("gradient", "forward", "manners")
"""Groups of verdicts on calls that came to their end."""


@dataclass
class One:
    """One distinct fault.

    kind      what faults have to share to be one at all
    states    how each gradient is wrong or right that is known of
    lines     per release, the line that raises
    has, asked  where it is, and where any of its cells was answered
    """

    kind: _Kind
    states: dict[str, str] = field(default_factory=dict)
    lines: dict[str, str] = field(default_factory=dict)
    has: set[Place] = field(default_factory=set)
    asked: set[Place] = field(default_factory=set)
    rows: list[CellRow] = field(default_factory=list)

    @property
    def verdict(self) -> Verdict:
        """The verdict that most of its cells have."""
        return Verdict(Counter(row.verdict or "" for row in self.rows).most_common(1)[0][0])

    def fits(self, other: One) -> bool:
        """Whether ``other`` may be the same fault."""
        if any(self.lines.get(label, line) != line for label, line in other.lines.items()):
            return False
        if any(self.states.get(name, state) != state for name, state in other.states.items()):
            return False
        wrong = {name for name, state in other.states.items() if state != RIGHT}
        if wrong and not wrong & self.states.keys():
            return False
        both = self.asked & other.asked
        return self.kind.everywhere or self.has & both == other.has & both

    def take(self, other: One) -> None:
        """Make ``other`` a part of this."""
        self.states |= other.states
        self.lines |= other.lines
        self.has |= other.has
        self.asked |= other.asked
        self.rows += other.rows


class _Kind(NamedTuple):
    """``everywhere``: the name tells all, wherever else the cell is right."""

    group: str
    probe: str
    said: str
    outside: bool
    everywhere: bool


def ones(known: Known) -> list[One]:
    """Every distinct fault of the failing rows."""
    parts: dict[tuple[_Kind, _Site, tuple[tuple[str, str], ...]], One] = {}
    for row in known.rows:
        if row.verdict and Verdict(row.verdict).failing:
            diagnosis = known.diagnoses.get(row.cell)
            kind = _kind(row, diagnosis)
            states = _states(diagnosis) if kind.group == "gradient" else {}
            part = parts.setdefault((kind, _site(row), tuple(sorted(states.items()))), One(kind, states))
            line = _LINE.search(row.detail) if kind.said and not kind.probe else None
            part.take(One(kind, lines={row.label: line[1]} if line else {}, has={(row.label, row.torch)}, rows=[row]))
    for (_, site, _), part in parts.items():
        part.asked = known.answered[site] | part.has
    return _merged(parts.values())


def _merged(parts: Iterable[One]) -> list[One]:
    """The parts put together: those first that are in most places, and what the tracer has no part in."""
    found: dict[_Kind, list[One]] = defaultdict(list)
    traced = {id(part): all(row.mode in TRACED_MODES for row in part.rows) for part in parts}
    for part in sorted(parts, key=lambda one: (traced[id(one)], -len(one.has), _first(one))):
        same = [one for one in found[part.kind] if one.fits(part)]
        if same:
            max(same, key=lambda one: len(one.has & part.has)).take(part)
        else:
            fresh = One(part.kind)
            fresh.take(part)
            found[part.kind].append(fresh)
    return [one for those in found.values() for one in those]


def _first(one: One) -> str:
    return min(row.case for row in one.rows)


def _site(row: CellRow) -> _Site:
    """A cell without its release and its torch."""
    return row.transport, row.world_size, row.case, row.version, row.mode


def _kind(row: CellRow, diagnosis: Diagnosis | None) -> _Kind:
    """What a fault has to share with another one to be the same."""
    verdict = Verdict(row.verdict or "")
    probe, group = row.case.partition("[")[0], verdict.info.group
    outside, name = row.detail.startswith(OUTSIDE), same_name(row.signature)
    if verdict is Verdict.UNIMPORTABLE:
        return _Kind(verdict, "", name, outside, everywhere=True)
    if group == "no answer":
        words = (diagnosis.what if diagnosis else row.detail).partition(LABEL)[2]
        said = same_name(f"{name} {normalise(words)}") if words else name
        own = _OWN_PLACE.search(row.signature) is not None
        return _Kind(verdict, "" if own else probe, said, outside, everywhere=own)
    if group == "gradient" and any(state != RIGHT for state in _states(diagnosis).values()):
        return _Kind(group, probe, "", outside, everywhere=False)
    return _Kind(verdict, probe, name if group != "manners" or verdict is Verdict.MUTATED else "", outside,
                 everywhere=verdict is Verdict.LEAK)  # fmt: skip


def _states(diagnosis: Diagnosis | None) -> dict[str, str]:
    """How every gradient is, and every step: moments follow from them, and one factor from another case's numbers."""
    if diagnosis is None:
        return {}
    return {
        name: "scaled" if state == BY_RANK else state
        for state, names in diagnosis.tensors.items()
        if state != WEAK
        for name in names
        if kind_of(name) in KINDS[:2]
    }
