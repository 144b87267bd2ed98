"""Every distinct fault of many releases in one sentence: what, in which of them on which torch, and a case of it.

On the straight line a part of ``service.page``; pure. ``service.findings`` tells each release's faults beside the
others'; over ten releases that is the same fault ten times. What makes two faults one is ``service.sameness``'.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from jobs.contract import TRACED_MODES
from service.edges import in_order
from service.sameness import Known, One, ones
from service.spans import listed, spans
from service.telling import FACTOR, TIMES, extent, head, instance, outside, release, smallest
from service.verdicts import Verdict
from service.wording import OUTSIDE

if TYPE_CHECKING:
    from service.diagnosis import Diagnosis
    from service.store.views import CellRow

GROUPS = ("gradient", "forward", "manners", "no answer")
"""Silent faults first."""
DETAIL = 400


def distinct(rows: Iterable[CellRow], diagnoses: Mapping[int, Diagnosis] | None = None) -> list[str]:
    """The sentences about the failing ones of ``rows``: silent ones first, and of those the most frequent.

    rows       all answers, those that fail and those that do not: these bound the others
    diagnoses  of the failing ones, by cell
    """
    known = Known(tuple(rows), diagnoses or {})
    found = ones(known)
    torches = in_order({row.torch for row in known.rows})
    ordered = sorted(found, key=lambda one: (_rank(one), -len(one.rows)))
    return [_sentence(one, known, torches) for one in ordered]


def _rank(one: One) -> tuple[bool, int]:
    group = one.verdict.info.group
    return not any(row.forward_ok is True for row in one.rows) or group != "gradient", GROUPS.index(group)


def _sentence(one: One, known: Known, torches: Sequence[str]) -> str:
    """``zero gradient in traced exchange/dim0 (10 cases; aot_eager; 2 ranks): x 1.0 on torch 2.11.0. For instance …``

    Numbers are those of the one cell that is named.
    """
    newest = sorted(one.rows, key=lambda row: (known.labels.index(row.label), torches.index(row.torch)), reverse=True)
    example = smallest(newest)
    verdict = Verdict(example.verdict or "")
    what = outside(verdict) if example.detail.startswith(OUTSIDE) else verdict.info.label
    traced = "traced " if all(row.mode in TRACED_MODES for row in one.rows) else ""
    probes = sorted({row.case.partition("[")[0] for row in one.rows})
    told = "; ".join(_places(one.rows, known, torches))
    shown = _what(known.diagnoses.get(example.cell), example)
    if verdict is Verdict.UNIMPORTABLE:
        return f"{what}: {told} ({shown})"
    where = f"{traced}{listed(probes)} ({extent(one.rows)})"
    return f"{what}{_factor(one.rows)} in {where}: {told}. For instance {instance(example)}: {shown}"


def _factor(rows: Sequence[CellRow]) -> str:
    """The factor of what is scaled, where it is one in all of them."""
    found = {factor[1] if (factor := FACTOR.match(row.signature)) else "" for row in rows}
    return f" {TIMES}{found.pop()}" if len(found) == 1 and found != {""} else ""


def _places(rows: Sequence[CellRow], known: Known, torches: Sequence[str]) -> Iterator[str]:
    """``deepspeed 0.17.2 to 0.19.6 on torch 2.11.0``, once for all releases that have it on the same versions."""
    having: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        having[row.label].add(row.torch)
    on: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for label in (label for label in known.labels if label in having):
        everywhere = having[label] == known.importing[label] and len(having[label]) > 1
        on[() if everywhere else tuple(in_order(having[label]))].append(label)
    for those, mine in on.items():
        them = "it" if len(mine) == 1 else "them"
        torch = f"torch {spans(those, torches)}" if those else f"every torch that imports {them}"
        yield f"{_named(mine, known.labels)} on {torch}"


def _named(labels: Sequence[str], among: Sequence[str]) -> str:
    """Releases as a span, their subject said once."""
    subjects = {(release(label) or ("",))[0] for label in labels}
    text, name = spans(labels, among), subjects.pop()
    return text if subjects or not name else f"{name} {text.replace(f'{name}==', '')}"


def _what(diagnosis: Diagnosis | None, example: CellRow) -> str:
    """What is wrong in the example, with its numbers: whole clauses, as many as there is room for."""
    said = head(diagnosis.what if diagnosis else example.detail)
    if len(said) <= DETAIL:
        return said.rstrip(".")
    whole = said[:DETAIL].rpartition("; ")[0]
    return f"{whole or said[: DETAIL - 1]}…"
