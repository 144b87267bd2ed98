"""What differs between versions, said once per distinct fault and not once per cell.

On the straight line a part of ``service.compare``; pure. A site is a cell without its checkout and its runtime; the
answers at a site are a table of checkouts by torch versions. Sites whose table has the same fault of the same
checkouts on the same torch versions are one finding; what the other columns and the other checkouts say there ends
its sentence. ``service.telling`` has the words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from packaging.version import InvalidVersion, Version

from service.telling import BAD, EVERYTHING, GOOD, NO_IMPORT, NOTHING, OTHER, Fault, Group, release, told, why
from service.verdicts import Verdict
from service.wording import OUTSIDE

if TYPE_CHECKING:
    from service.compare import Row

UNTRIED = (None, Verdict.INFRA, Verdict.INVALID, Verdict.UNIMPORTABLE)
"""What a cell says that does not show that its checkout could be imported."""


@dataclass(frozen=True)
class Finding:
    """One distinct difference.

    axis   what it differs along, torch before checkout; ``throughout``: the same fault wherever it was tried
    text   one sentence
    cell   one cell that shows it
    cells  how many do
    why    for a fault that is an error, what ``cell`` said of it, with its own numbers: may be long
    """

    axis: Literal["torch", "checkout", "throughout"]
    text: str
    cell: int
    cells: int
    why: str = ""

    def __str__(self) -> str:
        return f"{self.text}{f' ({self.why})' if self.why else ''} (cell {self.cell})"


_Site = tuple[str, int, str, int, str]
_Table = dict[tuple[str, str], "Row"]
"""The answers of one site by (checkout's name, torch's name)."""


def sentences(rows: Sequence[Row]) -> list[Finding]:
    """Every fault once: silent ones first, then by what it differs along; newly broken before fixed."""
    torches = _columns(rows, lambda row: row.torch, lambda row: row.runtime)
    labels = _columns(rows, lambda row: row.label, lambda row: row.checkout)
    imported = {(labels.of(row), torches.of(row)) for row in rows if row.verdict not in UNTRIED}
    sites: dict[_Site, _Table] = {}
    for row in rows:
        site = sites.setdefault((row.transport, row.world_size, row.case, row.version, row.mode), {})
        site[labels.of(row), torches.of(row)] = row
    found = []
    for group in _groups(sites.values(), labels.names, torches.names, imported):
        text = told(group, several=len(torches.names) > 1 or len(labels.names) > 1)
        finding = Finding(group.axis, text, group.rows[0].cell, len(group.rows), why(group))
        found.append((_importance(group), finding))
    return [finding for _, finding in sorted(found, key=lambda pair: pair[0])]


def _importance(group: Group) -> tuple[int, int, int]:
    """Smaller comes first."""
    silent = group.fault.verdict.info.group == "gradient" and any(row.forward_ok is True for row in group.rows)
    tier = 0 if silent else 1 + ("torch", "checkout", "throughout").index(group.axis)
    return tier, 0 if group.regressed else 2 if group.fixed else 1, -len(group.rows)


# -- columns ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Columns:
    """The values of one axis in order; ``of`` names a row's."""

    names: tuple[str, ...]
    of: Callable[[Any], str]


def _columns(rows: Iterable[Row], name: Callable[[Row], str], key: Callable[[Row], str]) -> _Columns:
    """Columns by ``name``; where one name stands for several keys, the key is said too."""
    keys: dict[str, dict[str, None]] = {}
    for row in rows:
        keys.setdefault(name(row), {})[key(row)] = None

    def of(row: Row) -> str:
        plain = name(row)
        return plain if len(keys[plain]) == 1 else f"{plain} ({key(row)[:12]})"

    known = dict.fromkeys(of(row) for row in rows)
    return _Columns(tuple(sorted(known, key=_order)), of)


def _order(name: str) -> tuple[str, bool, Version, str]:
    """Versions of one thing in their order; what has none keeps to the end, by name."""
    text, _, rest = name.partition(" (")
    if known := release(text):
        return known[0], False, known[1], rest
    try:
        return "", False, Version(text), rest
    except InvalidVersion:
        return text, True, Version("0"), rest


# -- groups ----------------------------------------------------------------------------------------------------------


def _groups(
    sites: Iterable[_Table], labels: Sequence[str], torches: Sequence[str], imported: set[tuple[str, str]]
) -> list[Group]:
    """The sites by fault, by the checkouts that have it, and by the torch versions on which they do."""
    groups: dict[tuple[Any, ...], Group] = {}
    for site in sites:
        for fault in dict.fromkeys(_fault(row) for row in site.values() if _failing(row)):
            states = {
                (label, torch): _state(site.get((label, torch)), fault, (label, torch) in imported)
                for label in labels
                for torch in torches
            }
            for pattern, having in _patterns(states, labels, torches).items():
                group = groups.setdefault(
                    (fault, having, pattern), Group(fault, having, tuple(labels), tuple(torches), pattern[0])
                )
                group.tables.append(states)
                group.rows += [site[label, torch] for label in having for torch in pattern[0]]
    return list(groups.values())


_Pattern = tuple[tuple[str, ...], ...]


def _patterns(
    states: Mapping[tuple[str, str], str], labels: Sequence[str], torches: Sequence[str]
) -> dict[_Pattern, tuple[str, ...]]:
    """Where a fault is, another one is, and no import was, along torch, with the checkouts of which that is so."""
    found: dict[_Pattern, tuple[str, ...]] = {}
    for label in labels:
        pattern = tuple(
            tuple(torch for torch in torches if states[label, torch] == state) for state in (BAD, OTHER, NO_IMPORT)
        )
        if pattern[0]:
            found[pattern] = (*found.get(pattern, ()), label)
    return found


def _fault(row: Row) -> Fault:
    verdict = Verdict(row.verdict or "infra")
    probe = EVERYTHING if verdict is Verdict.UNIMPORTABLE else row.case.partition("[")[0]
    return Fault(verdict, row.signature, probe, row.detail.startswith(OUTSIDE))


def _failing(row: Row) -> bool:
    return row.verdict is not None and Verdict(row.verdict).failing


def _state(row: Row | None, fault: Fault, imported: bool) -> str:
    """What a row says about ``fault``: it has it, is good, fails in another way or for want of an import, or is silent.

    For a failing import only the import counts: what cases say after one that went well is another matter.
    """
    if row is not None and _failing(row) and _fault(row) == fault:
        return BAD
    if fault.verdict is Verdict.UNIMPORTABLE and (row is None or row.verdict != Verdict.UNIMPORTABLE):
        return GOOD if imported else NOTHING
    if row is None or row.verdict is None:
        return NOTHING
    if row.verdict == Verdict.UNIMPORTABLE:
        return NO_IMPORT
    return OTHER if _failing(row) else GOOD if Verdict(row.verdict).settled else NOTHING
