"""The operations of family ``tiled``: functions that are calculated shard by shard, to hold less at a time.

``parameters`` are the leaves that take part in the calculation, or None where the caller names none. ``module`` has
them as attributes. Shards are cut along the tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jobs.subject.context import RankContext, Unsupported

if TYPE_CHECKING:
    import torch

Call = Callable[..., "torch.Tensor"]


class TiledOperations:
    """Tiled functions."""

    name: str

    def tiled_compute(
        self, ctx: RankContext, function: Call, *, shards: int, unshard: int, reduction: str | None, wrapper: bool
    ) -> Call:
        """Any ``function(**sharded, **passed)``: a call with (sharded, passed, key, parameters).

        ``key`` names the sharded tensor that needs a gradient. Results are put together along dimension ``unshard``
        (0: they are numbers), then reduced by mean or sum, or not. ``wrapper``: through the documented way in.
        """
        raise Unsupported(f"{self.name} has no tiling of any function")

    def tiled_mlp(self, ctx: RankContext, function: Call, *, shards: int) -> Call:
        """A ``function(module, x)`` on each token alone: a call with (module, x, parameters)."""
        raise Unsupported(f"{self.name} has no tiled feed-forward layer")

    def tiled_fused_logits_loss(self, ctx: RankContext, function: Call, *, shards: int, reduction: str) -> Call:
        """A ``function(module, x, labels[, mask])`` of an output projection and its loss.

        A call with (module, x, labels, mask or None, parameters); the shards' losses are reduced by mean or sum.
        """
        raise Unsupported(f"{self.name} has no tiled loss with its output projection")

    def tiled_loss(self, ctx: RankContext, function: Call, *, shards: int, vocabulary: int) -> Call:
        """A mean over live tokens of logits that are there already: a call with (logits, labels).

        ``function`` takes logits, labels (None), vocab_size and shift_labels.
        """
        raise Unsupported(f"{self.name} has no tiled loss of logits")

    def chunked_feed_forward(self, ctx: RankContext, *, chunk: int, add_bias: bool) -> Callable[..., Any]:
        """gelu(x·w1ᵀ + b1)·w2ᵀ + b2 over ``chunk`` tokens at a time: a call with (x, w1, b1, w2, b2).

        It returns the result and None, or without ``add_bias`` the result before b2 was added, and b2.
        """
        raise Unsupported(f"{self.name} has no feed-forward layer in chunks")

    def chunked_logits_loss(self, ctx: RankContext, *, chunks: int) -> Call:
        """The loss of every token, gathered over the group: a call with (x, labels, head).

        x is [tokens, batch, features], labels [batch, tokens]; the result is [tokens of all ranks, batch].
        """
        raise Unsupported(f"{self.name} has no loss in chunks")
