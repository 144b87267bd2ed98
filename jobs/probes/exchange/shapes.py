"""The parameters of an exchange case, and the shapes that follow from them. Nothing here imports torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from jobs.contract import CaseInfo
from jobs.probes.case import COTANGENTS, TensorSpec, from_strings, strided

DIM0_SHAPE = (2, 4, 4)
FEATURES = 4

HEADS: dict[str, Callable[[int], int]] = {
    "ranks": lambda p: p,
    "double": lambda p: 2 * p,
    "squared": lambda p: p * p,
    "uneven": lambda p: p + 1,
    "uneven_large": lambda p: 3 * p - 1,
    # Counts h at which some rank's share n gives int(n * (h / n)) < h in floating point.
    "uneven_many": lambda p: {2: 59, 4: 107, 8: 61}[p],
}
"""The number of heads over all ranks, from the number of ranks."""

LENGTHS: dict[str, Callable[[int, int], int]] = {
    "even": lambda p, place: 4,
    "odd": lambda p, place: 5,
    "unequal": lambda p, place: 5 if place == 0 else 4,
}
"""Tokens per rank, from the number of ranks and the rank's place. ``indivisible`` is a whole of 4 P + 1 tokens."""


@dataclass(frozen=True)
class Exchange:
    """The parameters of one case.

    loss       square (Σy²) · weighted (a random incoming gradient) · scaled (Σy² times a power of two) · shared (one
               activation, two losses) · accumulate (two passes into one gradient) · frozen (beside an input that needs
               no gradient) · forward_only (no backward: the gradient stays absent) · none (no derivative exists)
    input      contiguous, or how it is strided: transposed · expanded · offset; ``cotangent`` likewise
    wrap       the exchange alone (call), or between two multiplications (layer)
    layout, scatter, batch, heads, length   of an exchange between sequence and heads; HEADS, LENGTHS
    blocks     of a dim-0 exchange: ``ranks``, or ``extra`` (one too many: outside the contract)
    before     what ran before in the same pass: nothing, or an exchange of ``uneven`` heads
    how        of a bare all-to-all: sync or async
    """

    dtype: str = "float32"
    loss: str = "square"
    input: str = "contiguous"
    cotangent: str = "contiguous"
    wrap: str = "call"
    layout: str = ""
    scatter: str = ""
    batch: int = 1
    heads: str = ""
    length: str = "even"
    blocks: str = "ranks"
    before: str = "nothing"
    how: str = "sync"
    sp: int = 0

    def ranks(self, world_size: int) -> int:
        """The ranks of one sequence-parallel group."""
        return self.sp or world_size

    def head_count(self, world_size: int) -> int:
        """The heads over all ranks of a group."""
        return HEADS[self.heads](self.ranks(world_size))

    def prelude(self) -> Exchange:
        """The exchange that runs first, of a case that says so: towards heads, where their number is seen."""
        return replace(self, scatter="heads", heads=self.before)

    def shapes(self, world_size: int, place: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The shapes of what goes in and what comes out on the rank at ``place`` of its group."""
        ranks = self.ranks(world_size)
        if not self.layout:
            shape = (ranks + int(self.blocks == "extra"), *DIM0_SHAPE)
            return shape, shape
        count = self.head_count(world_size)
        share = head_share(count, ranks, place)
        if self.length == "indivisible":
            whole, part = 4 * ranks + 1, 4
        else:
            whole = sum(LENGTHS[self.length](ranks, other) for other in range(ranks))
            part = LENGTHS[self.length](ranks, place)
        split_sequence = self._shape(part, count)
        split_heads = self._shape(whole, share)
        return (split_sequence, split_heads) if self.scatter == "heads" else (split_heads, split_sequence)

    def _shape(self, tokens: int, heads: int) -> tuple[int, ...]:
        order = (self.batch, tokens) if self.layout == "bshd" else (tokens, self.batch)
        return (*order, heads, FEATURES)

    def tensors(self, world_size: int, place: int) -> tuple[TensorSpec, ...]:
        """What the rank at ``place`` hands in: the inputs in the order of the function's arguments, then cotangents."""
        inner, outer = self.shapes(world_size, place)
        specs = [strided("x", "frozen" if self.loss == "none" else "input", inner, self.input)]
        if self.loss == "frozen":
            specs.append(strided("c", "frozen", inner, self.input))
        if self.before != "nothing":
            specs.append(strided("u", "frozen", self.prelude().shapes(world_size, place)[0], "contiguous"))
        specs += [strided(name, "cotangent", outer, self.cotangent) for name in COTANGENTS.get(self.loss, ())]
        return tuple(specs)


def head_share(count: int, ranks: int, place: int) -> int:
    """The heads of the rank at ``place``: as even as can be, the first ranks holding one more."""
    return count // ranks + int(place < count % ranks)


def params_of(case: CaseInfo) -> Exchange:
    """The typed parameters of a case of this family."""
    return from_strings(Exchange, case)
