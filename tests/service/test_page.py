"""A page of results: tables say what the rows say, and a file that asks for what is not there is told so."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from service.cases import catalogue
from service.compare import Finding
from service.diagnosis import Diagnosis
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
    row("2.2.2", "aot_eager", "agree_untraced", nonzero_got=64, nonzero_expected=64),
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
        "| A | eager absent, aot_eager ok°, inductor · | ok | eager ok, traced **zero** |",
        "| A at 4 | · | **raises** | · |",
        "| A, NCCL's branch | · | **raises on some ranks** | · |",
        "| B | · | no import | · |",
    ]
    numbers = lines.index("## Numbers")
    assert lines[numbers + 4] == "| A | 64/64° | 64/64 | **0/64** |"
    assert "From 11 cells on 3 torch versions: 5 agree, 4 fail, 1 cannot be imported, 1 have nothing to say." in lines
    assert lines[-3:] == ["## Remarks", "", "Checked by hand."]


def test_a_table_of_counts_says_how_many_cells_of_many_have_which_word() -> None:
    other = CASE.replace("=a", "=b")
    more = (
        row("2.11.0", "eager", "zero_gradient", case=other),
        row("2.9.1", "eager", "agree", case=other),
        row("2.9.1", "eager", "raised", case=CASE, version=0),  # an older version of the case
        row("2.9.1", "eager", "raised", case="exchange/dim0[api=a]"),
        row("2.8.0", "eager", "unimportable"),
        row("2.8.0", "eager", "unimportable", case=other),
    )
    file = FILE.replace('show = "nonzero"\nmodes = ["aot_eager"]', 'show = "counts"\nmodes = ["eager", "aot_eager"]')
    file = file.replace(
        f'lines = [{{ name = "A", case = "{CASE}" }}]', 'lines = [{ name = "A", case = "torch-itself/*" }]'
    )
    lines = render(parse(file, "page.toml"), (*ROWS, *more), nothing).splitlines()
    start = lines.index("## Numbers")
    assert lines[start + 2 : start + 5 : 2] == [
        "|  | 2.2.2 | 2.8.0 | 2.9.1 | 2.11.0 |",
        "| A | 1 absent, 1 ok° | no import | 3 ok | 1 ok, 2 **zero** |",
    ]


def test_the_legend_has_the_words_that_occur_and_no_others() -> None:
    text = render(parse(FILE, "page.toml"), ROWS, nothing)
    said = {line.split(":")[0] for line in text.splitlines() if line.startswith("- ")}
    shown = {"- ok", "- ok°", "- zero", "- absent", "- no import", "- raises", "- raises on some ranks", "- ·"}
    assert said - {"- torch"} == shown


def test_sentences_are_those_of_the_subjects_that_are_asked_for_and_are_shown_as_they_are() -> None:
    asked: list[str] = []

    def findings(rows: Sequence[CellRow]) -> list[Finding]:
        asked.extend(row.label for row in rows)
        return [Finding("torch", "zero <b> in a_b", 1, 1, "*why* at 0x7f00ab")]

    text = render(parse(FILE, "page.toml"), ROWS, findings)
    assert set(asked) == {"torch"}
    assert "- zero \\<b\\> in a\\_b (\\*why\\* at \\<address\\>)" in text


def test_faults_may_be_told_once_each_instead_of_by_release() -> None:
    text = render(parse(FILE.replace('["torch"]', '["torch"]\nby = "fault"'), "page.toml"), ROWS, nothing)
    assert "- zero gradient in traced torch-itself/dim0 (aot\\_eager, inductor; 2 ranks): torch on torch 2.11.0" in text


def test_a_fault_told_once_has_its_example_and_what_the_diagnosis_says_of_it() -> None:
    asked: list[str] = []

    def diagnoses(rows: Sequence[CellRow]) -> dict[int, Diagnosis]:
        asked.extend(row.label for row in rows)
        return {1: Diagnosis("x_1 receives no gradient", "", "", None, None, "", {"dead": ("x_1",)})}

    page = parse(FILE.replace('["torch"]', '["torch"]\nby = "fault"'), "page.toml")
    text = render(page, ROWS, nothing, diagnoses)
    assert set(asked) == {"torch"}
    assert (
        "For instance torch-itself/dim0\\[api=a\\], aot\\_eager, 2 ranks, torch on torch 2.11.0: x\\_1 receives" in text
    )


def test_a_finding_with_a_case_names_it() -> None:
    found = [Finding("torch", "zero in a", 1, 1, "x is zero", "", "a[b=1], eager")]
    text = render(parse(FILE, "page.toml"), ROWS, lambda rows: found)
    assert "- zero in a. For instance a\\[b=1\\], eager: x is zero" in text


def test_of_a_case_only_the_newest_version_counts_and_builds_of_one_version_stand_apart() -> None:
    newer = (
        row("2.11.0", "eager", "raised", version=2),
        row("2.11.0", "eager", "agree", version=2, runtime="2.11.0-cpu"),
    )
    lines = render(parse(FILE, "page.toml"), (*ROWS, *newer), nothing).splitlines()
    assert "|  | 2.2.2 | 2.9.1 | 2.11.0-cpu | 2.11.0-index |" in lines
    assert "| A | · | · | ok | **raises** |" in lines
    # The two new ones and those of other cases: ROWS' own on this case are of an older version.
    assert "From 2 cells on 3 torch versions: 1 agree, 1 fail, 0 have nothing to say." in lines


def test_a_mode_that_never_ran_is_not_taken_for_one_that_agrees_and_of_a_runtime_the_newest_cell_counts() -> None:
    rows = (*ROWS, row("2.12.1", "eager", "raised", cell=7), row("2.12.1", "eager", "agree", cell=8, checkout="c"))
    for given in (rows, rows[::-1]):
        lines = render(parse(FILE, "page.toml"), given, nothing).splitlines()
        assert (
            "| A | eager absent, aot_eager ok°, inductor · | ok | eager ok, traced **zero** | eager ok, traced · |"
            in lines
        )


def test_what_proves_nothing_is_said_as_well() -> None:
    more = [row("2.9.1", "aot_eager", "agree_untraced", case=CASE.replace("=a", "=b")), row("2.8.0", "eager", "agree")]
    more += [row("2.10.0", "eager", "unsupported", detail="torch 2.10.0+cu128 has no f", case=CASE.replace("=a", "=b"))]
    lines = render(parse(FILE, "page.toml"), (*ROWS, *more), nothing).splitlines()
    assert "- torch: nothing to call in torch-itself/dim0 (eager; 2 ranks): torch 2.10.0; torch has no f" in lines
    assert "- torch: right, but in no traced graph, in torch-itself/dim0 (aot\\_eager; 2 ranks): torch 2.2.2" in lines


DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.parametrize("name", ["torch.toml", "deepspeed.toml"])
def test_a_page_of_this_repository_names_cases_that_exist_in_the_modes_and_at_the_size_that_it_shows(name: str) -> None:
    page = parse((DOCS / name).read_text("utf-8"), name)
    for table in page.tables:
        for line in table.lines:
            case = catalogue().select([line.case])[0]
            assert table.show == "counts" or case.id == line.case, line
            assert (line.transport or table.transport) in case.transports, line
            assert set(line.modes or table.modes) & set(case.modes), line
            assert case.runs_at(line.world_size or table.world_size), line
            assert (case.family == "torch-itself") == ((line.subject or table.subject) == "torch"), line


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('title = "Behaviours"', "title =", "page.toml is not TOML"),
        ("show =", "shown =", "page.toml: tables.1.shown: is not known"),
        ('title = "Behaviours"', 'titel = "Behaviours"', "page.toml: titel: is not known"),
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
