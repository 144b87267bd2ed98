"""The tensors that a rank hands in: values as the case defines them, laid out in memory as their specs ask.

On the straight line this stands inside jobs, under every family that exercises a function of a rank's tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from jobs.contract import CaseInfo
from jobs.probes.case import TensorSpec
from jobs.probes.drawn import direction, drawn
from jobs.subject.base import RankContext
from jobs.values import dtype_of


def _contiguous(drawn: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    return drawn


def _transposed(drawn: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    # The outermost dimensions swap places in memory, and so do the innermost ones where there are others.
    inner = (drawn.dim() - 1, drawn.dim() - 2) if drawn.dim() > 3 else tuple(range(2, drawn.dim()))
    order = (1, 0, *range(2, drawn.dim() - 2), *inner)
    return drawn.permute(order).contiguous().permute(order)


def _expanded(drawn: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    return drawn.expand(shape)


def _offset(drawn: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """A window into a wider tensor, as a slice of a fused projection is."""
    wide = torch.zeros((*shape[:-1], shape[-1] + 3), dtype=drawn.dtype, device=drawn.device)
    window = wide.narrow(-1, 2, shape[-1])
    window.copy_(drawn)
    return window


STRIDES: dict[str, Callable[[torch.Tensor, tuple[int, ...]], torch.Tensor]] = {
    "contiguous": _contiguous,
    "transposed": _transposed,
    "expanded": _expanded,
    "offset": _offset,
}


def make(case: CaseInfo, ctx: RankContext, specs: Sequence[TensorSpec], step: int = 0) -> dict[str, torch.Tensor]:
    """Fresh tensors by name: leaves that need a gradient, leaves that need none, and cotangents.

    ``step`` moves the first kind that many times along its direction. Values stay exact: the sum of two dyadic values
    fits in the eight bits of a bfloat16.
    """
    return {spec.name: _tensor(case, spec, ctx, step) for spec in specs}


def _tensor(case: CaseInfo, spec: TensorSpec, ctx: RankContext, step: int) -> torch.Tensor:
    values = drawn(case, spec, ctx.rank)
    if step and spec.role == "input":
        values = values + step * direction(case, spec, ctx.rank)
    if not spec.integers:
        values = values.to(dtype_of(case.dtype))
    tensor = STRIDES[spec.strides](values.to(ctx.device), spec.shape)
    return tensor.detach().requires_grad_(spec.role == "input")
