"""The implementations behind the controls: every collective out of one exchange of messages, right, and wrong in one
way at a time.

They know nothing of the oracle: real messages go between the ranks. The one primitive is an all-to-all of whole
vectors, the form that every transport and every torch so far carries out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

from jobs.contract import ControlInfo
from jobs.probes.control import implementation_of
from jobs.probes.torch_itself.shapes import CLASSES, IGNORED, Aggregation, Collective
from jobs.probes.traced import TracedAllToAll
from jobs.subject.base import Operation, RankContext

Step = Callable[["torch.Tensor"], "torch.Tensor"]
Forward = Callable[["torch.Tensor", "torch.Tensor", "Route"], "torch.Tensor"]
"""What a mutant makes of the right output, and of the input while it is at it."""
Backward = Callable[["Sent"], "torch.Tensor"]
"""What a mutant makes of the right gradient."""


@dataclass(frozen=True)
class Route:
    """One collective in one group: there, and its transpose."""

    ranks: int
    place: int
    there: Step
    back: Step


def _route(params: Collective, ctx: RankContext) -> Route:
    ranks, place, group = ctx.sp_size, ctx.sp_rank, ctx.group

    def swap(parts: Sequence[torch.Tensor], rows: Sequence[int]) -> list[torch.Tensor]:
        """Send each rank its part; ``rows`` is how many rows come from each."""
        rest = parts[0].shape[1:]
        flat = torch.cat([part.reshape(-1) for part in parts])
        lengths = [count * rest.numel() for count in rows]
        buffer = flat.new_empty(sum(lengths))
        dist.all_to_all_single(buffer, flat, lengths, [part.numel() for part in parts], group=group)
        return [part.reshape(-1, *rest) for part in buffer.split(lengths)]

    def everyone(x: torch.Tensor) -> list[torch.Tensor]:
        return swap([x] * ranks, [x.shape[0]] * ranks)

    def join(x: torch.Tensor) -> torch.Tensor:
        return torch.cat(everyone(x))

    def cut(x: torch.Tensor) -> torch.Tensor:
        parts = x.chunk(ranks)
        return sum_of(swap(parts, [parts[0].shape[0]] * ranks))

    def to_first(x: torch.Tensor) -> torch.Tensor:
        total = sum_of(everyone(x))
        return total if place == 0 else torch.zeros_like(total)

    leaving = params.counts(ctx.world_size, place)
    arriving = params.received(ctx.world_size, place)
    steps: dict[str, tuple[Step, Step]] = {
        "all_reduce": (lambda x: sum_of(everyone(x)), lambda grad: sum_of(everyone(grad))),
        "all_gather": (join, cut),
        "reduce_scatter": (cut, join),
        "broadcast": (lambda x: everyone(x)[0], to_first),
        "all_to_all": (
            lambda x: torch.cat(swap(x.split(list(leaving)), arriving)),
            lambda grad: torch.cat(swap(grad.split(list(arriving)), leaving)),
        ),
    }
    return Route(ranks, place, *steps[params.collective])


def sum_of(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """The sum of what all ranks sent."""
    return torch.stack(list(parts)).sum(0)


@dataclass(frozen=True)
class Sent:
    """What a backward has at hand: the right gradient, the incoming one, the input, and the route."""

    right: torch.Tensor
    incoming: torch.Tensor
    x: torch.Tensor
    route: Route


class _Collective(torch.autograd.Function):
    """A differentiable collective: there and back along the route, each followed by its mutation."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, route: Route, forward: Forward, backward: Backward) -> torch.Tensor:
        y = route.there(x)
        ctx.route, ctx.mutation, ctx.x, ctx.shape = route, backward, x.detach().clone(), y.shape
        return forward(y, x, route)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return ctx.mutation(Sent(ctx.route.back(grad.reshape(ctx.shape)), grad, ctx.x, ctx.route)), None, None, None


class _TracedSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, flat: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        return functional.wait_tensor(functional.all_reduce(flat, "sum", group))

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return functional.wait_tensor(functional.all_reduce(grad.contiguous(), "sum", ctx.group)), None


def _traced(params: Collective, ctx: RankContext) -> Operation:
    """The reference for tracers, on vectors: with more dimensions inductor may choose strides that gloo misreads."""
    group, function = ctx.group, _TracedSum if params.collective == "all_reduce" else TracedAllToAll
    return lambda x: function.apply(x.reshape(-1), group).reshape(x.shape)


def _own(sent: Sent) -> torch.Tensor:
    """This rank's share of its own incoming gradient alone: what the others send is left out."""
    route, rows = sent.route, sent.right.shape[0]
    if sent.incoming.shape == sent.right.shape:
        return sent.incoming.clone()
    return sent.incoming.narrow(0, route.place * rows, rows).clone()


def _last_left_out(sent: Sent) -> torch.Tensor:
    """The sum over the ranks lacks what the last of them sends."""
    last = sent.route.place == sent.route.ranks - 1
    return sent.route.back(sent.incoming * (0 if last else 1))


def _last_part_zeroed(sent: Sent) -> torch.Tensor:
    rows = sent.right.shape[0] // sent.route.ranks
    sent.right.narrow(0, sent.right.shape[0] - rows, rows).zero_()
    return sent.right


def _not_a_number(sent: Sent) -> torch.Tensor:
    sent.right.view(-1)[0] = float("nan")
    return sent.right


def _cotangent_mutated(sent: Sent) -> torch.Tensor:
    sent.incoming.mul_(2)
    return sent.right


def _input_mutated(y: torch.Tensor, x: torch.Tensor, route: Route) -> torch.Tensor:
    x.mul_(2)
    return y


FORWARDS: dict[str, Forward] = {
    "averaged": lambda y, x, route: y / route.ranks,
    "wrong_shape": lambda y, x, route: y.flatten(0, 1),
    "input_mutated": _input_mutated,
}
BACKWARDS: dict[str, Backward] = {
    "zeroed": lambda sent: torch.zeros_like(sent.right),
    "times_ranks": lambda sent: sent.right * sent.route.ranks,
    "over_ranks": lambda sent: sent.right / sent.route.ranks,
    "own_alone": _own,
    "last_left_out": _last_left_out,
    "last_part_zeroed": _last_part_zeroed,
    "on_every_rank": lambda sent: sent.route.there(sent.right),
    "swapped": lambda sent: sent.right.transpose(2, 3).reshape(sent.right.shape),
    "stale": lambda sent: sent.x,
    "not_a_number": _not_a_number,
    "cotangent_mutated": _cotangent_mutated,
}


def _right(y: torch.Tensor, x: torch.Tensor, route: Route) -> torch.Tensor:
    return y


def _right_gradient(sent: Sent) -> torch.Tensor:
    return sent.right


def _of_route(name: str, params: Collective, ctx: RankContext) -> Operation:
    route = _route(params, ctx)
    forward, backward = FORWARDS.get(name, _right), BACKWARDS.get(name, _right_gradient)

    def collective(x: torch.Tensor) -> torch.Tensor:
        return _Collective.apply(x.detach() if name == "detached" else x, route, forward, backward)

    return collective


def _of_loss(name: str, params: Aggregation, ctx: RankContext) -> Operation:
    """A loss aggregated by a sum of ours; every rank knows every rank's labels."""
    labels = [params.labels(ctx.world_size, place) for place in range(ctx.sp_size)]
    counts = [sum(label != IGNORED for label in mine) for mine in labels]
    # A factor per log-probability, and not only those that count: a rank without tokens takes part in the backward.
    factors = torch.tensor(
        [[-float(label == index) for index in range(CLASSES)] for label in labels[ctx.sp_rank]], device=ctx.device
    )
    total = _of_route("own_alone" if name == "own_loss_alone" else "", Collective("all_reduce"), ctx)

    def loss(x: torch.Tensor) -> torch.Tensor:
        mine = (x * factors).sum().reshape(1)
        if name == "mean_of_means":
            return (total(mine / max(1, counts[ctx.sp_rank])) / sum(count > 0 for count in counts)).reshape(())
        return (total(mine) / sum(counts)).reshape(())

    return loss


def operation(control: ControlInfo, params: Collective | Aggregation, ctx: RankContext) -> Operation:
    """The implementation that ``control`` names."""
    name = implementation_of(control)
    if isinstance(params, Aggregation):
        known, make = ("reference", "own_loss_alone", "mean_of_means"), _of_loss
        return make(_known(control, known), params, ctx)
    if name == "traced_reference":
        return _traced(params, ctx)
    return _of_route(_known(control, ("reference", "detached", *FORWARDS, *BACKWARDS)), params, ctx)


def _known(control: ControlInfo, names: Sequence[str]) -> str:
    name = implementation_of(control)
    if name not in names:
        raise LookupError(f"control {control.id} names no implementation here; there are {', '.join(names)}")
    return name
