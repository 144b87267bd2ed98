"""The implementations behind the controls: an exchange of ours, right, and wrong in one way at a time.

They know nothing of the oracle: the reference sends real messages between the ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from jobs.contract import ControlInfo
from jobs.probes.control import implementation_of
from jobs.probes.exchange.shapes import Exchange, head_share
from jobs.probes.traced import TracedAllToAll
from jobs.subject.base import Operation, RankContext

Forward = Callable[["torch.Tensor", "torch.Tensor"], "torch.Tensor"]
"""What a mutant makes of the right output, and of the input while it is at it."""
Backward = Callable[["Sent"], "torch.Tensor"]
"""What a mutant makes of the right gradient."""


@dataclass(frozen=True)
class Route:
    """One direction of an exchange: cut along one dimension, join what arrives along another.

    cuts   the size of the part that each rank gets, along ``cut``
    joins  the size of what each rank sends, along ``join``
    place  this rank's place in the group
    """

    cut: int
    cuts: tuple[int, ...]
    join: int
    joins: tuple[int, ...]
    place: int
    group: Any

    def run(self, x: torch.Tensor) -> torch.Tensor:
        """Send every rank its part of ``x`` and put together what arrives."""
        parts = x.split(list(self.cuts), self.cut)
        flat = torch.cat([part.reshape(-1) for part in parts])
        shapes = []
        for size in self.joins:
            shape = list(x.shape)
            shape[self.cut], shape[self.join] = self.cuts[self.place], size
            shapes.append(shape)
        # With one dimension for both (dim 0), what is sent and what arrives are blocks of the same size.
        lengths = [torch.Size(shape).numel() for shape in shapes]
        buffer = flat.new_empty(sum(lengths))
        dist.all_to_all_single(buffer, flat, lengths, [part.numel() for part in parts], group=self.group)
        arrived = zip(buffer.split(lengths), shapes, strict=True)
        return torch.cat([part.reshape(shape) for part, shape in arrived], self.join)

    def back(self) -> Route:
        """The way back."""
        return Route(self.join, self.joins, self.cut, self.cuts, self.place, self.group)


def route_of(params: Exchange, ctx: RankContext) -> Route:
    """The exchange that the case asks for."""
    ranks = ctx.sp_size
    if not params.layout:
        return Route(0, (1,) * ranks, 0, (1,) * ranks, ctx.sp_rank, ctx.group)
    sequence = 1 if params.layout == "bshd" else 0
    tokens = params.shapes(ctx.world_size, ctx.sp_rank)[0 if params.scatter == "heads" else 1][sequence]
    heads = tuple(head_share(params.head_count(ctx.world_size), ranks, place) for place in range(ranks))
    to_heads = Route(2, heads, sequence, (tokens,) * ranks, ctx.sp_rank, ctx.group)
    return to_heads if params.scatter == "heads" else to_heads.back()


@dataclass(frozen=True)
class Sent:
    """What a backward has at hand: the right gradient, the incoming one, the input, and the route."""

    right: torch.Tensor
    incoming: torch.Tensor
    x: torch.Tensor
    route: Route


class _Exchange(torch.autograd.Function):
    """A differentiable exchange: there along the route, back along the way back, each followed by its mutation."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, route: Route, forward: Forward, backward: Backward) -> torch.Tensor:
        y = route.run(x)
        ctx.route, ctx.mutation, ctx.x, ctx.shape = route, backward, x.detach().clone(), y.shape
        return forward(y, x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        right = ctx.route.back().run(grad.reshape(ctx.shape))
        return ctx.mutation(Sent(right, grad, ctx.x, ctx.route)), None, None, None


def _traced(params: Exchange, ctx: RankContext) -> Operation:
    """The reference for tracers: a dim-0 exchange, between two rearrangements where sequence and heads are meant.

    What is sent has one dimension. With more of them inductor may choose strides of its own in spite of contiguous(),
    and gloo in torch 2.2 then silently sends the wrong elements.
    """
    ranks, group = ctx.sp_size, ctx.group

    def dim0(x: torch.Tensor) -> torch.Tensor:
        return TracedAllToAll.apply(x.reshape(-1), group).reshape(x.shape)

    def bshd_to_heads(x: torch.Tensor) -> torch.Tensor:
        batch, tokens, heads, features = x.shape
        blocks = x.reshape(batch, tokens, ranks, heads // ranks, features).permute(2, 0, 1, 3, 4)
        return dim0(blocks).permute(1, 0, 2, 3, 4).reshape(batch, ranks * tokens, heads // ranks, features)

    return bshd_to_heads if params.layout else dim0


def _right(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return y


def _right_gradient(sent: Sent) -> torch.Tensor:
    return sent.right


def _block_zeroed(sent: Sent) -> torch.Tensor:
    # Along a dimension that every case has at least two of: the channels of dim 0, the tokens or heads otherwise.
    sent.right.narrow(1 if sent.route.cut == sent.route.join else sent.route.join, 0, 1).zero_()
    return sent.right


def _part_dropped(sent: Sent) -> torch.Tensor:
    size = sent.route.cuts[-1]
    sent.right.narrow(sent.route.cut, sent.right.shape[sent.route.cut] - size, size).zero_()
    return sent.right


def _swapped(sent: Sent) -> torch.Tensor:
    first, second = (2, 3) if sent.route.cut == sent.route.join else (sent.route.cut, sent.route.join)
    return sent.right.transpose(first, second).reshape(sent.right.shape)


def _rank_dropped(sent: Sent) -> torch.Tensor:
    return sent.right * (sent.route.place != len(sent.route.cuts) - 1)


def _not_a_number(sent: Sent) -> torch.Tensor:
    sent.right.view(-1)[0] = float("nan")
    return sent.right


def _cotangent_mutated(sent: Sent) -> torch.Tensor:
    sent.incoming.mul_(2)
    return sent.right


def _input_mutated(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    x.mul_(2)
    return y


FORWARDS: dict[str, Forward] = {
    "wrong_shape": lambda y, x: y.flatten(0, 1),
    "forward_permuted": lambda y, x: y.flip(2),
    "input_mutated": _input_mutated,
}
BACKWARDS: dict[str, Backward] = {
    "zeroed": lambda sent: torch.zeros_like(sent.right),
    "block_zeroed": _block_zeroed,
    "times_ranks": lambda sent: sent.right * len(sent.route.cuts),
    "over_ranks": lambda sent: sent.right / len(sent.route.cuts),
    "swapped": _swapped,
    "part_dropped": _part_dropped,
    "rank_dropped": _rank_dropped,
    "not_sent_back": lambda sent: sent.incoming.reshape(sent.right.shape).clone(),
    "stale": lambda sent: sent.x,
    "not_a_number": _not_a_number,
    "cotangent_mutated": _cotangent_mutated,
}


def operation(control: ControlInfo, params: Exchange, ctx: RankContext) -> Operation:
    """The implementation that ``control`` names."""
    name = implementation_of(control)
    if name == "traced_reference":
        return _traced(params, ctx)
    if name not in ("reference", "detached", *FORWARDS, *BACKWARDS):
        raise LookupError(f"control {control.id} names no implementation here")
    route = route_of(params, ctx)
    forward, backward = FORWARDS.get(name, _right), BACKWARDS.get(name, _right_gradient)

    def exchange(x: torch.Tensor) -> torch.Tensor:
        return _Exchange.apply(x.detach() if name == "detached" else x, route, forward, backward)

    return exchange
