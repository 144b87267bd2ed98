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

from jobs.subject.base import Unsupported


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
    _only_what_is_stood_in_for(async_op)
    if not all(tensor.is_contiguous() for tensor in (*output_tensor_list, *input_tensor_list)):
        # Some versions refuse them, and others send as many elements as lie in memory from the first one on.
        raise Unsupported("nccl-dispatch stands in for all_to_all of contiguous tensors only")
    _exchange(output_tensor_list, input_tensor_list, group)


def _reduce_scatter(
    output: torch.Tensor,
    input_list: Sequence[torch.Tensor],
    op: Any = dist.ReduceOp.SUM,
    group: Any = None,
    async_op: bool = False,
) -> None:
    _only_what_is_stood_in_for(async_op, op)
    _refuse_what_nccl_refuses(output)
    if any(part.shape != output.shape for part in input_list):
        raise Unsupported("nccl-dispatch stands in for reduce_scatter of parts that have the shape of the output only")
    # Parts need not be contiguous: for NCCL, torch copies them into one buffer, element by element.
    _scatter_sum(output, [part.reshape(-1) for part in input_list], group)


def _reduce_scatter_tensor(
    output: torch.Tensor,
    input: torch.Tensor,  # noqa: A002 - torch's own name for it, which callers may use
    op: Any = dist.ReduceOp.SUM,
    group: Any = None,
    async_op: bool = False,
) -> None:
    _only_what_is_stood_in_for(async_op, op)
    _refuse_what_nccl_refuses(output, input)
    _scatter_sum(output, _memory(input).chunk(dist.get_world_size(group)), group)


def _scatter_sum(output: torch.Tensor, parts: Sequence[torch.Tensor], group: Any) -> None:
    arrived = [torch.empty_like(part) for part in parts]
    _exchange(arrived, parts, group)
    _memory(output).copy_(torch.stack(arrived).sum(0))


def _exchange(outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], group: Any) -> None:
    sent = torch.cat([tensor.reshape(-1) for tensor in inputs])
    sizes = [tensor.numel() for tensor in outputs]
    buffer = sent.new_empty(sum(sizes))
    dist.all_to_all_single(buffer, sent, sizes, [tensor.numel() for tensor in inputs], group=group)
    for output, arrived in zip(outputs, buffer.split(sizes), strict=True):
        output.copy_(arrived.reshape(output.shape))


def _memory(tensor: torch.Tensor) -> torch.Tensor:
    """The elements as they lie in memory, which is all that NCCL sees of a dense tensor."""
    return tensor.as_strided((tensor.numel(),), (1,))


def _refuse_what_nccl_refuses(*tensors: torch.Tensor) -> None:
    if not all(_is_dense(tensor) for tensor in tensors):
        raise ValueError("Tensors must be contiguous")


def _is_dense(tensor: torch.Tensor) -> bool:
    """Contiguous, or so with its channels last: for NCCL, torch asks for the one that the strides suggest."""
    channels_last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(tensor.dim())
    return tensor.is_contiguous() or (channels_last is not None and tensor.is_contiguous(memory_format=channels_last))


def _only_what_is_stood_in_for(async_op: bool, op: Any = dist.ReduceOp.SUM) -> None:
    """Raise Unsupported where the limit is ours and not torch's."""
    if async_op:
        raise Unsupported("nccl-dispatch stands in for collectives that are waited for only, not for async_op=True")
    if op != dist.ReduceOp.SUM:
        raise Unsupported(f"nccl-dispatch stands in for sums only, not for {op}")


STAND_INS: dict[str, Callable[..., None]] = {
    "all_to_all": _all_to_all,
    "reduce_scatter": _reduce_scatter,
    "reduce_scatter_tensor": _reduce_scatter_tensor,
    "_reduce_scatter_base": _reduce_scatter_tensor,
}
