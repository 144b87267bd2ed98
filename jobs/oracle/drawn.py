"""What the ranks are given, as the oracles see it: the same values, put together in one process."""

from __future__ import annotations

import torch

from jobs.contract import CaseInfo
from jobs.probes import drawn as values
from jobs.probes.case import TensorSpec

Parts = list[torch.Tensor]
"""What each rank of one group holds."""


def drawn(case: CaseInfo, spec: TensorSpec, rank: int) -> torch.Tensor:
    """The values of one tensor of one (global) rank, in its whole shape; float64, or int64 where it has integers."""
    return values.drawn(case, spec, rank).expand(spec.shape)


def direction(case: CaseInfo, spec: TensorSpec, rank: int) -> torch.Tensor:
    """The direction along which that tensor is moved for a central difference, in its whole shape."""
    return values.direction(case, spec, rank).expand(spec.shape)
