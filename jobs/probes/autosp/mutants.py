"""The implementations behind the controls: operators of ours, right, and wrong in one way at a time.

They know nothing of the oracle: the reference sends real messages between the ranks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.functional import scaled_dot_product_attention

from jobs.contract import ControlInfo
from jobs.probes.autosp.shapes import Exchanged, Gathered
from jobs.probes.control import implementation_of
from jobs.probes.traced import TracedAllToAll
from jobs.subject.base import Operation, RankContext


@dataclass(frozen=True)
class Sent:
    """What a backward has at hand: the right gradient, the incoming one, the input, and the ranks."""

    right: torch.Tensor
    incoming: torch.Tensor
    x: torch.Tensor
    ctx: RankContext


Move = Callable[[torch.Tensor], torch.Tensor]
Change = Callable[[Sent], torch.Tensor]
Attend = Callable[..., torch.Tensor]
"""From queries, keys and values, and how they are masked, to what was attended to."""


class _Moved(torch.autograd.Function):
    """A map there, its transpose back, and what a mutant makes of the latter."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, there: Move, back: Move, change: Change, rank: RankContext) -> torch.Tensor:
        ctx.back, ctx.change, ctx.x, ctx.rank = back, change, x.detach().clone(), rank
        return there(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return ctx.change(Sent(ctx.back(grad), grad, ctx.x, ctx.rank)), None, None, None, None


def _exchange(x: torch.Tensor, ranks: int, scatter: str, send: Operation) -> torch.Tensor:
    """Between sequence and heads, [batch, heads, sequence, features], over an exchange of equal parts of a vector."""
    batch, heads, tokens, features = x.shape
    if scatter == "heads":
        blocks = x.reshape(batch, ranks, heads // ranks, tokens, features).permute(1, 0, 2, 3, 4)
        arrived = send(blocks.reshape(-1)).reshape(blocks.shape)
        return arrived.permute(1, 2, 0, 3, 4).reshape(batch, heads // ranks, ranks * tokens, features)
    blocks = x.reshape(batch, heads, ranks, tokens // ranks, features).permute(2, 0, 1, 3, 4)
    arrived = send(blocks.reshape(-1)).reshape(blocks.shape)
    return arrived.permute(1, 0, 2, 3, 4).reshape(batch, ranks * heads, tokens // ranks, features)


def _maps(params: Exchanged | Gathered, ctx: RankContext) -> tuple[Move, Move]:
    """The map of a case and its transpose."""
    ranks, group = ctx.sp_size, ctx.group

    def send(flat: torch.Tensor) -> torch.Tensor:
        buffer = torch.empty_like(flat)
        dist.all_to_all_single(buffer, flat, group=group)
        return buffer

    if isinstance(params, Exchanged):
        way, other = ("heads", "sequence") if params.scatter == "heads" else ("sequence", "heads")
        return lambda x: _exchange(x, ranks, way, send), lambda x: _exchange(x, ranks, other, send)
    dim = params.dim

    def gather(x: torch.Tensor) -> torch.Tensor:
        parts = [torch.empty(x.shape, dtype=x.dtype, device=x.device) for _ in range(ranks)]
        dist.all_gather(parts, x.contiguous(), group=group)
        return torch.cat(parts, dim)

    def scatter(x: torch.Tensor) -> torch.Tensor:
        # In float64, so that the order of the ranks does not matter.
        whole = x.double().clone(memory_format=torch.contiguous_format)
        dist.all_reduce(whole, group=group)
        return whole.tensor_split(ranks, dim)[ctx.sp_rank].to(x.dtype)

    return (gather, scatter) if params.way == "gather" else (scatter, gather)


def _block_zeroed(sent: Sent) -> torch.Tensor:
    sent.right.narrow(1 if sent.right.shape[1] > 1 else 2, 0, 1).zero_()
    return sent.right


def _swapped(sent: Sent) -> torch.Tensor:
    return sent.right.transpose(1, 2).reshape(sent.right.shape)


def _own_part(sent: Sent) -> torch.Tensor:
    dim = next(d for d, (a, b) in enumerate(zip(sent.x.shape, sent.incoming.shape, strict=True)) if a != b)
    return sent.incoming.tensor_split(sent.ctx.sp_size, dim)[sent.ctx.sp_rank].clone()


CHANGES: dict[str, Change] = {
    "zeroed": lambda sent: torch.zeros_like(sent.right),
    "block_zeroed": _block_zeroed,
    "times_ranks": lambda sent: sent.right * sent.ctx.sp_size,
    "over_ranks": lambda sent: sent.right / sent.ctx.sp_size,
    "swapped": _swapped,
    "rank_dropped": lambda sent: sent.right * (sent.ctx.sp_rank != sent.ctx.sp_size - 1),
    "not_sent_back": lambda sent: sent.incoming.reshape(sent.right.shape).clone(),
    "stale": lambda sent: sent.x,
    "own_part": _own_part,
}


def attention(control: ControlInfo, ctx: RankContext) -> Attend:
    """Attention over the whole sequence for a rank that has a part of it; the values take the control's exchange."""
    right = dataclasses.replace(control, id="autosp/pass.reference")
    queries, keys, values, back = (
        operation(one, Exchanged(scatter=way), ctx)
        for one, way in ((right, "heads"), (right, "heads"), (control, "heads"), (right, "sequence"))
    )

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **mask: Any) -> torch.Tensor:
        return back(scaled_dot_product_attention(queries(q), keys(k), values(v), **mask))

    return attend


def operation(control: ControlInfo, params: Exchanged | Gathered, ctx: RankContext) -> Operation:
    """The implementation that ``control`` names."""
    name, ranks, group = implementation_of(control), ctx.sp_size, ctx.group
    if name == "traced_reference" and isinstance(params, Exchanged):
        way = params.scatter
        return lambda x: _exchange(x, ranks, way, lambda flat: TracedAllToAll.apply(flat, group))
    if name not in ("reference", "detached", *CHANGES):
        raise LookupError(f"control {control.id} names no implementation here")
    there, back = _maps(params, ctx)
    change = CHANGES.get(name, lambda sent: sent.right)

    def move(x: torch.Tensor) -> torch.Tensor:
        return _Moved.apply(x.detach() if name == "detached" else x, there, back, change, ctx)

    return move
