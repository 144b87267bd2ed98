"""The words of a finding: who has which fault where, what stands beside it, and how far it reaches.

On the straight line a part of ``service.findings``; pure. Nothing is said of a column or of a checkout that does not
hold for every cell of the group, or the sentence says for how many it does. ``service.spans`` words the columns.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Literal, TypeVar

from packaging.version import InvalidVersion, Version

from jobs.contract import MODES, TRACED_MODES
from service.edges import ABSENT, BAD, GOOD, NO_IMPORT, NOTHING, OTHER, UNTRIED, merged
from service.imports import ANOTHER_TORCH, need_text
from service.spans import bad, good, listed, spans, untried, untried_within
from service.verdicts import Verdict
from service.wording import OUTSIDE

if TYPE_CHECKING:
    from service.compare import Row

R = TypeVar("R", bound="Row")

MIXED, HAVING = "mixed", "having"
EVERYTHING = "every case"
TIMES = "\u00d7"


@dataclass(frozen=True)
class Fault:
    """What makes two failures the same one; ``outside``: a refusal was due."""

    verdict: Verdict
    signature: str
    probe: str
    outside: bool = False


@dataclass
class Group:
    """Sites at which the checkouts ``having`` have one fault on the torch versions ``bad``, and on no others.

    labels, torches  all there are, in order
    apart            builds of one of ``torches`` that say another thing than that version as a whole, and what
    tables           per site the state of every (checkout, torch)
    rows             the submission's own failing cells
    untraced         versions on which a traced cell is right, and whose collective was in no graph: a break saved it
    elsewhere_untraced  how many cells of each other checkout that agree do so because of that
    """

    fault: Fault
    having: tuple[str, ...]
    labels: tuple[str, ...]
    torches: tuple[str, ...]
    bad: tuple[str, ...]
    apart: tuple[tuple[str, str], ...] = ()
    tables: list[dict[tuple[str, str], str]] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    untraced: set[str] = field(default_factory=set)
    elsewhere_untraced: Counter[str] = field(default_factory=Counter)

    def along_torch(self, torch: str) -> Counter[str]:
        """How many of these sites say what of ``torch``, in the checkouts that have the fault."""
        return Counter(table[label, torch] for table in self.tables for label in self.having)

    @property
    def cells(self) -> list[list[tuple[str, str]]]:
        """What each of these sites says of every torch version, in each checkout that has the fault."""
        return [[(t, table[label, t]) for t in self.torches] for table in self.tables for label in self.having]

    def elsewhere(self, label: str) -> Counter[str]:
        """How many cells say what of another checkout, on the torch versions that have the fault."""
        said = (table[label, torch] for table in self.tables for torch in self.bad)
        return Counter(NOTHING if state == UNTRIED else state for state in said)

    @property
    def axis(self) -> Literal["torch", "checkout", "throughout"]:
        """Along what it begins or ends."""
        if any({GOOD, OTHER, NO_IMPORT} & set(self.along_torch(torch)) for torch in self.torches):
            return "torch"
        others = [label for label in self.labels if label not in self.having]
        return "checkout" if any(set(self.elsewhere(label)) - {NOTHING, ABSENT} for label in others) else "throughout"

    @property
    def regressed(self) -> list[str]:
        """The checkouts that have it and come after a release that is good."""
        return [have for have in self.having if any(_later(have, label) for label in self._good)]

    @property
    def fixed(self) -> bool:
        """Whether the newest that has it comes before a release that is good."""
        return any(self.fixes(label) for label in self._good)

    def fixes(self, label: str) -> bool:
        """Whether ``label`` comes after a release that has the fault, and before none."""
        return any(_later(label, have) for have in self.having) and not any(_later(have, label) for have in self.having)

    @property
    def _good(self) -> list[str]:
        return [label for label in self.labels if label not in self.having and self.elsewhere(label)[GOOD]]


def release(name: str) -> tuple[str, Version] | None:
    """A release's subject and version; None for a commit or a folder."""
    package, separator, version = name.partition(" (")[0].rpartition("==")
    try:
        return (package, Version(version)) if separator else None
    except InvalidVersion:
        return None


def _later(one: str, two: str) -> bool:
    """Whether ``one`` is a later release of the subject of ``two``."""
    known = release(one), release(two)
    return known[0] is not None and known[1] is not None and known[0][0] == known[1][0] and known[0][1] > known[1][1]


def told(group: Group, *, several: bool) -> str:
    """The sentence. ``several``: there was more than one column to try."""
    regressed = group.regressed
    everyone = len(regressed) == len(group.having)
    who = f"{'regression in ' if everyone else ''}{_span(group, group.having)}"
    said = [f"{who}: {_fault(group)} {_what(group)}: {_torch(group, several)}", *_checkouts(group)]
    if regressed and not everyone:
        said.append(f"a regression in {_span(group, regressed)}")
    return "; ".join(said)


def smallest(rows: Sequence[R]) -> R:
    """The cell to look at first: on the fewest ranks, of the case with the fewest words, without a tracer."""
    return min(rows, key=lambda row: (row.world_size, row.case.count("="), len(row.case), MODES.index(row.mode)))


def instance(row: Row) -> str:
    """``exchange/dim0[loss=square], aot_eager, 2 ranks, deepspeed==0.19.6 on torch 2.11.0``."""
    return f"{row.case}, {row.mode}, {row.world_size} ranks, {row.label} on torch {row.torch}"


def head(detail: str) -> str:
    """What a cell's detail says first: the worst tensor or the error, without what stands beside it."""
    return detail.removeprefix(OUTSIDE).partition("; also wrong: ")[0]


FACTOR = re.compile(r"scaled by (\S+): ")
_PLACE = re.compile(r"((?:all|part) of it )?\bon (every rank|rank \d+|ranks \d+(?:, \d+)* and \d+)")
"""On which ranks a detail about tensors says that they are wrong."""


def _fault(group: Group) -> str:
    """The verdict's words with factor, ranks or contract: ``partly zero gradient, all of it on rank 1,``."""
    fault = group.fault
    if fault.outside:
        return outside(fault.verdict)
    factor = FACTOR.match(fault.signature)
    times = f" {TIMES}{factor[1]}" if factor and fault.verdict is Verdict.SCALED else ""
    return f"{fault.verdict.info.label}{times}{_place(group)}"


def outside(verdict: Verdict) -> str:
    """What a fault is called where a refusal was due."""
    return f"{'silent answer' if verdict is Verdict.MISMATCH else verdict.info.label} outside its contract"


def _place(group: Group) -> str:
    """The ranks that are wrong, where no cell is wrong on all of them."""
    # An error's own words come first in other details, and may speak of ranks as well.
    if group.fault.verdict.info.group not in ("gradient", "forward") and group.fault.verdict is not Verdict.MUTATED:
        return ""
    places = {found.group(1, 2) if (found := _PLACE.search(row.detail)) else ("", "") for row in group.rows}
    if any(ranks in ("", "every rank") for _, ranks in places):
        return ""
    parts, ranks = ({place[side] or "" for place in places} for side in (0, 1))
    part = parts.pop() if len(parts) == 1 else ""
    return f", {part}on {ranks.pop() if len(ranks) == 1 else 'some ranks'},"


def _what(group: Group) -> str:
    """``in traced exchange/dim0 (aot_eager, inductor; 2 ranks)``."""
    if group.fault.probe == EVERYTHING:
        return f"({EVERYTHING})"
    traced = "traced " if all(row.mode in TRACED_MODES for row in group.rows) else ""
    return f"in {traced}{group.fault.probe} ({extent(group.rows)})"


def extent(rows: Sequence[Row]) -> str:
    """``2 cases; aot_eager, inductor; 2 and 4 ranks``: how many cases, in which modes, on how many ranks, over what."""
    modes = [mode for mode in MODES if any(row.mode == mode for row in rows)]
    worlds = sorted({row.world_size for row in rows})
    cases = {row.case for row in rows}
    transports = sorted({row.transport for row in rows})
    several = f"{len(cases)} cases; " if len(cases) > 1 else ""
    over = "" if transports == ["gloo"] else f"; {', '.join(transports)}"
    return f"{several}{', '.join(modes)}; {listed(worlds)} ranks{over}"


# -- along torch -----------------------------------------------------------------------------------------------------


def _torch(group: Group, several: bool) -> str:
    """Where the fault begins and ends along torch, and what the other columns say."""
    states = [(torch, group.along_torch(torch)) for torch in group.torches]
    # Cells without an answer do not speak against those that have one.
    columns = [(torch, merged(counts)) for torch, counts in states]
    of_torch = group.fault.signature.startswith(ANOTHER_TORCH)
    needs = [need_text(group.fault.signature, columns)] if of_torch else []
    if not {GOOD, OTHER, NO_IMPORT} & {state for _, state in columns}:
        tried = ", wherever it was tried" if several and group.axis == "throughout" else ""
        between = [f"untried on {named}"] if (named := untried_within(columns)) else []
        on = f"on torch {spans(group.bad, group.torches)}{tried}"
        return "; ".join([on, *needs, *between, *_silent(group, states)])
    said = [f"torch {bad(columns, group.cells)}", *needs]
    right = good(columns)
    if right and not needs:
        said.append(f"{'imports' if group.fault.verdict is Verdict.UNIMPORTABLE else 'right'} {right}")
    if group.untraced:
        said.append(f"there untraced on {spans(group.untraced, group.torches)}")
    if other := [torch for torch, state in columns if state == OTHER]:
        said.append(f"another fault on {spans(other, group.torches)}")
    if none := [torch for torch, state in columns if state == NO_IMPORT]:
        said.append(f"{_not_importable(group)} on {spans(none, group.torches)}")
    said += _apart(group)
    # What an import needs names the untried versions towards those that import it.
    if open_edge := (untried_within if needs else untried)(columns):
        said.append(f"untried on {open_edge}")
    return "; ".join([*said, *_silent(group, states)])


def _not_importable(group: Group) -> str:
    return f"not importable{' for another reason' if group.fault.verdict is Verdict.UNIMPORTABLE else ''}"


def _apart(group: Group) -> list[str]:
    """What single builds of a torch version say, where its builds differ."""
    said = []
    for state, words in ((GOOD, "right on"), (OTHER, "another fault on"), (NO_IMPORT, f"{_not_importable(group)} on")):
        if names := [runtime for runtime, its in group.apart if its == state]:
            said.append(f"{words} {listed(names)}")
    return said


def _silent(group: Group, states: Sequence[tuple[str, Counter[str]]]) -> list[str]:
    """The columns without such a function or without an answer, and those in which that is so of some cells."""
    absent = [torch for torch, counts in states if set(counts) == {ABSENT}]
    partly = [torch for torch, counts in states if counts[ABSENT] and set(counts) != {ABSENT}]
    none = [torch for torch, counts in states if counts[NOTHING] and set(counts) <= {NOTHING, UNTRIED}]
    some = [
        torch for torch, counts in states if (counts[NOTHING] or counts[UNTRIED]) and set(counts) - {NOTHING, UNTRIED}
    ]
    clauses = {"absent": absent, "absent in some cells": partly, "no answer": none, "no answer in some cells": some}
    return [f"{words} on {spans(torches, group.torches)}" for words, torches in clauses.items() if torches]


# -- the other checkouts ---------------------------------------------------------------------------------------------


def _checkouts(group: Group) -> list[str]:
    """What the other checkouts say of the same cells; neighbours that say the same are said together."""
    said = []
    states = [(label, _exact(group, label)) for label in group.labels]
    spoken = [(label, state) for label, state in states if state != NOTHING]
    for (state, *_), run in groupby(
        spoken, key=lambda column: (column[1], (release(column[0]) or ("",))[0], _quietly(group, column[0]))
    ):
        said += _those(group, state, [label for label, _ in run])
    none = [label for label, state in states if state == NOTHING]
    return [*said, f"no answer from {_span(group, none)}"] if none else said


def _exact(group: Group, label: str) -> str:
    """The one state of a checkout, that it has several, or that the sentence is about it."""
    if label in group.having:
        return HAVING
    states = set(group.elsewhere(label))
    return states.pop() if len(states) == 1 else MIXED


def _those(group: Group, state: str, labels: list[str]) -> list[str]:
    many = len(labels) > 1
    who = _span(group, labels)
    if state == HAVING:
        return []
    if state == MIXED:
        return [_mixed(group, label) for label in labels]
    if state == OTHER:
        return [f"another fault in {who}"]
    if state == NO_IMPORT:
        return [f"{who} {'are' if many else 'is'} {_not_importable(group)} there"]
    if state == ABSENT:
        return [f"absent from {who}"]
    if state == BAD:
        return [f"{who} {'have' if many else 'has'} it too"]
    if group.fixes(labels[0]):
        return [f"fixed in {labels[0]}{_quietly(group, labels[0])}"]
    if group.fault.verdict is Verdict.UNIMPORTABLE:
        return [f"{who} can be imported"]
    return [f"{who} {'agree' if many else 'agrees'}{_quietly(group, labels[0])}"]


def _quietly(group: Group, label: str) -> str:
    """That a checkout is right because the tracer gave up before the call, where that is so."""
    untraced, right = group.elsewhere_untraced[label], group.elsewhere(label)[GOOD]
    if not untraced:
        return ""
    return ", untraced" if untraced == right else f", untraced in {untraced} of {right}"


def _mixed(group: Group, label: str) -> str:
    """``fixed in X in 8 of 10 cells, another fault in 2``."""
    counts = group.elsewhere(label)
    good = f"fixed in {label} in" if group.fixes(label) else f"{label} agrees in"
    words = {GOOD: good, BAD: "the same fault in", OTHER: "another fault in"}
    words |= {NO_IMPORT: f"{_not_importable(group)} in", ABSENT: "absent in", NOTHING: "no answer in"}
    (word, count), *rest = [(word, counts[state]) for state, word in words.items() if counts[state]]
    lead = word if counts[GOOD] else f"{label}: {word}"
    first = f"{lead} {count} of {counts.total()} cells{_quietly(group, label)}"
    return ", ".join([first, *(f"{word} {count}" for word, count in rest)])


def _span(group: Group, names: Sequence[str]) -> str:
    """Checkouts by name; of many neighbouring releases the first and the last."""
    lines = {(release(name) or ("",))[0] for name in names}
    first = group.labels.index(names[0])
    if (
        len(names) > 3
        and len(lines) == 1
        and "" not in lines
        and group.labels[first : first + len(names)] == tuple(names)
    ):
        return f"{names[0]} to {names[-1]}"
    return listed(names)
