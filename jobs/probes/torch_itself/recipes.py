"""A loss over a sequence that is split over ranks, put together in the ways that training code does it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed.nn.functional as nn
from torch.nn.functional import nll_loss

from jobs.probes.torch_itself.shapes import IGNORED, Aggregation
from jobs.subject.base import Operation, RankContext


def _by_all_gather(targets: torch.Tensor, group: Any) -> Operation:
    """Every rank's mean and count are gathered, and the means weighted; a rank without tokens has none (it is NaN)."""

    def loss(x: torch.Tensor) -> torch.Tensor:
        means: Sequence[torch.Tensor] = nn.all_gather(nll_loss(x, targets, ignore_index=IGNORED), group=group)
        counts: Sequence[torch.Tensor] = nn.all_gather((targets != IGNORED).sum(), group=group)
        weighted = [mean * count for mean, count in zip(means, counts, strict=True) if count > 0]
        return torch.stack(weighted).sum() / torch.stack(list(counts)).sum()

    return loss


def _by_all_reduce(targets: torch.Tensor, group: Any) -> Operation:
    """Numerators and counts are summed apart, and divided."""

    def loss(x: torch.Tensor) -> torch.Tensor:
        total = nn.all_reduce(nll_loss(x, targets, ignore_index=IGNORED, reduction="sum"), group=group)
        return total / nn.all_reduce((targets != IGNORED).sum(), group=group)

    return loss


RECIPES: dict[str, Callable[[torch.Tensor, Any], Operation]] = {
    "all_gather": _by_all_gather,
    "all_reduce": _by_all_reduce,
}


def operation(params: Aggregation, ctx: RankContext) -> Operation:
    """The recipe that the case asks for: from this rank's log-probabilities to the loss of the whole sequence."""
    targets = torch.tensor(params.labels(ctx.world_size, ctx.sp_rank), device=ctx.device)
    return RECIPES[params.recipe](targets, ctx.group)
