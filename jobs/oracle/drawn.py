"""What the ranks are given, as the oracles see it: the same values, put together in one process."""

from __future__ import annotations

import torch

from jobs.contract import CaseInfo
from jobs.probes.case import TensorSpec, direction_key, input_key
from jobs.values import dyadic

Parts = list[torch.Tensor]
"""What each rank of one group holds."""


def drawn(case: CaseInfo, spec: TensorSpec, rank: int) -> torch.Tensor:
    """The values of one tensor of one (global) rank, in float64."""
    return dyadic(input_key(case, spec.name, rank), spec.drawn, torch.float64).expand(spec.shape)


def direction(case: CaseInfo, spec: TensorSpec, rank: int) -> torch.Tensor:
    """The direction along which that tensor is moved for a central difference."""
    return dyadic(direction_key(case, spec.name, rank), spec.drawn, torch.float64).expand(spec.shape)
