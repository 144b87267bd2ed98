"""A page of results: tables say what the rows say, and a file that asks for what is not there is told so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from service.compare import Finding
from service.errors import UsageError
from service.page import parse, render
from service.store import CellRow

CASE = "torch-itself/dim0[api=a]"


def row(torch: str, mode: str, verdict: str | None, **more: Any) -> CellRow:
    values: dict[str, Any] = {
        "cell": 1,
        "job": 1,
        "state": "done",
        "subject": "torch",
        "checkout": "c",
        "label": "torch",
    }
    values |= {"runtime": f"{torch}-index", "transport": "gloo", "world_size": 2, "case": CASE, "version": 1}
    values |= {"family": "torch-itself", "channel": "release"}
    return CellRow(torch=torch, mode=mode, verdict=verdict, **{**values, **more})


ROWS = (
    *(row("2.11.0", mode, verdict) for mode, verdict in (("inductor", "zero_gradient"), ("eager", "agree"))),
    row("2.11.0", "aot_eager", "zero_gradient", nonzero_got=0, nonzero_expected=64),
    *(row("2.9.1", mode, "agree", nonzero_got=64, nonzero_expected=64) for mode in ("eager", "aot_eager", "inductor")),
    row("2.2.2", "eager", "unsupported"),
    row("2.2.2", "aot_eager", "agree_untraced"),
    row("2.10.0", "eager", None),
    row("2.9.1", "eager", "raised", world_size=4),
    row("2.9.1", "eager", "partial_raise", transport="nccl-dispatch"),
    row("2.9.1", "eager", "unimportable", label="deepspeed==1", checkout="d"),
)
FILE = f"""
title = "Behaviours"
text = "What was found."

[[tables]]
title = "The exchange"
lines = [
  {{ name = "A", case = "{CASE}" }},
  {{ name = "A at 4", case = "{CASE}", world_size = 4 }},
  {{ name = "A, NCCL's branch", case = "{CASE}", transport = "nccl-dispatch" }},
  {{ name = "B", case = "{CASE}", subject = "deepspeed==1" }},
]

[[tables]]
title = "Numbers"
show = "nonzero"
modes = ["aot_eager"]
lines = [{{ name = "A", case = "{CASE}" }}]

[[faults]]
title = "Faults"
subjects = ["torch"]

[[remarks]]
title = "Remarks"
text = "Checked by hand."
"""


def nothing(rows: Sequence[CellRow]) -> list[Finding]:
    return []


def test_tables_say_what_the_rows_say() -> None:
    lines = render(parse(FILE, "page.toml"), ROWS, nothing).splitlines()
    start = lines.index("## The exchange")
    assert lines[start + 2 : start + 8] == [
        "|  | 2.2.2 | 2.9.1 | 2.11.0 |",
        "| --- | --- | --- | --- |",
        "| A | eager absent, aot_eager ok° | ok | eager ok, traced **zero** |",
        "| A at 4 | · | **raises** | · |",
        "| A, NCCL's branch | · | **raises on some ranks** | · |",
        "| B | · | no import | · |",
    ]
    numbers = lines.index("## Numbers")
    assert lines[numbers + 4] == "| A | ok° | 64/64 | **0/64** |"
    assert "From 11 answered cells on 3 torch versions, of which 5 do not agree." in lines
    assert lines[-3:] == ["## Remarks", "", "Checked by hand."]


def test_the_legend_has_the_words_that_occur_and_no_others() -> None:
    text = render(parse(FILE, "page.toml"), ROWS, nothing)
    said = {line.split(":")[0] for line in text.splitlines() if line.startswith("- ")}
    assert said == {"- ok", "- ok°", "- zero", "- absent", "- no import", "- ·"}


def test_sentences_are_those_of_the_subjects_that_are_asked_for_and_are_shown_as_they_are() -> None:
    asked: list[str] = []

    def findings(rows: Sequence[CellRow]) -> list[Finding]:
        asked.extend(row.label for row in rows)
        return [Finding("torch", "zero <b> in a_b", 1, 1, "*why*")]

    text = render(parse(FILE, "page.toml"), ROWS, findings)
    assert set(asked) == {"torch"}
    assert "- zero \\<b\\> in a\\_b (\\*why\\*)" in text


def test_of_a_case_only_the_newest_version_counts_and_builds_of_one_version_stand_apart() -> None:
    newer = (
        row("2.11.0", "eager", "raised", version=2),
        row("2.11.0", "eager", "agree", version=2, runtime="2.11.0-cpu"),
    )
    lines = render(parse(FILE, "page.toml"), (*ROWS, *newer), nothing).splitlines()
    assert "|  | 2.2.2 | 2.9.1 | 2.11.0-cpu | 2.11.0-index |" in lines
    assert "| A | · | · | ok | **raises** |" in lines


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('title = "Behaviours"', "title =", "page.toml is not TOML"),
        ("show =", "shown =", "page.toml: tables.1.shown: Extra inputs"),
        ('"aot_eager"', '"aot"', "page.toml: tables.1.modes.0: Input should be 'eager', 'aot_eager' or 'inductor'"),
        (
            CASE,
            "torch-itself/dim0[api=b]",
            r"A: no cell of the case torch-itself/dim0\[api=b\]: did you mean torch-its",
        ),
    ],
)
def test_a_wrong_file_is_one_error_that_says_where(old: str, new: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        render(parse(FILE.replace(old, new), "page.toml"), ROWS, nothing)
