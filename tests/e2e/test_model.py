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
from tests.support.running import Run, run_release

pytestmark = pytest.mark.torch
DECODER = "model/decoder[via={},layout=bshd,kv=half,gate=yes,dtype=float32,loss=entropy,step=adam]"
DISTRIBUTED, ULYSSES = DECODER.format("distributed"), DECODER.format("ulysses")
ENGINE = "engine/step[stage=2,wiring=state,recipe=all_gather,tokens=uneven,via=ulysses]"
PASS = "autosp/pass[names={},then=graph,mask={},dtype=float32,loss=weighted{}]"
SHORT, HF = PASS.format("short", "causal", ""), PASS.format("hf", "causal", "")
ROWS = PASS.format("short", "rows", ",batch=2")
EXCHANGE = "autosp/all_to_all[scatter=heads,heads=double,dtype=float32,loss=weighted]"
GATHER = "autosp/sequence[way=gather,dim=1,dtype=float32,loss=weighted]"
Rows = dict[str, store.CellRow]


def rows(home: Path, release: str, torch: str, mode: str, cases: Sequence[str]) -> Rows:
    """What a release answered, by case."""
    return {row.case: row for row in run_release(home, release, torch, cases=cases, modes=(mode,)).rows}


def of_weights(run: Run, case: str) -> dict[str, set[str]]:
    """How each weight's gradient, step and first moment are on rank 0: dead, half dead, right or otherwise wrong."""
    cell = next(row.cell for row in run.rows if row.case == case)
    with run.database.read() as session:
        tensors = store.find_cell(session, cell).evidence["tensors"]
    found: dict[str, set[str]] = {}
    for one in tensors:
        if one["role"] == "grad" and one["rank"] == 0 and one["nonzero_expected"]:
            share = one["nonzero_got"] / one["nonzero_expected"]
            state = "dead" if not share else "half" if share == 0.5 else "right" if one["rel_l2"] < 1e-4 else "wrong"
            found.setdefault(one["name"], set()).add(state)
    return found


@pytest.mark.parametrize("case", [ULYSSES, ENGINE], ids=["model", "ZeRO-2"])
def test_traced_layers_on_0_19_6_leave_keys_and_values_and_half_of_a_gated_query_untrained(
    tmp_path: Path, case: str
) -> None:
    run = run_release(tmp_path, "deepspeed==0.19.6", "2.11.0-index", cases=[case], modes=("aot_eager",))
    (lost,) = run.rows
    assert (lost.verdict, lost.forward_ok, lost.nonzero_got) == ("zero_gradient", True, 0)
    states = of_weights(run, case)
    looked = ("step/", "moment/") if case == ENGINE else ("", "step/", "moment/")
    for prefix in looked:
        for layer in ("layer0.", "layer1."):
            assert states[f"{prefix}{layer}k_proj"] == states[f"{prefix}{layer}v_proj"] == {"dead"}
            assert states[f"{prefix}{layer}q_proj"] == {"half"}
        # What stands after the attention of the last layer is trained as it should be; what stands before it is moved.
        for name in ("layer1.o_proj", "layer1.up_proj", "layer1.down_proj", "layer1.norm_after", "norm", "head"):
            assert states[prefix + name] == {"right"}, prefix + name
        for name in ("embed", "layer0.o_proj", "layer0.up_proj", "layer0.down_proj"):
            assert states[prefix + name] <= {"right", "wrong"}, prefix + name


def test_distributed_attention_in_traced_layers_of_0_19_6_is_saved_by_a_graph_break(tmp_path: Path) -> None:
    seen = rows(tmp_path, "deepspeed==0.19.6", "2.11.0-index", "aot_eager", [DISTRIBUTED])
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
