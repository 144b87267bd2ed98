"""What differs between versions, said once per distinct fault and not once per cell.

On the straight line a part of ``service.compare``; pure. Along one axis (torch versions of a checkout, or checkouts on
a torch version), every other coordinate held fixed, a track of answers shows where a fault begins and ends. Tracks
with the same fault in the same columns are one finding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal

from packaging.version import InvalidVersion, Version

from jobs.contract import TRACED_MODES
from service.verdicts import Verdict

if TYPE_CHECKING:
    from service.compare import Row

GOOD, OTHER, NOTHING = "good", "other", ""
EVERYTHING = "every case"


@dataclass(frozen=True)
class Finding:
    """One distinct difference.

    axis   what it differs along: ``torch`` or ``checkout``; ``throughout``: the same fault wherever it was tried
    text   one sentence
    cell   one cell that shows it
    cells  how many do
    """

    axis: Literal["torch", "checkout", "throughout"]
    text: str
    cell: int
    cells: int

    def __str__(self) -> str:
        return f"{self.text} (cell {self.cell})"


@dataclass(frozen=True)
class _Fault:
    """What makes two failures the same one."""

    verdict: Verdict
    signature: str
    probe: str


@dataclass
class _Group:
    """Failing rows of one fault in the same columns of one axis, and the row per column that stands for each."""

    fault: _Fault
    columns: tuple[tuple[str, str], ...]
    rows: list[Row]


def sentences(rows: Sequence[Row]) -> list[Finding]:
    """What differs between torch versions per checkout, then between checkouts, then what fails everywhere."""
    torches = _columns(rows, lambda row: row.torch, lambda row: row.runtime)
    labels = _columns(rows, lambda row: row.label, lambda row: row.checkout)
    found: list[Finding] = []
    for label in labels.names:
        mine = [row for row in rows if labels.of(row) == label]
        found += _along("torch", mine, torches, f"{label}: ")
    found += _along("checkout", rows, labels, "", over=torches)
    return found + _throughout(rows, labels, torches)


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
    return _Columns(tuple(sorted(known, key=_version_key)), of)


def _version_key(name: str) -> tuple[str, bool, Version, str]:
    """Versions of one thing in their order; what has none keeps to the end, by name."""
    text, _, rest = name.partition(" (")
    package, separator, version = text.rpartition("==")
    try:
        return package, False, Version(version if separator else text), rest
    except InvalidVersion:
        return text, True, Version("0"), rest


# -- along one axis --------------------------------------------------------------------------------------------------


def _along(
    axis: Literal["torch", "checkout"],
    rows: Sequence[Row],
    columns: _Columns,
    prefix: str,
    over: _Columns | None = None,
) -> list[Finding]:
    """The findings along one axis, those of most cells first."""
    groups: dict[tuple[Any, ...], _Group] = {}
    for track in _tracks(rows, axis, columns).values():
        for fault in dict.fromkeys(_fault(row) for row in track.values() if _failing(row)):
            states = tuple((name, _state(track[name], fault)) for name in columns.names if name in track)
            shown = _importable_or_not(track, rows, columns, fault) or states
            # Only what begins or ends along this axis is a difference.
            if not {state for _, state in shown} & {GOOD, OTHER}:
                continue
            group = groups.setdefault((fault, shown), _Group(fault, shown, []))
            group.rows += [row for row in track.values() if _failing(row) and _fault(row) == fault]
    ordered = sorted(groups.values(), key=lambda group: -len(group.rows))
    made = [(group, _sentence(axis, group, prefix, over)) for group in ordered]
    return [Finding(axis, text, group.rows[0].cell, len(group.rows)) for group, text in made if text]


def _tracks(rows: Iterable[Row], axis: str, columns: _Columns) -> dict[tuple[Any, ...], dict[str, Row]]:
    """Rows that are the same cell but for ``axis``, by column."""
    tracks: dict[tuple[Any, ...], dict[str, Row]] = {}
    for row in rows:
        fixed = row.checkout if axis == "torch" else row.runtime
        key = (fixed, row.transport, row.world_size, row.case, row.version, row.mode)
        tracks.setdefault(key, {})[columns.of(row)] = row
    return tracks


def _fault(row: Row) -> _Fault:
    verdict = Verdict(row.verdict or "infra")
    probe = EVERYTHING if verdict is Verdict.UNIMPORTABLE else row.case.partition("[")[0]
    return _Fault(verdict, row.signature, probe)


def _failing(row: Row) -> bool:
    return row.verdict is not None and Verdict(row.verdict).failing


def _state(row: Row, fault: _Fault) -> str:
    """What a row says about ``fault``: it has it (``bad``), is good, fails in another way, or says nothing."""
    if row.verdict is None:
        return NOTHING
    if _failing(row):
        return "bad" if _fault(row) == fault else OTHER
    return GOOD if Verdict(row.verdict).settled else NOTHING


def _importable_or_not(
    track: dict[str, Row], rows: Sequence[Row], columns: _Columns, fault: _Fault
) -> tuple[tuple[str, str], ...]:
    """For a failing import, the columns by whether the import went well: what cases say later is another matter."""
    if fault.verdict is not Verdict.UNIMPORTABLE:
        return ()
    bad = {name for name, row in track.items() if _failing(row) and _fault(row) == fault}
    went = {columns.of(row) for row in rows if row.verdict not in (None, "infra", "invalid", "unimportable")}
    return tuple((name, "bad" if name in bad else GOOD) for name in columns.names if name in bad | went)


# -- sentences -------------------------------------------------------------------------------------------------------


def _sentence(axis: str, group: _Group, prefix: str, over: _Columns | None) -> str:
    fault = f"{group.fault.verdict.info.label} {_what(group)}"
    if axis == "torch":
        return f"{prefix}{fault}: {_runs(group.columns, 'torch ')}{_others(group.columns)}{_why(group)}"
    on = ""
    if over is not None:
        used = [name for name in over.names if name in {over.of(row) for row in group.rows}]
        on = f" on torch {_listed(used)}"
    bad = [name for name, state in group.columns if state == "bad"]
    good = [name for name, state in group.columns if state == GOOD]
    if not good:
        other = [name for name, state in group.columns if state == OTHER]
        return (
            f"{_listed(bad)} and {_listed(other)} fail in different ways: {_listed(bad)} has {fault}{on}{_why(group)}"
        )
    if len(bad) == len(good) == 1:
        return f"{bad[0]} fails where {good[0]} agrees: {fault}{on}{_others(group.columns)}{_why(group)}"
    return f"{fault}{on}: {_runs(group.columns, '')}{_others(group.columns)}{_why(group)}"


def _what(group: _Group) -> str:
    """``in traced exchange/dim0 (aot_eager, inductor; 2 ranks)``."""
    if group.fault.probe == EVERYTHING:
        return f"({EVERYTHING})"
    modes = [mode for mode in ("eager", *TRACED_MODES) if any(row.mode == mode for row in group.rows)]
    worlds = sorted({row.world_size for row in group.rows})
    cases = {row.case for row in group.rows}
    transports = sorted({row.transport for row in group.rows})
    traced = "traced " if set(modes) <= set(TRACED_MODES) else ""
    several = f"{len(cases)} cases; " if len(cases) > 1 else ""
    over = "" if transports == ["gloo"] else f"; {', '.join(transports)}"
    return f"in {traced}{group.fault.probe} ({several}{', '.join(modes)}; {_listed(worlds)} ranks{over})"


def _runs(columns: Sequence[tuple[str, str]], noun: str) -> str:
    """Where a fault begins and ends, column by column that answered: of each run its ends and the good ones beside."""
    answered = [(name, state) for name, state in columns if state != NOTHING]
    runs = [(state, [name for name, _ in run]) for state, run in groupby(answered, key=lambda column: column[1])]
    bad = [index for index, (state, _) in enumerate(runs) if state == "bad"]
    return ", then ".join(_run(runs, index, noun, alone=len(bad) == 1) for index in bad)


def _run(runs: Sequence[tuple[str, list[str]]], index: int, noun: str, alone: bool) -> str:
    first, last = runs[index][1][0], runs[index][1][-1]
    span = f"{noun}{first} to {last}" if first != last else f"{noun}{first}{' only' if alone else ''}"
    right = []
    if index > 0 and runs[index - 1][0] == GOOD:
        right.append(f"right up to {runs[index - 1][1][-1]}")
    if index + 1 < len(runs) and runs[index + 1][0] == GOOD:
        right.append(f"right {'again ' if index else ''}from {runs[index + 1][1][0]} on")
    return "; ".join([span, ", ".join(right)]) if right else span


def _others(columns: Sequence[tuple[str, str]]) -> str:
    other = [name for name, state in columns if state == OTHER]
    none = [name for name, state in columns if state == NOTHING]
    said = f"; another fault on {_listed(other)}" if other else ""
    return said + (f"; no answer on {_listed(none)}" if none else "")


def _why(group: _Group) -> str:
    """For a fault that is an error, which."""
    named = group.fault.verdict.info.group == "no answer" and group.fault.signature
    return f" ({group.fault.signature})" if named else ""


def _listed(names: Sequence[object]) -> str:
    words = [str(name) for name in names]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}" if words else "nothing"


# -- everywhere ------------------------------------------------------------------------------------------------------


def _throughout(rows: Sequence[Row], labels: _Columns, torches: _Columns) -> list[Finding]:
    """Faults of cells that have the same one wherever they were answered."""
    cells: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        key = (row.transport, row.world_size, row.case, row.version, row.mode)
        cells.setdefault(key, []).append(row)
    groups: dict[_Fault, _Group] = {}
    for same in cells.values():
        failing = [row for row in same if _failing(row)]
        faults = {_fault(row) for row in failing}
        if len(faults) == 1 and not any(_state(row, next(iter(faults))) == GOOD for row in same):
            fault = next(iter(faults))
            groups.setdefault(fault, _Group(fault, (), [])).rows.extend(failing)
    found = []
    for group in sorted(groups.values(), key=lambda group: -len(group.rows)):
        where = [_listed([name for name in axis.names if name in {axis.of(row) for row in group.rows}])
                 for axis in (labels, torches)]  # fmt: skip
        text = (
            f"{where[0]}: {group.fault.verdict.info.label} {_what(group)}: on torch {where[1]}, wherever it was tried"
        )
        found.append(Finding("throughout", f"{text}{_why(group)}", group.rows[0].cell, len(group.rows)))
    return found
