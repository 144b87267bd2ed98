"""The functions that are tiled, as a model would write them: they call torch's own layers and losses.

On the straight line this stands inside jobs, under the run code and the controls of family ``tiled``; the oracle writes
the same functions out in formulas of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere

from jobs.probes.tiled.base import IGNORED


class Module:
    """Stands in for the module whose function is tiled: its parameters are attributes.

    They are the tensors that the case hands in; a parameter made from one would be another leaf.
    """

    def __init__(self, names: Sequence[str], tensors: Sequence[torch.Tensor]) -> None:
        self.names, self.tensors = tuple(names), tuple(tensors)
        for name, tensor in zip(names, tensors, strict=True):
            setattr(self, name, tensor)


def mlp(module: Any, x: torch.Tensor) -> torch.Tensor:
    """A gated feed-forward layer."""
    gate = F.linear(x, module.gate, getattr(module, "gate_bias", None))
    up = F.linear(x, module.up, getattr(module, "up_bias", None))
    down = module.down if hasattr(module, "down") else module.gate.t()
    return F.linear(F.silu(gate) * up, down, getattr(module, "down_bias", None))


def cross_entropy(logits: torch.Tensor, labels: torch.Tensor, reduction: str) -> torch.Tensor:
    """The loss as models calculate it: in 32 bits where logits have fewer."""
    flat = logits.reshape(-1, logits.shape[-1])
    wide = flat.float() if flat.dtype in (torch.bfloat16, torch.float16) else flat
    return F.cross_entropy(wide, labels.reshape(-1), ignore_index=IGNORED, reduction=reduction)


def head_loss(reduction: str) -> Callable[..., torch.Tensor]:
    """The loss of a projection of ``x``, added up over live tokens or averaged."""
    of_tokens = "mean" if reduction == "mean" else "sum"

    def loss(module: Any, x: torch.Tensor, labels: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        logits = F.linear(x, module.head, getattr(module, "head_bias", None))
        counted = labels if mask is None else labels.masked_fill(mask == 0, IGNORED)
        return cross_entropy(logits, counted, of_tokens)

    return loss


def logits_loss(
    logits: torch.Tensor, labels: None, vocab_size: int, shift_labels: torch.Tensor, **_: Any
) -> torch.Tensor:
    """The mean over live tokens, with the arguments that a causal language model's loss takes."""
    return cross_entropy(logits, shift_labels, "mean")
