"""What a subject's adapter offers to the probes, and what a probe tells it: one class per library under test.

On the straight line this stands inside jobs, between the ranks (which import a subject once and set it up) and the
probes (which ask it for one operation at a time). Nothing here imports torch: case definitions are read without it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

Operation = Callable[["torch.Tensor"], "torch.Tensor"]
"""One tensor in, one tensor out: what this rank holds before and after an exchange."""


class Unsupported(Exception):  # noqa: N818 - an answer of its own ("no such API"), not an error
    """The subject has no such operation, or the runtime cannot carry it out; the text names what was looked for."""


@dataclass(frozen=True)
class RankContext:
    """Where one rank stands in one sequence-parallel group.

    sp_size  the ranks of a group; groups are consecutive: the first is 0 … sp_size-1
    sp_rank  this rank's place in its group
    group    torch's process group of ``ranks``
    ranks    the global ranks of this rank's group, in order
    """

    rank: int
    world_size: int
    transport: str
    sp_size: int
    sp_rank: int
    group: Any
    ranks: tuple[int, ...]

    @property
    def device(self) -> str:
        """The kind of device that tensors of this transport live on."""
        return "cuda" if self.transport == "nccl" else "cpu"


class Subject:
    """A library under test. Adapters derive from it and override what their library has.

    The order of calls: ``prepare_import``, then the checkout joins sys.path, then ``load`` and ``version`` in a parent
    process; then, in every rank forked from it, ``setup`` once torch's process groups exist; then ``reset`` and one of
    the operations per case. An operation is asked for outside any traced region and may be called many times.

    Layouts are ``bshd`` ([batch, sequence, heads, features]) and ``sbhd``. ``scatter="heads"`` turns a part of the
    sequence with all heads into the whole sequence with a part of the heads; ``scatter="sequence"`` is its inverse.
    ``heads`` is the number over all ranks; where the ranks do not divide it, the first ranks hold one head more.
    """

    name = "subject"

    def prepare_import(self, root: str) -> None:
        """Set what has to be set before the library is imported from the checkout at ``root``."""

    def load(self, root: str) -> None:
        """Import the library from ``root``, which is on sys.path; start no process group and run no backward."""
        raise NotImplementedError

    def version(self) -> str | None:
        """What the library calls its version, or None."""
        return None

    def setup(self, contexts: Sequence[RankContext]) -> None:
        """Make the library ready in this rank; one context per sequence-parallel size that will be used."""

    def reset(self) -> None:
        """Forget what the library keeps between calls, so that a case does not depend on the one before."""

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
