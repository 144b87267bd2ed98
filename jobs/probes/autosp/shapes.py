"""The parameters of the cases of AutoSP, and the tensors that follow from them. Nothing here imports torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from jobs.contract import CaseInfo
from jobs.probes.case import COTANGENTS, TensorSpec, from_strings, strided

FEATURES, TOKENS = 4, 3
"""Of one head, and of one rank."""
SYMBOLS, HIDDEN, LAYERS = 8, 8, 2
"""Of the small model: what a token may be, the width between layers, and their number."""
WEIGHT, STEP = 2.0**-4, 2.0**-9
"""On the values of its weights, and how far its central difference goes."""

HEADS: dict[str, Callable[[int], int]] = {
    "ranks": lambda p: p,
    "double": lambda p: 2 * p,
    "squared": lambda p: p * p,
    "uneven": lambda p: p + 1,
}
"""The number of heads over all ranks, from the number of ranks."""
PROJECTIONS = ("q", "k", "v")


@dataclass(frozen=True)
class Moved:
    """What cases of an operator have.

    loss    as :class:`jobs.probes.case.Params` has it
    input   contiguous, or how it is strided: transposed · expanded · offset; ``cotangent`` likewise
    wrap    the operator alone (call), or between two multiplications (layer)
    """

    dtype: str = "float32"
    loss: str = "square"
    input: str = "contiguous"
    cotangent: str = "contiguous"
    wrap: str = "call"
    batch: int = 2
    sp: int = 0

    def ranks(self, world_size: int) -> int:
        """The ranks of one sequence-parallel group."""
        return self.sp or world_size

    def shapes(self, world_size: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The shapes of what goes in and what comes out, the same on every rank."""
        raise NotImplementedError

    def tensors(self, world_size: int, place: int) -> tuple[TensorSpec, ...]:
        """What the rank at ``place`` hands in: the inputs in the order of the function's arguments, then cotangents."""
        before, after = self.shapes(world_size)
        specs = [strided("x", "frozen" if self.loss == "none" else "input", before, self.input)]
        if self.loss == "frozen":
            specs.append(strided("c", "frozen", before, self.input))
        names = COTANGENTS.get(self.loss, ())
        specs += [strided(name, "cotangent", after, self.cotangent) for name in names]
        return tuple(specs)


@dataclass(frozen=True)
class Exchanged(Moved):
    """The exchange between sequence and heads, [batch, heads, sequence, features].

    scatter  ``heads``: from a part of the sequence with all heads to the whole with a part of them; ``sequence``: back
    """

    scatter: str = "heads"
    heads: str = "double"

    def shapes(self, world_size: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """With all heads and a part of the sequence, and with all of that and a part of the heads; or the reverse."""
        ranks = self.ranks(world_size)
        count = HEADS[self.heads](ranks)
        part = (self.batch, count, TOKENS, FEATURES)
        whole = (self.batch, count // ranks, TOKENS * ranks, FEATURES)
        return (part, whole) if self.scatter == "heads" else (whole, part)


@dataclass(frozen=True)
class Gathered(Moved):
    """The gathering of a sequence's parts along dimension ``dim``, or (``way``: scatter) the sum of them, cut again."""

    dim: int = 1
    way: str = "gather"

    def shapes(self, world_size: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """A rank's part, and the whole; or the reverse."""
        part, whole = ([self.batch, 2, TOKENS, FEATURES] for _ in range(2))
        part[self.dim] = TOKENS
        whole[self.dim] = TOKENS * self.ranks(world_size)
        return (tuple(part), tuple(whole)) if self.way == "gather" else (tuple(whole), tuple(part))


@dataclass(frozen=True)
class Rewritten:
    """A small model after the compiler pass: every rank hands in the whole sequence, and gets its tokens' losses.

    names  of the model's arguments: short (ids, labels, pos, seen), or those of Hugging Face's models (hf). The tracer
           calls sizes after them, and where two turn out to be one it keeps one of the names
    then   what runs the rewritten graph: itself (graph), or a backend of torch's: aot_eager · inductor
    mask   ``causal``: the attention's own; ``rows``: built from the positions of the tokens
    """

    names: str = "short"
    dtype: str = "float32"
    then: str = "graph"
    mask: str = "causal"
    loss: str = "weighted"
    heads: str = "double"
    batch: int = 1
    sp: int = 0

    def ranks(self, world_size: int) -> int:
        """The ranks of one sequence-parallel group."""
        return self.sp or world_size

    def tokens(self, world_size: int) -> int:
        """Of the whole sequence."""
        return TOKENS * self.ranks(world_size)

    def weights(self, world_size: int) -> dict[str, tuple[int, ...]]:
        """The model's weights and their shapes, in the order of its arguments."""
        wide = HEADS[self.heads](self.ranks(world_size)) * FEATURES
        shapes: dict[str, tuple[int, ...]] = {"symbols": (SYMBOLS, HIDDEN), "places": (self.tokens(world_size), HIDDEN)}
        for index in range(LAYERS):
            shapes |= {f"layer{index}.{name}_proj": (wide, HIDDEN) for name in PROJECTIONS}
            shapes[f"layer{index}.o_proj"] = (HIDDEN, wide)
        return shapes | {"head": (SYMBOLS, HIDDEN)}

    def tensors(self, world_size: int, place: int) -> tuple[TensorSpec, ...]:
        """Symbols, labels, positions and keys' positions, the same on every rank of a group; weights; a cotangent."""
        whole = (self.batch, self.tokens(world_size))
        count = self.batch * self.tokens(world_size)
        # 3 and 5 have no factor in common with 8: the symbols change from token to token, and so do the labels.
        integers = {
            "ids": tuple((3 * i + i // 4) % SYMBOLS for i in range(count)),
            "labels": tuple((5 * i + 1 + i // 8) % SYMBOLS for i in range(count)),
            "positions": tuple(i % whole[1] for i in range(count)),
            "keys": tuple(i % whole[1] for i in range(count)),
        }
        specs = [TensorSpec(name, "frozen", whole, whole, integers=values) for name, values in integers.items()]
        specs += [
            TensorSpec(name, "input", shape, shape, factor=WEIGHT, step=STEP, shared=True)
            for name, shape in self.weights(world_size).items()
        ]
        if self.loss != "forward_only":
            mine = (self.batch * TOKENS,)
            specs.append(TensorSpec("w", "cotangent", mine, mine, factor=WEIGHT))
        return tuple(specs)


Params = Exchanged | Gathered | Rewritten
KINDS: dict[str, type[Params]] = {"all_to_all": Exchanged, "sequence": Gathered, "pass": Rewritten}
"""Per probe: its parameters."""


def params_of(case: CaseInfo) -> Params:
    """The typed parameters of a case of this family."""
    return from_strings(KINDS[case.probe], case)
