"""The operations of family ``exchange``.

Layouts are ``bshd`` ([batch, sequence, heads, features]) and ``sbhd``. ``scatter="heads"`` turns a part of the sequence
with all heads into the whole sequence with a part of the heads; ``scatter="sequence"`` is its inverse. ``heads`` is the
number over all ranks; where the ranks do not divide it, the first ranks hold one head more.
"""

from __future__ import annotations

from jobs.subject.context import Operation, RankContext, Unsupported


class ExchangeOperations:
    """Exchanges between ranks."""

    name: str

    def dim0_exchange(self, ctx: RankContext) -> Operation:
        """A differentiable exchange along dimension 0: block j of rank i becomes block i of rank j."""
        raise Unsupported(f"{self.name} has no exchange along dimension 0")

    def seq_head_exchange(self, ctx: RankContext, *, layout: str, scatter: str, heads: int) -> Operation:
        """A differentiable exchange between sequence and heads."""
        raise Unsupported(f"{self.name} has no exchange between sequence and heads")

    def single_all_to_all(
        self, ctx: RankContext, *, layout: str, scatter: str, heads: int, overlapped: bool
    ) -> Operation:
        """The same exchange without a derivative; ``overlapped``: started, waited for, and finished apart."""
        raise Unsupported(f"{self.name} has no exchange without a derivative")
