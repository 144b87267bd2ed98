"""`run` from a working tree, with runtimes that cannot be built here: everything but the job itself is real."""

from __future__ import annotations

import json
import os
from pathlib import Path
from xml.etree import ElementTree

import pytest

from service.cases import catalogue
from service.suite import default_cells
from tests.support.subjects import write_subject
from tests.workers.cli.conftest import Gradmatrix
from tests.workers.cli.state import answer, judgement

CASE = "exchange/dim0[dtype=float32,loss=square]"


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """A run of one case in two modes at two world sizes; no package index may be asked."""
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    subject = str(write_subject(tmp_path / "odd"))
    modes = ("--mode", "eager,aot_eager", "--world-size", "2", "--world-size", "4")
    return ("run", subject, "--torch", "2.11.0", "--case", CASE, *modes)


def test_a_runtime_that_cannot_be_built_is_one_error_and_the_submission_waits(
    home: Path, gradmatrix: Gradmatrix, words: tuple[str, ...]
) -> None:
    status, out, err = gradmatrix(*words)
    assert (status, out) == (2, "")
    assert "code runs as you, in virtual environments: give it only what you trust\n" in err.splitlines(True)[0]
    assert "submission s1: 4 of 4 cells to run, in 2 jobs" in err
    assert "gradmatrix: runtime 2.11.0-index" in err
    assert "Traceback" not in err
    assert "4 cells without an answer; to finish: gradmatrix run --resume" in gradmatrix("show", "s1")[1]
    status, _, err = gradmatrix("run", "--resume")
    assert status == 2
    assert "submission s1: 4 of 4 cells to run, in 2 jobs" in err


def test_the_default_suite_is_planned_as_it_says_and_whoever_names_cases_gets_all_their_cells(
    home: Path, gradmatrix: Gradmatrix, words: tuple[str, ...]
) -> None:
    chosen = catalogue().select(["exchange/*"], suite="default")
    mine = {case.id for case in chosen}
    brief = [cell for cell in default_cells(catalogue().cases, (2, 4)) if cell[0] in mine and cell[1] != "inductor"]
    every = [size for case in catalogue().select(["exchange/*"]) for _ in case.modes[:2] for size in (2, 4)
             if case.runs_at(size)]  # fmt: skip
    assert len(brief) < len(every)
    named = tuple(word if word != CASE else "exchange/*" for word in words)
    for more, cells in ((("--suite", "default"), brief), ((), every)):
        _, _, err = gradmatrix(*named, *more)
        assert f" of {len(cells)} cells to run" in err


def test_keeping_runtimes_is_yes_or_no_and_may_stand_beside_resume(
    home: Path, gradmatrix: Gradmatrix, words: tuple[str, ...]
) -> None:
    status, _, err = gradmatrix(*words, "--keep-runtimes", "maybe")
    assert (status, home.exists()) == (2, False)
    assert "'maybe' is not one of 'yes', 'no'" in err
    for more in (words, ("run", "--resume")):
        status, _, err = gradmatrix(*more, "--keep-runtimes", "no")
        assert (status, "2.11.0-index: could not be built" in err) == (2, True)
        assert "submission s1: 4 of 4 cells to run, in 2 jobs" in err


def test_what_is_answered_is_not_executed_again(home: Path, gradmatrix: Gradmatrix, words: tuple[str, ...]) -> None:
    gradmatrix(*words)
    answer(home, 1, {})
    status, out, err = gradmatrix(*words)
    assert status == 0
    assert "to run" not in err
    assert out.startswith("submission s2: 4 cells: 4 agree\nnothing had to be executed, in ")
    assert "  dim0[dtype=float32,loss=square] · aot_eager · 4 ranks  agree exact" in out
    assert gradmatrix("run", "--resume")[0] == 2


def test_a_changed_tree_is_another_checkout(
    home: Path, gradmatrix: Gradmatrix, words: tuple[str, ...], tmp_path: Path
) -> None:
    gradmatrix(*words)
    answer(home, 1, {})
    write_subject(tmp_path / "odd", call="x = x * 1")
    assert "submission s2: 4 of 4 cells to run" in gradmatrix(*words)[2]


def test_rerun_asks_again(home: Path, gradmatrix: Gradmatrix, words: tuple[str, ...]) -> None:
    gradmatrix(*words)
    answer(home, 1, {})
    assert "submission s2: 4 of 4 cells to run" in gradmatrix(*words, "--rerun")[2]


def test_a_disagreement_is_status_1_and_is_in_both_reports(
    home: Path, gradmatrix: Gradmatrix, words: tuple[str, ...], tmp_path: Path
) -> None:
    gradmatrix(*words)
    fault = judgement("zero_gradient", nonzero_got=0, error=1.0)
    answer(home, 1, {("path:odd", "2.11.0", "aot_eager"): (fault, ())})
    report = tmp_path / "report.xml"
    status, out, err = gradmatrix(*words, "--json", "-", "--junit", str(report))
    assert status == 1
    cells = json.loads(out)
    assert [cell["verdict"] for cell in cells].count("zero_gradient") == 2
    assert {cell["world_size"] for cell in cells} == {2, 4}
    assert "zero 0/64" in err
    assert ElementTree.fromstring(report.read_bytes()).get("failures") == "2"  # noqa: S314 - our own output


def test_a_report_that_could_not_be_written_is_refused_before_anything_is_stored(
    home: Path, gradmatrix: Gradmatrix, words: tuple[str, ...], tmp_path: Path
) -> None:
    status, _, err = gradmatrix(*words, "--json", str(tmp_path / "missing" / "x.json"))
    assert status == 2
    assert err.startswith("gradmatrix: cannot write ")
    assert not home.exists()
