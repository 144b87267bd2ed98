"""Transport ``nccl-dispatch``: gloo underneath, and torch's branches for NCCL taken above it.

On the straight line this stands inside jobs: a rank calls it once its process groups exist. What torch writes in Python
asks ``torch.distributed.get_backend`` which way to go; there the answer becomes NCCL. The collectives that such a
branch calls and that gloo has not, or not in every version, are carried out by ones that it has. Nothing beneath
``torch.distributed``'s own names changes, so that gloo goes on as before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist


def take_nccl_branches() -> None:
    """Have this process answer NCCL to whoever asks for a group's backend, and stand in for what gloo lacks."""
    dist.get_backend = _nccl
    for name, collective in STAND_INS.items():
        setattr(dist, name, collective)


def _nccl(group: Any = None) -> str:
    # The object itself: torch 2.2 compares with ``is``.
    return dist.Backend.NCCL


def _all_to_all(
    output_tensor_list: Sequence[torch.Tensor],
    input_tensor_list: Sequence[torch.Tensor],
    group: Any = None,
    async_op: bool = False,
) -> None:
    _refuse_what_nccl_refuses(*output_tensor_list, *input_tensor_list, async_op=async_op)
    sent = torch.cat([tensor.reshape(-1) for tensor in input_tensor_list])
    sizes = [tensor.numel() for tensor in output_tensor_list]
    buffer = sent.new_empty(sum(sizes))
    dist.all_to_all_single(buffer, sent, sizes, [tensor.numel() for tensor in input_tensor_list], group=group)
    for output, arrived in zip(output_tensor_list, buffer.split(sizes), strict=True):
        output.copy_(arrived.reshape(output.shape))


def _reduce_scatter(
    output: torch.Tensor,
    input_list: Sequence[torch.Tensor],
    op: Any = dist.ReduceOp.SUM,
    group: Any = None,
    async_op: bool = False,
) -> None:
    _refuse_what_nccl_refuses(output, *input_list, async_op=async_op)
    if op != dist.ReduceOp.SUM:
        raise NotImplementedError(f"nccl-dispatch scatters sums only, not {op}")
    parts = [torch.empty_like(output) for _ in input_list]
    _all_to_all(parts, input_list, group)
    output.copy_(torch.stack(parts).sum(0))


def _reduce_scatter_tensor(
    output: torch.Tensor,
    input: torch.Tensor,  # noqa: A002 - torch's own name for it, which callers may use
    op: Any = dist.ReduceOp.SUM,
    group: Any = None,
    async_op: bool = False,
) -> None:
    _refuse_what_nccl_refuses(output, input, async_op=async_op)
    parts = input.reshape(dist.get_world_size(group), *output.shape)
    _reduce_scatter(output, list(parts.unbind(0)), op, group, async_op)


def _refuse_what_nccl_refuses(*tensors: torch.Tensor, async_op: bool) -> None:
    if not all(tensor.is_contiguous() for tensor in tensors):
        raise ValueError("Tensors must be contiguous")
    if async_op:
        raise NotImplementedError("nccl-dispatch carries out nothing asynchronously")


STAND_INS: dict[str, Callable[..., None]] = {
    "all_to_all": _all_to_all,
    "reduce_scatter": _reduce_scatter,
    "reduce_scatter_tensor": _reduce_scatter_tensor,
    "_reduce_scatter_base": _reduce_scatter_tensor,
}
