"""The truth about a case: what each rank must hold, computed in one process without any code under test.

On the straight line this stands inside jobs and runs before any subject is imported. It imports neither a subject nor
a module that runs probes; it shares with them only the definition of the inputs. Outputs and gradients are float64,
inputs and cotangents have the case's type, since they are compared byte for byte.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from jobs.contract import CaseInfo

FAMILIES = {
    "exchange": "jobs.oracle.exchange",
    "torch-itself": "jobs.oracle.torch_itself",
    "attention": "jobs.oracle.attention",
    "model": "jobs.oracle.model",
    "engine": "jobs.oracle.engine",
    "loss": "jobs.oracle.loss",
    "tiled": "jobs.oracle.tiled",
    "autosp": "jobs.oracle.autosp",
}


@dataclass(frozen=True)
class Expected:
    """One tensor that rank ``rank`` must have; ``tensor`` is None where there must be none.

    Of role ``fd`` are the directions along which the ranks move their inputs: over all ranks, the gradient's product
    with them is what the ranks' central differences must add up to.
    """

    rank: int
    role: str
    name: str
    tensor: torch.Tensor | None


def expected(case: CaseInfo, world_size: int) -> Iterator[Expected]:
    """Everything that is known beforehand about ``case`` at ``world_size``, on every rank.

    A case that must be refused has no right values, and yields nothing. The truth of a gradient is that of the sum of
    the losses of the ranks of its sequence-parallel group.
    """
    if not case.runs_at(world_size):
        raise ValueError(f"{case.id} does not exist at {world_size} ranks")
    if case.expect == "values":
        yield from importlib.import_module(FAMILIES[case.family]).expected(case, world_size)
