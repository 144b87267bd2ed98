"""The operations of family ``autosp``: what a compiler pass puts into a traced model, and the pass itself.

Tensors of the exchange are [batch, heads, sequence, features].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from jobs.subject.context import Operation, RankContext, Unsupported

if TYPE_CHECKING:
    import torch

Model = Callable[..., "torch.Tensor"]
"""Called with ids, labels, positions and the keys' positions, each [batch, sequence], then with weights."""


class AutoOperations:
    """Sequence parallelism by a compiler pass."""

    name: str

    def autosp_all_to_all(self, ctx: RankContext, *, scatter: str) -> Operation:
        """A differentiable exchange between sequence and heads; ``scatter``: heads or sequence."""
        raise Unsupported(f"{self.name} has no operator for a compiler pass to exchange sequence and heads")

    def autosp_sequence(self, ctx: RankContext, *, dim: int, way: str) -> Operation:
        """``gather``: a differentiable gathering of the parts along ``dim``; ``scatter``: their sum, cut along it."""
        raise Unsupported(f"{self.name} has no operator for a compiler pass to gather a sequence")

    def autosp_pass(self, ctx: RankContext, *, model: Model, then: str) -> Model:
        """``model`` traced and rewritten: called alike, with whole sequences, it returns what belongs to this rank.

        then  what runs the rewritten graph: ``graph`` itself, or the backend of torch's that is so called
        """
        raise Unsupported(f"{self.name} has no compiler pass that splits a sequence")
