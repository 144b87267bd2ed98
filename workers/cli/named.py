"""Which cells somebody's words mean: where a label has had several contents, those of the newest.

On the straight line this stands before ``service.store``, which knows exact words only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from service import store
from service.errors import UsageError
from service.words import inert
from workers.cli.console import console

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from service.store.views import CellDetail, CellRow

K = TypeVar("K")
ALL = 10**6
"""A limit for a query that should have none."""
SHOWN = 8
DIGITS = 12
DIGEST_FROM = 6
"""From how many digits on the store takes a word for a digest."""


def cells(session: Session, text: str) -> list[CellRow]:
    """The cells that fit ``text``, a folder written as its label or as its path; a note says what was left out."""
    words = [_spelt(session, word) for word in text.split()]
    rows = store.find_cells(session, " ".join(words), limit=ALL) if words else []
    return newest(session, rows, words)


def one_cell(session: Session, text: str) -> CellDetail:
    """The one cell that ``text`` names. Raises StoreError for none, and UsageError for several, listing them."""
    rows = cells(session, text)
    if not rows:
        return store.find_cell(session, text)
    if len(rows) == 1:
        return store.find_cell(session, rows[0].cell)
    asked = submissions_of(session, cells={row.cell for row in rows[:SHOWN]})
    lines = [
        f"  {row.cell}: {row.label} {row.runtime} {row.transport} {row.world_size} {row.case} {row.mode}, "
        f"version {row.version}, content {row.checkout[:DIGITS]}, {_named(asked.get(row.cell))}"
        for row in rows[:SHOWN]
    ]
    more = [f"  … and {len(rows) - SHOWN} more"] if len(rows) > SHOWN else []
    raise UsageError("\n".join([f"more than one cell fits {text!r}:", *lines, *more]))


def newest(session: Session, rows: list[CellRow], words: Sequence[str] = ()) -> list[CellRow]:
    """Of every label only its newest content. The others are named on stderr, unless ``words`` hold a digest."""
    chosen: dict[str, str] = {}
    for label in dict.fromkeys(row.label for row in rows):
        known = {row.checkout for row in store.find_cells(session, label, limit=ALL) if row.label == label}
        if len(known) < 2:
            continue
        asked = _contents(session, known)
        fitting = {row.checkout for row in rows if row.label == label}
        order = sorted(known, key=lambda digest: -asked.get(digest, 0))
        chosen[label] = next(digest for digest in order if digest in fitting)
        if not any(len(word) >= DIGEST_FROM and chosen[label].startswith(word) for word in words):
            at = order.index(chosen[label])
            _note(label, chosen[label], order[:at], order[at + 1 :], asked)
    return [row for row in rows if chosen.get(row.label, row.checkout) == row.checkout]


def _note(label: str, chosen: str, newer: Sequence[str], older: Sequence[str], asked: dict[str, int]) -> None:
    def said(digests: Sequence[str]) -> str:
        return ", ".join(f"{digest[:DIGITS]} ({_named(asked.get(digest))})" for digest in digests)

    parts = [f"{label} means content {said([chosen])} here"]
    parts += [f"newer: {said(newer)}"] if newer else []
    parts += [f"older: {said(older)}"] if older else []
    text = f"note: {'; '.join(parts)}; a digest in place of the label means another"
    console(stderr=True).print(inert(text), soft_wrap=True)


def _spelt(session: Session, word: str) -> str:
    """``word``, or the label of the folder that it names (``x2``, ``./x2``) where only that was ever run."""
    if word.isdigit() or store.find_cells(session, word, limit=1):
        return word
    label = f"path:{Path(word).expanduser().resolve().name}"
    return label if " " not in label and store.find_cells(session, label, limit=1) else word


def _contents(session: Session, digests: set[str]) -> dict[str, int]:
    """Per content the newest submission that asked for it."""
    return _newest(session, digests, lambda row: row.checkout)


def submissions_of(session: Session, *, cells: Iterable[int]) -> dict[int, int]:
    """Per cell the newest submission that asked for it."""
    return _newest(session, set(cells), lambda row: row.cell)


def _newest(session: Session, wanted: set[K], key: Callable[[CellRow], K]) -> dict[K, int]:
    found: dict[K, int] = {}
    for view in store.submissions(session, ALL):
        for row in store.cells_of(session, view.id):
            if key(row) in wanted:
                found.setdefault(key(row), view.id)
        if len(found) == len(wanted):
            break
    return found


def _named(submission: int | None) -> str:
    return f"s{submission}" if submission else "no submission"
