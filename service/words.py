"""How one cell is put into a few words, and how foreign text is made safe to show.

On the straight line this stands behind the store: the command line, the pages and the reports read rows, and these
functions word them. Pure.
Details, signatures and logs come from a subject that may be a stranger's: everything shown passes :func:`inert`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from service.verdicts import VERDICTS, Verdict

if TYPE_CHECKING:
    from service.store.views import CellRow

WORDS = {
    Verdict.AGREE_UNTRACED: "agree untraced",
    Verdict.PARTIAL_ZERO: "partly zero",
    Verdict.NO_GRADIENT: "no gradient",
    Verdict.NONDETERMINISTIC: "nondeterministic",
    Verdict.WRONG_SHAPE: "wrong shape",
    Verdict.FORWARD_MISMATCH: "forward off",
    Verdict.PARTIAL_RAISE: "partly raised",
    Verdict.UNIMPORTABLE: "unimportable",
    Verdict.INSENSITIVE: "insensitive",
    Verdict.UNSUPPORTED: "unsupported",
}
"""Where a terminal has room for more than a page's grid: the verdict's word written out."""

TIMES, ALPHA = "\N{MULTIPLICATION SIGN}", "\N{GREEK SMALL LETTER ALPHA}"
TO = "\N{EN DASH}"
_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
_ERROR_NAME = re.compile(r"\b(?:[A-Za-z_]\w*\.)*([A-Za-z_]\w{0,39})")


def inert(text: str, *, limit: int = 0, lines: bool = False) -> str:
    """``text`` with every character that a terminal could obey written as its escape, cut to ``limit`` characters.

    Tabs become spaces; line ends are kept only with ``lines``.
    """
    out = []
    for char in text:
        if char == "\n" and lines:
            out.append(char)
        elif char == "\t":
            out.append("    ")
        elif unicodedata.category(char) in _HIDDEN:
            out.append(_escape(char))
        else:
            out.append(char)
    safe = "".join(out)
    return safe if not limit or len(safe) <= limit else safe[: limit - 1] + "…"


def _escape(char: str) -> str:
    """``char`` as Python would write it in a string, whatever it is."""
    return char.encode("unicode_escape", "backslashreplace").decode("ascii")


def number(value: float) -> str:
    """``value`` in as few characters as tell its size: ``0.5``, ``3e-8``, ``2``."""
    text = f"{value:.2g}"
    if "e" in text:
        mantissa, exponent = text.split("e")
        return f"{mantissa}e{int(exponent)}"
    return text


def _size(row: CellRow) -> str:
    if row.error is None:
        return ""
    return "exact" if row.error == 0 else number(row.error)


def _wrong_by(row: CellRow) -> str:
    """The error of what is wrong; what is wrong without one (NaN, absent) has no number."""
    return _size(row) if row.error else ""


def _nonzero(row: CellRow) -> str:
    if row.nonzero_got is None or row.nonzero_expected is None:
        return ""
    return f"{row.nonzero_got}/{row.nonzero_expected}"


def _scale(row: CellRow) -> str:
    return "" if row.alpha is None else f"{TIMES}{number(row.alpha)}"


def _error_name(row: CellRow) -> str:
    """The type at the head of a normalised signature (``torch.Foo.KeyError: '0'``: ``KeyError``)."""
    found = _ERROR_NAME.match(row.signature or "")
    return inert(found.group(1)) if found else ""


NUMBERS: dict[Verdict, Callable[[CellRow], str]] = {
    Verdict.AGREE: _size,
    Verdict.ZERO_GRADIENT: _nonzero,
    Verdict.PARTIAL_ZERO: _nonzero,
    Verdict.SCALED: _scale,
    Verdict.MISMATCH: _wrong_by,
    Verdict.FORWARD_MISMATCH: _wrong_by,
    Verdict.RAISED: _error_name,
    Verdict.PARTIAL_RAISE: _error_name,
}
"""The number, or name, that matters beside a verdict's word."""

NAMES = (Verdict.RAISED, Verdict.PARTIAL_RAISE)
"""The verdicts beside whose word stands a name."""


def _rank(row: CellRow) -> tuple[float, ...]:
    """How the numbers of cells with one verdict are ordered."""
    if row.verdict in (Verdict.ZERO_GRADIENT, Verdict.PARTIAL_ZERO):
        return row.nonzero_got or 0, row.nonzero_expected or 0
    return ((row.alpha if row.verdict == Verdict.SCALED else row.error) or 0.0,)


def verdict_of(row: CellRow) -> Verdict | None:
    """The row's verdict, or None while it has none."""
    return None if row.verdict is None else Verdict(row.verdict)


def verdict_word(verdict: Verdict) -> str:
    """The verdict's word as the terminal shows it."""
    return WORDS.get(verdict, verdict.info.short)


def known_word(verdict: str) -> str:
    """The word for a verdict as it is stored, or that itself where it is a newer version's."""
    return verdict_word(Verdict(verdict)) if verdict in VERDICTS else inert(verdict)


def cell_word(row: CellRow) -> str:
    """What a cell says without its number: the verdict's word, or the state of a cell that has none yet."""
    verdict = verdict_of(row)
    return inert(row.state) if verdict is None else verdict_word(verdict)


def cell_says(row: CellRow) -> str:
    """One cell of the grid: the word, and the number that matters."""
    verdict = verdict_of(row)
    parts = [cell_word(row)]
    if verdict in NUMBERS:
        parts.append(NUMBERS[verdict](row))
    return " ".join(part for part in parts if part)


def cell_kind(row: CellRow) -> str:
    """The word and, where there is one, the name beside it: equal for cells that may share a line of the grid."""
    verdict = verdict_of(row)
    return f"{cell_word(row)} {NUMBERS[verdict](row)}" if verdict in NAMES else cell_word(row)


def cells_say(rows: Sequence[CellRow]) -> str:
    """What cells of one kind say together: the largest error of those that agree, else the range of their numbers."""
    verdict = verdict_of(rows[0])
    if verdict is None or verdict not in NUMBERS or verdict in NAMES:
        return cell_says(rows[0])
    numbers = list(dict.fromkeys(filter(None, map(NUMBERS[verdict], sorted(rows, key=_rank)))))
    parts = [cell_word(rows[0])]
    if numbers:
        upto = "≤" if verdict is Verdict.AGREE and numbers != ["exact"] else ""
        low = f"{numbers[0]}{TO}" if len(numbers) > 1 and verdict is not Verdict.AGREE else ""
        parts.append(f"{upto}{low}{numbers[-1]}")
    return " ".join(parts)


def plural(count: int, one: str, many: str = "") -> str:
    """``1 cell``, ``2 cells``."""
    return f"{count} {one if count == 1 else many or one + 's'}"


def human_bytes(count: float) -> str:
    """Bytes for people, in powers of ten as disks and downloads are sold: ``192 MB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit in ("B", "kB") or count >= 10 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def human_seconds(seconds: float) -> str:
    """A duration for people: ``0.8 s``, ``42 s``, ``3 min 5 s``."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes == 0:
        return f"{rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
