"""What all cases of family ``tiled`` have: sizes, labels, and the tensors that follow. Nothing here imports torch.

Each rank has activations and labels of its own; parameters are the same on every rank. Activations are
[batch, tokens, features], or tokens first where the operation wants them so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from jobs.probes.case import COTANGENTS, TensorSpec, strided

HIDDEN, INNER, VOCABULARY, WIDE_VOCABULARY = 8, 12, 16, 128
FACTOR = 1 / 16
"""On every drawn value but a cotangent: activations and weights of ±0.5, so that no activation is saturated."""
LARGE = 16.0
"""The factor of an activation whose logits lie too far apart for an exponential in 32 bits."""
STEP = 2.0**-10
"""What moves inputs for a central difference: none of these functions is a polynomial."""
IGNORED = -100

UNEVEN = "01111011"
LIVE: dict[str, Callable[[int, int, int, int], bool]] = {
    "all": lambda token, row, place, shard: True,
    "uneven": lambda token, row, place, shard: UNEVEN[(token + 3 * row + place) % len(UNEVEN)] == "1",
    "shard": lambda token, row, place, shard: token >= shard,
    "few": lambda token, row, place, shard: row == 0 and token == 1,
    "none": lambda token, row, place, shard: False,
}
"""Which labels count, from the token, its row of the batch, the rank's place and the tokens of a shard."""


@dataclass(frozen=True)
class Tiled:
    """What all cases have.

    loss       the loss behind the function; see :class:`jobs.probes.case.Params`
    tokens     per rank and row of the batch; ``shards`` of them, which need not divide it
    input      how the activation lies in memory; ``cotangent`` likewise
    frozen     what needs no gradient: nothing, the activation (x), or a parameter
    wrap       the function alone (call), between two multiplications (layer), or under activation checkpointing
    """

    dtype: str = "float32"
    loss: str = "weighted"
    tokens: int = 8
    shards: int = 4
    batch: int = 1
    input: str = "contiguous"
    cotangent: str = "contiguous"
    frozen: str = "nothing"
    wrap: str = "call"
    sp: int = 0

    def parameters(self) -> dict[str, tuple[int, ...]]:
        """The parameters of the function, in the order in which it takes them."""
        raise NotImplementedError

    def activation(self) -> tuple[int, ...]:
        """The shape of the activation."""
        return (self.batch, self.tokens, HIDDEN)

    def result(self) -> tuple[int, ...]:
        """The shape of the output: by default a number."""
        return ()

    def more(self, place: int) -> tuple[TensorSpec, ...]:
        """What the rank at ``place`` hands in besides, after the activation."""
        return ()

    def tensors(self, world_size: int, place: int) -> tuple[TensorSpec, ...]:
        """The activation, what comes with it, the parameters, then cotangents."""
        specs = [self._input("x", self.activation(), strides=self.input), *self.more(place)]
        specs += [self._input(name, shape, shared=True) for name, shape in self.parameters().items()]
        specs += [strided(name, "cotangent", self.result(), self.cotangent) for name in COTANGENTS.get(self.loss, ())]
        return tuple(specs)

    def _input(
        self, name: str, shape: tuple[int, ...], strides: str = "contiguous", shared: bool = False
    ) -> TensorSpec:
        still = self.frozen == name or (self.frozen == "parameters" and shared)
        role = "frozen" if still else "input"
        factor = self.factor(name)
        return strided(name, role, shape, strides, factor, STEP, shared)

    def factor(self, name: str) -> float:
        """What drawn values of that name are multiplied by."""
        return FACTOR


@dataclass(frozen=True)
class Chunked(Tiled):
    """What a pipelined transformer's own chunked functions have, tokens first.

    effective  the type that gradients of parameters are added up in: never more than 32 bits
    """

    effective: str = ""

    def __post_init__(self) -> None:
        """Know the effective type, whoever asks."""
        object.__setattr__(self, "effective", "float32" if self.dtype == "float64" else self.dtype)

    @property
    def chunk(self) -> int:
        """The tokens of a chunk."""
        return -(-self.tokens // self.shards)

    def activation(self) -> tuple[int, ...]:
        """[tokens, batch, features]."""
        return (self.tokens, self.batch, HIDDEN)


def targets(params: Tiled, labels: str, vocabulary: int, place: int) -> tuple[int, ...]:
    """The labels of the rank at ``place``, row by row: ``IGNORED`` where they do not count."""
    shard = -(-params.tokens // params.shards)
    return tuple(
        (5 * token + 3 * row + 7 * place + 2) % vocabulary if LIVE[labels](token, row, place, shard) else IGNORED
        for row in range(params.batch)
        for token in range(params.tokens)
    )


def label_spec(name: str, values: tuple[int, ...], shape: tuple[int, ...]) -> TensorSpec:
    """Whole numbers, which need no gradient."""
    return TensorSpec(name, "frozen", shape, shape, integers=values)
