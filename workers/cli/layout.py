"""Tables and sentences that fit a terminal: labels to the left, narrow columns of cells, nothing wider than the width.

On the straight line this is beside ``workers.cli.grid``, which says what the lines are. Pure. Columns stand side by
side for as long as a readable label fits beside them: a cell's words go onto a second line before a column goes into
a second table.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from rich.cells import cell_len
from rich.text import Text

GAP = 2
NARROWEST_LABEL = 26
CELL = 16
"""How wide a column may be before its cells go onto a second line; a longer word still stays whole ..."""
WORD = 24
"""... up to this width."""
NO_BREAK = "\N{NO-BREAK SPACE}"
_TIED = re.compile(r"(\d|\btorch) (cases|cells|ranks|\d)")
_BREAK = re.compile(r" (?!·|ranks?\b)|,(?! )|\[")


@dataclass(frozen=True)
class Line:
    """One line of a table: a heading when it has no cells."""

    label: Text
    cells: tuple[Text, ...] = ()


def fits(title: Line, lines: Iterable[Line], width: int, *, capped: bool) -> bool:
    """Whether every line with cells stays one line in one table, cells aside that are ``capped``."""
    rows = [title, *(line for line in lines if line.cells)]
    label = max(NARROWEST_LABEL, *(cell_len(row.label.plain) for row in rows))
    return label + sum(size + GAP for size in _widths(rows, capped)) <= width


def table(title: Line, lines: Sequence[Line], width: int, *, capped: bool) -> list[Text]:
    """The lines below ``title``, whose cells are the columns' headers; below each other what does not fit beside."""
    widths = _widths([title, *lines], capped)
    out: list[Text] = []
    for first, last in _bands(widths, width):
        if out:
            out.append(Text())
        out += _band([title, *lines], widths, first, last, width)
    return out


def sentence(text: str, width: int, first: str = "- ", margin: str = "  ") -> list[str]:
    """``text`` in lines no wider than ``width``, with a hanging indent; a number and its noun stay together."""
    tied = _TIED.sub(f"\\1{NO_BREAK}\\2", text)
    lines = textwrap.wrap(tied, max(width, 20), initial_indent=first, subsequent_indent=margin, break_on_hyphens=False)
    return [line.replace(NO_BREAK, " ") for line in lines] or [first]


def _widths(rows: Iterable[Line], capped: bool) -> list[int]:
    columns = list(zip(*(row.cells for row in rows if row.cells), strict=True))
    natural = [max(cell_len(cell.plain) for cell in column) for column in columns]
    if not capped:
        return natural
    return [_capped(column, most) for column, most in zip(columns, natural, strict=True)]


def _capped(column: Sequence[Text], natural: int) -> int:
    """The width that a column needs when its cells may take several lines."""
    word = max((cell_len(word) for cell in column for word in cell.plain.split()), default=0)
    limit = min(natural, max(CELL, min(word, WORD)))
    return max(cell_len(piece.plain) for cell in column for piece in _words(cell, limit))


def _words(cell: Text, width: int) -> list[Text]:
    """A cell in lines no wider than ``width``: words and numbers stay whole where they can."""
    lines: list[str] = []
    for word in cell.plain.split():
        if lines and cell_len(f"{lines[-1]} {word}") <= width:
            lines[-1] += f" {word}"
            continue
        while cell_len(word) > width:
            cut = next(n for n in range(min(len(word), width), 0, -1) if cell_len(word[:n]) <= width or n == 1)
            lines.append(word[:cut])
            word = word[cut:]
        lines.append(word)
    return [Text(line, style=cell.style) for line in lines] or [Text()]


def _bands(widths: Sequence[int], width: int) -> Iterator[tuple[int, int]]:
    """Runs of columns that fit beside the narrowest label, as (first, one after the last)."""
    first, used = 0, NARROWEST_LABEL
    for index, column in enumerate(widths):
        if index > first and used + GAP + column > width:
            yield first, index
            first, used = index, NARROWEST_LABEL
        used += GAP + column
    yield first, len(widths)


def _band(lines: Sequence[Line], widths: Sequence[int], first: int, last: int, width: int) -> list[Text]:
    room = width - sum(w + GAP for w in widths[first:last])
    label = max(cell_len(line.label.plain) for line in lines if line.cells)
    label_width = max(min(label, room), min(NARROWEST_LABEL, width))
    out = []
    for line in lines:
        if not line.cells:
            out += wrap(line.label, width)
            continue
        cells = [_words(cell, size) for cell, size in zip(line.cells[first:last], widths[first:last], strict=True)]
        out += _row(wrap(line.label, label_width), cells, widths[first:last], label_width)
    return out


def _row(label: list[Text], cells: list[list[Text]], widths: Sequence[int], label_width: int) -> list[Text]:
    """A label and its cells in as few lines as they take; cells of fewer lines stand beside the label's last ones."""
    above = [Text()] * max(0, len(label) - max(map(len, cells)))
    out = []
    for pieces in zip_longest(label, *([*above, *cell] for cell in cells)):
        row, end = (pieces[0] or Text()).copy(), label_width
        for piece, size in zip(pieces[1:], widths, strict=True):
            row.append(" " * (end + GAP - cell_len(row.plain)))
            row.append_text(piece or Text())
            end += GAP + size
        row.rstrip()
        out.append(row)
    return out


def wrap(label: Text, width: int) -> list[Text]:
    """``label`` in pieces no wider than ``width``, broken between words where there are any.

    Later pieces are indented by two more than the first.
    """
    if cell_len(label.plain) <= width:
        return [label]
    margin = " " * min(len(label.plain) - len(label.plain.lstrip()) + 2, width // 2)
    pieces, rest = [], label.copy()
    while cell_len(rest.plain) > width:
        head = rest.plain[:width]
        while cell_len(head) > width:
            head = head[:-1]
        floor = len(margin) + 1
        # Searched in all of it, so that the pattern sees what comes after the head; a blank at the cut takes no room.
        cuts = [
            found.end()
            for found in _BREAK.finditer(rest.plain)
            if floor < len(found.string[: found.end()].rstrip()) <= len(head)
        ]
        cut = cuts[-1] if cuts else max(len(head), 1)
        piece, rest = rest.divide([cut])
        piece.rstrip()
        pieces.append(piece)
        rest = Text(margin, style=label.style).append_text(rest)
    return [*pieces, rest]
