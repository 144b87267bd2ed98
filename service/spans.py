"""Torch versions in words: neighbours as spans, and where along them a fault is, is not, and may be.

On the straight line a part of ``service.telling``; pure. A span names neighbours among all the versions that there
are, so that none is claimed which was not tried.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from service.edges import ABSENT, BAD, GOOD, NO_IMPORT, NOTHING, OTHER, UNTRIED, stretches

Columns = Sequence[tuple[str, str]]
"""Every version in order, with what it says of a fault (``service.edges``)."""

TOLD = (OTHER, NO_IMPORT, ABSENT, NOTHING)
"""What a version says that has a clause of its own, and so does not keep ``up to`` from being true."""


def listed(names: Sequence[object]) -> str:
    """``a, b and c``."""
    words = [str(name) for name in names]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}" if words else "nothing"


def spans(names: Collection[str], columns: Sequence[str], at_least: int = 3) -> str:
    """``2.2.2 and 2.4.1 to 2.10.0``: runs of ``at_least`` neighbours by their first and last."""
    parts: list[str] = []
    for run in _runs([name in names for name in columns]):
        first, last = columns[run[0]], columns[run[-1]]
        parts += [f"{first} to {last}"] if len(run) >= max(at_least, 2) else [columns[index] for index in run]
    return listed(parts)


def bad(columns: Columns, cells: Sequence[Columns] = ()) -> str:
    """``2.4.1 to 2.10.0``, ``2.11.0 only``: the versions that have the fault.

    ``cells``: the columns of each, where ``columns`` are those of several together; what is only so, is so in each.
    """
    names = [torch for torch, _ in columns]
    having = {torch for torch, said in columns if said == BAD}
    only = " only" if len(having) == 1 and not any(_unsaid(one, NOTHING, UNTRIED) for one in cells or [columns]) else ""
    return f"{spans(having, names, 2)}{only}"


def good(columns: Columns) -> str:
    """``up to 2.10.0 and from 2.12.1 on``, ``on 2.3.1 to 2.7.1``; empty where none is."""
    states = [said for _, said in columns]
    first, last = states.index(BAD), len(states) - 1 - states[::-1].index(BAD)
    # What has no answer or is absent has a clause of its own and does not part its neighbours; an untried one does.
    parts = _runs([said in (GOOD, NOTHING, ABSENT) for said in states])
    runs = [[i for i in run if states[i] == GOOD] for run in parts]
    runs = [run for run in runs if run]
    early, late = [run for run in runs if run[-1] < first], [run for run in runs if run[0] > last]
    reaches_start = early and all(said == GOOD or said in TOLD for said in states[: early[0][0]])
    reaches_end = late and all(said == GOOD or said in TOLD for said in states[late[-1][-1] + 1 :])
    up_to = early[0] if len(early) == 1 and reaches_start else None
    onward = late[0] if len(late) == 1 and reaches_end else None
    between = [_name(columns, run) for run in runs if run not in (up_to, onward)]
    said = [f"up to {columns[up_to[-1]][0]}"] if up_to else []
    said += [f"on {listed([name for names in between for name in names])}"] if between else []
    said += [f"from {columns[onward[0]][0]} on"] if onward else []
    return listed(said) if said else ""


def untried(columns: Columns) -> str:
    """The untried versions beside and between the bad ones: they leave open where the fault begins and ends."""
    return _named(columns, _unsaid(columns, UNTRIED))


def untried_within(columns: Columns) -> str:
    """Those of them that stand between bad ones."""
    return _named(columns, _unsaid(columns, UNTRIED) & {torch for one in stretches(columns) for torch in one.within})


def _unsaid(columns: Columns, *which: str) -> set[str]:
    """The versions beside and between the bad ones that say one of ``which``."""
    states = dict(columns)
    return {torch for one in stretches(columns) for torch in one.unsaid if states[torch] in which}


def _named(columns: Columns, versions: Collection[str]) -> str:
    return spans(versions, [torch for torch, _ in columns]) if versions else ""


def _name(columns: Columns, run: Sequence[int]) -> list[str]:
    names = [columns[index][0] for index in run]
    return [f"{names[0]} to {names[-1]}"] if len(names) > 2 else names


def _runs(flags: Sequence[bool]) -> list[list[int]]:
    """The places of neighbouring true flags."""
    found: list[list[int]] = []
    for index, flag in enumerate(flags):
        if flag and index and flags[index - 1]:
            found[-1].append(index)
        elif flag:
            found.append([index])
    return found
