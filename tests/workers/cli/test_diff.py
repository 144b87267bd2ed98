from __future__ import annotations

from pathlib import Path

import pytest

from service.compare import diff as compare
from tests.workers.cli.conftest import Gradmatrix
from tests.workers.cli.rows import row
from tests.workers.cli.state import submit
from workers.cli.diff import diff_lines, status_of


def test_two_torch_versions_of_one_checkout_show_the_regression(home: Path, gradmatrix: Gradmatrix) -> None:
    submit(home)
    status, out, _ = gradmatrix("diff", "deepspeed==0.18.3@2.9.1", "deepspeed==0.18.3@2.11.0")
    assert status == 1
    lines = out.splitlines()
    both = "deepspeed==0.18.3@2.9.1 -> deepspeed==0.18.3@2.11.0"
    assert lines[0] == f"{both}: torch versions, 2 of 2 cells answered by both"
    assert lines[1].startswith("1 regression, 1 unchanged")
    assert "  cell 4: agree exact -> zero 0/64: exchange/dim0[loss=square] aot_eager, 2 ranks, torch 2.11.0" in lines


def test_the_other_way_round_it_is_fixed(home: Path, gradmatrix: Gradmatrix) -> None:
    submit(home)
    status, out, _ = gradmatrix("diff", "deepspeed==0.18.3@2.11.0", "deepspeed==0.18.3@2.9.1")
    assert status == 0
    assert "1 fixed, 1 unchanged" in out
    assert "zero 0/64 -> agree exact" in out


def test_two_checkouts_and_two_submissions_are_compared(home: Path, gradmatrix: Gradmatrix) -> None:
    submit(home)
    submit(home, answers={})
    status, out, _ = gradmatrix("diff", "deepspeed==0.19.8", "deepspeed==0.18.3")
    assert status == 1
    assert "checkouts, 4 of 4 cells answered by both" in out
    status, out, _ = gradmatrix("diff", "s1", "s2")
    assert status == 0
    assert "two answers to the same cells, 8 of 8 cells answered by both" in out


def test_a_glob_narrows_it_and_an_unknown_one_is_an_error(home: Path, gradmatrix: Gradmatrix) -> None:
    submit(home)
    sides = ("deepspeed==0.18.3@2.9.1", "deepspeed==0.18.3@2.11.0")
    assert gradmatrix("diff", *sides, "--case", "exchange/dim0")[0] == 1
    status, _, err = gradmatrix("diff", *sides, "--case", "exchange/dim")
    assert status == 2
    assert "did you mean exchange/dim0?" in err


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("deepspeed==0.18.4", "deepspeed==0.18.3", "did you mean deepspeed==0.18.3"),
        ("deepspeed==0.18.3@2.8.0", "deepspeed==0.18.3", "names nothing that was run"),
        ("s9", "s1", "there is no submission 9"),
        ("17", "s1", "names nothing that was run"),
        ("deepspeed==0.18.3@2.9.1", "deepspeed==0.19.8@2.11.0", "checkout and runtime both differ"),
    ],
)
def test_what_cannot_be_compared_is_an_error(
    home: Path, gradmatrix: Gradmatrix, before: str, after: str, said: str
) -> None:
    submit(home)
    status, out, err = gradmatrix("diff", before, after)
    assert (status, out) == (2, "")
    assert said in err


def test_long_lists_are_cut_unless_all_are_asked_for() -> None:
    before = [row(case=f"exchange/dim0[n={n}]", cell=n) for n in range(30)]
    after = [row(case=f"exchange/dim0[n={n}]", cell=n, verdict="hang", checkout="d" * 64) for n in range(30)]
    comparison = compare(before, after)
    short = [line.plain for line in diff_lines(comparison, "a", "b")]
    assert short[-3] == "  … and 18 more (--all-rows shows them)"
    assert len(diff_lines(comparison, "a", "b", all_rows=True)) == 6 + 30


def test_cells_that_one_side_was_never_asked_to_run_are_one_line_and_a_warning_where_they_fail() -> None:
    before = [row(cell=1), *(row(cell=n, case=f"exchange/seq[n={n}]") for n in range(2, 86))]
    new = {"checkout": "d" * 64}
    after = [row(cell=90, **new), row(cell=91, mode="inductor", verdict="hang", **new)]
    comparison = compare(before, after)
    assert [line.plain for line in diff_lines(comparison, "A", "B")] == [
        "A -> B: checkouts, 1 of 1 cell answered by both",
        "1 unchanged; 1 bit for bit the same",
        "84 cells only A was asked to run",
        "1 cell only B was asked to run",
        "warning: 1 cell of those that only B was asked to run fails: gradmatrix show 91",
    ]
    assert status_of(comparison) == 0
    assert not [line for line in diff_lines(compare(after, before), "B", "A") if "warning" in line.plain]


@pytest.mark.parametrize(
    ("before", "after", "status"),
    [
        ("agree", "agree_untraced", 0),
        ("agree", "zero_gradient", 1),
        ("unsupported", "hang", 1),
        ("zero_gradient", "mismatch", 0),
        ("zero_gradient", "agree", 0),
        ("unsupported", "unsupported", 2),
        ("agree", "unsupported", 2),
    ],
)
def test_exit_status(before: str, after: str, status: int) -> None:
    assert status_of(compare([row(verdict=before)], [row(verdict=after, checkout="d" * 64)])) == status


def test_hostile_names_are_inert() -> None:
    rows = [row(case="x/y[\x1b[2J]", label="\x1b")], [row(case="x/y[\x1b[2J]", verdict="hang", checkout="d" * 64)]
    assert not any("\x1b" in line.plain for line in diff_lines(compare(*rows), "\x1b[1m", "b"))
