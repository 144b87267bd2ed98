"""What changed between two answers to the same cells, and what differs between versions, in sentences.

On the straight line this stands after ``service.judge``: it reads the rows that ``service.store`` keeps. Pure. Two
cells are compared when they are the same but for one axis (the checkout, or the runtime); another case version is
another question, and answers to different questions are never compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, Protocol

from service.errors import UsageError
from service.findings import Finding, sentences
from service.verdicts import Verdict

__all__ = ["Change", "Comparison", "Finding", "Kind", "Row", "diff", "sentences"]


class Row(Protocol):
    """What is read of a cell and its answer."""

    @property
    def cell(self) -> int: ...  # noqa: D102 - the names are those of service.store.CellRow
    @property
    def checkout(self) -> str: ...  # noqa: D102
    @property
    def label(self) -> str: ...  # noqa: D102
    @property
    def torch(self) -> str: ...  # noqa: D102
    @property
    def runtime(self) -> str: ...  # noqa: D102
    @property
    def transport(self) -> str: ...  # noqa: D102
    @property
    def world_size(self) -> int: ...  # noqa: D102
    @property
    def case(self) -> str: ...  # noqa: D102
    @property
    def version(self) -> int: ...  # noqa: D102
    @property
    def mode(self) -> str: ...  # noqa: D102
    @property
    def verdict(self) -> str | None: ...  # noqa: D102
    @property
    def forward_ok(self) -> bool | None: ...  # noqa: D102
    @property
    def signature(self) -> str: ...  # noqa: D102
    @property
    def detail(self) -> str: ...  # noqa: D102
    @property
    def evidence_digest(self) -> str | None: ...  # noqa: D102


class Kind(StrEnum):
    """How a cell's answer changed. A cell *answered* if its verdict fails or is settled (``Verdict.settled``).

    regression     was settled, fails now
    fixed          failed, is settled now
    new failure    was there without an answer, fails now
    still failing  failed and fails, be it in another way (``reason`` says so)
    new pass       was there without an answer, is settled now
    appeared       the cell was asked in another case version before
    disappeared    the cell is asked in another case version now, or it answers no more
    unchanged      settled both times, or without an answer both times
    """

    REGRESSION = "regression"
    FIXED = "fixed"
    NEW_FAILURE = "new failure"
    STILL_FAILING = "still failing"
    NEW_PASS = "new pass"  # noqa: S105 - a verdict's, not a password
    APPEARED = "appeared"
    DISAPPEARED = "disappeared"
    UNCHANGED = "unchanged"


@dataclass(frozen=True)
class Change:
    """One cell before and after; ``identical``: bit for bit the same evidence."""

    kind: Kind
    before: Row | None
    after: Row | None
    identical: bool = False
    reason: str = ""


@dataclass(frozen=True)
class Comparison:
    """All changes, the gravest kinds first, and the one axis that differs (``nothing``: the same cells, run again).

    only_before, only_after  cells that the other side was never asked to run, in whatever version: no change
    """

    axis: Literal["checkout", "runtime", "nothing"]
    changes: tuple[Change, ...]
    only_before: tuple[Row, ...] = ()
    only_after: tuple[Row, ...] = ()

    def of(self, *kinds: Kind) -> tuple[Change, ...]:
        """The changes of these kinds."""
        return tuple(change for change in self.changes if change.kind in kinds)

    @property
    def compared(self) -> int:
        """How many cells had an answer both times."""
        return sum(1 for c in self.changes if c.before and c.after and _state(c.before) and _state(c.after))


_TRANSITIONS: dict[tuple[str, str], Kind] = {
    ("settled", "failing"): Kind.REGRESSION,
    ("settled", "settled"): Kind.UNCHANGED,
    ("settled", ""): Kind.DISAPPEARED,
    ("failing", "failing"): Kind.STILL_FAILING,
    ("failing", "settled"): Kind.FIXED,
    ("failing", ""): Kind.DISAPPEARED,
    ("", "failing"): Kind.NEW_FAILURE,
    ("", "settled"): Kind.NEW_PASS,
    ("", ""): Kind.UNCHANGED,
}

_Key = tuple[str, str, str, int, str, str, int]


def diff(before: Sequence[Row], after: Sequence[Row]) -> Comparison:
    """Every cell of either side, compared. Raises UsageError where more than one axis differs, or one side is empty."""
    axis = _axis(before, after)
    old, new = ({_key(row, axis): row for row in side} for side in (before, after))
    shared = {key[:-1] for key in old} & {key[:-1] for key in new}
    changes = [_change(key, old, new) for key in dict.fromkeys((*old, *new)) if key[:-1] in shared]
    order = list(Kind)
    changes.sort(key=lambda change: order.index(change.kind))
    only_before, only_after = (tuple(row for key, row in side.items() if key[:-1] not in shared) for side in (old, new))
    return Comparison(axis, tuple(changes), only_before, only_after)


def _axis(before: Sequence[Row], after: Sequence[Row]) -> Literal["checkout", "runtime", "nothing"]:
    if not before or not after:
        raise UsageError(f"there is nothing to compare: the {'first' if not before else 'second'} side has no cells")
    old, new = ({row.checkout for row in side} for side in (before, after))
    old_runtimes, new_runtimes = ({row.runtime for row in side} for side in (before, after))
    if old & new:
        if old_runtimes & new_runtimes:
            return "nothing"
        if len(old_runtimes) == len(new_runtimes) == 1:
            return "runtime"
        raise UsageError("the runtimes differ, and a side has several: name one runtime on each side")
    if len(old) > 1 or len(new) > 1:
        raise UsageError("the checkouts differ, and a side has several: name one checkout on each side")
    if not old_runtimes & new_runtimes:
        raise UsageError("checkout and runtime both differ: only one axis may, or nothing can be blamed")
    return "checkout"


def _key(row: Row, axis: str) -> _Key:
    checkout = "" if axis == "checkout" else row.checkout
    runtime = "" if axis == "runtime" else row.runtime
    return checkout, runtime, row.transport, row.world_size, row.case, row.mode, row.version


def _change(key: _Key, old: dict[_Key, Row], new: dict[_Key, Row]) -> Change:
    before, after = old.get(key), new.get(key)
    if before is None:
        return Change(Kind.APPEARED, None, after, reason=_absent(key, old, "before"))
    if after is None:
        return Change(Kind.DISAPPEARED, before, None, reason=_absent(key, new, "now"))
    identical = before.evidence_digest is not None and before.evidence_digest == after.evidence_digest
    return Change(_TRANSITIONS[_state(before), _state(after)], before, after, identical, _reason(before, after))


def _absent(key: _Key, side: dict[_Key, Row], when: str) -> str:
    version = max(other[-1] for other in side if other[:-1] == key[:-1])
    return f"the case is of version {key[-1]}, and was asked in version {version} {when}: never compared"


def _reason(before: Row, after: Row) -> str:
    if _state(before) and not _state(after):
        return f"answers no more: {after.verdict or 'no result'}" + (f" ({after.detail})" if after.detail else "")
    if before.verdict != after.verdict:
        return f"{before.verdict or 'no result'} became {after.verdict or 'no result'}"
    return "in another way" if before.signature != after.signature else ""


def _state(row: Row) -> str:
    """``settled``, ``failing``, or empty where the row says neither."""
    if row.verdict is None:
        return ""
    verdict = Verdict(row.verdict)
    return "failing" if verdict.failing else "settled" if verdict.settled else ""


def identical_groups(rows: Iterable[Row]) -> list[tuple[Row, ...]]:
    """Rows of one case, mode and world size whose evidence is bit for bit the same, where there are several."""
    groups: dict[tuple[str, str, str, int, int, str], list[Row]] = {}
    for row in rows:
        if row.evidence_digest is not None:
            key = (row.evidence_digest, row.case, row.mode, row.version, row.world_size, row.transport)
            groups.setdefault(key, []).append(row)
    return [tuple(group) for group in groups.values() if len(group) > 1]
