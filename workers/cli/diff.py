"""``gradmatrix diff``: two answers to the same cells, where only one axis differs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from rich.text import Text

from service import store
from service.cases import fits
from service.compare import Change, Comparison, Kind
from service.compare import diff as compare
from service.config import load_settings
from service.db import open_database
from service.errors import UsageError, nearest
from service.verdicts import Verdict
from service.words import inert, plural
from workers.cli.console import DISAGREE, INCOMPLETE, OK, console, show
from workers.cli.named import cells
from workers.cli.stored import is_submission, named_submission
from workers.cli.words import cell_text

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from service.store.views import CellRow

STYLES = {
    Kind.REGRESSION: "bold red",
    Kind.FIXED: "bold green",
    Kind.NEW_FAILURE: "bold red",
    Kind.STILL_FAILING: "yellow",
    Kind.NEW_PASS: "green",
    Kind.APPEARED: "dim",
    Kind.DISAPPEARED: "yellow",
    Kind.UNCHANGED: "green",
}
WORSE = (Kind.REGRESSION, Kind.NEW_FAILURE)
SHOWN = 12
"""How many cells of one kind are listed, unless all are asked for."""


def diff(before: str, after: str, globs: Sequence[str], *, all_rows: bool) -> int:
    """Print what changed from ``before`` to ``after``; the exit status."""
    database = open_database(load_settings())
    try:
        with database.read() as session:
            sides = [_chosen(side_rows(session, text), globs, text) for text in (before, after)]
    finally:
        database.dispose()
    comparison = compare(*sides)
    out = console()
    show(out, diff_lines(comparison, before, after, all_rows=all_rows))
    return status_of(comparison)


def status_of(comparison: Comparison) -> int:
    """1 where something got worse, 2 where nothing could be compared, else 0."""
    if comparison.of(*WORSE):
        return DISAGREE
    return OK if comparison.compared else INCOMPLETE


def side_rows(session: Session, text: str) -> list[CellRow]:
    """The cells that ``text`` names: those of a submission, of a checkout, or of a checkout on one torch."""
    if is_submission(text):
        return store.cells_of(session, named_submission(session, text).id)
    label, at, torch = text.rpartition("@")
    for words in (text, f"{label} {torch}") if at and label else (text,):
        rows = [] if words.isdigit() else cells(session, words)
        if rows:
            return rows
    known = {row.label for view in store.submissions(session, 50) for row in store.cells_of(session, view.id)}
    hint = nearest(label or text, known)
    raise UsageError(f"{text!r} names nothing that was run: give a submission (s3), LABEL or LABEL@TORCH; {hint}")


def _chosen(rows: list[CellRow], globs: Sequence[str], side: str) -> list[CellRow]:
    if not globs:
        return rows
    chosen = [row for row in rows if any(fits(glob, row.case) for glob in globs)]
    if not chosen:
        cases = {row.case.partition("[")[0] for row in rows}
        raise UsageError(f"no case of {side} fits {' or '.join(map(repr, globs))}: {nearest(globs[0], cases)}")
    return chosen


def diff_lines(comparison: Comparison, before: str, after: str, *, all_rows: bool = False) -> list[Text]:
    """The comparison for people: the counts, then per kind the cells, what they were and what they are."""
    axis = {"checkout": "checkouts", "runtime": "torch versions", "nothing": "two answers to the same cells"}
    lines = [
        Text(
            inert(
                f"{before} -> {after}: {axis[comparison.axis]}, {comparison.compared} of "
                f"{plural(len(comparison.changes), 'cell')} answered by both"
            )
        ),
        _counts(comparison),
    ]
    lines += _one_sided(comparison, before, after)
    head = len(lines)
    for kind in Kind:
        changes = comparison.of(kind)
        if not changes or (kind is Kind.UNCHANGED and not all_rows):
            continue
        lines += [Text(), Text(f"{kind} ({len(changes)})", style=STYLES[kind])]
        shown = changes if all_rows else changes[:SHOWN]
        lines += [_line(change) for change in shown]
        if len(shown) < len(changes):
            lines.append(Text(f"  … and {len(changes) - len(shown)} more (--all-rows shows them)", style="dim"))
    if len(lines) > head:
        lines += [Text(), Text("gradmatrix show CELL shows one of them in full")]
    return lines


def _one_sided(comparison: Comparison, before: str, after: str) -> list[Text]:
    """What only one side was asked to run: how much, and whether a fault hides there."""
    sides = ((comparison.only_before, before), (comparison.only_after, after))
    lines = [Text(f"{plural(len(rows), 'cell')} only {inert(name)} was asked to run") for rows, name in sides if rows]
    failing = [row for row in comparison.only_after if row.verdict and Verdict(row.verdict).failing]
    if failing:
        they = f"{plural(len(failing), 'cell')} of those that only {inert(after)} was asked to run"
        verb = "fails" if len(failing) == 1 else "fail"
        lines.append(Text(f"warning: {they} {verb}: gradmatrix show {failing[0].cell}", style="yellow"))
    return lines


def _counts(comparison: Comparison) -> Text:
    text = Text()
    if not comparison.changes:
        return text.append("no cell was asked of both")
    for kind in Kind:
        changes = comparison.of(kind)
        if changes:
            text.append(", " if text.plain else "").append(f"{len(changes)} {kind}", style=STYLES[kind])
    same = sum(change.identical for change in comparison.changes)
    return text.append(f"; {same} bit for bit the same") if same else text


def _line(change: Change) -> Text:
    before, after = cast("CellRow | None", change.before), cast("CellRow | None", change.after)
    row = after or before
    if row is None:
        return Text()
    line = Text.assemble(f"  cell {row.cell}: ", _said(before), " -> ", _said(after))
    line.append(inert(f": {row.case} {row.mode}, {plural(row.world_size, 'rank')}, torch {row.torch}"))
    reason = change.reason if change.kind in (Kind.APPEARED, Kind.DISAPPEARED, Kind.STILL_FAILING) else ""
    return line.append(inert(f" ({reason})") if reason else "")


def _said(row: CellRow | None) -> Text:
    return Text("none", style="dim") if row is None else cell_text(row)
