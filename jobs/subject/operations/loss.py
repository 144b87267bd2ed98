"""The operations of family ``loss``.

Labels are whole numbers of 64 bits, -100 where a token does not count. A batch holds the tensors ``input_ids``,
``position_ids`` and ``labels``, each [batch, sequence].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from jobs.subject.context import RankContext, Unsupported

if TYPE_CHECKING:
    import torch

Loss = Callable[["torch.Tensor", "torch.Tensor"], "torch.Tensor"]
"""From this rank's logits and labels to a loss."""
Batch = dict[str, "torch.Tensor"]
Cut = Callable[[Batch], Sequence[Batch]]
"""From this rank's whole batch to its shard of every rank's batch, in the order of the ranks."""
Step = Callable[[Batch, Callable[["torch.Tensor"], "torch.Tensor"]], float]
"""From this rank's whole batch and the model (from token ids to logits) to a loss, the backward behind it."""


class LossOperations:
    """Losses over a sequence whose parts lie on different ranks."""

    name: str

    def token_losses(self, ctx: RankContext, *, how: str, strict: bool) -> Loss:
        """Cross entropy per token, logits [sequence / ranks, batch, classes], labels [sequence / ranks, batch].

        ``how`` is ``gathered`` (the whole sequence's losses, of whose gradient each rank keeps its own part),
        ``summed`` (the same, with the gradients of all ranks summed) or ``local`` (this rank's tokens alone).
        ``strict``: tensors are gathered as gloo does it, which compares shapes; else as NCCL does, which does not.
        """
        raise Unsupported(f"{self.name} has no cross entropy over a sequence that is split")

    def aggregated_loss(self, ctx: RankContext, *, recipe: str, reduction: str) -> Loss:
        """One number for the whole sequence, logits [batch, sequence / ranks, classes], labels [batch, sequence /
        ranks]; :class:`jobs.probes.loss.shapes.Aggregate` names the recipes."""
        raise Unsupported(f"{self.name} has no recipe for a loss over ranks")

    def sequence_shards(self, ctx: RankContext, *, strict: bool) -> Cut:
        """Batches cut along the sequence; ``shift_labels`` takes the place of ``labels``."""
        raise Unsupported(f"{self.name} cuts no batches along the sequence")

    def sequence_step(self, ctx: RankContext, *, pieces: int, strict: bool) -> Step:
        """Forward, loss and backward on the shards of all ranks' batches, a rank's loss in ``pieces``."""
        raise Unsupported(f"{self.name} has no step over batches that it cuts along the sequence")
