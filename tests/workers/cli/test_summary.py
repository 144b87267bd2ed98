from __future__ import annotations

from typing import Any

import pytest

from service.findings import Finding
from service.store.views import CellRow
from tests.workers.cli.rows import known_fault, row
from workers.cli.layout import sentence
from workers.cli.summary import WHY, Heading, exit_status, submission_lines

HEADING = Heading(3, "/home/me/state", {"2.9.1-index": {"git_version": "5811a8d7da873dd699ff6687092c225caffcf1bb"}})


def printed(rows: list[CellRow], *findings: Finding, heading: Heading = HEADING, width: int = 100) -> str:
    return "\n".join(line.plain for line in submission_lines(heading, rows, findings, width))


@pytest.mark.parametrize(
    ("verdicts", "status"),
    [
        (["agree", "agree_untraced"], 0),
        (["agree", "unsupported", "insensitive"], 0),
        (["refused"], 0),
        (["agree", "zero_gradient"], 1),
        (["unimportable"], 1),
        (["invalid", "mismatch"], 1),
        ([], 2),
        (["unsupported", "insensitive"], 2),
        (["agree", "invalid"], 2),
        (["agree", "infra"], 2),
        (["zero_gradient", None], 2),
        (["zero_gradient", "infra"], 2),
    ],
)
def test_exit_status(verdicts: list[Any], status: int) -> None:
    assert exit_status(row(verdict=verdict) for verdict in verdicts) == status


def test_the_headline_fault_is_said_in_words_with_the_way_to_see_it() -> None:
    rows = known_fault()
    text = printed(rows, Finding("torch", "0.18.3: zero gradient on torch 2.11.0 only", 17, 2))
    first = text.splitlines()[0]
    assert first == "submission s3: 24 cells: 16 agree, 2 agree untraced, 2 zero, 4 unimportable"
    assert "torch 2.9.1: runtime 2.9.1-index over gloo; git 5811a8d7da87" in text
    assert "torch 2.2.2: runtime 2.2.2-index over gloo\n" in text
    assert "The forward was right in every such cell." in text
    assert "- 0.18.3: zero gradient on torch 2.11.0 only\n" in text
    assert "  in full: gradmatrix show 17, one of 2 such cells" in text
    assert "--resume" not in text


def test_a_sentence_is_followed_by_one_case_and_what_was_wrong_there() -> None:
    text = "deepspeed==0.18.3: raised in x (4 cases; eager; 2 ranks)"
    finding = Finding(
        "torch", text, 7, 4, "KeyError: 0", "", "x[a=1], eager, 2 ranks, deepspeed==0.18.3 on torch 2.9.1"
    )
    lines = printed([row()], finding, width=40).splitlines()
    start = lines.index(f"  e.g. {finding.case}")  # whole, however narrow
    assert lines[start + 1 : start + 3] == ["  KeyError: 0", "  in full: gradmatrix show 7, one of 4 such cells"]


def test_a_long_error_is_cut_and_one_of_every_case_names_none() -> None:
    finding = Finding("torch", "deepspeed==0.18.3: not importable (every case)", 7, 1, "k " * WHY)
    said = printed([row()], finding, width=100)
    assert "e.g." not in said
    assert said.count("k ") + said.count("k\n") <= WHY // 2
    assert "…\n  in full: gradmatrix show 7" in said


@pytest.mark.parametrize("width", range(28, 80, 3))
def test_a_number_and_its_noun_stay_together(width: int) -> None:
    text = "raised in exchange/x (12 cases; eager; 2 ranks): on torch 2.9.1 in 3 of 12 cells"
    lines = sentence(text, width)
    assert " ".join(line.strip() for line in lines) == f"- {text}"
    assert max(map(len, lines)) <= width
    assert not any(line.endswith(("12", "2", "torch")) for line in lines)


def test_where_the_forward_was_wrong_too_the_headline_counts() -> None:
    rows = [row(verdict="mismatch", error=0.4), row(verdict="mismatch", error=0.4, mode="aot_eager", forward_ok=None)]
    assert "The forward was right in 1 of these 2 cells." in printed(rows)
    assert "forward was right" not in printed(rows[1:])


def test_an_unfinished_submission_says_how_to_finish_it() -> None:
    text = printed([row(), row(mode="aot_eager", verdict=None, state="queued")])
    assert "1 cell without an answer; to finish: gradmatrix run --resume" in text
    assert "in full: gradmatrix show 1 " in text
    assert "1 cell without an answer; still running" in printed([row(verdict=None, state="leased")])


def test_nothing_executed_is_said() -> None:
    assert "nothing had to be executed, in 0.8 s" in printed([row()], heading=Heading(1, "/x", {}, 0.84, 0))
    assert "5 of them executed now, in 42 s" in printed([row()], heading=Heading(1, "/x", {}, 42.0, 5))


def test_hostile_sentences_and_facts_are_inert() -> None:
    heading = Heading(1, "/x\x1b[1m", {"2.11.0-index": {"git_version": "\x1b]0;x\x07"}})
    finding = Finding("torch", "\x1b[2J", 1, 1)
    assert not {"\x1b", "\x07"} & set(printed([row(label="\x1b[1m")], finding, heading=heading))
