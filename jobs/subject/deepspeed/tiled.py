"""DeepSpeed's tiled functions: those for long sequences, and the chunked ones of its pipelined transformer (FPDT)."""

from __future__ import annotations

import contextlib
import importlib
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jobs.subject.base import RankContext, Unsupported
from jobs.subject.deepspeed.core import Core, quiet

if TYPE_CHECKING:
    import torch

    from jobs.subject.operations.tiled import Call

TILES = "deepspeed.runtime.sequence_parallel.ulysses_sp"
CHUNKS = "deepspeed.sequence.fpdt_layer"

SIGNATURES: dict[str, tuple[str, ...]] = {
    "sequence_tiled_compute": (
        "fn", "seqlen", "shards", "kwargs_to_shard", "kwargs_to_pass", "grad_requiring_tensor_key", "compute_params",
        "output_unshard_dimension", "output_reduction",
    ),
    "SequenceTiledCompute": (
        "ctx", "fn", "seqlen", "shards", "keys_to_shard", "keys_to_pass", "grad_requiring_tensor_key",
        "compute_params", "output_unshard_dimension", "output_reduction", "args",
    ),
    "TiledMLP": ("ctx", "fn", "self", "x", "shards", "compute_params"),
    "TiledFusedLogitsLoss": ("ctx", "fn", "self", "x", "y", "mask", "shards", "compute_params", "output_reduction"),
    "TiledLoss": ("ctx", "loss_fn", "logits", "vocab_size", "shift_labels", "shards"),
    "FPDT_FFN": ("ctx", "x", "w1", "b1", "w2", "b2", "add_bias", "chunk_size"),
    "FPDT_LogitsLoss": ("ctx", "lm_output", "labels", "logit_weights", "rank", "spg_size", "spg", "num_chunk"),
}  # fmt: skip
"""What each function, or the forward of each autograd function, takes; another signature is not guessed at."""


class Tiles(Core):
    """The family ``tiled``."""

    def load(self, root: str) -> None:
        """Import both modules once, where they are, and not again in every rank."""
        super().load(root)
        for module in (TILES, CHUNKS):
            # Whatever is wrong with one is told by the operation that asks for it.
            with quiet(), contextlib.suppress(Exception):
                importlib.import_module(module)

    def tiled_compute(
        self, ctx: RankContext, function: Call, *, shards: int, unshard: int, reduction: str | None, wrapper: bool
    ) -> Call:
        """``sequence_tiled_compute``, or ``SequenceTiledCompute.apply`` with its arguments in order."""
        if wrapper:
            tile = _found(TILES, "sequence_tiled_compute")

            def wrapped(
                sharded: dict[str, torch.Tensor], passed: dict[str, Any], key: str, parameters: Any
            ) -> torch.Tensor:
                return tile(
                    fn=function,
                    seqlen=sharded[key].shape[1],
                    shards=shards,
                    kwargs_to_shard=sharded,
                    kwargs_to_pass=passed,
                    grad_requiring_tensor_key=key,
                    compute_params=parameters,
                    output_unshard_dimension=unshard,
                    output_reduction=reduction,
                )

            return wrapped
        apply = _found(TILES, "SequenceTiledCompute").apply

        def applied(
            sharded: dict[str, torch.Tensor], passed: dict[str, Any], key: str, parameters: Any
        ) -> torch.Tensor:
            names, more = list(sharded), list(passed)
            options = (sharded[key].shape[1], shards, names, more, key, parameters, unshard, reduction)
            return apply(function, *options, *sharded.values(), *passed.values())

        return applied

    def tiled_mlp(self, ctx: RankContext, function: Call, *, shards: int) -> Call:
        """``TiledMLP.apply``."""
        apply = _found(TILES, "TiledMLP").apply
        return lambda module, x, parameters: apply(function, module, x, shards, parameters)

    def tiled_fused_logits_loss(self, ctx: RankContext, function: Call, *, shards: int, reduction: str) -> Call:
        """``TiledFusedLogitsLoss.apply``."""
        apply = _found(TILES, "TiledFusedLogitsLoss").apply
        return lambda module, x, labels, mask, parameters: apply(
            function, module, x, labels, mask, shards, parameters, reduction
        )

    def tiled_loss(self, ctx: RankContext, function: Call, *, shards: int, vocabulary: int) -> Call:
        """``TiledLoss.apply``."""
        apply = _found(TILES, "TiledLoss").apply
        return lambda logits, labels: apply(function, logits, vocabulary, labels, shards)

    def chunked_feed_forward(self, ctx: RankContext, *, chunk: int, add_bias: bool) -> Callable[..., Any]:
        """``FPDT_FFN.apply``."""
        apply = _uncompiled(_found(CHUNKS, "FPDT_FFN").apply)
        return lambda x, w1, b1, w2, b2: apply(x, w1, b1, w2, b2, add_bias, chunk)

    def chunked_logits_loss(self, ctx: RankContext, *, chunks: int) -> Call:
        """``FPDT_LogitsLoss.apply``."""
        apply = _found(CHUNKS, "FPDT_LogitsLoss").apply
        return lambda x, labels, head: apply(x, labels, head, ctx.sp_rank, ctx.sp_size, ctx.group, chunks)


def _uncompiled(call: Callable[..., Any]) -> Callable[..., Any]:
    """``call``, where a function that it compiles by itself runs as it is written.

    Generating code for one gelu takes each rank longer than a case may, and would be torch's part of the answer.
    """
    import torch

    stance = getattr(torch.compiler, "set_stance", None)

    def run(*arguments: Any) -> Any:
        with stance("force_eager") if stance is not None else contextlib.nullcontext():
            return call(*arguments)

    return run


def _found(module: str, name: str) -> Any:
    """The function ``name`` of ``module``, if it takes what is known. Raises Unsupported, naming what is not there."""
    try:
        with quiet():
            there = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise Unsupported(f"there is no module {error.name}, where {name} would be") from None
    found = getattr(there, name, None)
    if found is None:
        raise Unsupported(f"{module} has no {name}")
    taken = tuple(inspect.signature(getattr(found, "forward", found)).parameters)
    if taken != SIGNATURES[name]:
        raise Unsupported(f"{name} takes ({', '.join(taken)}), and not ({', '.join(SIGNATURES[name])})")
    return found
