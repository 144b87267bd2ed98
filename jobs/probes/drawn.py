"""The values of a case's tensors, before they have a type or lie in memory: the same for the ranks and for the oracle.

On the straight line this stands inside jobs, under :mod:`jobs.probes.inputs` (which a rank's tensors come from) and
under the oracles (which put the same values together in one process).
"""

from __future__ import annotations

import torch

from jobs.contract import CaseInfo
from jobs.probes.case import TensorSpec, direction_key, input_key
from jobs.values import dyadic


def drawn(case: CaseInfo, spec: TensorSpec, rank: int) -> torch.Tensor:
    """The values of one tensor of one (global) rank: of its drawn shape, in float64, or int64 where it has integers."""
    if spec.integers:
        return torch.tensor(spec.integers, dtype=torch.int64).reshape(spec.drawn)
    return dyadic(input_key(case, spec, rank), spec.drawn, torch.float64) * spec.factor


def direction(case: CaseInfo, spec: TensorSpec, rank: int) -> torch.Tensor:
    """The direction along which that tensor is moved for a central difference."""
    return dyadic(direction_key(case, spec, rank), spec.drawn, torch.float64) * (spec.factor * spec.step)
