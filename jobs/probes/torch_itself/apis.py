"""Torch's collectives, differentiated in each of the ways that torch offers: what this family puts to the test.

Every way is written as its users write it, and hands over tensors as they come, strided or not; those with an autograd
function of their own are in ``functions``. A factory per collective and way gives the operation; it raises Unsupported
where this torch has no such function.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch._dynamo  # the first functional collective would import it, in every rank anew
import torch.distributed._functional_collectives as functional
import torch.distributed.nn.functional as nn

from jobs.probes.torch_itself.functions import (
    BufferAllGather,
    BufferAllReduce,
    BufferAllToAll,
    BufferBroadcast,
    BufferListAllToAll,
    BufferReduceScatter,
    FunctionalAllToAll,
    NnAllToAll,
    Splits,
)
from jobs.probes.torch_itself.shapes import Collective
from jobs.subject.base import Operation, RankContext, Unsupported


@dataclass(frozen=True)
class Call:
    """What every way of calling has to know: the group and this rank's place in it.

    leaving, arriving  rows per rank that an all-to-all sends and receives, or None where they are even
    root               a broadcast's source, named as the case asks; ``is_root`` where this rank is it
    """

    group: Any
    ranks: int
    place: int
    leaving: Splits
    arriving: Splits
    root: int
    is_root: bool


def _call(params: Collective, ctx: RankContext) -> Call:
    even = params.splits == "even"
    return Call(
        group=ctx.group,
        ranks=ctx.sp_size,
        place=ctx.sp_rank,
        leaving=None if even else list(params.counts(ctx.world_size, ctx.sp_rank)),
        arriving=None if even else list(params.received(ctx.world_size, ctx.sp_rank)),
        root=ctx.ranks[0] if params.root == "global" else 0,
        is_root=ctx.sp_rank == 0,
    )


# -- all-to-all ----------------------------------------------------------------------------------------------------
# Below, what an operation needs are local names of its factory: every tracer takes those for constants.


def _a2a_buffer(call: Call) -> Operation:
    group, arriving, leaving = call.group, call.arriving, call.leaving
    return lambda x: BufferAllToAll.apply(x, group, arriving, leaving)


def _a2a_nn_in_function(call: Call) -> Operation:
    group = call.group
    return lambda x: NnAllToAll.apply(x, group)


def _a2a_nn(call: Call) -> Operation:
    group, arriving, leaving = call.group, call.arriving, call.leaving

    def operation(x: torch.Tensor) -> torch.Tensor:
        y = x.new_empty((sum(arriving), *x.shape[1:])) if arriving else x.new_empty(x.shape)
        return nn.all_to_all_single(y, x, arriving, leaving, group=group)

    return operation


def _a2a_functional_in_function(call: Call) -> Operation:
    group = call.group
    return lambda x: FunctionalAllToAll.apply(x, group)


def _a2a_functional(call: Call) -> Operation:
    group, arriving, leaving = call.group, call.arriving, call.leaving
    return lambda x: functional.all_to_all_single(x, arriving, leaving, group)


def _a2a_functional_autograd(call: Call) -> Operation:
    group, arriving, leaving = call.group, call.arriving, call.leaving
    exchange = _of(functional, "all_to_all_single_autograd")
    return lambda x: exchange(x, arriving, leaving, group)


def _a2a_functional_autograd_waited(call: Call) -> Operation:
    group, arriving, leaving = call.group, call.arriving, call.leaving
    exchange = _of(functional, "all_to_all_single_autograd")
    return lambda x: functional.wait_tensor(exchange(x, arriving, leaving, group))


def _a2a_nn_list(call: Call) -> Operation:
    group, ranks = call.group, call.ranks

    def operation(x: torch.Tensor) -> torch.Tensor:
        parts = list(x.chunk(ranks))
        return torch.cat(nn.all_to_all([torch.empty_like(part) for part in parts], parts, group=group))

    return operation


def _a2a_list(call: Call) -> Operation:
    group, ranks = call.group, call.ranks
    return lambda x: BufferListAllToAll.apply(x, group, ranks)


# -- the others ----------------------------------------------------------------------------------------------------


def _all_reduce_nn(call: Call) -> Operation:
    group = call.group
    return lambda x: nn.all_reduce(x, group=group)


def _all_reduce_functional(call: Call) -> Operation:
    group = call.group
    return lambda x: functional.all_reduce(x, "sum", group)


def _all_reduce_buffer(call: Call) -> Operation:
    group = call.group
    return lambda x: BufferAllReduce.apply(x, group)


def _all_gather_nn(call: Call) -> Operation:
    group = call.group
    return lambda x: torch.cat(nn.all_gather(x, group=group))


def _all_gather_functional(call: Call) -> Operation:
    group = call.group
    return lambda x: functional.all_gather_tensor(x, 0, group)


def _all_gather_functional_autograd(call: Call) -> Operation:
    group = call.group
    gather = _of(functional, "all_gather_tensor_autograd")
    return lambda x: gather(x, 0, group)


def _all_gather_buffer(call: Call) -> Operation:
    group, ranks, place = call.group, call.ranks, call.place
    return lambda x: BufferAllGather.apply(x, group, ranks, place)


def _reduce_scatter_nn(call: Call) -> Operation:
    group, ranks = call.group, call.ranks

    def operation(x: torch.Tensor) -> torch.Tensor:
        parts = list(x.chunk(ranks))
        return nn.reduce_scatter(torch.empty_like(parts[0]), parts, group=group)

    return operation


def _reduce_scatter_functional(call: Call) -> Operation:
    group = call.group
    return lambda x: functional.reduce_scatter_tensor(x, "sum", 0, group)


def _reduce_scatter_functional_autograd(call: Call) -> Operation:
    group = call.group
    scatter = _of(functional, "reduce_scatter_tensor_autograd")
    return lambda x: scatter(x, "sum", 0, group)


def _reduce_scatter_buffer(call: Call) -> Operation:
    group, ranks = call.group, call.ranks
    return lambda x: BufferReduceScatter.apply(x, group, ranks)


def _broadcast_nn(call: Call) -> Operation:
    group, root = call.group, call.root
    return lambda x: nn.broadcast(x, root, group=group)


def _broadcast_functional(call: Call) -> Operation:
    group, root = call.group, call.root
    broadcast = _of(functional, "broadcast")
    return lambda x: broadcast(x, root, group)


def _broadcast_buffer(call: Call) -> Operation:
    group, root, is_root = call.group, call.root, call.is_root
    return lambda x: BufferBroadcast.apply(x, group, root, is_root)


def _of(module: Any, name: str) -> Any:
    """The function of that name, where this torch has it."""
    found = getattr(module, name, None)
    if found is None:
        raise Unsupported(f"torch {torch.__version__} has no {module.__name__}.{name}")
    return found


APIS: dict[str, dict[str, Callable[[Call], Operation]]] = {
    "all_to_all": {
        "buffer_in_function": _a2a_buffer,
        "nn_in_function": _a2a_nn_in_function,
        "nn": _a2a_nn,
        "functional_in_function": _a2a_functional_in_function,
        "functional_autograd": _a2a_functional_autograd,
        "functional_autograd_waited": _a2a_functional_autograd_waited,
        "functional": _a2a_functional,
        "nn_list": _a2a_nn_list,
        "list_in_function": _a2a_list,
    },
    "all_reduce": {
        "nn": _all_reduce_nn,
        "functional": _all_reduce_functional,
        "buffer_in_function": _all_reduce_buffer,
    },
    "all_gather": {
        "nn": _all_gather_nn,
        "functional": _all_gather_functional,
        "functional_autograd": _all_gather_functional_autograd,
        "buffer_in_function": _all_gather_buffer,
    },
    "reduce_scatter": {
        "nn": _reduce_scatter_nn,
        "functional": _reduce_scatter_functional,
        "functional_autograd": _reduce_scatter_functional_autograd,
        "buffer_in_function": _reduce_scatter_buffer,
    },
    "broadcast": {
        "nn": _broadcast_nn,
        "functional": _broadcast_functional,
        "buffer_in_function": _broadcast_buffer,
    },
}
"""Per collective and way of calling it, what makes the operation."""


def operation(params: Collective, ctx: RankContext) -> Operation:
    """The operation that the case asks for. Raises Unsupported, naming what this torch lacks."""
    return APIS[params.collective][params.api](_call(params, ctx))
