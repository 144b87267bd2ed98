"""A small picture for a README that says how a subject's newest run came out. Pure.

On the straight line this is an end, as a page is: ``service.api.badges`` asks the store and hands out what is made
here.
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Literal

from service.verdicts import Verdict
from service.words import inert

State = Literal["agree", "failing", "incomplete", "unknown"]
COLOURS: dict[State, str] = {"agree": "#1a7f37", "failing": "#cf222e", "incomplete": "#8a5c00", "unknown": "#57606a"}
"""Of the right half, behind white text."""
LABEL_COLOUR = "#24292f"
CHARACTER, MARGIN = 7, 10
"""Pixels: an average letter of the type that is asked for, and what is left free beside a text."""
MOST = 60
"""Characters of a label, whatever was asked for."""

TEMPLATE = """<svg xmlns="http://www.w3.org/2000/svg" width="{whole}" height="20" role="img" aria-labelledby="title">
<title id="title">{title}</title>
<clipPath id="round"><rect width="{whole}" height="20" rx="3"/></clipPath>
<g clip-path="url(#round)">
<rect width="{left}" height="20" fill="{label_colour}"/>
<rect x="{left}" width="{right}" height="20" fill="{colour}"/>
</g>
<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11" text-anchor="middle">
<text x="{label_at}" y="14" textLength="{label_length}">{label}</text>
<text x="{message_at}" y="14" textLength="{message_length}">{message}</text>
</g>
</svg>
"""


def outcome(cells: int, counts: Mapping[str, int]) -> tuple[State, str]:
    """What ``cells``, of which ``counts`` have an answer, came to: in a word, and in a few with the numbers.

    A cell that was compared agrees, as it does where it refused what is to be refused, or is at fault; the others have
    nothing to say. One fault stands by itself, whatever is still to come.
    """
    known = {verdict: counts.get(verdict, 0) for verdict in Verdict}
    failing = sum(count for verdict, count in known.items() if verdict.failing)
    agree = sum(count for verdict, count in known.items() if verdict.settled)
    answered = sum(count for verdict, count in known.items() if not verdict.incomplete)
    if failing:
        return "failing", f"failing on {failing} of {failing + agree}"
    if answered < cells:
        return "incomplete", f"incomplete, {answered} of {cells}"
    return (
        ("agree", f"agree on {agree} of {agree}") if agree else ("unknown", "nothing compared" if cells else "unknown")
    )


def badge(label: str, state: State, message: str) -> str:
    """The picture as SVG, ``label`` on its left half and ``message`` on its right one; a reader's voice has both."""
    label = label if len(label) <= MOST else label[: MOST - 1] + "…"
    left, right = (len(text) * CHARACTER + 2 * MARGIN for text in (label, message))
    return TEMPLATE.format(
        whole=left + right,
        left=left,
        right=right,
        label_colour=LABEL_COLOUR,
        colour=COLOURS[state],
        title=_safe(f"{label}: {message}"),
        label=_safe(label),
        message=_safe(message),
        label_at=left / 2,
        message_at=left + right / 2,
        label_length=left - 2 * MARGIN,
        message_length=right - 2 * MARGIN,
    )


def _safe(text: str) -> str:
    """``text`` as XML can hold it, and as nothing but text."""
    return escape(inert(text))
