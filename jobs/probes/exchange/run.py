"""Running the cases of family ``exchange``: the function under test, and one complete pass over it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from jobs.contract import CaseInfo, ControlInfo
from jobs.probes import passes
from jobs.probes.exchange import mutants
from jobs.probes.exchange.shapes import Exchange, params_of
from jobs.probes.layer import compose
from jobs.probes.passes import Function
from jobs.subject.base import Operation, RankContext, Subject

if TYPE_CHECKING:
    from jobs.probes import Emit


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
    return compose(operation, in_layer=params.wrap == "layer", beside_frozen=params.loss == "frozen")


def _after(operation: Operation, first: Operation) -> Function:
    def second(x: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        first(u)
        return operation(x)

    return second


def exercise(case: CaseInfo, ctx: RankContext, function: Function, emit: Emit) -> None:
    """One complete pass: fresh inputs, forward, backward; nothing is kept."""
    passes.exercise(case, ctx, params_of(case), function, emit)


def difference(case: CaseInfo, ctx: RankContext, function: Function, emit: Emit) -> None:
    """What a small step changes the loss by."""
    passes.difference(case, ctx, params_of(case), function, emit)
