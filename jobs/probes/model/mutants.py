"""The implementations behind the controls: an attention over ranks and a training step, wrong in one way at a time.

They know nothing of the oracle: the reference sends real messages between the ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from jobs.contract import ControlInfo
from jobs.probes.attention.core import Core
from jobs.probes.control import implementation_of
from jobs.probes.model.decoder import Attend, Decoding, Function, scopes
from jobs.probes.model.shapes import LEARNING_RATE, MOMENT, ROOT, STEP, Decoder
from jobs.probes.model.training import Named, Trainer
from jobs.probes.traced import TracedAllToAll
from jobs.subject.base import Operation, RankContext


@dataclass(frozen=True)
class Place:
    """Where a gradient is changed: this rank's place among the ranks, and what was there in the forward."""

    ranks: int
    place: int
    x: torch.Tensor


Change = Callable[[torch.Tensor, Place], torch.Tensor]
"""What a mutant makes of a gradient: [batch, tokens, heads, features]."""


class _AllToAll(torch.autograd.Function):
    """An exchange of equal parts of a vector, and the same exchange back."""

    @staticmethod
    def forward(ctx: Any, flat: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        buffer = torch.empty_like(flat)
        dist.all_to_all_single(buffer, flat, group=group)
        return buffer

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _AllToAll.apply(grad.contiguous(), ctx.group), None


class _Changed(torch.autograd.Function):
    """The identity, with a gradient that was changed."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, change: Change, ranks: int, place: int) -> torch.Tensor:
        ctx.change, ctx.at = change, Place(ranks, place, x.detach().clone())
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        return ctx.change(grad.clone(), ctx.at), None, None, None


def _attention(params: Decoder, ctx: RankContext, exchange: Operation, changes: dict[str, Change]) -> Attend:
    """Attention over the ranks: heads are dealt out, tokens joined, and back; ``changes`` by what they apply to."""
    ranks, place, sequence_first = ctx.sp_size, ctx.sp_rank, params.layout == "sbhd"
    core = Core("bshd", params.mask == "causal")

    def to_heads(x: torch.Tensor) -> torch.Tensor:
        batch, tokens, heads, features = x.shape
        blocks = x.reshape(batch, tokens, ranks, heads // ranks, features).permute(2, 0, 1, 3, 4)
        arrived = exchange(blocks.reshape(-1)).reshape(blocks.shape)
        return arrived.permute(1, 0, 2, 3, 4).reshape(batch, ranks * tokens, heads // ranks, features)

    def to_tokens(x: torch.Tensor) -> torch.Tensor:
        batch, tokens, heads, features = x.shape
        blocks = x.reshape(batch, ranks, tokens // ranks, heads, features).permute(1, 0, 2, 3, 4)
        arrived = exchange(blocks.reshape(-1)).reshape(blocks.shape)
        return arrived.permute(1, 2, 0, 3, 4).reshape(batch, tokens // ranks, ranks * heads, features)

    def changed(name: str, x: torch.Tensor) -> torch.Tensor:
        return _Changed.apply(x, changes[name], ranks, place) if name in changes else x

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        if sequence_first:
            q, k, v = q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1)
        seen = core(to_heads(changed("q", q)), to_heads(changed("k", k)), to_heads(changed("v", v)))
        out = changed("out", to_tokens(seen))
        return out.transpose(0, 1) if sequence_first else out

    return attend


def _zero(grad: torch.Tensor, at: Place) -> torch.Tensor:
    return torch.zeros_like(grad)


def _head_zeroed(grad: torch.Tensor, at: Place) -> torch.Tensor:
    grad[:, :, 0] = 0
    return grad


def _part_dropped(grad: torch.Tensor, at: Place) -> torch.Tensor:
    share = grad.shape[2] // at.ranks
    grad[:, :, -share:] = 0
    return grad


def _swapped(grad: torch.Tensor, at: Place) -> torch.Tensor:
    return grad.transpose(1, 2).reshape(grad.shape)


def _not_a_number(grad: torch.Tensor, at: Place) -> torch.Tensor:
    grad[0, 0, 0, 0] = float("nan")
    return grad


CHANGES: dict[str, dict[str, Change]] = {
    "zeroed": {"q": _zero, "k": _zero, "v": _zero},
    "q_zeroed": {"q": _zero},
    "k_zeroed": {"k": _zero},
    "v_zeroed": {"v": _zero},
    "head_zeroed": {"q": _head_zeroed},
    "part_dropped": {"v": _part_dropped},
    "rank_dropped": {name: lambda grad, at: grad * (at.place != at.ranks - 1) for name in "qkv"},
    "swapped": {"v": _swapped},
    "times_ranks": {"out": lambda grad, at: grad * at.ranks},
    "over_ranks": {"out": lambda grad, at: grad / at.ranks},
    "stale": {"v": lambda grad, at: at.x},
    "not_a_number": {"k": _not_a_number},
}
RESULTS: dict[str, Operation] = {
    "detached": lambda out: out.detach(),
    "forward_permuted": lambda out: out.flip(2),
}
"""What a mutant makes of the right result, [batch, tokens, heads, features] or tokens first."""


class _Averaged(Trainer):
    def contribution(self, ctx: RankContext, gradient: torch.Tensor) -> torch.Tensor:
        return gradient / ctx.sp_size


class _Unsummed(Trainer):
    def contribution(self, ctx: RankContext, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * (ctx.sp_rank != ctx.sp_size - 1)


class _Lost(Trainer):
    """Some of what one parameter's step consists of is zero."""

    prefixes: tuple[str, ...] = ()

    def step(self, parameters: Named, gradients: Named) -> Named:
        said = super().step(parameters, gradients)
        return said | {prefix + LOSER: torch.zeros_like(said[prefix + LOSER]) for prefix in self.prefixes}


class _NotStepped(_Lost):
    prefixes = (STEP,)


class _MomentsLost(_Lost):
    prefixes = (MOMENT, ROOT)


class _Decayed(Trainer):
    def step(self, parameters: Named, gradients: Named) -> Named:
        said = super().step(parameters, gradients)
        decay = {STEP + name: p.detach().to(said[STEP + name].dtype) for name, p in parameters.items()}
        return {
            name: step - LEARNING_RATE * DECAY * decay[name] if name in decay else step for name, step in said.items()
        }


LOSER, DECAY = "layer1.k_proj", 2.0**-3
TRAINERS: dict[str, type[Trainer]] = {
    "averaged": _Averaged,
    "unsummed": _Unsummed,
    "not_stepped": _NotStepped,
    "moments_lost": _MomentsLost,
    "decayed": _Decayed,
}


def function(control: ControlInfo, params: Decoder, ctx: RankContext) -> Function:
    """The part of the model that is traced, around the attention that ``control`` names; its trainer goes with it."""
    name, group = implementation_of(control), ctx.group
    if name not in ("reference", "traced_reference", *CHANGES, *RESULTS, *TRAINERS):
        raise LookupError(f"control {control.id} names no implementation here")
    exchange = TracedAllToAll if name == "traced_reference" else _AllToAll
    inner = _attention(params, ctx, lambda flat: exchange.apply(flat, group), CHANGES.get(name, {}))
    result = RESULTS.get(name)

    def spoilt(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return result(inner(q, k, v)) if result is not None else inner(q, k, v)

    part = scopes(params.traced, Decoding(params, ctx), spoilt if result is not None else inner)
    if name in TRAINERS:
        part.trainer = TRAINERS[name]()  # type: ignore[attr-defined]
    return part
