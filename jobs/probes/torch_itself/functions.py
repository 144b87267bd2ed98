"""Collectives inside autograd functions, as libraries write them: what some of ``apis`` put to the test.

Tensors are handed over as they come, strided or not, and buffers are new.
"""

# ruff: noqa: D102 - forward and backward are torch's own names, and say all there is to say
from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.nn.functional as nn

Splits = list[int] | None


class BufferAllToAll(torch.autograd.Function):
    """An all-to-all along the first dimension, even or by rows per rank."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any, arriving: Splits, leaving: Splits) -> torch.Tensor:
        ctx.group, ctx.arriving, ctx.leaving, ctx.shape = group, arriving, leaving, x.shape
        y = x.new_empty((sum(arriving), *x.shape[1:])) if arriving else x.new_empty(x.shape)
        dist.all_to_all_single(y, x, arriving, leaving, group=group)
        return y

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        back = grad.new_empty(ctx.shape)
        dist.all_to_all_single(back, grad, ctx.leaving, ctx.arriving, group=ctx.group)
        return back, None, None, None


class NnAllToAll(torch.autograd.Function):
    """The exchange that torch differentiates, differentiated by hand."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        return nn.all_to_all_single(x.new_empty(x.shape), x, group=group)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return nn.all_to_all_single(grad.new_empty(grad.shape), grad, group=ctx.group), None


class FunctionalAllToAll(torch.autograd.Function):
    """A functional exchange and its wait."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        return functional.wait_tensor(functional.all_to_all_single(x, None, None, group))

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return functional.wait_tensor(functional.all_to_all_single(grad, None, None, ctx.group)), None


class BufferListAllToAll(torch.autograd.Function):
    """An all-to-all of lists of parts."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any, ranks: int) -> torch.Tensor:
        ctx.group, ctx.ranks = group, ranks
        y = x.new_empty(x.shape)
        dist.all_to_all(list(y.chunk(ranks)), list(x.chunk(ranks)), group=group)
        return y

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        back = grad.new_empty(grad.shape)
        dist.all_to_all(list(back.chunk(ctx.ranks)), list(grad.chunk(ctx.ranks)), group=ctx.group)
        return back, None, None


class BufferAllReduce(torch.autograd.Function):
    """A sum over the ranks, in place of a copy."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        y = x.clone()
        dist.all_reduce(y, group=group)
        return y

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        back = grad.clone()
        dist.all_reduce(back, group=ctx.group)
        return back, None


class BufferAllGather(torch.autograd.Function):
    """The parts of all ranks."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any, ranks: int, place: int) -> torch.Tensor:
        ctx.group, ctx.ranks, ctx.place = group, ranks, place
        y = x.new_empty((ranks * x.shape[0], *x.shape[1:]))
        dist.all_gather_into_tensor(y, x, group=group)
        return y

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        # Gloo has no reduce-scatter in many versions, and every one has this.
        whole = grad.clone()
        dist.all_reduce(whole, group=ctx.group)
        return whole.chunk(ctx.ranks)[ctx.place].clone(), None, None, None


class BufferReduceScatter(torch.autograd.Function):
    """This rank's part of a sum over the ranks."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any, ranks: int) -> torch.Tensor:
        ctx.group, ctx.shape = group, x.shape
        y = x.new_empty((x.shape[0] // ranks, *x.shape[1:]))
        dist.reduce_scatter_tensor(y, x, group=group)
        return y

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        back = grad.new_empty(ctx.shape)
        dist.all_gather_into_tensor(back, grad, group=ctx.group)
        return back, None, None


class BufferBroadcast(torch.autograd.Function):
    """What the source holds; its gradient is summed there, and zero elsewhere."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any, root: int, is_root: bool) -> torch.Tensor:
        ctx.group, ctx.root, ctx.is_root = group, root, is_root
        y = x.clone()
        dist.broadcast(y, root, group=group)
        return y

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        back = grad.clone()
        dist.reduce(back, ctx.root, group=ctx.group)
        return back if ctx.is_root else torch.zeros_like(back), None, None, None
