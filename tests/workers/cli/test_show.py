from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

from tests.workers.cli.conftest import Gradmatrix
from tests.workers.cli.state import submit

FAULT = ("deepspeed==0.18.3", "2.11.0", "aot_eager")


def fault_cell(home: Path, gradmatrix: Gradmatrix) -> str:
    submit(home)
    _, out, _ = gradmatrix("show", "s1", "--json", "-")
    (cell,) = [cell["cell"] for cell in json.loads(out) if cell["verdict"] == "zero_gradient"]
    return str(cell)


def test_a_submission_is_shown_with_its_grid(home: Path, gradmatrix: Gradmatrix) -> None:
    submit(home)
    status, out, err = gradmatrix("show", "s1")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "submission s1: 8 cells: 7 agree, 1 zero"
    assert "torch 2.11.0: runtime 2.11.0-index over gloo; git abcdef012345, Python 3.11.7" in lines
    assert "  dim0[loss=square] · aot_eager · 2 ranks  agree exact  zero 0/64" in lines
    assert "  dim0[loss=square] · aot_eager · 2 ranks  agree exact  agree exact" in lines


def test_the_json_list_has_what_was_promised_and_per_tensor_the_evidence(home: Path, gradmatrix: Gradmatrix) -> None:
    submit(home)
    status, out, err = gradmatrix("show", "s1", "--json", "-")
    cells = json.loads(out)
    assert status == 0
    assert "submission s1" in err
    assert len(cells) == 8
    promised = (
        "subject checkout torch runtime transport world_size case mode verdict forward_ok signature detail tensors"
    )
    assert all(set(promised.split()) <= set(cell) for cell in cells)
    (fault,) = [cell for cell in cells if cell["verdict"] == "zero_gradient"]
    assert (fault["label"], fault["torch"], fault["mode"]) == FAULT
    assert fault["forward_ok"] is True
    assert (fault["tensors"][0]["name"], fault["tensors"][0]["nonzero_expected"]) == ("x", 8)


def test_the_reports_go_to_files_whole(home: Path, gradmatrix: Gradmatrix, tmp_path: Path) -> None:
    submit(home)
    report = tmp_path / "report.xml"
    status, out, _ = gradmatrix("show", "s1", "--junit", str(report), "--json", str(tmp_path / "cells.json"))
    assert status == 0
    assert "submission s1" in out
    root = ElementTree.fromstring(report.read_bytes())  # noqa: S314 - our own output
    assert (root.get("tests"), root.get("failures")) == ("8", "1")
    assert len(json.loads((tmp_path / "cells.json").read_text("utf-8"))) == 8
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cells.json", "home", "report.xml"]


def test_a_cell_in_full_by_number(home: Path, gradmatrix: Gradmatrix) -> None:
    cell = fault_cell(home, gradmatrix)
    status, out, _ = gradmatrix("show", cell)
    assert status == 0
    lines = out.splitlines()
    assert lines[0] == f"cell {cell}: deepspeed==0.18.3 · torch 2.11.0 · gloo · 2 ranks"
    assert lines[1] == "exchange/dim0[loss=square] · aot_eager · version 1"
    assert lines[4] == "zero 0/64"
    assert "The forward was right." in lines
    assert r"grad/x is zero [red]\x1b[31m" in lines
    assert "stacks of stacks/rank1" in out
    assert "the collective is inside a graph (all_to_all_single)" in out
    assert "runtime: torch 2.11.0+cpu, git abcdef0123456789, python 3.11.7" in out
    assert f"logs: gradmatrix logs {cell}" in lines
    assert "\x1b" not in out


def test_a_cell_by_words_that_fit_it(home: Path, gradmatrix: Gradmatrix) -> None:
    cell = fault_cell(home, gradmatrix)
    status, out, _ = gradmatrix("show", *FAULT, "exchange/dim0")
    assert status == 0
    assert out.startswith(f"cell {cell}: ")


def test_a_cell_shows_its_row_over_torch_from_other_submissions_too(home: Path, gradmatrix: Gradmatrix) -> None:
    cell = fault_cell(home, gradmatrix)
    submit(home, torch=("2.10.0", "2.12.0.dev20260301"))
    lines = gradmatrix("show", cell)[1].splitlines()
    assert (
        "over torch: 2.9.1 agree exact · 2.10.0 agree exact · [2.11.0 zero 0/64] · 2.12.0.dev20260301 agree exact"
    ) in lines
    (edges,) = [line for line in lines if line.startswith("edges: ")]
    assert edges.startswith("edges: zero gradient: torch 2.11.0 only; right on ")
    submitted = " ".join(gradmatrix("show", "s1")[1].split())
    assert "zero gradient in traced exchange/dim0 (aot_eager; 2 ranks): torch 2.11.0 only; right on " in submitted
    assert "2.10.0 and 2.12.0.dev20260301" in submitted or "from 2.12.0.dev20260301 on" in submitted
    status, out, _ = gradmatrix("show", "s1", "--json", "-")
    (fault,) = [cell for cell in json.loads(out) if cell["verdict"] == "zero_gradient"]
    (edge,) = fault["edges"]
    assert (edge["last_good"], edge["first_bad"], edge["fixed_in"]) == ("2.10.0", "2.11.0", "2.12.0.dev20260301")
    assert status == 0


def test_a_broken_catalogue_hides_nothing_that_is_stored(home: Path, gradmatrix: Gradmatrix, tmp_path: Path) -> None:
    cell = fault_cell(home, gradmatrix)
    (tmp_path / "catalog.toml").write_text("nonsense", "utf-8")
    (home / "config.toml").write_text(f'catalog = "{tmp_path / "catalog.toml"}"\n', "utf-8")
    status, out, _ = gradmatrix("show", cell)
    assert status == 0
    assert "edges: zero gradient: torch 2.11.0 only; right up to 2.9.1" in out.splitlines()


def test_words_that_fit_several_cells_are_an_error_that_lists_them(home: Path, gradmatrix: Gradmatrix) -> None:
    submit(home)
    status, out, err = gradmatrix("show", "deepspeed==0.18.3", "2.11.0")
    assert (status, out) == (2, "")
    assert err.startswith("gradmatrix: more than one cell fits")
    assert "aot_eager" in err
    assert "Traceback" not in err


def test_logs_are_inert_and_keep_their_lines(home: Path, gradmatrix: Gradmatrix) -> None:
    cell = fault_cell(home, gradmatrix)
    status, out, _ = gradmatrix("logs", cell)
    assert status == 0
    assert out.splitlines() == [
        f"== cell {cell}, log",
        r"hello \x1b[2J [bold]",
        "world\N{REPLACEMENT CHARACTER}",
        f"== cell {cell}, stacks/rank1",
        "File x.py",
    ]


def test_a_cell_that_agrees_has_no_log_and_that_is_said(home: Path, gradmatrix: Gradmatrix) -> None:
    submit(home)
    status, out, _ = gradmatrix("logs", "deepspeed==0.19.8", "2.11.0", "eager")
    assert status == 0
    assert out.endswith("(agree exact) wrote nothing\n")


def test_without_a_name_the_submissions_are_listed(home: Path, gradmatrix: Gradmatrix) -> None:
    assert gradmatrix("show")[1].startswith("nothing was run here yet")
    submit(home)
    assert gradmatrix("show")[1].endswith("7 agree, 1 zero\n")
    submit(home, torch=("2.2.2",), jobs=1)
    lines = gradmatrix("show")[1].splitlines()
    assert [line.split()[0] for line in lines] == ["s2", "s1"]
    assert "running  2 of 4 cells  deepspeed==0.18.3 deepspeed==0.19.8  2 agree" in lines[0]
    assert "done  8 of 8 cells" in lines[1]


def test_an_unfinished_submission_shows_what_is_missing(home: Path, gradmatrix: Gradmatrix) -> None:
    submit(home, jobs=1)
    status, out, _ = gradmatrix("show", "s1")
    assert status == 0
    assert "queued" in out
    assert "6 cells without an answer; to finish: gradmatrix run --resume" in out


def test_what_is_not_there_is_said_with_what_is(home: Path, gradmatrix: Gradmatrix) -> None:
    submit(home)
    assert gradmatrix("show", "s7")[::2] == (2, "gradmatrix: there is no submission 7; the newest is 1\n")
    assert gradmatrix("show", "999")[0] == 2
    assert gradmatrix("logs", "nonsense")[0] == 2
    status, _, err = gradmatrix("show", "1", "--json", "-")
    assert status == 2
    assert "gradmatrix show s3 --json FILE" in err


def test_a_report_that_cannot_be_written_is_refused_before_anything_else(
    home: Path, gradmatrix: Gradmatrix, tmp_path: Path
) -> None:
    for target in (str(tmp_path), str(tmp_path / "missing" / "x.json")):
        status, out, err = gradmatrix("show", "s1", "--json", target)
        assert (status, out) == (2, "")
        assert err.startswith(f"gradmatrix: cannot write {target}: ")
    assert gradmatrix("show", "s1", "--json", "-", "--junit", "-")[0] == 2
