from __future__ import annotations

import pytest
from rich.console import Console

from service.verdicts import VERDICTS, Verdict
from service.words import TIMES, TO, human_bytes, human_seconds, inert, number
from tests.workers.cli.rows import row
from workers.cli.words import cell_text, cells_text


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({}, "agree exact"),
        ({"error": 2.96e-8}, "agree 3e-8"),
        ({"error": None}, "agree"),
        ({"verdict": "agree_untraced"}, "agree untraced"),
        ({"verdict": "zero_gradient", "nonzero_got": 0, "nonzero_expected": 64}, "zero 0/64"),
        ({"verdict": "partial_zero", "nonzero_got": 32, "nonzero_expected": 64}, "partly zero 32/64"),
        ({"verdict": "scaled", "alpha": 0.25}, "scaled \N{MULTIPLICATION SIGN}0.25"),
        ({"verdict": "mismatch", "error": 0.375}, "mismatch 0.38"),
        ({"verdict": "forward_mismatch", "error": 12.0}, "forward off 12"),
        ({"verdict": "raised", "signature": "KeyError: '0' at deepspeed/sequence/layer.py"}, "raised KeyError"),
        ({"verdict": "raised", "signature": "torch.distributed.DistBackendError: x"}, "raised DistBackendError"),
        ({"verdict": "raised", "signature": ""}, "raised"),
        ({"verdict": "unimportable", "signature": "AttributeError: custom_op"}, "unimportable"),
        ({"verdict": None, "state": "queued"}, "queued"),
    ],
)
def test_a_cell_shows_the_word_and_the_number_that_matters(changes: dict[str, object], shown: str) -> None:
    assert cell_text(row(**changes)).plain == shown


@pytest.mark.parametrize(
    ("verdict", "numbers", "shown"),
    [
        ("agree", [{"error": 0.0}, {"error": 4e-8}, {"error": 1e-8}], "agree ≤4e-8"),
        ("agree", [{"error": 0.0}, {"error": 0.0}], "agree exact"),
        ("agree", [{"error": None}, {"error": None}], "agree"),
        ("mismatch", [{"error": 0.5}, {"error": 0.125}], f"mismatch 0.12{TO}0.5"),
        ("mismatch", [{"error": 0.5}, {"error": None}], "mismatch 0.5"),
        ("scaled", [{"alpha": 2.0}, {"alpha": 0.5}], f"scaled {TIMES}0.5{TO}{TIMES}2"),
        ("crash", [{}, {}], "crash"),
    ],
)
def test_cells_that_share_a_line_show_their_range(verdict: str, numbers: list[dict[str, object]], shown: str) -> None:
    assert cells_text([row(verdict=verdict, **changes) for changes in numbers]).plain == shown


def test_every_verdict_has_words_of_its_own_and_a_style_that_exists() -> None:
    texts = [cell_text(row(verdict=verdict, error=None)) for verdict in VERDICTS]
    assert len({text.plain for text in texts}) == len(Verdict)
    for text in texts:
        Console().get_style(str(text.style))


@pytest.mark.parametrize(
    ("hostile", "shown"),
    [
        ("\x1b[31mred\x1b[0m", r"\x1b[31mred\x1b[0m"),
        ("a\rb\x07\x08", r"a\rb\x07\x08"),
        ("\x9b2J", r"\x9b2J"),
        ("right\u202eleft\u2069", r"right\u202eleft\u2069"),
        ("zero\u200bwidth", r"zero\u200bwidth"),
        ("lone\udc80", r"lone\udc80"),
        ("two\nlines", r"two\nlines"),
        ("é ≤ 3", "é ≤ 3"),
    ],
)
def test_what_a_terminal_could_obey_is_shown_as_text(hostile: str, shown: str) -> None:
    assert inert(hostile) == shown


def test_lines_are_kept_only_where_they_are_wanted_and_the_limit_holds() -> None:
    assert inert("a\nb\tc", lines=True) == "a\nb    c"
    assert inert("abcdef", limit=4) == "abc…"


@pytest.mark.parametrize(("value", "shown"), [(0.0, "0"), (1.0, "1"), (2.96e-8, "3e-8"), (0.5, "0.5"), (1e17, "1e17")])
def test_numbers_are_short(value: float, shown: str) -> None:
    assert number(value) == shown


@pytest.mark.parametrize(
    ("count", "shown"),
    [(0, "0 B"), (999, "999 B"), (192_000_000, "192 MB"), (4_600_000_000, "4.6 GB"), (10**13, "10.0 TB")],
)
def test_bytes_are_in_powers_of_ten(count: int, shown: str) -> None:
    assert human_bytes(count) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.84, "0.8 s"), (42.4, "42 s"), (59.7, "1 min 0 s"), (185, "3 min 5 s"), (7260, "2 h 1 min")],
)
def test_durations(seconds: float, shown: str) -> None:
    assert human_seconds(seconds) == shown
