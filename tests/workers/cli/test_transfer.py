from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.workers.cli.conftest import Gradmatrix
from tests.workers.cli.state import submit


def shown(gradmatrix: Gradmatrix, home: Path) -> str:
    """What `show` prints, without what belongs to one state folder: its place and its numbers of cells."""
    return re.sub(r"gradmatrix show \d+", "gradmatrix show N", gradmatrix("show", "s1")[1].replace(str(home), "HOME"))


def test_what_is_exported_is_shown_the_same_where_it_is_imported(
    home: Path, gradmatrix: Gradmatrix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit(home)
    target = tmp_path / "out.jsonl"
    status, out, err = gradmatrix("export", "s1", "--output", str(target))
    assert (status, out) == (0, "")
    assert err.startswith("1 submission, 8 results, ")
    here = shown(gradmatrix, home)
    monkeypatch.setenv("GRADMATRIX_HOME", str(tmp_path / "other"))
    status, out, _ = gradmatrix("import", str(target))
    assert status == 0
    assert out.startswith("1 submission, 8 results, ")
    assert shown(gradmatrix, tmp_path / "other") == here


def test_a_second_import_adds_nothing(home: Path, gradmatrix: Gradmatrix) -> None:
    submit(home)
    _, lines, _ = gradmatrix("export")
    assert all(json.loads(line)["record"] for line in lines.splitlines())
    status, out, _ = gradmatrix("import", "-", stdin=lines)
    assert status == 0
    assert out.startswith("nothing added, 1 submission, 8 results, ")
    assert gradmatrix("export")[1] == lines


def test_a_line_that_is_not_json_is_named_and_nothing_is_imported(
    home: Path, gradmatrix: Gradmatrix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit(home)
    _, lines, _ = gradmatrix("export")
    monkeypatch.setenv("GRADMATRIX_HOME", str(tmp_path / "other"))
    for bad in ("{", '{"record": "novel"}', "[" * 100_000, "\x1b[2J"):
        status, out, err = gradmatrix("import", "-", stdin=lines + bad + "\n")
        assert (status, out) == (2, "")
        assert f"line {len(lines.splitlines()) + 1}" in err
        assert "\x1b" not in err
    assert gradmatrix("show")[1].startswith("nothing was run here yet")


def test_an_import_says_which_number_a_submission_has_here(
    home: Path, gradmatrix: Gradmatrix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit(home)
    _, lines, _ = gradmatrix("export", "s1")
    monkeypatch.setenv("GRADMATRIX_HOME", str(tmp_path / "other"))
    submit(tmp_path / "other")
    said = gradmatrix("import", "-", stdin=lines)[1].splitlines()
    assert said[1].endswith("  deepspeed==0.18.3 deepspeed==0.19.8 -> s2")
    again = gradmatrix("import", "-", stdin=lines)[1].splitlines()
    assert again[1].endswith(" -> s2, known already")
    assert (len(said), len(again)) == (2, 2)


def test_a_list_of_cells_is_no_export(home: Path, gradmatrix: Gradmatrix, tmp_path: Path) -> None:
    submit(home)
    target = tmp_path / "cells.json"
    gradmatrix("show", "s1", "--json", str(target))
    status, out, err = gradmatrix("import", str(target))
    assert (status, out) == (2, "")
    assert err.startswith(f"gradmatrix: {target} is no export: ")


def test_nothing_to_export_and_no_such_file_are_errors(home: Path, gradmatrix: Gradmatrix, tmp_path: Path) -> None:
    target = tmp_path / "out.jsonl"
    assert gradmatrix("export", "--output", str(target))[0] == 2
    assert gradmatrix("export", "s1", "--output", str(target))[0] == 2
    assert gradmatrix("export", "1")[0] == 2
    assert not list(tmp_path.glob("*out*"))
    status, _, err = gradmatrix("import", str(tmp_path / "none"))
    assert status == 2
    assert err == f"gradmatrix: cannot read {tmp_path / 'none'}: No such file or directory\n"
