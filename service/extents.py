"""Between which versions one cell's fault lies: along torch, and along the releases of one subject.

On the straight line a part of ``service.diagnosis``; ``service.findings`` says it of groups of cells. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from service.edges import NO_IMPORT, OTHER, columns_of, fault_of, merged, state, stretches
from service.spans import listed
from service.telling import release
from service.verdicts import Verdict

if TYPE_CHECKING:
    from service.compare import Row

FEW = 4
"""So many versions of which something is not known are named; of more only how many there are."""


@dataclass(frozen=True)
class Extent:
    """Between which versions the cell's fault lies, along torch or along releases.

    unsaid     versions before, between and after the bad ones of which it is not known
    otherwise  such versions that fail in another way, or cannot be imported
    untraced   which of the good ones were right in no traced graph: a break kept the fault away
    """

    last_good: str | None
    first_bad: str
    last_bad: str
    fixed_in: str | None
    unsaid: tuple[str, ...]
    otherwise: tuple[str, ...] = ()
    untraced: tuple[str, ...] = ()


def extent_text(extent: Extent | None) -> str:
    """``last good 2.10.0, first bad 2.11.0, fixed in 2.12.1``; empty where there is no extent."""
    if extent is None:
        return ""
    alone = not (extent.last_good or extent.fixed_in or extent.otherwise) and extent.first_bad == extent.last_bad
    if alone:
        others = listed(extent.unsaid) if len(extent.unsaid) <= FEW else f"{len(extent.unsaid)} others"
        return f"bad in {extent.first_bad}, the only one with an answer" + (
            f"; not known of {others}" if others else ""
        )
    how = dict.fromkeys(extent.untraced, " (untraced)")
    before, after = (f"{version}{how.get(version or '', '')}" for version in (extent.last_good, extent.fixed_in))
    said = [f"last good {before}" if extent.last_good else "no good one before it is known"]
    said.append(f"first bad {extent.first_bad}")
    said += [f"last bad {extent.last_bad}"] if extent.last_bad != extent.first_bad else []
    said.append(f"fixed in {after}" if extent.fixed_in else "no good one after it is known")
    for words, versions in (("something else fails on", extent.otherwise), ("not known of", extent.unsaid)):
        if versions:
            said.append(f"{words} {listed(versions) if len(versions) <= FEW else f'{len(versions)} others'}")
    return ", ".join(said)


def along_torch(row: Row, answers: Iterable[Row], torches: Iterable[str]) -> Extent | None:
    """The stretch of torch versions that ``row`` is in; ``answers`` are those of its row, itself among them."""
    given = list(answers)
    untraced = {one.torch for one in given if one.verdict == Verdict.AGREE_UNTRACED}
    return _extent(row.torch, columns_of(given, fault_of(row), torches), untraced)


def along_releases(row: Row, others: Iterable[Row]) -> Extent | None:
    """The same along the subject's releases; None where the checkout is none, or no other release was tried."""
    mine = release(row.label)
    if mine is None:
        return None
    said: dict[str, set[str]] = {}
    untraced: set[str] = set()
    for one in (*others, row):
        if (known := release(one.label)) is not None and known[0] == mine[0]:
            same, of_import = fault_of(one) == fault_of(row), row.verdict == Verdict.UNIMPORTABLE
            said.setdefault(one.label, set()).add(state(one, same=same, of_import=of_import))
            untraced |= {one.label} if one.verdict == Verdict.AGREE_UNTRACED else set()
    order = sorted((known[1], label) for label in said if (known := release(label)) is not None)
    columns = [(label, merged(said[label])) for _, label in order]
    return _extent(row.label, columns, untraced) if len(said) > 1 else None


def _extent(version: str, columns: Sequence[tuple[str, str]], untraced: Collection[str]) -> Extent | None:
    """The stretch of bad versions that ``version`` is in."""
    order = [name for name, _ in columns]
    for one in stretches(columns):
        if version in order and order.index(one.first_bad) <= order.index(version) <= order.index(one.last_bad):
            failing = {name for name, said in columns if said in (OTHER, NO_IMPORT)}
            unsaid = tuple(name for name in one.unsaid if name not in failing)
            otherwise = tuple(name for name in one.unsaid if name in failing)
            quiet = tuple(name for name in (one.last_good, one.fixed_in) if name in untraced and name)
            return Extent(one.last_good, one.first_bad, one.last_bad, one.fixed_in, unsaid, otherwise, quiet)
    return None
