"""The parameters of an attention case, and the tensors that follow from them. Nothing here imports torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from jobs.contract import CaseInfo
from jobs.probes.case import COTANGENTS, TensorSpec, from_strings, strided

FEATURES, WIDE_FEATURES, PROJECTED_FEATURES = 4, 64, 16
"""Per head: usually; in cases of a reported size; and behind projections, where kernels ask for a multiple of 8."""
SMALL = 1 / 8
"""On the drawn values of queries, keys and values: a softmax over them is far from both of its ends."""
STEP = 2.0**-10
"""Of central differences: attention is no polynomial."""
SCALINGS = ("a_q", "a_k", "a_v")
"""The parameters of a layer around attention, one factor per feature, in the order of what they scale."""

HEADS: dict[str, Callable[[int], int]] = {
    "ranks": lambda p: p,
    "double": lambda p: 2 * p,
    "quadruple": lambda p: 4 * p,
    "squared": lambda p: p * p,
    "eight": lambda p: 8,
    "one": lambda p: 1,
    "few": lambda p: max(1, p // 2),
    "uneven": lambda p: p + 1,
    "uneven_large": lambda p: 3 * p - 1,
    "uneven_double": lambda p: 2 * (p + 1),
    # Divided by the ranks, although the p + 1 key/value heads that share them are not.
    "uneven_shared": lambda p: 2 * p * (p + 1),
}
"""The number of heads over all ranks, from the number of ranks."""
LENGTHS: dict[str, Callable[[int], int]] = {
    "even": lambda place: 4,
    "odd": lambda place: 5,
    "unequal": lambda place: 5 if place == 0 else 4,
}
"""Tokens per rank, from the rank's place."""
LAYOUTS = {
    "bshd": ("batch", "sequence", "head", "feature"),
    "sbhd": ("sequence", "batch", "head", "feature"),
    "bhsd": ("batch", "head", "sequence", "feature"),
}


@dataclass(frozen=True)
class Attention:
    """What cases of every probe have.

    layout     the order of the dimensions; LAYOUTS
    heads, kv  heads of queries, and of keys and values (``same``: as many); HEADS
    length     tokens per rank; LENGTHS
    causal     whether a token sees only itself and those before it: yes or no
    loss       as jobs.probes.case.Params has it
    frozen     the letters of those of q, k and v that need no gradient
    input      contiguous, or how q, k and v are strided: transposed · expanded · offset; ``cotangent`` likewise
    wrap       attention alone (call), or inside a layer with trained factors on q, k and v (layer)
    before     what ran before in the same pass: nothing, or see the probe
    """

    layout: str = "bshd"
    heads: str = "double"
    kv: str = "same"
    dtype: str = "float32"
    causal: str = "no"
    batch: int = 2
    length: str = "even"
    features: int = FEATURES
    loss: str = "weighted"
    frozen: str = ""
    input: str = "contiguous"
    cotangent: str = "contiguous"
    wrap: str = "call"
    before: str = "nothing"
    sp: int = 0

    def ranks(self, world_size: int) -> int:
        """The ranks of one sequence-parallel group."""
        return self.sp or world_size

    def head_count(self, world_size: int) -> int:
        """The query heads over all ranks of a group."""
        return HEADS[self.heads](self.ranks(world_size))

    def kv_count(self, world_size: int) -> int:
        """The key/value heads over all ranks of a group."""
        return HEADS[self.heads if self.kv == "same" else self.kv](self.ranks(world_size))

    def tokens(self, place: int) -> int:
        """The tokens of the rank at ``place``."""
        return LENGTHS[self.length](place)

    def shape(self, tokens: int, heads: int) -> tuple[int, ...]:
        """The shape of queries, keys or values in the case's layout."""
        sizes = {"batch": self.batch, "sequence": tokens, "head": heads, "feature": self.features}
        return tuple(sizes[name] for name in LAYOUTS[self.layout])

    def output(self, world_size: int, place: int) -> tuple[int, ...]:
        """The shape of what comes out on the rank at ``place``."""
        return self.shape(self.tokens(place), self.head_count(world_size))

    def tensors(self, world_size: int, place: int) -> tuple[TensorSpec, ...]:
        """What the rank at ``place`` hands in: the inputs in the order of the function's arguments, then cotangents."""
        specs = self.queries(world_size, self.tokens(place), "")
        if self.wrap == "layer":
            specs += [_shared(name, "input", (self.features,), 1 / 4) for name in SCALINGS]
        specs += self.extras(world_size, place)
        for name in COTANGENTS.get(self.loss, ()):
            specs.append(own(name, "cotangent", self.output(world_size, place), self.cotangent))
        return tuple(specs)

    def queries(self, world_size: int, tokens: int, first: str) -> list[TensorSpec]:
        """Queries, keys and values; with a prefix to their names, those of a call that runs ``first``."""
        query = self.shape(tokens, self.head_count(world_size))
        value = self.shape(tokens, self.kv_count(world_size))
        roles = ["frozen" if first or letter in self.frozen else "input" for letter in "qkv"]
        names = [f"{first}{letter}" for letter in "qkv"]
        return [
            own(name, role, shape, "contiguous" if first else self.input, SMALL)
            for name, role, shape in zip(names, roles, (query, value, value), strict=True)
        ]

    def extras(self, world_size: int, place: int) -> list[TensorSpec]:
        """What else the probe hands in."""
        return []


@dataclass(frozen=True)
class Distributed(Attention):
    """Attention between two exchanges, in layout bshd or sbhd.

    rotary   no, or that queries and keys are rotated: in all features (full) or the first half of them (half)
    gather   the dimension that is named for gathering: the layout's own (layout), or 0 whatever the layout (zero)
    told     whether the number of key/value heads is told before the call: yes or no
    overlap  no, or that exchanges overlap with calculation: on a stream, or a stand_in for one where there is none
    before   ``uneven``: another attention, with uneven heads
    """

    rotary: str = "no"
    gather: str = "layout"
    told: str = "no"
    overlap: str = "no"

    @property
    def rotated(self) -> int:
        """The features that are rotated."""
        return {"no": 0, "half": self.features // 2, "full": self.features}[self.rotary]

    def prelude(self) -> Distributed:
        """The attention that runs first, of a case that says so."""
        return replace(self, heads=self.before, kv="same", before="nothing", loss="none", wrap="call")

    def extras(self, world_size: int, place: int) -> list[TensorSpec]:
        """The cosines and sines of the whole sequence, and what runs first."""
        specs: list[TensorSpec] = []
        if self.rotated:
            whole = sum(self.tokens(other) for other in range(self.ranks(world_size)))
            # As they have to be for the permutation that they go through: then the layout's sequence is where it is.
            shape = (whole, 1, 1, self.rotated) if self.layout == "bshd" else (1, whole, 1, self.rotated)
            specs += [_shared(name, "frozen", shape, SMALL) for name in ("cos", "sin")]
        if self.before != "nothing":
            specs += self.prelude().queries(world_size, self.tokens(place), "u_")
        return specs


@dataclass(frozen=True)
class UlyssesHF(Attention):
    """Attention as a Hugging Face attention function is wrapped: bhsd in, [batch, sequence, channels] out.

    positions  of the tokens: running through the sequence, or packed (two documents per row, counted from 0 each)
    lengths    whether the number of tokens is fixed when the module is made, or variable
    before     ``longer``: the same module was called with more tokens
    """

    layout: str = "bhsd"
    positions: str = "running"
    lengths: str = "variable"

    def output(self, world_size: int, place: int) -> tuple[int, ...]:
        """The shape of what comes out, heads joined."""
        return (self.batch, self.tokens(place), self.head_count(world_size) * self.features)

    def extras(self, world_size: int, place: int) -> list[TensorSpec]:
        """The positions, and what runs first."""
        ranks = range(self.ranks(world_size))
        specs = [self._positions("positions", [self.tokens(other) for other in ranks], place)]
        if self.before == "longer":
            more = [self.tokens(other) + 3 for other in ranks]
            specs += self.queries(world_size, more[place], "u_")
            specs.append(self._positions("u_positions", more, place))
        return specs

    def _positions(self, name: str, tokens: list[int], place: int) -> TensorSpec:
        whole, start, mine = sum(tokens), sum(tokens[:place]), tokens[place]
        rows = [self._row(whole, row)[start : start + mine] for row in range(self.batch)]
        values = tuple(position for row in rows for position in row)
        return TensorSpec(name, "frozen", (self.batch, mine), (self.batch, mine), integers=values)

    def _row(self, whole: int, row: int) -> list[int]:
        # The second document starts elsewhere in every row, and never where a rank's part does.
        first = whole if self.positions == "running" else whole // 2 + 1 + row
        return [token if token < first else token - first for token in range(whole)]


@dataclass(frozen=True)
class Chunked(Attention):
    """Causal attention with its projections, chunk by chunk: [tokens, batch, hidden] in and out.

    chunks  into which a rank's tokens are cut; of each run of as many chunks as there are ranks, every rank has one
    """

    layout: str = "sbhd"
    dtype: str = "bfloat16"
    causal: str = "yes"
    features: int = PROJECTED_FEATURES
    chunks: int = 2

    def hidden(self, world_size: int) -> int:
        """The channels of a token."""
        return self.head_count(world_size) * self.features

    def output(self, world_size: int, place: int) -> tuple[int, ...]:
        """The shape of what comes out."""
        return (self.tokens(place), self.batch, self.hidden(world_size))

    def tensors(self, world_size: int, place: int) -> tuple[TensorSpec, ...]:
        """Activations, both projections with their biases, and a cotangent."""
        hidden = self.hidden(world_size)
        wide = hidden + 2 * self.kv_count(world_size) * self.features
        return (
            own("x", "input", self.output(world_size, place), self.input, SMALL),
            _shared("w_qkv", "input", (wide, hidden), 1 / 64),
            _shared("b_qkv", "input", (wide,), 1 / 64),
            _shared("w_out", "input", (hidden, hidden), 1 / 64),
            own("w", "cotangent", self.output(world_size, place), self.cotangent),
        )


KINDS: dict[str, type[Attention]] = {"distributed": Distributed, "ulysses_hf": UlyssesHF, "fpdt": Chunked}
"""Per probe: its parameters."""


def params_of(case: CaseInfo) -> Attention:
    """The typed parameters of a case of this family."""
    return from_strings(KINDS[case.probe], case)


def head_shares(count: int, kv_count: int, ranks: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The heads of each rank, of queries and of keys: key heads as even as can be, with the queries that share them."""
    kv = tuple(kv_count // ranks + int(place < kv_count % ranks) for place in range(ranks))
    return tuple(share * (count // kv_count) for share in kv), kv


def own(name: str, role: str, shape: tuple[int, ...], strides: str, factor: float = 1.0) -> TensorSpec:
    """A rank's own tensor."""
    return strided(name, role, shape, strides, factor, STEP)


def _shared(name: str, role: str, shape: tuple[int, ...], factor: float) -> TensorSpec:
    return TensorSpec(name, role, shape, shape, factor=factor, step=STEP, shared=True)
