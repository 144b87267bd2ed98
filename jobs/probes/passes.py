"""A function of a rank's tensors: a pass over it, forward and backward, and what a step changes its loss by.

On the straight line this stands inside jobs, under the families whose cases are such a function with a loss behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from jobs.contract import CaseInfo
from jobs.probes.case import LOSS_SCALE, Params, has_difference
from jobs.probes.inputs import make
from jobs.subject.base import RankContext

if TYPE_CHECKING:
    from jobs.probes import Emit

Function = Callable[..., torch.Tensor]


def exercise(case: CaseInfo, ctx: RankContext, params: Params, function: Function, emit: Emit) -> None:
    """Fresh inputs, forward, backward, and a look at what became of the inputs; nothing is kept."""
    specs = params.tensors(ctx.world_size, ctx.sp_rank)
    made = make(case, ctx, specs)
    arguments = _arguments(ctx, params)
    y = function(*(made[name] for name in arguments))
    emit("output", "y", _plain(y))
    if case.expect == "refusal":
        return
    if y.requires_grad:
        _backward(params, y, made)
        if params.loss == "accumulate":
            again = function(*(made[name] for name in arguments))
            emit("output", "y2", _plain(again))
            again.backward(made["w2"])
    for spec in specs:
        if spec.role != "cotangent":
            gradient = made[spec.name].grad
            emit("grad", spec.name, None if gradient is None else _plain(gradient))
        emit("cotangent" if spec.role == "cotangent" else "input", spec.name, made[spec.name])


def difference(case: CaseInfo, ctx: RankContext, params: Params, function: Function, emit: Emit) -> None:
    """This rank's [L(x + v) - L(x - v)] / 2 from the function's own forward, where the case has one.

    In an exact case a step of 1 is right and not coarse: its loss is at most quadratic in x, where the central
    difference is the derivative for any step, and with dyadic values nothing is rounded on the way. Others state a
    smaller step.
    """
    # It asks about derivative against forward; traced, it would cost compilations and say no more.
    if params.loss in ("forward_only", "none") or is_traced(function) or not has_difference(case):
        return
    if case.expect == "refusal":
        return  # it was answered all the same, with a result that no loss need fit
    arguments, losses = _arguments(ctx, params), []
    for step in (1, -1):
        made = make(case, ctx, params.tensors(ctx.world_size, ctx.sp_rank), step)
        with torch.no_grad():
            y = function(*(made[name] for name in arguments)).double()
        losses.append(_loss(params, y, {name: tensor.detach().double() for name, tensor in made.items()}))
    emit("fd", "loss", (losses[0] - losses[1]) / 2)


def _arguments(ctx: RankContext, params: Params) -> list[str]:
    return [spec.name for spec in params.tensors(ctx.world_size, ctx.sp_rank) if spec.role != "cotangent"]


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    # What torch's functional collectives return may still be on its way, in a wrapper without memory of its own: a
    # copy is a tensor like any other.
    return tensor.detach().clone()


def _backward(params: Params, y: torch.Tensor, made: dict[str, torch.Tensor]) -> None:
    """The first backward of the case's loss; where y needs no gradient, the caller reports its absence instead."""
    if params.loss in ("weighted", "accumulate"):
        y.backward(made["w"])
    elif params.loss != "forward_only":
        _loss(params, y, made).backward()


def _loss(params: Params, y: torch.Tensor, made: dict[str, torch.Tensor]) -> torch.Tensor:
    """The loss as a number."""
    if params.loss == "sum":
        return y.sum()
    if params.loss == "weighted":
        return (y * made["w"]).sum()
    if params.loss == "accumulate":
        return (y * made["w"]).sum() + (y * made["w2"]).sum()
    square = (y * y).sum()
    if params.loss == "shared":
        return square + (y * made["w"]).sum()
    return square * LOSS_SCALE if params.loss == "scaled" else square


def is_traced(function: Function) -> bool:
    """Whether ``function`` is to be traced when it is called."""
    return hasattr(function, "_torchdynamo_orig_callable")
