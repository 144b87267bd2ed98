from __future__ import annotations

from textwrap import dedent
from typing import Any

import pytest
from rich.cells import cell_len

from service.evidence import (
    BlockMap,
    Difference,
    ErrorInfo,
    Evidence,
    Frame,
    GraphBreak,
    Noise,
    RankOutcome,
    TensorEvidence,
    TraceEvidence,
)
from workers.cli.evidence import evidence_lines

ALPHA, TIMES = "\N{GREEK SMALL LETTER ALPHA}", "\N{MULTIPLICATION SIGN}"
OK_RANKS = (RankOutcome(0, "ok"), RankOutcome(1, "ok"))


def tensor(role: str, name: str, rank: int, **changes: Any) -> TensorEvidence:
    values: dict[str, Any] = {
        "dtype": "float32",
        "expected_dtype": "float32",
        "shape": (2, 4),
        "expected_shape": (2, 4),
    }
    return TensorEvidence(
        role, name, rank, **{**values, "numel": 8, "nonzero_got": 8, "nonzero_expected": 8, **changes}
    )


def same(role: str, name: str, rank: int) -> TensorEvidence:
    return tensor(role, name, rank, identical=True, equal=True, max_abs=0.0, rel_l2=0.0)


def printed(evidence: Evidence, width: int = 120) -> str:
    return "\n".join(line.plain for line in evidence_lines(evidence, width))


def zero_gradient() -> Evidence:
    wrong: dict[str, Any] = {"nonzero_got": 0, "zeroed": 8, "max_abs": 15.875, "rel_l2": 1.0, "alpha": 0.0}
    blocks = BlockMap(("shard", "feature"), (2, 4), "00000000")
    return Evidence(
        ranks=OK_RANKS,
        tensors=(
            tensor("grad", "x", 1, **wrong, first_diff=(0, 0), blocks=blocks),
            tensor("grad", "x", 0, **wrong, first_diff=(0, 0), blocks=blocks),
            same("output", "y", 0),
            same("output", "y", 1),
        ),
        trace=TraceEvidence(1, (), 0, True, ("all_to_all_single",), "ok"),
    )


def test_forward_stands_beside_the_gradient_and_every_tensor_and_rank_has_its_line() -> None:
    assert printed(zero_gradient()) == dedent(f"""\
        all 2 ranks: ok

        forward
          tensor    rank  shape          non-zero  max error  relative
          output/y  0     float32[2, 4]  8/8       0          same bits
          output/y  1     float32[2, 4]  8/8       0          same bits

        gradient
          tensor  rank  shape          non-zero  max error  relative  {ALPHA}  first difference
          grad/x  0     float32[2, 4]  0/8       16         1         0  [0, 0]
          grad/x  1     float32[2, 4]  0/8       16         1         0  [0, 0]

        where it is wrong   . right   0 zero, and should not be   x wrong   ! not finite
          grad/x, ranks 0, 1: shard {TIMES} feature in 2 {TIMES} 4 blocks; every block is zero

        trace
          1 graph, 0 recompiles; the collective is inside a graph (all_to_all_single)
          fullgraph: ok""")


def test_a_narrow_terminal_loses_no_column() -> None:
    text = printed(zero_gradient(), 60)
    assert text.count("first difference [0, 0]") == 2
    assert max(cell_len(line) for line in text.splitlines()[:14]) <= 60


def test_the_block_map_is_drawn_where_it_is_wrong_once_per_index_of_the_outer_dimensions() -> None:
    cells = "........" + "..0x!..."
    wrong = tensor("grad", "q", 3, max_abs=1.0, rel_l2=0.5, blocks=BlockMap(("batch", "head"), (2, 2, 4), cells))
    assert printed(Evidence(ranks=OK_RANKS, tensors=(wrong,))).splitlines()[-7:] == [
        f"  grad/q, rank 3: batch {TIMES} head {TIMES} dim 2 in 2 {TIMES} 2 {TIMES} 4 blocks",
        "    batch 1 of 2",
        "    ....",
        "    ....",
        "    batch 2 of 2",
        "    ..0x",
        "    !...",
    ]


def test_tensors_that_are_right_everywhere_have_no_map() -> None:
    right = tensor("grad", "x", 0, identical=True, equal=True, blocks=BlockMap(("s",), (4,), "...."))
    assert "where it is wrong" not in printed(Evidence(ranks=OK_RANKS, tensors=(right,)))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"missing": True, "shape": None, "dtype": None}, "there is none, and there should be one"),
        ({"expected_missing": True}, "there should be none"),
        ({"shape": (4, 2)}, "should have the shape [2, 4]"),
        ({"dtype": "float16"}, "should be float32"),
        ({"nonfinite_got": 3, "nonfinite_same": False}, "NaN or infinite: 3, expected 0, in other places"),
    ],
)
def test_what_the_numbers_do_not_tell_is_said_below_the_row(changes: dict[str, Any], said: str) -> None:
    assert f"      {said}" in printed(Evidence(tensors=(tensor("grad", "x", 0, **changes),))).splitlines()


def test_a_float64_oracle_asks_for_no_type() -> None:
    tensor64 = tensor("grad", "x", 0, expected_dtype="float64")
    assert "should be" not in printed(Evidence(tensors=(tensor64,)))


def test_ranks_that_ended_differently_are_told_apart_with_their_tracebacks() -> None:
    frames = tuple(Frame(f"outer{i}.py", i, "f", "python") for i in range(20))
    error = ErrorInfo("KeyError", "'0'", (*frames, Frame("deepspeed/sequence/layer.py", 31, "forward", "subject")))
    evidence = Evidence(ranks=(RankOutcome(0, "raised", "forward", error), RankOutcome(1, "lost")))
    lines = printed(evidence).splitlines()
    assert lines[0] == "rank 0: raised in forward"
    assert lines[1] == "  KeyError: '0'"
    assert lines[2] == "    … 9 outer frames"
    assert lines[-2] == "    deepspeed/sequence/layer.py:31 in forward (subject)"
    assert lines[-1] == "rank 1: lost"


def test_a_cell_that_was_never_asked_says_why() -> None:
    assert printed(Evidence.stopped("unsupported", "no C++ compiler")) == "not run: unsupported: no C++ compiler"


def test_trace_breaks_noise_difference_and_changed_state_are_all_there() -> None:
    evidence = Evidence(
        trace=TraceEvidence(
            2, (GraphBreak("call_function all_to_all", "layer.py:22"),), 1, False, (), "Unsupported: x"
        ),
        noise={"grad/q": Noise(3e-8, 1e-7)},
        fd=Difference(1.5, 0.75, 1.5, 3.0),
        state_changes=("threads: 1 became 2",),
    )
    text = printed(evidence)
    assert "2 graphs, 1 recompile; the collective is in no graph" in text
    assert "break: call_function all_to_all at layer.py:22" in text
    assert "fullgraph: Unsupported: x" in text
    assert "off by 1e-7 (relative 3e-8)" in text
    assert "central difference 1.5, its backward 0.75, the oracle's 1.5" in text
    assert "importing the subject changed torch: threads: 1 became 2" in text


def test_a_subject_cannot_draw_on_the_terminal() -> None:
    evil = "\x1b[2J[red]\x07"
    evidence = Evidence(
        ranks=(RankOutcome(0, "raised", evil, ErrorInfo(evil, f"{evil}\n\x9b1m", (Frame(evil, 1, evil, evil),))),),
        tensors=(tensor("grad", evil, 0, blocks=BlockMap((evil,), (2, 2), "x\x1b.0")),),
        trace=TraceEvidence(1, (GraphBreak(evil, evil),), 0, False, (evil,), evil),
        state_changes=(evil,),
    )
    text = printed(evidence)
    assert not {"\x1b", "\x07", "\x9b"} & set(text)
    assert text.count(r"\x1b[2J[red]\x07") >= 9
