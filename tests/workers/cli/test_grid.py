from __future__ import annotations

import dataclasses
from textwrap import dedent
from typing import Any

import pytest
from rich.cells import cell_len

from service.store.views import CellRow
from service.words import TO
from tests.workers.cli.rows import HEADS, known_fault, row
from workers.cli.grid import grid


def printed(rows: list[CellRow], width: int, *, all_rows: bool = False) -> str:
    return "\n".join(line.plain for line in grid(rows, width, all_rows=all_rows))


def many(**changes: Any) -> list[CellRow]:
    """24 rows of dim0 and 8 of heads in two columns, all exact, one heads cell of the first column changed."""
    rows = []
    for torch in ("2.9.1", "2.11.0"):
        for mode in ("eager", "aot_eager"):
            for world in (2, 4):
                for dtype in ("bfloat16", "float16", "float32"):
                    for loss in ("linear", "square"):
                        case = f"exchange/dim0[dtype={dtype},loss={loss}]"
                        rows.append(row(torch=torch, mode=mode, world_size=world, case=case))
                for layout in ("bshd", "sbhd"):
                    case = f"exchange/heads[layout={layout}]"
                    rows.append(row(torch=torch, mode=mode, world_size=world, case=case, error=1e-8 * world))
    return [dataclasses.replace(r, **changes) if _is_the_one(r) else r for r in rows]


def _is_the_one(r: CellRow) -> bool:
    return (r.torch, r.mode, r.world_size, r.case) == ("2.9.1", "aot_eager", 4, "exchange/heads[layout=sbhd]")


def test_the_known_fault_at_120_columns() -> None:
    assert printed(known_fault(), 120) == dedent("""\
        deepspeed==0.18.3                                        torch 2.2.2     torch 2.9.1  torch 2.11.0
        exchange
          dim0[dtype=float32,loss=square] · eager · 2 ranks      agree exact     agree exact  agree exact
          dim0[dtype=float32,loss=square] · eager · 4 ranks      agree exact     agree exact  agree exact
          dim0[dtype=float32,loss=square] · aot_eager · 2 ranks  agree untraced  agree exact  zero 0/64
          dim0[dtype=float32,loss=square] · aot_eager · 4 ranks  agree untraced  agree exact  zero 0/128

        deepspeed==0.19.8                                        torch 2.2.2   torch 2.9.1  torch 2.11.0
        exchange
          dim0[dtype=float32,loss=square] · eager · 2 ranks      unimportable  agree exact  agree exact
          dim0[dtype=float32,loss=square] · eager · 4 ranks      unimportable  agree exact  agree exact
          dim0[dtype=float32,loss=square] · aot_eager · 2 ranks  unimportable  agree exact  agree exact
          dim0[dtype=float32,loss=square] · aot_eager · 4 ranks  unimportable  agree exact  agree exact""")


def test_the_known_fault_at_80_columns() -> None:
    assert printed(known_fault(), 80) == dedent("""\
        deepspeed==0.18.3           torch 2.2.2     torch 2.9.1  torch 2.11.0
        exchange
          dim0[dtype=float32,loss=square]
            eager · 2 ranks         agree exact     agree exact  agree exact
            eager · 4 ranks         agree exact     agree exact  agree exact
            aot_eager · 2 ranks     agree untraced  agree exact  zero 0/64
            aot_eager · 4 ranks     agree untraced  agree exact  zero 0/128

        deepspeed==0.19.8           torch 2.2.2   torch 2.9.1  torch 2.11.0
        exchange
          dim0[dtype=float32,loss=square]
            eager · 2 ranks         unimportable  agree exact  agree exact
            eager · 4 ranks         unimportable  agree exact  agree exact
            aot_eager · 2 ranks     unimportable  agree exact  agree exact
            aot_eager · 4 ranks     unimportable  agree exact  agree exact""")


def test_columns_are_in_the_order_of_versions_whatever_the_order_of_rows() -> None:
    rows = [row(torch=torch) for torch in ("2.11.0", "2.12.0.dev20260101", "2.9.1", "2.12.0")]
    header = printed(rows, 200).splitlines()[0]
    assert header.split()[1:] == ["torch", "2.9.1", "torch", "2.11.0", "torch", "2.12.0.dev20260101", "torch", "2.12.0"]


def test_two_runtimes_of_one_torch_are_two_columns_with_their_full_names() -> None:
    rows = [row(runtime="2.11.0-cpu"), row(runtime="2.11.0-index", verdict="raised", signature="KeyError: x")]
    lines = printed(rows, 120).splitlines()
    assert "torch 2.11.0-cpu" in lines[0]
    assert "torch 2.11.0-index" in lines[0]
    assert lines[2].endswith("agree exact       raised KeyError")


def test_transports_are_never_in_one_block() -> None:
    titles = [line for line in printed([row(), row(transport="nccl-dispatch")], 120).splitlines() if "==" in line]
    assert [title.split("  ")[0] for title in titles] == [
        "deepspeed==0.18.3 · gloo",
        "deepspeed==0.18.3 · nccl-dispatch",
    ]


def test_many_rows_that_agree_are_one_line_per_probe_and_the_largest_error_stands_for_them() -> None:
    assert printed(many(), 80) == dedent("""\
        deepspeed==0.18.3                                 torch 2.9.1  torch 2.11.0
        exchange
          dim0: 6 cases · eager, aot_eager · 2, 4 ranks   agree exact  agree exact
          heads: 2 cases · eager, aot_eager · 2, 4 ranks  agree ≤4e-8  agree ≤4e-8""")


def test_a_row_with_any_disagreement_is_shown_in_full_beside_the_folded_ones() -> None:
    text = printed(many(verdict="mismatch", error=0.4), 100)
    assert "  heads: 7 of 8 rows · eager, aot_eager · 2, 4 ranks  agree ≤4e-8   agree ≤4e-8" in text
    assert "  heads[layout=sbhd] · aot_eager · 4 ranks            mismatch 0.4  agree 4e-8" in text


@pytest.mark.parametrize("verdict", ["invalid", "infra", "hang", "leak"])
def test_nothing_that_somebody_must_look_at_is_folded_away(verdict: str) -> None:
    assert "heads[layout=sbhd] · aot_eager · 4 ranks" in printed(many(verdict=verdict), 120)


def test_rows_that_all_mean_nothing_are_one_line_per_probe_that_names_one_of_them() -> None:
    rows = [dataclasses.replace(r, verdict="invalid") if r.torch == "2.9.1" else r for r in many()]
    assert printed(rows, 120).splitlines()[2:4] == [
        "  dim0: 6 cases · eager, aot_eager · 2, 4 ranks   invalid      agree exact",
        "    e.g. dim0[dtype=bfloat16,loss=linear] eager",
    ]


def failing(count: int, **more: Any) -> list[CellRow]:
    """``many()``, where the first traced cells of dim0 with the linear loss have zero gradients on torch 2.11.0."""
    rows = many()
    fault: dict[str, Any] = {"verdict": "zero_gradient", "error": 1.0, "nonzero_got": 0, "nonzero_expected": 64}
    places = [i for i, r in enumerate(rows) if r.torch == "2.11.0" and r.mode == "aot_eager" and "linear" in r.case]
    for place in places[:count]:
        rows[place] = dataclasses.replace(rows[place], **fault | more)
    return rows


def test_rows_that_fail_alike_are_one_line_with_what_they_share_and_one_of_them() -> None:
    assert printed(failing(4), 80).splitlines()[2:6] == [
        "  dim0: 20 of 24 rows · eager, aot_eager · 2, 4 ranks  agree exact  agree exact",
        "  dim0: 4 of 24 rows · aot_eager · 2, 4 ranks          agree exact  zero 0/64",
        "    all loss=linear; e.g. dim0[dtype=bfloat16,loss=linear] aot_eager",
        "  heads: 2 cases · eager, aot_eager · 2, 4 ranks       agree ≤4e-8  agree ≤4e-8",
    ]


def test_what_every_case_of_the_probe_has_is_not_said_to_be_shared() -> None:
    rows = [dataclasses.replace(r, case=r.case.replace("]", ",input=plain]")) for r in failing(4)]
    assert "    all loss=linear; e.g. dim0[dtype=bfloat16,loss=linear,input=plain] aot_eager" in printed(rows, 100)


@pytest.mark.parametrize("width", range(56, 80))
def test_a_folded_label_breaks_neither_before_a_dot_nor_between_a_number_and_its_noun(width: int) -> None:
    lines = [line.strip() for line in printed(many(), width).splitlines()]
    assert not any(line.startswith(("·", "ranks")) for line in lines)


def test_three_rows_that_fail_alike_are_three_lines_and_so_are_any_number_when_all_are_asked_for() -> None:
    assert printed(failing(3), 120).count("zero 0/64") == 3
    assert printed(failing(6), 120).count("zero 0/64") == 1
    assert printed(failing(6), 120, all_rows=True).count("zero 0/64") == 6


def test_numbers_that_differ_within_a_line_are_a_range_and_names_that_differ_are_two_lines() -> None:
    rows = failing(6)
    bad = [i for i, r in enumerate(rows) if r.verdict == "zero_gradient"]
    rows[bad[2]] = dataclasses.replace(rows[bad[2]], nonzero_expected=128)
    assert printed(rows, 80).count(f"zero 0/64{TO}0/128") == 1
    rows = failing(6, verdict="raised", signature="KeyError: x")
    for place in bad[:3]:
        rows[place] = dataclasses.replace(rows[place], signature="ValueError: x")
    text = printed(rows, 120)
    assert (text.count("raised KeyError"), text.count("raised ValueError"), text.count("e.g.")) == (3, 3, 0)


def wide_words() -> list[CellRow]:
    made: list[CellRow] = []
    for torch in ("2.9.1", "2.10.0", "2.11.0", "2.13.0"):
        error: dict[str, Any] = {"verdict": "partial_raise", "signature": "RuntimeError: x", "error": None}
        made += [row(torch=torch, case=HEADS), row(torch=torch, case=HEADS, mode="aot_eager", **error)]
    return made


def test_wide_words_take_a_second_line_before_a_column_goes_into_a_second_table() -> None:
    assert printed([r for r in wide_words() if r.torch in ("2.9.1", "2.11.0")], 80) == dedent("""\
        deepspeed==0.18.3           torch 2.9.1    torch 2.11.0
        exchange
          heads[direction=scatter,dtype=float32,heads=6,layout=bshd]
            eager · 2 ranks         agree exact    agree exact
            aot_eager · 2 ranks     partly raised  partly raised
                                    RuntimeError   RuntimeError""")
    four = printed(wide_words(), 120).splitlines()
    assert four[0].count("torch") == 4
    assert four[-2:] == [
        "    aot_eager · 2 ranks" + 3 * " " + 4 * "  partly raised",
        26 * " " + "  RuntimeError " * 3 + "  RuntimeError",
    ]


def test_where_there_is_room_the_words_stay_on_one_line() -> None:
    assert printed(wide_words(), 200).count("partly raised RuntimeError") == 4


def test_a_label_and_a_cell_of_two_lines_each_are_two_lines() -> None:
    rows = many()
    fault: dict[str, Any] = {"verdict": "raised", "signature": "AssertionError: x", "error": None}
    rows = [dataclasses.replace(r, **fault) if "linear" in r.case else r for r in rows]
    lines = printed(rows, 60).splitlines()
    place = next(i for i, line in enumerate(lines) if "raised" in line)
    assert [line.split()[-2:] for line in lines[place : place + 2]] == [["raised"] * 2, ["AssertionError"] * 2]
    assert lines[place].startswith("  dim0: 3 cases")
    assert "ranks" in lines[place + 1]


def test_rows_that_say_another_word_are_not_folded_together() -> None:
    text = printed(many(verdict="unsupported"), 120)
    assert "heads: 7 of 8 rows" in text
    assert "heads[layout=sbhd] · aot_eager · 4 ranks" in text


def test_a_column_that_says_one_thing_everywhere_says_it_once_per_probe() -> None:
    broken: dict[str, Any] = {"verdict": "unimportable", "error": None, "signature": "AttributeError: custom_op"}
    rows = [dataclasses.replace(r, **broken) if r.torch == "2.9.1" else r for r in many()]
    assert printed(rows, 80).count("unimportable") == 2
    assert "e.g." not in printed(rows, 80)
    rows[0] = dataclasses.replace(rows[0], signature="ImportError: other")
    assert printed(rows, 80).count("e.g.") == 2


def test_all_rows_shows_every_row() -> None:
    lines = printed(many(), 120, all_rows=True).splitlines()
    assert len(lines) == 2 + 24 + 8
    assert not any("cases" in line for line in lines)


def test_a_cell_that_does_not_exist_is_a_dot() -> None:
    rows = [row(torch="2.9.1"), row(torch="2.11.0"), row(torch="2.11.0", mode="inductor")]
    assert printed(rows, 120).splitlines()[-1].endswith("·            agree exact")


@pytest.mark.parametrize("width", [40, 60, 80, 120])
@pytest.mark.parametrize("all_rows", [True, False])
def test_no_line_is_wider_than_the_terminal_and_no_cell_is_lost(width: int, all_rows: bool) -> None:
    versions = [f"2.{minor}.0" for minor in range(2, 14)]
    rows = [row(torch=torch, case=HEADS, mode=mode) for torch in versions for mode in ("eager", "aot_eager")]
    lines = grid(rows, width, all_rows=all_rows)
    assert max(cell_len(line.plain) for line in lines) <= width
    text = "\n".join(line.plain for line in lines)
    assert text.count("agree exact") == len(rows)
    assert all(version in text for version in versions)
    assert " ".join(text.split()).startswith("deepspeed==0.18.3 over torch")


def test_hostile_names_are_inert() -> None:
    rows = [
        row(
            label="evil\x1b]0;owned\x07[red]",
            case="exchange/dim0[x=\x1b[2J[bold]]",
            verdict="raised",
            signature="\x1b[31mKeyError",
        )
    ]
    for line in grid(rows, 80):
        assert "\x1b" not in line.plain
        assert "\x07" not in line.plain
    text = printed(rows, 80)
    assert r"evil\x1b]0;owned\x07[red]" in text
    assert r"x=\x1b[2J[bold]" in text
