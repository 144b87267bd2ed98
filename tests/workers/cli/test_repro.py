from __future__ import annotations

import dataclasses
from pathlib import Path

from jobs.probes import catalogue
from tests.workers.cli.conftest import Gradmatrix
from tests.workers.cli.state import judgement, submit

DIM0 = "exchange/dim0[dtype=float32,loss=square]"


def stored(home: Path, **more: object) -> None:
    """A home whose cells are of a case that there is."""
    case = next(case for case in catalogue() if case.id == DIM0)
    submit(home, cases=(case,), labels=("deepspeed==0.18.3",), torch=("2.11.0",), **more)  # type: ignore[arg-type]


def test_a_cell_that_is_not_there_and_words_that_fit_several(home: Path, gradmatrix: Gradmatrix) -> None:
    stored(home)
    assert gradmatrix("repro", "99")[::2] == (
        2,
        "gradmatrix: there is no cell 99: the newest is 2\n",
    )
    status, _, err = gradmatrix("repro", "deepspeed==0.18.3")
    assert status == 2
    assert err.startswith("gradmatrix: more than one cell fits")


def test_a_checkout_whose_files_are_gone_is_said_to_be_gone(home: Path, gradmatrix: Gradmatrix) -> None:
    stored(home)
    status, out, err = gradmatrix("repro", "eager")
    assert (status, out) == (2, "")
    assert "the files of deepspeed==0.18.3 are not on this machine" in err


def test_a_cell_of_a_case_that_is_no_longer_there(home: Path, gradmatrix: Gradmatrix) -> None:
    submit(home, labels=("deepspeed==0.18.3",), torch=("2.11.0",))
    status, _, err = gradmatrix("repro", "eager")
    assert status == 2
    assert "version 1 of exchange/dim0[loss=square], which is no longer there: run it again" in err


def test_a_cell_of_an_older_version_of_its_case(home: Path, gradmatrix: Gradmatrix) -> None:
    case = next(case for case in catalogue() if case.id == DIM0)
    older = dataclasses.replace(case, version=case.version - 1)
    submit(home, cases=(older,), labels=("deepspeed==0.18.3",), torch=("2.11.0",))
    status, _, err = gradmatrix("repro", "eager")
    assert status == 2
    assert f"which is now at version {case.version}: run it again" in err


def test_a_cell_that_says_nothing_about_the_subject(home: Path, gradmatrix: Gradmatrix) -> None:
    answers = {("deepspeed==0.18.3", "2.11.0", "eager"): (judgement("unsupported"), ())}
    stored(home, answers=answers)
    status, _, err = gradmatrix("repro", "eager")
    assert status == 2
    assert err.startswith("gradmatrix: there is nothing to reproduce: the cell is unsupported")


def test_the_file_is_written_whole_or_refused_first(home: Path, gradmatrix: Gradmatrix, tmp_path: Path) -> None:
    answers = {("deepspeed==0.18.3", "2.11.0", "eager"): (judgement("unimportable", detail="it needs custom_op"), ())}
    stored(home, answers=answers)
    file = tmp_path / "repro.py"
    assert gradmatrix("repro", "eager", "--output", str(file))[0] == 0
    text = file.read_text("utf-8")
    assert text.startswith('"""Unimportable: it needs custom_op.')
    assert gradmatrix("repro", "eager")[1] == text
    # Before anything is looked up.
    assert "cannot write" in gradmatrix("repro", "99", "-o", str(tmp_path / "none" / "x.py"))[2]
