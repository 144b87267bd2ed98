"""Words that mean cells: a folder's label whose content changed, and what tells cells apart that all fit."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.workers.cli.conftest import Gradmatrix
from tests.workers.cli.state import Answers, judgement, submit

OLD, NEW = "a" * 12, "b" * 12


def edited(home: Path) -> None:
    """``path:x2`` was run as content a, edited, and run as content b, which is right."""
    fault: Answers = {("path:x2", "2.11.0", "eager"): (judgement("hang"), ())}
    submit(home, labels=("path:x2",), torch=("2.11.0",), answers=fault)
    submit(home, labels=("deepspeed==0.18.3", "path:x2"), torch=("2.11.0",), answers={}, digests="cb")


@pytest.mark.parametrize("word", ["path:x2", "x2", "./x2", "/somewhere/x2/"])
def test_a_label_with_several_contents_means_the_newest(home: Path, gradmatrix: Gradmatrix, word: str) -> None:
    edited(home)
    status, out, err = gradmatrix("show", word, "2.11.0", "eager")
    assert status == 0
    assert "path:x2 · torch 2.11.0" in out.splitlines()[0]
    assert "agree exact" in out.splitlines()
    assert err.rstrip("\n") == (
        f"note: path:x2 means content {NEW} (s2) here; older: {OLD} (s1); a digest in place of the label means another"
    )
    status, _, err = gradmatrix("diff", "a" * 64, f"{word}@2.11.0")
    assert status == 0
    assert f"means content {NEW} (s2) here; older: {OLD} (s1)" in err


def test_the_content_run_last_is_the_newest_also_where_it_was_known_before(home: Path, gradmatrix: Gradmatrix) -> None:
    edited(home)
    submit(home, labels=("path:x2",), torch=("2.11.0",), answers={})
    assert f"means content {OLD} (s3) here; older: {NEW} (s2)" in gradmatrix("show", "x2", "eager")[2]


def test_a_digest_means_what_it_says(home: Path, gradmatrix: Gradmatrix) -> None:
    edited(home)
    status, out, err = gradmatrix("diff", NEW, OLD)
    assert (status, err) == (1, "")
    assert "1 regression, 1 unchanged" in out


def test_an_older_content_is_taken_where_only_that_was_run_and_a_note_says_so(
    home: Path, gradmatrix: Gradmatrix
) -> None:
    submit(home, labels=("path:x2",), torch=("2.9.1",))
    edited(home)
    status, _, err = gradmatrix("show", "x2", "2.9.1", "eager")
    assert status == 0
    assert f"path:x2 means content {OLD} (s2) here; newer: {NEW} (s3); a digest" in err


def test_one_content_needs_no_note(home: Path, gradmatrix: Gradmatrix) -> None:
    edited(home)
    assert gradmatrix("show", "deepspeed==0.18.3", "eager")[::2] == (0, "")


def test_cells_that_all_fit_are_listed_with_content_and_submission(home: Path, gradmatrix: Gradmatrix) -> None:
    edited(home)
    status, out, err = gradmatrix("show", "2.11.0", "eager")
    assert (status, out) == (2, "")
    assert f"exchange/dim0[loss=square] eager, version 1, content {'c' * 12}, s2" in err
    assert f"exchange/dim0[loss=square] eager, version 1, content {NEW}, s2" in err


def test_a_folder_that_was_never_run_is_an_error(home: Path, gradmatrix: Gradmatrix) -> None:
    edited(home)
    assert gradmatrix("show", "./x3")[0] == 2
    assert "'./x3' names nothing that was run" in gradmatrix("diff", "./x3", "x2")[2]
