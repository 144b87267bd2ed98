"""Running the cases of family ``loss``: the loss under test, and one complete pass over it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from jobs.contract import CaseInfo, ControlInfo
from jobs.probes import passes
from jobs.probes.case import LAYER_AFTER, LAYER_BEFORE
from jobs.probes.lacking import as_lacking
from jobs.probes.loss import mutants
from jobs.probes.loss.shapes import IGNORED, Aggregate, Tokens, params_of
from jobs.probes.passes import Function
from jobs.subject.base import RankContext, Subject
from jobs.subject.operations.loss import Batch, Cut, Loss, Step

if TYPE_CHECKING:
    from jobs.probes import Emit


def build(case: CaseInfo, ctx: RankContext, subject: Subject) -> Function:
    """The subject's loss as the case calls it. Raises Unsupported where the subject has none."""
    params = params_of(case)
    if isinstance(params, Tokens):
        return compose(params, subject.token_losses(ctx, how=params.how, strict=params.gather == "strict"))
    if isinstance(params, Aggregate):
        return compose(params, subject.aggregated_loss(ctx, recipe=params.recipe, reduction=params.reduction))
    strict = params.gather == "strict"
    if params.one_number:
        return stepped(subject.sequence_step(ctx, pieces=params.pieces, strict=strict))
    return over_shards(subject.sequence_shards(ctx, strict=strict))


def build_control(control: ControlInfo, case: CaseInfo, ctx: RankContext) -> Function:
    """The same with a control's implementation in the subject's place."""
    return mutants.function(control, params_of(case), ctx, compose)


def compose(params: Tokens | Aggregate, loss: Loss) -> Function:
    """The loss alone or inside a layer, beside frozen logits or not."""

    def layer(x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return loss(x * LAYER_BEFORE, labels) * LAYER_AFTER

    inner = layer if params.wrap == "layer" else loss

    def beside(x: torch.Tensor, labels: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return inner(x, labels) + inner(c, labels)

    def alone(x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return inner(x, labels)

    return beside if params.loss == "frozen" else alone


def over_shards(cut: Cut) -> Function:
    """Of each sequence, this rank's sum over its shard: the logits of a token are its row of ``x``."""

    def function(x: torch.Tensor, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        sums = []
        for batch in cut(whole_batch(ids, labels)):
            logits = x[batch["input_ids"].to(x.device)].reshape(-1, x.shape[1])
            wide = logits.float() if x.dtype.itemsize == 2 else logits
            follow = batch["shift_labels"].to(x.device).reshape(-1)
            sums.append(torch.nn.functional.cross_entropy(wide, follow, ignore_index=IGNORED, reduction="sum"))
        return torch.stack(sums)

    return function


def stepped(step: Step) -> Function:
    """The step's loss, whose derivative is the gradient that the step's own backward left behind."""

    def function(x: torch.Tensor, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        table = x.detach().clone().requires_grad_()
        with torch.enable_grad():
            value = step(whole_batch(ids, labels), lambda tokens: table[tokens])
        loss = x.new_tensor(value)
        return loss if table.grad is None else _Left.apply(x, loss, table.grad)

    return function


def whole_batch(ids: torch.Tensor, labels: torch.Tensor) -> Batch:
    """This rank's own sequences, as a loader gives them."""
    positions = torch.arange(ids.shape[1], device=ids.device).expand(ids.shape).contiguous()
    return {"input_ids": ids, "position_ids": positions, "labels": labels}


class _Left(torch.autograd.Function):
    """A number whose derivative is known."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, value: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        ctx.gradient = gradient
        return value.clone()

    @staticmethod
    def backward(ctx: Any, incoming: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return ctx.gradient * incoming, None, None


def exercise(case: CaseInfo, ctx: RankContext, function: Function, emit: Emit) -> None:
    """One complete pass: fresh inputs, forward, backward; nothing is kept.

    Raises Unsupported where torch has no kernel for the case's type on this kind of device.
    """
    with as_lacking(ctx):
        passes.exercise(case, ctx, params_of(case), function, emit)


def difference(case: CaseInfo, ctx: RankContext, function: Function, emit: Emit) -> None:
    """What a small step changes the loss by. Raises Unsupported as :func:`exercise` does."""
    params = params_of(case)

    def counted(role: str, name: str, tensor: torch.Tensor | None) -> None:
        emit(role, name, tensor / ctx.sp_size if params.once and tensor is not None else tensor)

    # A step that is right for the type of the tensors is lost in another one that is calculated in.
    if params.effective == case.dtype:
        with as_lacking(ctx):
            passes.difference(case, ctx, params, function, counted)
