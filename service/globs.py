"""Patterns for case ids and other names: ``*`` and ``?`` only, since ids themselves hold brackets. Pure."""

from __future__ import annotations


def matches(pattern: str, text: str) -> bool:
    """Whether ``pattern`` covers the whole of ``text``.

    A star first takes nothing, and one more character whenever what follows it does not fit; only the last star is
    ever come back to, so that no pattern takes longer than its length times the text's.
    """
    at, place, star, taken = 0, 0, -1, 0
    while place < len(text):
        if at < len(pattern) and pattern[at] == "*":
            star, taken, at = at, place, at + 1
        elif at < len(pattern) and pattern[at] in ("?", text[place]):
            at, place = at + 1, place + 1
        elif star >= 0:
            taken += 1
            at, place = star + 1, taken
        else:
            return False
    return all(rest == "*" for rest in pattern[at:])
