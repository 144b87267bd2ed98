"""What another policy makes of the history, in lines and as JSON. Pure.

On the straight line this is the end of ``workers.cli.judge``.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from rich.text import Text

from service.rejudging import Basis
from service.verdicts import VERDICTS, Verdict
from service.words import inert, plural, verdict_word
from workers.cli.layout import sentence, wrap
from workers.cli.words import cell_text, verdict_style

if TYPE_CHECKING:
    from service.store.views import CellRow
    from workers.cli.judge import Change, Outcome

SHOWN = 12
"""How many cells of one change are listed, unless all are asked for."""
ARROW = "->"

BASES = {
    Basis.ONE_PASS: "judged by one of two passes, which is all that an older version of this program kept",
    Basis.ONCE: "failing now but not then, so never repeated alone in fresh ranks: whether the cases before it have a "
    "part in it is not known (gradmatrix run --rerun tells)",
    Basis.KEPT: "not judged again: what that takes was not kept",
}
"""What is not exactly as a run under the policy would have said it."""


def outcome_lines(outcome: Outcome, width: int, *, all_rows: bool = False) -> list[Text]:
    """The outcome for people: what is compared, counts per change, what is not exact, and then the cells."""
    parts = [_head(outcome, width), _counts(outcome), _controls(outcome, width), _exactness(outcome, width)]
    ordered = sorted(outcome.changes, key=_order)
    for (before, after), group in groupby(ordered, key=lambda change: _step(change)):
        parts.append(_group(before, after, list(group), width, all_rows))
    parts.append(_end(outcome, width))
    return [line for part in parts if part for line in (*part, Text())][:-1]


def _head(outcome: Outcome, width: int) -> list[Text]:
    policy = f"policy {outcome.policy.version} ({outcome.source})"
    head = sentence(inert(f"{policy}: {plural(outcome.judged, 'answer')} judged again"), width, "", "  ")
    lines = [Text(line, style="bold") for line in head]
    for version, count in sorted(outcome.before.items()):
        differs = outcome.differs.get(version, [])
        if version == outcome.policy.version:
            said = "the same policy"
        elif version not in outcome.known:
            said = "a policy that is not known here"
        else:
            said = ", ".join(differs) or "the same but for its version"
        lines += map(Text, sentence(inert(f"{count} under policy {version}: {said}"), width, "  ", "    "))
    return lines


def _step(change: Change) -> tuple[str, str]:
    return str(change.before.verdict), str(change.after.verdict)


def _order(change: Change) -> tuple[int, int, str, str, str, int, str]:
    words = list(VERDICTS)
    before, after = (words.index(Verdict(word)) for word in _step(change))
    row = change.after
    return after, before, row.label, row.torch, row.case, row.world_size, row.mode


def _counts(outcome: Outcome) -> list[Text]:
    """A line per change, the most frequent first."""
    if not outcome.changes:
        return [Text("nothing would change" if outcome.applied is None else "nothing changed")]
    counts = Counter(map(_step, outcome.changes))
    wide = len(str(max(counts.values())))
    lines = []
    for (before, after), count in counts.most_common():
        words = _arrow(before, after) if before != after else _arrow(before, after).append(" (another fault)")
        lines.append(Text.assemble(f"{count:>{wide}}  ", words))
    return lines


def _arrow(before: str, after: str) -> Text:
    said = [(verdict_word(Verdict(word)), verdict_style(Verdict(word))) for word in (before, after)]
    return Text.assemble(said[0], f" {ARROW} ", said[1])


def _controls(outcome: Outcome, width: int) -> list[Text]:
    """Controls that behave otherwise: why cells become invalid, or are no longer."""
    lines = []
    for change, attempts in sorted(outcome.controls.items(), key=lambda item: (item[0].control, item[0].mode)):
        what = "behaves now" if change.ok else "no longer behaves"
        text = (
            f"control {change.control} ({change.mode}, {plural(change.world_size, 'rank')}, {change.stage} the import) "
            f"{what}: {change.before} {ARROW} {change.after}, in {plural(attempts, 'attempt')}"
        )
        lines += [Text(line, style="bold blue") for line in sentence(inert(text), width)]
    return lines


def _exactness(outcome: Outcome, width: int) -> list[Text]:
    """What is not exactly what a run under this policy would have said."""
    said = [f"{plural(outcome.bases[basis], 'answer')} {text}" for basis, text in BASES.items() if outcome.bases[basis]]
    if outcome.guessed:
        what = "from attempts whose controls left no evidence: these are taken to behave as they did"
        said.append(f"{plural(outcome.guessed, 'answer')} {what}")
    if outcome.reworded:
        said.append(f"{plural(outcome.reworded, 'answer')} with the same verdict in other words or numbers")
    lines = [line for text in said for line in sentence(text, width)]
    return [Text(line, style="dim") for line in lines]


def _group(before: str, after: str, changes: Sequence[Change], width: int, all_rows: bool) -> list[Text]:
    """The cells of one change, by checkout and torch."""
    lines = [Text.assemble(_arrow(before, after), f": {plural(len(changes), 'cell')}")]
    shown = changes if all_rows else changes[:SHOWN]
    for place, group in groupby(shown, key=lambda change: _place(change.after)):
        lines.append(Text(inert(f"  {place}"), style="bold"))
        for change in group:
            lines += _cell(change, width)
    if len(shown) < len(changes):
        lines.append(Text(f"  … and {len(changes) - len(shown)} more (--all-rows shows them)", style="dim"))
    return lines


def _place(row: CellRow) -> str:
    over = "" if row.transport == "gloo" else f" · {row.transport}"
    return f"{row.label} · torch {row.torch}{over}"


def _cell(change: Change, width: int) -> Iterator[Text]:
    row = change.after
    title = f"    {row.cell}: {row.case} · {row.mode} · {plural(row.world_size, 'rank')}"
    yield from wrap(Text(inert(title)), width)
    numbers = Text.assemble("      ", cell_text(change.before), f" {ARROW} ", cell_text(row))
    if change.basis is not Basis.WHOLE:
        numbers.append(f" ({change.basis})", style="dim")
    yield numbers
    if change.before.verdict == row.verdict and change.before.signature != row.signature:
        yield from wrap(Text(inert(f"      {change.before.signature} {ARROW} {row.signature}"), style="dim"), width)


def _end(outcome: Outcome, width: int) -> list[Text]:
    """What was stored, or how to store it."""
    if outcome.applied is not None:
        left = outcome.judged - outcome.bases[Basis.KEPT] - outcome.applied
        rest = f"; {left} were judged so already, or answered anew meanwhile" if left else ""
        text = f"{plural(outcome.applied, 'answer')} judged by policy {outcome.policy.version} now{rest}"
        more = "earlier judgements are kept: gradmatrix show CELL"
        return [Text(line) for line in (*sentence(inert(text), width, "", ""), more)]
    if outcome.changes:
        text = "nothing was written: --apply makes these the current answers, and keeps the old ones"
        return [Text(line) for line in sentence(text, width, "", "")]
    return []


def outcome_json(outcome: Outcome) -> dict[str, Any]:
    """The same for programs."""
    counts = Counter(map(_step, outcome.changes))
    return {
        "policy": outcome.policy.version,
        "differences": outcome.differs,
        "judged": outcome.judged,
        "before": dict(outcome.before),
        "bases": {str(basis): outcome.bases[basis] for basis in Basis},
        "controls_not_kept": outcome.guessed,
        "reworded": outcome.reworded,
        "changes": [{"before": b, "after": a, "cells": count} for (b, a), count in counts.most_common()],
        "controls": [
            {
                "control": change.control,
                "mode": change.mode,
                "world_size": change.world_size,
                "stage": change.stage,
                "before": str(change.before),
                "after": str(change.after),
                "as_expected": change.ok,
                "attempts": attempts,
            }
            for change, attempts in outcome.controls.items()
        ],
        "cells": [_cell_json(change) for change in sorted(outcome.changes, key=_order)],
        "applied": outcome.applied,
    }


WHICH = ("cell", "subject", "checkout", "label", "torch", "runtime", "transport", "world_size", "case", "version",
         "family", "mode")  # fmt: skip
SAYS = ("verdict", "forward_ok", "signature", "detail", "worst_tensor", "error", "alpha", "nonzero_got",
        "nonzero_expected", "policy_version")  # fmt: skip


def _cell_json(change: Change) -> dict[str, Any]:
    sides = {"before": change.before, "after": change.after}
    return {
        **{name: getattr(change.after, name) for name in WHICH},
        **{side: {name: _finite(getattr(row, name)) for name in SAYS} for side, row in sides.items()},
        "basis": str(change.basis),
    }


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
