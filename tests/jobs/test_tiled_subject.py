"""DeepSpeed's tiled functions: how each is called, and that what is absent or of another shape is not guessed at."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from jobs.subject.base import RankContext, Subject, Unsupported
from jobs.subject.deepspeed import DeepSpeed
from jobs.subject.deepspeed.tiled import CHUNKS, TILES

GROUP = object()
CONTEXT = RankContext(rank=3, world_size=4, transport="gloo", sp_size=2, sp_rank=1, group=GROUP, ranks=(2, 3))
X = SimpleNamespace(shape=(1, 8, 4))


def noting(forward: Any) -> Any:
    """An autograd function of that signature whose ``apply`` answers with what it was given."""
    return SimpleNamespace(forward=forward, apply=lambda *given: given)


def mlp(ctx: Any, fn: Any, self: Any, x: Any, shards: Any, compute_params: Any) -> None: ...


def compute(
    ctx: Any, fn: Any, seqlen: Any, shards: Any, keys_to_shard: Any, keys_to_pass: Any, grad_requiring_tensor_key: Any,
    compute_params: Any, output_unshard_dimension: Any, output_reduction: Any, *args: Any,
) -> None: ...  # fmt: skip


def logits_loss(
    ctx: Any, lm_output: Any, labels: Any, logit_weights: Any, rank: Any, spg_size: Any, spg: Any, num_chunk: Any
) -> None: ...


@pytest.fixture
def tiles(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    for name in ("deepspeed", "deepspeed.runtime", "deepspeed.runtime.sequence_parallel", "deepspeed.sequence"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    modules = {name: ModuleType(name) for name in (TILES, CHUNKS)}
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    modules[TILES].__dict__.update(TiledMLP=noting(mlp), SequenceTiledCompute=noting(compute))
    modules[CHUNKS].__dict__["FPDT_LogitsLoss"] = noting(logits_loss)
    return modules[TILES]


def test_arguments_go_where_the_signature_has_them(tiles: ModuleType) -> None:
    given: Any = DeepSpeed().tiled_mlp(CONTEXT, len, shards=3)("module", "x", ["w"])
    assert given == (len, "module", "x", 3, ["w"])
    tiled = DeepSpeed().tiled_compute(CONTEXT, len, shards=3, unshard=1, reduction=None, wrapper=False)
    given = tiled({"x": X, "labels": "l"}, {"module": "m"}, "x", None)
    assert given == (len, 8, 3, ["x", "labels"], ["module"], "x", None, 1, None, X, "l", "m")
    given = DeepSpeed().chunked_logits_loss(CONTEXT, chunks=4)("x", "labels", "head")
    assert given == ("x", "labels", "head", 1, 2, GROUP, 4)


def test_an_absent_function_is_unsupported_by_name(tiles: ModuleType) -> None:
    with pytest.raises(Unsupported, match=f"{TILES} has no TiledLoss"):
        DeepSpeed().tiled_loss(CONTEXT, len, shards=2, vocabulary=16)
    with pytest.raises(Unsupported, match=f"{TILES} has no sequence_tiled_compute"):
        DeepSpeed().tiled_compute(CONTEXT, len, shards=2, unshard=0, reduction="sum", wrapper=True)


def test_an_absent_module_is_unsupported_and_a_broken_one_is_not(
    tiles: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, TILES)
    with pytest.raises(Unsupported, match=r"there is no module .*, where TiledMLP would be"):
        DeepSpeed().tiled_mlp(CONTEXT, len, shards=2)

    def broken(name: str) -> None:
        raise ModuleNotFoundError("No module named 'einops'", name="einops")

    monkeypatch.setattr("jobs.subject.deepspeed.tiled.importlib.import_module", broken)
    with pytest.raises(ModuleNotFoundError, match="einops"):
        DeepSpeed().tiled_mlp(CONTEXT, len, shards=2)


def test_another_signature_is_unsupported_and_told(tiles: ModuleType) -> None:
    tiles.__dict__["TiledMLP"] = noting(lambda ctx, fn, x, shards: None)
    with pytest.raises(Unsupported, match=r"TiledMLP takes \(ctx, fn, x, shards\), and not \(ctx, fn, self, x, "):
        DeepSpeed().tiled_mlp(CONTEXT, len, shards=2)


def test_a_subject_that_has_none_says_so() -> None:
    subject = Subject()
    asked: tuple[Callable[[], Any], ...] = (
        lambda: subject.tiled_mlp(CONTEXT, len, shards=1),
        lambda: subject.tiled_compute(CONTEXT, len, shards=1, unshard=0, reduction=None, wrapper=True),
        lambda: subject.tiled_fused_logits_loss(CONTEXT, len, shards=1, reduction="sum"),
        lambda: subject.tiled_loss(CONTEXT, len, shards=1, vocabulary=2),
        lambda: subject.chunked_feed_forward(CONTEXT, chunk=1, add_bias=True),
        lambda: subject.chunked_logits_loss(CONTEXT, chunks=1),
    )
    for ask in asked:
        with pytest.raises(Unsupported, match="subject has no"):
            ask()
