"""Every distinct fault of many releases in one sentence: what, where, and in which of them on which torch.

On the straight line a part of ``service.page``; pure. ``service.findings`` tells each release's faults beside the
others'; over ten releases that is the same fault ten times. Here a fault is its verdict, its probe and, where it is an
error, the error; which tensors are wrong is left to the cell.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from jobs.contract import TRACED_MODES
from service.edges import in_order
from service.findings import in_release_order
from service.spans import spans
from service.telling import FACTOR, TIMES, extent, outside
from service.verdicts import Verdict
from service.wording import OUTSIDE

if TYPE_CHECKING:
    from service.store.views import CellRow

GROUPS = ("gradient", "forward", "manners", "no answer")
"""Silent faults first."""
DETAIL = 200


class Fault(NamedTuple):
    """What makes the faults of two cells the same one; ``said`` is the error's or the import's own, or a factor."""

    verdict: Verdict
    probe: str
    said: str
    outside: bool
    traced: bool


def distinct(rows: Iterable[CellRow]) -> list[str]:
    """The sentences about the failing ones of ``rows``: silent ones first, and of those the most frequent."""
    found: dict[Fault, list[CellRow]] = defaultdict(list)
    for row in rows:
        if row.verdict is not None and Verdict(row.verdict).failing:
            found[_fault(row)].append(row)
    merged = _both_modes(found)
    labels = in_release_order({row.label for mine in merged.values() for row in mine})
    torches = in_order({row.torch for mine in merged.values() for row in mine})
    ordered = sorted(merged.items(), key=lambda item: (_rank(item[0], item[1]), -len(item[1])))
    return [_sentence(fault, mine, labels, torches) for fault, mine in ordered]


def _fault(row: CellRow) -> Fault:
    verdict = Verdict(row.verdict or "")
    probe = "" if verdict is Verdict.UNIMPORTABLE else row.case.partition("[")[0]
    factor = FACTOR.match(row.signature)
    said = row.signature if verdict.info.group == "no answer" else f"{TIMES}{factor[1]}" if factor else ""
    return Fault(verdict, probe, said, row.detail.startswith(OUTSIDE), row.mode in TRACED_MODES)


def _both_modes(found: Mapping[Fault, list[CellRow]]) -> dict[Fault, list[CellRow]]:
    """A fault that a traced call has as well as an eager one is one fault, and not the tracer's."""
    merged: dict[Fault, list[CellRow]] = {}
    for fault, rows in found.items():
        eager = fault._replace(traced=False)
        merged.setdefault(eager if eager in found else fault, []).extend(rows)
    return merged


def _rank(fault: Fault, rows: Sequence[CellRow]) -> tuple[bool, int]:
    loud = not any(row.forward_ok is True for row in rows) or fault.verdict.info.group != "gradient"
    return loud, GROUPS.index(fault.verdict.info.group)


def _sentence(fault: Fault, rows: Sequence[CellRow], labels: Sequence[str], torches: Sequence[str]) -> str:
    """``zero gradient in traced exchange/dim0 (10 cases; aot_eager; 2 ranks): 1.0 to 1.2 on torch 2.11.0 (why)``."""
    what = outside(fault.verdict) if fault.outside else fault.verdict.info.label
    factor = f" {fault.said}" if fault.said.startswith(TIMES) else ""
    where = f" in {'traced ' if fault.traced else ''}{fault.probe} ({extent(rows)})" if fault.probe else ""
    return f"{what}{factor}{where}: {'; '.join(_places(rows, labels, torches))} ({_why(rows)})"


def _places(rows: Sequence[CellRow], labels: Sequence[str], torches: Sequence[str]) -> Iterator[str]:
    """``0.17.2 to 0.19.6 on torch 2.11.0``, once for all torch versions on which the same releases have it."""
    having: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        having[row.torch].add(row.label)
    for those in dict.fromkeys(frozenset(having[torch]) for torch in torches if torch in having):
        same = {torch for torch, its in having.items() if its == those}
        yield f"{spans(those, labels)} on torch {spans(same, torches)}"


def _why(rows: Sequence[CellRow]) -> str:
    """What the cell says that most say alike, without the lines that its error went through."""
    said = Counter(row.detail.removeprefix(OUTSIDE) for row in rows).most_common(1)[0][0]
    first = said.partition("; also wrong: ")[0]
    return first if len(first) <= DETAIL else f"{first[: DETAIL - 1]}…"
