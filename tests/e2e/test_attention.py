"""Attention of real releases on real torch: what public reports say of each, and what none said.

Sources: the shape of the seq-first result is DeepSpeed's public report #8317; gradients that overlapping exchanges lose
raised in #6750, and silently went to wrong places once that was mended: 0.16.3 to 0.19.6 compute the right gradient in
a hook on a node of the graph and return nothing from it, as their source shows. 0.19.8 returns it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from service import store
from tests.support.running import run_release

pytestmark = pytest.mark.torch
BSHD = "attention/distributed[layout=bshd,heads=squared,kv=ranks,dtype=float32,causal=yes]"
LAYER = "attention/distributed[layout=bshd,heads=squared,kv=ranks,dtype=float32,causal=yes,wrap=layer]"
SBHD = "attention/distributed[layout=sbhd,heads=squared,kv=same,dtype=float32]"
OVERLAP = "attention/distributed[layout=bshd,heads=squared,kv=same,dtype=float32,causal=yes,overlap=stand_in]"
GATHER = "attention/distributed[layout=bshd,heads=squared,kv=same,dtype=float32,causal=yes,batch=1,gather=zero]"
ULYSSES = "attention/ulysses_hf[heads=double,kv=same,dtype=float32,causal=yes]"
CHUNKS = "attention/fpdt[heads=double,kv=ranks,dtype=bfloat16,chunks=2]"
FEW = "attention/distributed[layout=bshd,heads=double,kv=few,dtype=float32]"
Rows = dict[str, store.CellRow]
CASES = [BSHD, LAYER, SBHD, OVERLAP, GATHER, ULYSSES, CHUNKS, FEW]


def rows(home: Path, release: str, torch: str, mode: str = "eager", cases: Sequence[str] = CASES) -> Rows:
    """What a release answered, by case."""
    return {row.case: row for row in run_release(home, release, torch, cases=cases, modes=(mode,)).rows}


def test_0_19_6_on_2_11_0(tmp_path: Path) -> None:
    seen = rows(tmp_path, "deepspeed==0.19.6", "2.11.0-index")
    assert {seen[case].verdict for case in (BSHD, LAYER, GATHER, ULYSSES)} == {"agree"}
    misplaced = seen[OVERLAP]
    assert (misplaced.verdict, misplaced.forward_ok) == ("permuted", True)
    assert seen[SBHD].verdict == "wrong_shape"
    assert "[2, 16, 1, 4]" in seen[SBHD].detail
    assert seen[CHUNKS].verdict == "unsupported"
    assert "flash-attn" in seen[CHUNKS].detail
    assert seen[FEW].verdict == "refused"


def test_0_19_8_on_2_11_0(tmp_path: Path) -> None:
    seen = rows(tmp_path, "deepspeed==0.19.8", "2.11.0-index")
    assert {seen[case].verdict for case in (BSHD, LAYER, SBHD, OVERLAP, GATHER, ULYSSES)} == {"agree"}
    traced = rows(tmp_path, "deepspeed==0.19.8", "2.11.0-index", "aot_eager", [LAYER, ULYSSES])
    lost = traced[LAYER]
    assert (lost.verdict, lost.forward_ok, lost.nonzero_got) == ("zero_gradient", True, 0)
    assert traced[ULYSSES].verdict == "agree"


def test_0_14_2_on_2_2_2(tmp_path: Path) -> None:
    """Reports #5664 and #5808: [b, s, h, d] gathered along 0 is wrong by order 1, and more than one row raises."""
    seen = rows(tmp_path, "deepspeed==0.14.2", "2.2.2-index")
    wrong = seen[GATHER]
    assert wrong.verdict == "forward_mismatch"
    assert wrong.error is not None
    assert wrong.error > 0.5
    assert seen[BSHD].verdict == "raised"
    assert seen[SBHD].verdict == "forward_mismatch"
    assert "sp_stream" in seen[OVERLAP].detail
