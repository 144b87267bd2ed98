"""The losses of a step that no library is needed for; the others are the subject's, as in family ``loss``."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

from jobs.probes.engine.shapes import IGNORED
from jobs.subject.context import RankContext
from jobs.subject.operations.engine import Engine

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def loss_of(recipe: str, ctx: RankContext, engine: Engine) -> Loss:
    """From this rank's logits and labels to its loss."""
    own: dict[str, Loss] = {"local": local, "in_place": lambda logits, labels: in_place(ctx, logits, labels)}
    return own.get(recipe) or engine.loss(recipe)


def entropies(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The sum over this rank's tokens that count; [batch, tokens, symbols] and [batch, tokens]."""
    wide = logits.float() if logits.itemsize == 2 else logits
    flat = wide.reshape(-1, wide.shape[-1])
    return torch.nn.functional.cross_entropy(flat, labels.reshape(-1), ignore_index=IGNORED, reduction="sum")


def count(labels: torch.Tensor) -> torch.Tensor:
    """How many tokens of this rank count."""
    return (labels != IGNORED).sum()


def local(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The mean over this rank's own tokens; zero where none counts."""
    return entropies(logits, labels) / count(labels).clamp(min=1)


def in_place(ctx: RankContext, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Both sums reduced in place: autograd does not see it, and passes on what this rank added."""
    total, tokens = entropies(logits, labels).clone(), count(labels)
    dist.all_reduce(total, group=ctx.group)
    dist.all_reduce(tokens, group=ctx.group)
    return total / tokens
