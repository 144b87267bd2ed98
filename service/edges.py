"""Where along torch a fault begins and ends: last good, first bad, last bad, fixed in, over any number of transitions.

On the straight line this stands after ``service.store``, which keeps the answers of a row on every torch version, and
before ``service.findings`` and the command line, which word them. Pure. A row is a cell without its runtime. A fault's
stretch ends only where the row is good: an answer that says nothing of the fault neither ends nor prolongs it, it is
named beside the edge that it leaves open.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from packaging.version import InvalidVersion, Version

from service.alike import same_name
from service.verdicts import Verdict

if TYPE_CHECKING:
    from service.compare import Row
    from service.imports import Import

BAD, GOOD, OTHER, NO_IMPORT, NOTHING, UNTRIED = "bad", "good", "other", "no import", "", "untried"
"""What one torch version says of a fault: it has it, is right, fails in another way, cannot import, does not say."""

ABSENT = "absent"
"""There is no such function, which was tried: what is not there can neither have the fault nor be right."""

PRECEDENCE = (BAD, OTHER, NO_IMPORT, GOOD, NOTHING, ABSENT, UNTRIED)
"""Of several answers for one version the first of these counts: good only if none is bad."""

NO_COMPILER = "no C++ compiler"
"""How ``jobs.launcher`` says that a mode is unsupported for want of what the machine lacks; torch may well have it."""

NO_WORD_ON_IMPORT = (None, Verdict.INFRA, Verdict.INVALID, Verdict.UNSUPPORTED)
"""What a cell says that shows neither that its checkout could be imported nor that it could not."""


class Answer(Protocol):
    """What is read of one answer of a row."""

    @property
    def torch(self) -> str: ...  # noqa: D102 - the names are those of service.store.CellRow
    @property
    def runtime(self) -> str: ...  # noqa: D102
    @property
    def verdict(self) -> str | None: ...  # noqa: D102
    @property
    def signature(self) -> str: ...  # noqa: D102
    @property
    def detail(self) -> str: ...  # noqa: D102


@dataclass(frozen=True)
class Known:
    """What store and catalogue hold beside a submission's own rows.

    past     answers to the same rows in other runtimes (``service.store.history``)
    imports  what is known of the imports of the same checkouts (``service.store.imports``)
    torches  every torch version that there is to try
    """

    past: Sequence[Row] = ()
    imports: Sequence[Import] = ()
    torches: Sequence[str] = ()


@dataclass(frozen=True)
class Stretch:
    """Versions from the first to the last bad one with no good one between, and what bounds them.

    before, after  the versions between the bad ones and the good one on that side (or the end) that do not say
    within         those between the first and the last bad one that do not say
    """

    first_bad: str
    last_bad: str
    last_good: str | None
    fixed_in: str | None
    before: tuple[str, ...]
    within: tuple[str, ...]
    after: tuple[str, ...]

    @property
    def unsaid(self) -> tuple[str, ...]:
        """All versions that leave open where it begins and ends, and whether it is one stretch."""
        return self.before + self.within + self.after


@dataclass(frozen=True)
class Edge:
    """One stretch of one fault in one row, as ``--json`` has it.

    untried_before, untried_after  the versions between the bad ones and the good one on that side (or the end of what
                                   there is) of which it is not known whether they have this fault: never tried,
                                   without an answer, not importable, or with another fault
    untried_within                 such versions between the first and the last bad one
    right_on                       runtimes of a bad version that are right: another build of the same torch
    """

    verdict: str
    signature: str
    last_good: str | None
    first_bad: str
    last_bad: str
    fixed_in: str | None
    untried_before: tuple[str, ...]
    untried_within: tuple[str, ...]
    untried_after: tuple[str, ...]
    right_on: tuple[str, ...]


def version_order(text: str) -> tuple[bool, Version, str]:
    """The key by which torch versions are sorted: as versions, not as words; what is none keeps to the end."""
    try:
        return False, Version(text), text
    except InvalidVersion:
        return True, Version("0"), text


def in_order(versions: Iterable[str]) -> list[str]:
    """Torch versions in their order, each once."""
    return sorted(set(versions), key=version_order)


def merged(states: Iterable[str]) -> str:
    """What several answers for one version say together; UNTRIED where there are none."""
    given = set(states)
    return next((state for state in PRECEDENCE if state in given), UNTRIED)


def shows_import(verdict: str | None) -> bool:
    """Whether an answer shows that its checkout could be imported."""
    return verdict not in (*NO_WORD_ON_IMPORT, Verdict.UNIMPORTABLE)


def state(answer: Answer, *, same: bool, of_import: bool) -> str:
    """What one answer says of a fault: ``same`` if it has that very fault, ``of_import`` if that is a failed import."""
    verdict = answer.verdict
    if same:
        return BAD
    if verdict is None:
        return NOTHING
    if verdict == Verdict.UNIMPORTABLE:
        return NO_IMPORT
    if of_import:
        return GOOD if shows_import(verdict) else NOTHING
    if verdict == Verdict.UNSUPPORTED:
        return NOTHING if answer.detail == NO_COMPILER else ABSENT
    return OTHER if Verdict(verdict).failing else GOOD if Verdict(verdict).settled else NOTHING


def stretches(columns: Iterable[tuple[str, str]]) -> list[Stretch]:
    """The stretches of a fault, given what each version says of it, in the order of versions."""
    found: list[Stretch] = []
    good: str | None = None
    before: list[str] = []
    bad: list[str] = []
    within: list[str] = []
    after: list[str] = []

    def stretch(fixed_in: str | None) -> Stretch:
        return Stretch(bad[0], bad[-1], good, fixed_in, tuple(before), tuple(within), tuple(after))

    for version, said in columns:
        if said == BAD:
            bad.append(version)
            within, after = within + after, []
        elif said == GOOD:
            if bad:
                found.append(stretch(version))
            good, before, bad, within, after = version, [], [], [], []
        elif said != ABSENT:
            (after if bad else before).append(version)
    if bad:
        found.append(stretch(None))
    return found


def columns_of(answers: Iterable[Answer], fault: tuple[str, str], known: Iterable[str] = ()) -> list[tuple[str, str]]:
    """What each version says of ``fault`` (verdict, signature), in order; versions of ``known`` may be untried."""
    by_torch: dict[str, list[str]] = {torch: [] for torch in known}
    for answer in answers:
        by_torch.setdefault(answer.torch, []).append(_state(answer, fault))
    return [(torch, merged(by_torch[torch])) for torch in in_order(by_torch)]


def edges(answers: Iterable[Answer], known: Iterable[str] = ()) -> list[Edge]:
    """Every stretch of every fault of one row. ``answers``: one per runtime; several builds of a version are merged."""
    given, torches = list(answers), list(known)
    faults = dict.fromkeys(fault_of(a) for a in given if a.verdict and Verdict(a.verdict).failing)
    found = []
    for verdict, signature in faults:
        fault = verdict, signature
        columns = columns_of(given, fault, torches)
        bad = {torch for torch, said in columns if said == BAD}
        right = [a for a in given if a.torch in bad and _state(a, fault) == GOOD]
        for one in stretches(columns):
            low, high = version_order(one.first_bad), version_order(one.last_bad)
            edge = Edge(
                verdict=fault[0],
                signature=fault[1],
                last_good=one.last_good,
                first_bad=one.first_bad,
                last_bad=one.last_bad,
                fixed_in=one.fixed_in,
                untried_before=one.before,
                untried_within=one.within,
                untried_after=one.after,
                right_on=tuple(sorted(a.runtime for a in right if low <= version_order(a.torch) <= high)),
            )
            found.append(edge)
    return sorted(found, key=lambda edge: version_order(edge.first_bad))


def fault_of(answer: Answer) -> tuple[str, str]:
    """What makes two failures of one cell the same, in whatever words torch's versions tell an error."""
    return str(answer.verdict), same_name(answer.signature)


def _state(answer: Answer, fault: tuple[str, str]) -> str:
    same = fault_of(answer) == fault
    return state(answer, same=same, of_import=fault[0] == Verdict.UNIMPORTABLE)


RowKey = tuple[str, str, int, str, int, str]
"""A cell without its runtime: checkout, transport, world size, case, its version, mode."""


def row_key(row: Row) -> RowKey:
    """The row to which a cell belongs."""
    return row.checkout, row.transport, row.world_size, row.case, row.version, row.mode


def answers_by_row(rows: Iterable[Row], past: Iterable[Row] = ()) -> dict[RowKey, dict[str, Row]]:
    """Per row its answers by runtime; where ``rows`` and ``past`` name the same runtime, ``rows`` count."""
    own = list(rows)
    found: dict[RowKey, dict[str, Row]] = {row_key(row): {} for row in own}
    for row in (*past, *own):
        if row_key(row) in found:
            found[row_key(row)][row.runtime] = row
    return found


def edges_by_row(rows: Iterable[Row], known: Known) -> Mapping[RowKey, list[Edge]]:
    """The edges of every row that one of ``rows`` belongs to."""
    return {key: edges(answers.values(), known.torches) for key, answers in answers_by_row(rows, known.past).items()}
