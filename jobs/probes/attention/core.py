"""The local attention that is handed to a subject: plain matrix products and a softmax, the same in every torch.

It takes what the subject gives it, heads of whatever part of the sequence there is, and knows nothing of other ranks.
"""

from __future__ import annotations

from typing import Any

import torch


class Core(torch.nn.Module):
    """Attention over [batch, tokens, heads, features], or with tokens first; keys and values have the fewer heads."""

    def __init__(self, layout: str, causal: bool) -> None:
        super().__init__()
        self.tokens_first, self.causal = layout == "sbhd", causal

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """The mixed values, of the shape of ``q``."""
        order = (1, 2, 0, 3) if self.tokens_first else (0, 2, 1, 3)
        query, key, value = q.permute(order), k.permute(order), v.permute(order)
        groups = query.shape[1] // key.shape[1]
        if groups * key.shape[1] != query.shape[1]:
            given = f"{query.shape[1]} query heads and {key.shape[1]} key heads"
            raise ValueError(f"the attention between the exchanges was given {given}")
        seen = None
        if self.causal:
            seen = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool, device=q.device).tril()
        mixed = mix(query, repeated(key, groups), repeated(value, groups), seen)
        return mixed.permute((2, 0, 1, 3) if self.tokens_first else (0, 2, 1, 3))


class CoreHF:
    """The same with the calling convention of Hugging Face's attention functions.

    Heads come before tokens, and go after them; ``module`` says how many query heads share a key head; which tokens
    are seen follows from ``position_ids``: those of the same document, which starts at 0.
    """

    def __init__(self, causal: bool) -> None:
        self.causal = causal

    def __call__(
        self, module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any, **more: Any
    ) -> tuple[torch.Tensor, None]:
        """The mixed values, [batch, tokens, heads, features], and no weights."""
        positions = more["position_ids"]
        document = (positions == 0).cumsum(1)
        seen = document[:, :, None] == document[:, None, :]
        if self.causal:
            seen = seen & (positions[:, :, None] >= positions[:, None, :])
        groups = module.num_key_value_groups
        mixed = mix(query, repeated(key, groups), repeated(value, groups), seen[:, None])
        return mixed.transpose(1, 2).contiguous(), None


def mix(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: torch.Tensor | None) -> torch.Tensor:
    """softmax(q kᵀ / √features) v per head, [batch, heads, tokens, features]; ``seen``: which keys a query sees."""
    scores = torch.matmul(q, k.transpose(-1, -2)) * q.shape[-1] ** -0.5
    if seen is not None:
        scores = scores.masked_fill(~seen, float("-inf"))
    return torch.matmul(torch.softmax(scores, -1), v)


def repeated(x: torch.Tensor, groups: int) -> torch.Tensor:
    """Each key/value head as often as there are query heads that share it."""
    return x if groups == 1 else x.repeat_interleave(groups, 1)
