"""A movement of data as a case calls it: alone or inside a layer, beside a frozen input or not.

On the straight line this stands inside jobs, under the families whose operation has one tensor in and one out.
"""

from __future__ import annotations

import torch

from jobs.probes.case import LAYER_AFTER, LAYER_BEFORE
from jobs.probes.passes import Function
from jobs.subject.base import Operation


def compose(operation: Operation, *, in_layer: bool, beside_frozen: bool) -> Function:
    """The function of x, or of x and a frozen c. In a layer it stands between two multiplications."""

    def layer(x: torch.Tensor) -> torch.Tensor:
        return operation(x * LAYER_BEFORE) * LAYER_AFTER

    inner = layer if in_layer else operation

    def beside(x: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return inner(x) + inner(c)

    def alone(x: torch.Tensor) -> torch.Tensor:
        return inner(x)

    return beside if beside_frozen else alone
