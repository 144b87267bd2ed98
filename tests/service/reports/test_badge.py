"""The picture that says how a subject stands."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from service.reports.badge import COLOURS, LABEL_COLOUR, MARGIN, State, badge, outcome
from service.verdicts import Verdict

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize(
    ("cells", "counts", "state", "message"),
    [
        (0, {}, "unknown", "unknown"),
        (3, {"agree": 2, "agree_untraced": 1}, "agree", "agree on 3 of 3"),
        (4, {"agree": 2, "refused": 1, "unsupported": 1}, "agree", "agree on 3 of 3"),
        (2, {"unsupported": 1, "insensitive": 1}, "unknown", "nothing compared"),
        (4, {"agree": 3, "zero_gradient": 1}, "failing", "failing on 1 of 4"),
        (9, {"agree": 1, "hang": 2}, "failing", "failing on 2 of 3"),
        (4, {}, "incomplete", "incomplete, 0 of 4"),
        (4, {"agree": 3}, "incomplete", "incomplete, 3 of 4"),
        (4, {"agree": 3, "infra": 1}, "incomplete", "incomplete, 3 of 4"),
        (4, {"agree": 3, "invalid": 1}, "incomplete", "incomplete, 3 of 4"),
        (4, {"agree": 3, "a word of another version": 1}, "incomplete", "incomplete, 3 of 4"),
    ],
)
def test_how_cells_stand(cells: int, counts: dict[str, int], state: str, message: str) -> None:
    assert outcome(cells, counts) == (state, message)


@pytest.mark.parametrize("verdict", Verdict)
def test_every_verdict_counts_for_something(verdict: Verdict) -> None:
    state, _ = outcome(2, {"agree": 1, verdict: 2 if verdict is Verdict.AGREE else 1})
    assert state == ("failing" if verdict.failing else "incomplete" if verdict.incomplete else "agree")


def texts(picture: str) -> tuple[str, list[str]]:
    root = ElementTree.fromstring(picture)  # noqa: S314 - our own
    assert root.tag == f"{SVG}svg"
    assert (root.get("role"), root.get("aria-labelledby")) == ("img", "title")
    title = root.find(f"{SVG}title")
    assert title is not None and title.get("id") == "title"
    return str(title.text), [str(one.text) for one in root.iter(f"{SVG}text")]


def test_whoever_hears_it_hears_what_others_see() -> None:
    title, seen = texts(badge("deepspeed", "agree", "agree on 3 of 3"))
    assert title == "deepspeed: agree on 3 of 3"
    assert seen == ["deepspeed", "agree on 3 of 3"]


def test_text_is_text_whatever_it_holds() -> None:
    hostile = '"/><script>alert(1)</script>&\x00\x1b\ud800'
    title, seen = texts(badge(hostile, "unknown", hostile))
    assert "<script>" in title, "as text"
    assert seen[0] == '"/><script>alert(1)</script>&\\x00\\x1b\\ud800'
    assert "script" not in [one.tag for one in ElementTree.fromstring(badge(hostile, "agree", "x")).iter()]  # noqa: S314


def test_a_long_label_is_cut() -> None:
    _, seen = texts(badge("x" * 500, "agree", "m"))
    assert seen[0] == "x" * 59 + "…"


def test_the_halves_hold_their_texts() -> None:
    root = ElementTree.fromstring(badge("label", "failing", "failing on 1 of 4"))  # noqa: S314
    left, right = list(root.iter(f"{SVG}rect"))[1:]
    whole = int(str(root.get("width")))
    assert int(str(left.get("width"))) + int(str(right.get("width"))) == whole
    assert (left.get("fill"), right.get("fill")) == (LABEL_COLOUR, COLOURS["failing"])
    for half, text in zip((left, right), root.iter(f"{SVG}text"), strict=True):
        start, width = float(half.get("x", "0")), float(str(half.get("width")))
        length, middle = float(str(text.get("textLength"))), float(str(text.get("x")))
        assert middle == start + width / 2
        assert length == width - 2 * MARGIN


def luminance(colour: str) -> float:
    """Relative luminance as WCAG 2 defines it."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("colour", [*COLOURS.values(), LABEL_COLOUR])
def test_white_text_can_be_read_on_every_colour(colour: str) -> None:
    """WCAG 2 asks for a contrast of 4.5 to 1 (level AA) for text of this size."""
    assert 1.05 / (luminance(colour) + 0.05) >= 4.5


def test_no_two_states_look_alike() -> None:
    states: tuple[State, ...] = ("agree", "failing", "incomplete", "unknown")
    assert len({COLOURS[state] for state in states}) == len(COLOURS) == 4
    red, green = (tuple(int(COLOURS[state][at : at + 2], 16) for at in (1, 3, 5)) for state in ("failing", "agree"))
    assert red[0] > 2 * red[1] and green[1] > 2 * green[0]
