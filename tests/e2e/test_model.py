"""The model and AutoSP of real releases on real torch.

Sources: that a traced dim-0 exchange loses its gradient on torch 2.11 in DeepSpeed up to 0.19.6 is the public report
#8491; UlyssesSPAttentionHF exchanges along dimension 0 and DistributedAttention does not, as their source shows. 0.19.8
gathers the rows of an attention mask in AutoSP's pass, and 0.19.6 does not, as a comparison of the two sources shows.
How torch numbers the sizes that it traces is in torch.fx.experimental.symbolic_shapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from service import store
from tests.support.running import run_release

pytestmark = pytest.mark.torch
DECODER = "model/decoder[via={},layout=bshd,kv=half,gate=yes,dtype=float32,loss=entropy,step=adam]"
DISTRIBUTED, ULYSSES = DECODER.format("distributed"), DECODER.format("ulysses")
PASS = "autosp/pass[names={},then=graph,mask={},dtype=float32,loss=weighted{}]"
SHORT, HF = PASS.format("short", "causal", ""), PASS.format("hf", "causal", "")
ROWS = PASS.format("short", "rows", ",batch=2")
EXCHANGE = "autosp/all_to_all[scatter=heads,heads=double,dtype=float32,loss=weighted]"
GATHER = "autosp/sequence[way=gather,dim=1,dtype=float32,loss=weighted]"
Rows = dict[str, store.CellRow]


def rows(home: Path, release: str, torch: str, mode: str, cases: Sequence[str]) -> Rows:
    """What a release answered, by case."""
    return {row.case: row for row in run_release(home, release, torch, cases=cases, modes=(mode,)).rows}


def test_a_model_with_traced_layers_on_0_19_6(tmp_path: Path) -> None:
    seen = rows(tmp_path, "deepspeed==0.19.6", "2.11.0-index", "aot_eager", [DISTRIBUTED, ULYSSES])
    lost = seen[ULYSSES]
    assert (lost.verdict, lost.forward_ok, lost.nonzero_got) == ("zero_gradient", True, 0)
    assert lost.detail.startswith("gradient of layer0.k_proj is zero on every rank")
    assert "layer0.q_proj (partly zero" in lost.detail
    assert seen[DISTRIBUTED].verdict in ("agree", "agree_untraced")


def test_a_model_with_traced_layers_on_0_19_8(tmp_path: Path) -> None:
    seen = rows(tmp_path, "deepspeed==0.19.8", "2.11.0-index", "aot_eager", [DISTRIBUTED, ULYSSES])
    assert (seen[DISTRIBUTED].verdict, seen[DISTRIBUTED].forward_ok) == ("zero_gradient", True)
    assert seen[ULYSSES].verdict == "agree"


def test_the_compiler_pass_depends_on_what_the_model_calls_its_arguments(tmp_path: Path) -> None:
    old = rows(tmp_path / "old", "deepspeed==0.19.6", "2.11.0-index", "eager", [SHORT, HF, ROWS, EXCHANGE, GATHER])
    new = rows(tmp_path / "new", "deepspeed==0.19.8", "2.11.0-index", "eager", [SHORT, HF, ROWS, EXCHANGE, GATHER])
    for seen in (old, new):
        assert seen[SHORT].verdict == seen[EXCHANGE].verdict == "agree"
        assert seen[HF].verdict == "raised"
        assert "Unable to find symbolic placeholder" in seen[HF].detail
    assert (old[ROWS].verdict, new[ROWS].verdict) == ("raised", "agree")
    assert (old[GATHER].verdict, new[GATHER].verdict) == ("unsupported", "agree")
    assert "all_gather_sequence" in old[GATHER].detail


def test_a_release_without_the_pass_is_unsupported_and_names_what_was_looked_for(tmp_path: Path) -> None:
    seen = rows(tmp_path, "deepspeed==0.18.3", "2.2.2-index", "eager", [SHORT, EXCHANGE, DISTRIBUTED])
    assert seen[DISTRIBUTED].verdict == "agree"
    for case in (SHORT, EXCHANGE):
        assert seen[case].verdict == "unsupported"
        assert "deepspeed.compile.custom_ops" in seen[case].detail
