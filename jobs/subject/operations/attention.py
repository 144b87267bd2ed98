"""The operations of family ``attention``: attention over a sequence whose parts lie on the ranks of a group.

``core`` is the local attention, which the subject calls with whole sequences of some heads. Layouts are ``bshd``
([batch, sequence, heads, features]), ``sbhd`` and ``bhsd``. Heads are counted over all ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jobs.subject.context import RankContext, Unsupported

if TYPE_CHECKING:
    import torch

Attend = Callable[..., "torch.Tensor"]
"""Queries, keys and values of this rank's tokens in, the mixed values of the same tokens out."""


class AttentionOperations:
    """Attention over several ranks."""

    name: str

    def distributed_attention(
        self,
        ctx: RankContext,
        *,
        core: Any,
        layout: str,
        heads: int,
        kv_heads: int,
        rotary: bool = False,
        gather: str = "layout",
        told: bool = False,
        overlap: str = "no",
    ) -> Attend:
        """Attention between two exchanges: ``attend(q, k, v)``, in ``layout`` both in and out.

        rotary   called as ``attend(q, k, v, cos, sin)``; queries and keys are rotated between the exchanges
        gather   ``layout``: the layout's own dimension is named for gathering; ``zero``: 0, whatever the layout
        told     the number of key/value heads is stated before the call, instead of being seen
        overlap  ``no`` · ``stream`` · ``stand_in`` (for a stream, where there are none)
        """
        raise Unsupported(f"{self.name} has no distributed attention")

    def ulysses_attention(
        self,
        ctx: RankContext,
        *,
        core: Any,
        heads: int,
        kv_heads: int,
        features: int,
        batch: int,
        tokens: int | None,
    ) -> Attend:
        """Attention as a Hugging Face attention function is wrapped: ``attend(q, k, v, positions)``.

        bhsd in, [batch, sequence, heads · features] out. ``tokens``: per rank and known beforehand, or None.
        """
        raise Unsupported(f"{self.name} has no attention for Hugging Face's models")

    def chunked_attention(
        self, ctx: RankContext, *, heads: int, kv_heads: int, features: int, tokens: int, chunks: int
    ) -> Attend:
        """Causal attention with its projections: ``attend(x, w_qkv, b_qkv, w_out)``, [tokens, batch, hidden] both ways.

        Of each run of as many chunks as there are ranks, every rank holds one.
        """
        raise Unsupported(f"{self.name} has no attention by chunks")
