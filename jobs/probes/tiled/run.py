"""Running the cases of family ``tiled``: the function under test, and one complete pass over it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch.utils.checkpoint import checkpoint

from jobs.contract import CaseInfo, ControlInfo
from jobs.probes import passes
from jobs.probes.case import LAYER_AFTER, LAYER_BEFORE
from jobs.probes.passes import Function
from jobs.probes.tiled import functions
from jobs.probes.tiled.base import IGNORED, VOCABULARY, Tiled
from jobs.probes.tiled.functions import Module
from jobs.probes.tiled.shapes import (
    ChunkedFeedForward,
    ChunkedLogitsLoss,
    Compute,
    ComputeLoss,
    FeedForward,
    FusedLoss,
    HeadLoss,
    params_of,
)
from jobs.subject.base import RankContext, Subject

if TYPE_CHECKING:
    from jobs.probes import Emit


def build(case: CaseInfo, ctx: RankContext, subject: Subject) -> Function:
    """The subject's operation as the case calls it. Raises Unsupported where the subject has none."""
    params = params_of(case)
    return _wrapped(params, BUILDERS[case.probe](params, ctx, subject))


def build_control(control: ControlInfo, case: CaseInfo, ctx: RankContext) -> Function:
    """The same with a control's implementation in the subject's place."""
    from jobs.probes.tiled.mutants import implementation  # it stands on the builders here

    return build(case, ctx, implementation(control))


def exercise(case: CaseInfo, ctx: RankContext, function: Function, emit: Emit) -> None:
    """One complete pass: fresh inputs, forward, backward; nothing is kept."""
    passes.exercise(case, ctx, params_of(case), function, emit)


def difference(case: CaseInfo, ctx: RankContext, function: Function, emit: Emit) -> None:
    """What a small step changes the loss by."""
    passes.difference(case, ctx, params_of(case), function, emit)


def _wrapped(params: Tiled, inner: Function) -> Function:
    """The function alone, inside a layer, or under activation checkpointing."""

    def layer(x: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        return inner(x * LAYER_BEFORE, *others) * LAYER_AFTER

    def checkpointed(*tensors: torch.Tensor) -> torch.Tensor:
        return cast("torch.Tensor", checkpoint(inner, *tensors, use_reentrant=False))

    return {"call": inner, "layer": layer, "checkpoint": checkpointed}[params.wrap]


def _listed(params: FeedForward | HeadLoss, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor] | None:
    return list(tensors) if params.listed == "all" else None


def _mlp(params: FeedForward, ctx: RankContext, subject: Subject) -> Function:
    names = tuple(params.parameters())
    operation = subject.tiled_mlp(ctx, functions.mlp, shards=params.shards)

    def function(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        return operation(Module(names, weights), x, _listed(params, weights))

    return function


def _compute(params: Compute, ctx: RankContext, subject: Subject) -> Function:
    names = tuple(params.parameters())

    def of_module(x: torch.Tensor, module: Module) -> torch.Tensor:
        return functions.mlp(module, x)

    def of_tensors(x: torch.Tensor, **weights: torch.Tensor) -> torch.Tensor:
        return functions.mlp(Module(names, [weights[name] for name in names]), x)

    operation = subject.tiled_compute(
        ctx,
        of_module if params.passed == "module" else of_tensors,
        shards=params.shards,
        unshard=1,
        reduction=None,
        wrapper=params.entry == "wrapper",
    )

    def function(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        return operation({"x": x}, _passed(params.passed, names, weights), "x", _listed(params, weights))

    return function


def _passed(how: str, names: Sequence[str], weights: Sequence[torch.Tensor]) -> dict[str, Any]:
    """What is handed to every shard: the parameters one by one, or the module that has them."""
    return dict(zip(names, weights, strict=True)) if how == "tensors" else {"module": Module(names, weights)}


def _compute_loss(params: ComputeLoss, ctx: RankContext, subject: Subject) -> Function:
    names = tuple(params.parameters())
    loss = functions.head_loss(params.reduction)

    def of_module(x: torch.Tensor, labels: torch.Tensor, module: Module) -> torch.Tensor:
        return _as_part(loss(module, x, labels), params.unshard)

    def of_tensors(x: torch.Tensor, labels: torch.Tensor, **weights: torch.Tensor) -> torch.Tensor:
        return _as_part(loss(Module(names, [weights[name] for name in names]), x, labels), params.unshard)

    operation = subject.tiled_compute(
        ctx,
        of_module if params.passed == "module" else of_tensors,
        shards=params.shards,
        unshard=params.unshard,
        reduction="mean" if params.reduction == "mean" else "sum",
        wrapper=params.entry == "wrapper",
    )

    def tiled(x: torch.Tensor, labels: torch.Tensor, weights: Sequence[torch.Tensor]) -> torch.Tensor:
        passed = _passed(params.passed, names, weights)
        return operation({"x": x, "labels": labels}, passed, "x", _listed(params, weights))

    return _loss_function(params, tiled)


def _as_part(loss: torch.Tensor, unshard: int) -> torch.Tensor:
    """A shard's loss as what shards are put together from: a number, or a sequence of one token."""
    return loss if unshard == 0 else loss.reshape(1, 1)


def _fused_loss(params: FusedLoss, ctx: RankContext, subject: Subject) -> Function:
    names = tuple(params.parameters())
    operation = subject.tiled_fused_logits_loss(
        ctx,
        functions.head_loss(params.reduction),
        shards=params.shards,
        reduction="mean" if params.reduction == "mean" else "sum",
    )
    if params.mask == "absent":

        def tiled(x: torch.Tensor, labels: torch.Tensor, weights: Sequence[torch.Tensor]) -> torch.Tensor:
            return operation(Module(names, weights), x, labels, None, _listed(params, weights))

        return _loss_function(params, tiled)

    def masked(x: torch.Tensor, labels: torch.Tensor, mask: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        # What is masked has an ordinary label, so that the mask alone keeps it out.
        return _balanced(params, labels, operation(Module(names, weights), x, labels.clamp(min=0), mask, list(weights)))

    return masked


def _loss_function(params: HeadLoss, tiled: Callable[..., torch.Tensor]) -> Function:
    """A loss with labels, beside the embedding that shares its projection or not."""

    def alone(x: torch.Tensor, labels: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        return _balanced(params, labels, tiled(x, labels, weights))

    def embedded(x: torch.Tensor, labels: torch.Tensor, ids: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        return alone(x + torch.nn.functional.embedding(ids, weights[0]), labels, *weights)

    return embedded if params.tied == "yes" else alone


def _balanced(params: HeadLoss, labels: torch.Tensor, loss: torch.Tensor) -> torch.Tensor:
    return loss / (labels != IGNORED).sum() if params.reduction == "balanced" else loss


def _logits_loss(params: Tiled, ctx: RankContext, subject: Subject) -> Function:
    return subject.tiled_loss(ctx, functions.logits_loss, shards=params.shards, vocabulary=VOCABULARY)


def _chunked_feed_forward(params: ChunkedFeedForward, ctx: RankContext, subject: Subject) -> Function:
    operation = subject.chunked_feed_forward(ctx, chunk=params.chunk, add_bias=params.bias == "added")

    def function(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        y, bias = operation(x, *weights)
        return y if bias is None else y + bias

    return function


def _chunked_logits_loss(params: ChunkedLogitsLoss, ctx: RankContext, subject: Subject) -> Function:
    operation = subject.chunked_logits_loss(ctx, chunks=params.shards)
    own = slice(ctx.sp_rank * params.tokens, (ctx.sp_rank + 1) * params.tokens)

    def function(x: torch.Tensor, labels: torch.Tensor, head: torch.Tensor) -> torch.Tensor:
        gathered = operation(x, labels, head)
        return gathered[own] if params.part == "own" else gathered

    return function


BUILDERS: dict[str, Callable[[Any, RankContext, Subject], Function]] = {
    "compute": _compute,
    "compute_loss": _compute_loss,
    "mlp": _mlp,
    "fused_logits_loss": _fused_loss,
    "loss": _logits_loss,
    "fpdt_ffn": _chunked_feed_forward,
    "fpdt_logits_loss": _chunked_logits_loss,
}
"""Per probe, what makes its function."""
