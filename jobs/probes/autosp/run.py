"""Running the cases of family ``autosp``: the function under test, and one complete pass over it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn.functional import cross_entropy, embedding, linear, scaled_dot_product_attention

from jobs.contract import CaseInfo, ControlInfo
from jobs.probes import passes
from jobs.probes.autosp import mutants
from jobs.probes.autosp.mutants import Attend
from jobs.probes.autosp.shapes import FEATURES, LAYERS, PROJECTIONS, TOKENS, Exchanged, Gathered, Rewritten, params_of
from jobs.probes.lacking import as_lacking
from jobs.probes.layer import compose
from jobs.probes.passes import Function
from jobs.subject.base import Operation, RankContext, Subject

if TYPE_CHECKING:
    from jobs.probes import Emit


def build(case: CaseInfo, ctx: RankContext, subject: Subject) -> Function:
    """The subject's operation as the case calls it. Raises Unsupported where the subject has none."""
    params = params_of(case)
    if isinstance(params, Exchanged):
        return _compose(params, subject.autosp_all_to_all(ctx, scatter=params.scatter))
    if isinstance(params, Gathered):
        return _compose(params, subject.autosp_sequence(ctx, dim=params.dim, way=params.way))
    return _rewritten(subject.autosp_pass(ctx, model=model_of(params), then=params.then))


def build_control(control: ControlInfo, case: CaseInfo, ctx: RankContext) -> Function:
    """The same with a control's implementation in the subject's place."""
    params = params_of(case)
    if isinstance(params, Rewritten):
        return _rewritten(split(params, ctx, mutants.attention(control, ctx)))  # looked at as the subject's is
    return _compose(params, mutants.operation(control, params, ctx))


def exercise(case: CaseInfo, ctx: RankContext, function: Function, emit: Emit) -> None:
    """One complete pass: fresh inputs, forward, backward; nothing is kept.

    Raises Unsupported where the transport lacks a collective that the call or its derivative is made of.
    """
    with as_lacking(ctx):
        passes.exercise(case, ctx, params_of(case), function, emit)


def difference(case: CaseInfo, ctx: RankContext, function: Function, emit: Emit) -> None:
    """What a small step changes the loss by. Raises Unsupported as :func:`exercise` does."""
    with as_lacking(ctx):
        passes.difference(case, ctx, params_of(case), function, emit)


def _compose(params: Exchanged | Gathered, operation: Operation) -> Function:
    return compose(operation, in_layer=params.wrap == "layer", beside_frozen=params.loss == "frozen")


def _rewritten(model: Function) -> Function:
    """``model`` with the mark of what is traced when it is called: a central difference would trace it once more."""

    def rewritten(*tensors: torch.Tensor) -> torch.Tensor:
        return model(*tensors)

    rewritten._torchdynamo_orig_callable = model  # type: ignore[attr-defined]
    return rewritten


def model_of(params: Rewritten) -> Function:
    """The small model as its user writes it, for a whole sequence: the loss of every token, row by row."""
    by_rows = params.mask == "rows"

    def short(
        ids: torch.Tensor, labels: torch.Tensor, pos: torch.Tensor, seen: torch.Tensor, *weights: torch.Tensor
    ) -> torch.Tensor:
        return _losses(by_rows, ids, labels, pos, (pos, seen), weights)

    def hf(
        input_ids: torch.Tensor,
        labels: torch.Tensor,
        position_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        *weights: torch.Tensor,
    ) -> torch.Tensor:
        return _losses(by_rows, input_ids, labels, position_ids, (position_ids, attention_mask), weights)

    return hf if params.names == "hf" else short


def split(params: Rewritten, ctx: RankContext, attend: Attend) -> Function:
    """The same model on this rank's tokens alone, as a right pass leaves it; ``attend`` sees the whole sequence."""
    own = slice(ctx.sp_rank * TOKENS, (ctx.sp_rank + 1) * TOKENS)
    by_rows = params.mask == "rows"

    def part(
        ids: torch.Tensor, labels: torch.Tensor, pos: torch.Tensor, seen: torch.Tensor, *weights: torch.Tensor
    ) -> torch.Tensor:
        mine = (ids[:, own], labels[:, own], pos[:, own])
        return _losses(by_rows, *mine, (pos, seen), weights, attend)

    return part


def _losses(
    by_rows: bool,
    ids: torch.Tensor,
    labels: torch.Tensor,
    positions: torch.Tensor,
    masked_by: tuple[torch.Tensor, torch.Tensor],
    weights: tuple[torch.Tensor, ...],
    attend: Attend = scaled_dot_product_attention,
) -> torch.Tensor:
    """``masked_by``: the positions of all queries and of all keys."""
    queries, keys = masked_by
    symbols, places, *layers, head = weights
    h = embedding(ids, symbols) + embedding(positions, places)
    mask = (queries[:, None, :, None] >= keys[:, None, None, :]) if by_rows else None
    each = len(PROJECTIONS) + 1
    for index in range(LAYERS):
        *projections, output = layers[each * index : each * (index + 1)]
        q, k, v = (linear(h, one).unflatten(-1, (-1, FEATURES)).transpose(1, 2) for one in projections)
        seen = attend(q, k, v, attn_mask=mask) if by_rows else attend(q, k, v, is_causal=True)
        h = h + linear(seen.transpose(1, 2).flatten(2), output)
    return cross_entropy(linear(h, head).flatten(0, 1), labels.flatten(), reduction="none")
