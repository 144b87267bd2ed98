"""The words of a cell in a terminal's colours. Pure.

On the straight line this stands behind ``service.words``, which has the words themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from service.words import cell_says, cells_say, verdict_of

if TYPE_CHECKING:
    from service.store.views import CellRow
    from service.verdicts import Verdict

COLOURS = {
    "green": "green",
    "yellow": "yellow",
    "red": "bold red",
    "magenta": "bold magenta",
    "blue": "bold blue",
    "grey": "dim",
}
"""The verdicts' colours as the terminal's styles."""


def verdict_style(verdict: Verdict | None) -> str:
    """The terminal style that goes with a verdict, or with none yet."""
    return "dim" if verdict is None else COLOURS[verdict.info.colour]


def cell_text(row: CellRow) -> Text:
    """One cell of the grid: the word, the number that matters, and the colour."""
    return Text(cell_says(row), style=verdict_style(verdict_of(row)))


def cells_text(rows: Sequence[CellRow]) -> Text:
    """What cells of one kind say together, in the colour of their verdict."""
    return Text(cells_say(rows), style=verdict_style(verdict_of(rows[0])))
