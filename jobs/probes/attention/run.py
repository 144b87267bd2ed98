"""Running the cases of family ``attention``: the function under test, and one complete pass over it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from jobs.contract import CaseInfo, ControlInfo
from jobs.probes import passes
from jobs.probes.attention import mutants
from jobs.probes.attention.core import Core, CoreHF
from jobs.probes.attention.shapes import SCALINGS, Attention, Chunked, Distributed, UlyssesHF, params_of
from jobs.probes.case import LAYER_AFTER
from jobs.probes.passes import Function
from jobs.subject.base import RankContext, Subject
from jobs.subject.operations.attention import Attend

if TYPE_CHECKING:
    from jobs.probes import Emit


def build(case: CaseInfo, ctx: RankContext, subject: Subject) -> Function:
    """The subject's operation as the case calls it. Raises Unsupported where the subject has none."""
    params = params_of(case)
    return BUILDERS[type(params)](params, ctx, subject)


def _build_distributed(params: Distributed, ctx: RankContext, subject: Subject) -> Function:
    first = _distributed(params.prelude(), ctx, subject) if params.before != "nothing" else None
    return compose(params, _distributed(params, ctx, subject), first)


def _build_ulysses(params: UlyssesHF, ctx: RankContext, subject: Subject) -> Function:
    attend = subject.ulysses_attention(
        ctx,
        core=CoreHF(params.causal == "yes"),
        features=params.features,
        batch=params.batch,
        tokens=params.tokens(ctx.sp_rank) if params.lengths == "fixed" else None,
        **_heads(params, ctx),
    )
    return compose(params, attend, attend if params.before != "nothing" else None)


def _build_chunked(params: Chunked, ctx: RankContext, subject: Subject) -> Function:
    return subject.chunked_attention(
        ctx,
        features=params.features,
        tokens=params.tokens(ctx.sp_rank),
        chunks=params.chunks,
        **_heads(params, ctx),
    )


BUILDERS: dict[type[Attention], Callable[..., Function]] = {
    Distributed: _build_distributed,
    UlyssesHF: _build_ulysses,
    Chunked: _build_chunked,
}


def _distributed(params: Distributed, ctx: RankContext, subject: Subject) -> Attend:
    return subject.distributed_attention(
        ctx,
        core=Core(params.layout, params.causal == "yes"),
        layout=params.layout,
        rotary=params.rotary != "no",
        gather=params.gather,
        told=params.told == "yes",
        overlap=params.overlap,
        **_heads(params, ctx),
    )


def _heads(params: Attention, ctx: RankContext) -> dict[str, int]:
    return {"heads": params.head_count(ctx.world_size), "kv_heads": params.kv_count(ctx.world_size)}


def build_control(control: ControlInfo, case: CaseInfo, ctx: RankContext) -> Function:
    """The same with a control's implementation in the subject's place."""
    params = params_of(case)
    return compose(params, mutants.operation(control, params, ctx), None)


def compose(params: Attention, attend: Attend, first: Attend | None) -> Function:
    """Attention alone or inside a layer, after another one or not.

    The tensors behind q, k and v are those that the parameters list: the layer's factors, attention's own, and those
    of what runs first.
    """
    layer, own = params.wrap == "layer", 1
    if isinstance(params, Distributed):
        own = 2 if params.rotated else 0
        if params.overlap != "no":
            return _recording(compose(replace(params, overlap="no"), _of_views(attend), first))

    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        if layer:
            q, k, v = q * rest[0], k * rest[1], v * rest[2]
            rest = rest[len(SCALINGS) :]
        if first is not None:
            first(*rest[own:])
        y = attend(q, k, v, *rest[:own])
        return y * LAYER_AFTER if layer else y

    return function


def _of_views(attend: Attend) -> Attend:
    """Queries, keys and values as views of what a projection returned: code that overlaps exchanges relies on it."""

    def attend_views(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: torch.Tensor) -> Any:
        return attend(*((x * 1.0).view(x.shape) for x in (q, k, v)), *rest)

    return attend_views


def _recording(function: Function) -> Function:
    """The same with gradients recorded, without which such code cannot be called: not in a central difference."""

    def recording(*tensors: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            return function(*tensors)

    return recording


def exercise(case: CaseInfo, ctx: RankContext, function: Function, emit: Emit) -> None:
    """One complete pass: fresh inputs, forward, backward; nothing is kept."""
    passes.exercise(case, ctx, params_of(case), function, emit)


def difference(case: CaseInfo, ctx: RankContext, function: Function, emit: Emit) -> None:
    """What a small step changes the loss by."""
    passes.difference(case, ctx, params_of(case), function, emit)
