"""Running the cases of family ``exchange``: the function under test, and one complete pass over it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from jobs.contract import CaseInfo, ControlInfo
from jobs.probes.exchange import mutants
from jobs.probes.exchange.inputs import make
from jobs.probes.exchange.shapes import LAYER_AFTER, LAYER_BEFORE, LOSS_SCALE, Exchange, params_of
from jobs.subject.base import Operation, RankContext, Subject

if TYPE_CHECKING:
    from jobs.probes import Emit

Function = Callable[..., torch.Tensor]


def build(case: CaseInfo, ctx: RankContext, subject: Subject) -> Function:
    """The subject's operation as the case calls it. Raises Unsupported where the subject has none."""
    params = params_of(case)
    if case.probe == "dim0":
        return _compose(params, subject.dim0_exchange(ctx))
    if case.probe == "single_all_to_all":
        return _compose(params, subject.single_all_to_all(ctx, overlapped=params.how == "async", **_asked(params, ctx)))
    operation = subject.seq_head_exchange(ctx, **_asked(params, ctx))
    if params.before != "nothing":
        return _after(operation, subject.seq_head_exchange(ctx, **_asked(params.prelude(), ctx)))
    return _compose(params, operation)


def _asked(params: Exchange, ctx: RankContext) -> dict[str, Any]:
    return {"layout": params.layout, "scatter": params.scatter, "heads": params.head_count(ctx.world_size)}


def build_control(control: ControlInfo, case: CaseInfo, ctx: RankContext) -> Function:
    """The same with a control's implementation in the subject's place."""
    params = params_of(case)
    return _compose(params, mutants.operation(control, params, ctx))


def _compose(params: Exchange, operation: Operation) -> Function:
    """The operation alone or inside a layer, beside a frozen input or not."""

    def layer(x: torch.Tensor) -> torch.Tensor:
        return operation(x * LAYER_BEFORE) * LAYER_AFTER

    inner = layer if params.wrap == "layer" else operation

    def beside(x: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return inner(x) + inner(c)

    def alone(x: torch.Tensor) -> torch.Tensor:
        return inner(x)

    return beside if params.loss == "frozen" else alone


def _after(operation: Operation, first: Operation) -> Function:
    def second(x: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        first(u)
        return operation(x)

    return second


def exercise(case: CaseInfo, ctx: RankContext, function: Function, emit: Emit) -> None:
    """One complete pass: fresh inputs, forward, backward, central difference; nothing is kept."""
    params = params_of(case)
    specs = params.tensors(ctx.world_size, ctx.sp_rank)
    made = make(case, ctx)
    arguments = [spec.name for spec in specs if spec.role != "cotangent"]
    y = function(*(made[name] for name in arguments))
    emit("output", "y", y)
    if case.expect == "refusal":
        return
    if y.requires_grad:
        _backward(params, y, made)
        if params.loss == "accumulate":
            again = function(*(made[name] for name in arguments))
            emit("output", "y2", again)
            again.backward(made["w2"])
    for spec in specs:
        if spec.role != "cotangent":
            emit("grad", spec.name, made[spec.name].grad)
        emit("cotangent" if spec.role == "cotangent" else "input", spec.name, made[spec.name])
    if params.loss not in ("forward_only", "none") and not _is_traced(function):
        emit("fd", "loss", _central_difference(case, ctx, function, arguments))


def _backward(params: Exchange, y: torch.Tensor, made: dict[str, torch.Tensor]) -> None:
    """The first backward of the case's loss; where y needs no gradient, the caller reports its absence instead."""
    if params.loss in ("weighted", "accumulate"):
        y.backward(made["w"])
    elif params.loss != "forward_only":
        _loss(params, y, made).backward()


def _loss(params: Exchange, y: torch.Tensor, made: dict[str, torch.Tensor]) -> torch.Tensor:
    """The loss as a number."""
    if params.loss == "weighted":
        return (y * made["w"]).sum()
    if params.loss == "accumulate":
        return (y * made["w"]).sum() + (y * made["w2"]).sum()
    square = (y * y).sum()
    if params.loss == "shared":
        return square + (y * made["w"]).sum()
    return square * LOSS_SCALE if params.loss == "scaled" else square


def _central_difference(case: CaseInfo, ctx: RankContext, function: Function, arguments: list[str]) -> torch.Tensor:
    """This rank's [L(x + v) - L(x - v)] / 2 from the function's own forward.

    A step of 1 is right and not coarse: every loss here is at most quadratic in x, where the central difference is
    the derivative for any step, and with dyadic values nothing is rounded on the way.
    """
    params = params_of(case)
    losses = []
    for step in (1, -1):
        made = make(case, ctx, step)
        with torch.no_grad():
            y = function(*(made[name] for name in arguments)).double()
        losses.append(_loss(params, y, {name: tensor.detach().double() for name, tensor in made.items()}))
    return (losses[0] - losses[1]) / 2


def _is_traced(function: Function) -> bool:
    # A central difference asks about derivative against forward; traced, it would cost compilations and say no more.
    return hasattr(function, "_torchdynamo_orig_callable")
