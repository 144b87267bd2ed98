"""The exchange of our own that controls stand on under a tracer; it knows nothing of an oracle."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed._functional_collectives as functional


class TracedAllToAll(torch.autograd.Function):
    """Functional collectives inside an autograd function: the one form that every tracer so far differentiates."""

    @staticmethod
    def forward(ctx: Any, flat: torch.Tensor, group: Any) -> torch.Tensor:
        """What arrives, of a vector that is cut into as many equal parts as there are ranks."""
        ctx.group = group
        return functional.wait_tensor(functional.all_to_all_single(flat, None, None, group))

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        """The same exchange, of the incoming gradient."""
        return functional.wait_tensor(functional.all_to_all_single(grad.contiguous(), None, None, ctx.group)), None
