"""The parameters of a loss case, and the shapes and labels that follow from them. Nothing here imports torch.

Three kinds of case: a loss per token whose logits are handed in (:class:`Tokens`), one number for the whole sequence
(:class:`Aggregate`), and a subject that cuts whole sequences into the ranks' shards itself (:class:`Shards`), where
logits are rows of a table, so that what belongs to which label is seen in the table's gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from jobs.contract import CaseInfo
from jobs.probes.case import COTANGENTS, TensorSpec, from_strings, strided

IGNORED = -100
"""The label of a token that does not count, torch's default."""
TOKENS = 6
"""Of one rank, per row of the batch."""

VOCABULARY = {"tiny": 2, "small": 11, "large": 128}
"""Classes. In more than 100 of them, the label -100 read as an index is a class."""
SIZES = {"plain": 1 / 8, "wide": 1.0, "huge": 16.0}
"""What the drawn logits (±8) are multiplied by. Of the last, a softmax in float32 has zeros; its logarithm has not."""
STEPS = {size: 2.0**-10 / max(1.0, factor) for size, factor in SIZES.items()}
"""How far a central difference moves them, besides."""

LIVE = (5, 2, 6, 1, 4, 3, 6, 2)
"""Tokens that count, of :data:`TOKENS`, by the rank's place, where that is uneven."""

CHUNKS: dict[str, Callable[[int], int]] = {
    "even": lambda place: 4,
    "uneven": lambda place: 2 if place % 2 else 4,
    "indivisible": lambda place: 4,
}
"""Tokens per shard of the sequence that the rank at ``place`` brings along; ``indivisible`` has one more in all."""
COUNTED: dict[str, Callable[[int, int, int], bool]] = {
    "all": lambda at, chunk, length: True,
    # The same number in every shard, whether labels are counted before or after they were shifted.
    "inner": lambda at, chunk, length: at % chunk in (1, 2),
    "uneven": lambda at, chunk, length: (5 * at + at // chunk) % 7 > at // chunk % 5,
    "one_empty": lambda at, chunk, length: at <= length - chunk and at % 3 != 2,
}
"""Whether the label at ``at`` of a sequence counts."""


@dataclass(frozen=True)
class Tokens:
    """The parameters of a loss per token.

    how        gathered (the documented function, which keeps its own part of the gradient) · summed (the parts of
               every rank's gradient are summed) · local (not gathered: this rank's tokens alone)
    loss, input, cotangent, wrap   as everywhere; see :class:`jobs.probes.case.Params`
    vocabulary, size   VOCABULARY, SIZES
    ignored    none · uneven (the ranks have different numbers of labels that count) · one_empty (the last has none)
    shape      aligned, or what is outside the contract: swapped (labels batch first)
    gather     losses are gathered as NCCL does it, which compares no shapes, or strict: as gloo does, which does
    effective  the type that is calculated in, where a release converts to it
    """

    how: str = "gathered"
    dtype: str = "float32"
    loss: str = "weighted"
    vocabulary: str = "small"
    ignored: str = "none"
    size: str = "plain"
    batch: int = 2
    input: str = "contiguous"
    cotangent: str = "contiguous"
    wrap: str = "call"
    shape: str = "aligned"
    gather: str = "nccl"
    sp: int = 0
    effective: str = ""

    @property
    def once(self) -> bool:
        """Whether the ranks hold one and the same loss, whose gradient counts once."""
        return self.how == "gathered"

    def ranks(self, world_size: int) -> int:
        """The ranks of one sequence-parallel group."""
        return self.sp or world_size

    def tensors(self, world_size: int, place: int) -> tuple[TensorSpec, ...]:
        """What the rank at ``place`` hands in: logits, labels, frozen logits, cotangents."""
        ranks, batch, count = self.ranks(world_size), self.batch, TOKENS * self.batch
        logits = (TOKENS, batch, VOCABULARY[self.vocabulary])
        labels = _labels(count, logits[-1], place, _live(self.ignored, count, place, ranks))
        across = (batch, TOKENS) if self.shape == "swapped" else (TOKENS, batch)
        specs = [
            strided("x", "input", logits, self.input, SIZES[self.size], STEPS[self.size]),
            TensorSpec("t", "frozen", across, across, integers=labels),
        ]
        if self.loss == "frozen":
            specs.append(strided("c", "frozen", logits, self.input, SIZES[self.size]))
        whole = (TOKENS if self.how == "local" else TOKENS * ranks, batch)
        # One loss, held by every rank, has one incoming gradient.
        for name in COTANGENTS.get(self.loss, ()):
            specs.append(strided(name, "cotangent", whole, self.cotangent, shared=self.once))
        return tuple(specs)


@dataclass(frozen=True)
class Aggregate:
    """The parameters of one loss over the whole sequence.

    recipe     all_gather (means and counts gathered, and the means weighted) · all_reduce (sums and counts reduced
               apart) · weighted_all_reduce (means times counts reduced, over the counts) · own (the subject's own
               function)
    reduction  mean (over the tokens that count) or sum
    tokens     even · uneven · one_empty (the last rank has no token that counts) · none (no rank has one)
    """

    recipe: str = ""
    tokens: str = ""
    dtype: str = "float32"
    loss: str = "sum"
    reduction: str = "mean"
    vocabulary: str = "small"
    size: str = "plain"
    batch: int = 1
    input: str = "contiguous"
    wrap: str = "call"
    sp: int = 0
    effective: str = ""

    @property
    def once(self) -> bool:
        """Whether the ranks hold one and the same loss, whose gradient counts once."""
        return self.recipe == "own"

    def ranks(self, world_size: int) -> int:
        """The ranks of one sequence-parallel group."""
        return self.sp or world_size

    def tensors(self, world_size: int, place: int) -> tuple[TensorSpec, ...]:
        """What the rank at ``place`` hands in: logits, labels, frozen logits, factors of the loss."""
        count = TOKENS * self.batch
        logits = (self.batch, TOKENS, VOCABULARY[self.vocabulary])
        ignored = {"even": "even", "none": "nothing"}.get(self.tokens, self.tokens)
        live = _live(ignored, count, place, self.ranks(world_size))
        labels = TensorSpec("t", "frozen", logits[:2], logits[:2], integers=_labels(count, logits[-1], place, live))
        specs = [strided("x", "input", logits, self.input, SIZES[self.size], STEPS[self.size]), labels]
        if self.loss == "frozen":
            specs.append(strided("c", "frozen", logits, self.input, SIZES[self.size]))
        for name in COTANGENTS.get(self.loss, ()):
            specs.append(strided(name, "cotangent", (), "contiguous", shared=self.once))
        return tuple(specs)


@dataclass(frozen=True)
class Shards:
    """The parameters of whole sequences, one per rank, that the subject cuts into shards.

    labels   which labels count: all · inner (as many in every shard) · uneven · one_empty (the last shard has none)
    length   even · uneven (the ranks' sequences have different lengths) · indivisible (outside the contract)
    pieces   into how many pieces a rank's own loss is cut, where the subject can do that
    gather   lengths and batches are gathered as NCCL does it, or strict: as gloo does
    loss     sum (the loss itself) · weighted (a random factor on each)
    """

    labels: str = "all"
    dtype: str = "float32"
    loss: str = "weighted"
    length: str = "even"
    batch: int = 1
    pieces: int = 1
    gather: str = "nccl"
    sp: int = 0
    effective: str = ""

    @property
    def once(self) -> bool:
        """Every rank's loss counts."""
        return False

    def ranks(self, world_size: int) -> int:
        """The ranks of one sequence-parallel group, and the number of sequences."""
        return self.sp or world_size

    def chunk(self, place: int) -> int:
        """The tokens per shard of the sequence from ``place``."""
        return CHUNKS[self.length](place)

    def tokens(self, world_size: int, place: int) -> int:
        """The length of the sequence from ``place``."""
        return self.chunk(place) * self.ranks(world_size) + int(self.length == "indivisible")

    def first_row(self, world_size: int, place: int) -> int:
        """The row of the table that belongs to the first token of the sequence from ``place``."""
        return self.batch * sum(self.tokens(world_size, before) for before in range(place))

    def tensors(self, world_size: int, place: int) -> tuple[TensorSpec, ...]:
        """What the rank at ``place`` hands in: a table of logits, one row per token of every sequence; then the tokens
        of its own sequence, their labels, and the factor of the loss (per sequence where ``loader`` gives one)."""
        ranks, tokens = self.ranks(world_size), self.tokens(world_size, place)
        classes, shape = VOCABULARY["small"], (self.batch, tokens)
        rows = (self.first_row(world_size, ranks), classes)
        first, count = self.first_row(world_size, place), self.batch * tokens
        counted = COUNTED[self.labels]
        labels = tuple(
            (2 * at + place) % classes if counted(at % tokens, self.chunk(place), tokens) else IGNORED
            for at in range(count)
        )
        specs = [
            strided("x", "input", rows, "contiguous", SIZES["plain"], STEPS["plain"]),
            TensorSpec("i", "frozen", shape, shape, integers=tuple(range(first, first + count))),
            TensorSpec("t", "frozen", shape, shape, integers=labels),
        ]
        if self.loss == "weighted":
            # Whoever runs the backward of one loss on every rank by itself is handed no factor but one.
            incoming = () if self.one_number else (ranks,)
            specs.append(strided("w", "cotangent", incoming, "contiguous", shared=self.one_number))
        return tuple(specs)

    @property
    def one_number(self) -> bool:
        """Whether there is one loss of all sequences, or one number per sequence."""
        return False


@dataclass(frozen=True)
class Steps(Shards):
    """The same, of a subject that also runs the model, the loss and the backward on each shard."""

    @property
    def one_number(self) -> bool:
        """The mean over the sequences."""
        return True


KINDS: dict[str, type[Tokens] | type[Aggregate] | type[Shards]] = {
    "vocab_cross_entropy": Tokens,
    "aggregate": Aggregate,
    "loader": Shards,
    "fwd_loss_bwd": Steps,
}
"""Per probe, the parameters of its cases."""
Loss = Tokens | Aggregate | Shards


def params_of(case: CaseInfo) -> Loss:
    """The typed parameters of a case of this family."""
    return from_strings(KINDS[case.probe], case)


def _live(ignored: str, count: int, place: int, ranks: int) -> int:
    """How many of a rank's ``count`` labels count."""
    if ignored == "nothing" or (ignored == "one_empty" and place == ranks - 1):
        return 0
    if ignored in ("uneven", "one_empty"):
        return LIVE[place] * count // TOKENS
    return count * 2 // 3 if ignored == "even" else count


def _labels(count: int, classes: int, place: int, live: int) -> tuple[int, ...]:
    # 5 has no factor in common with a multiple of 6 that is below 30: as many labels count as are live, scattered.
    return tuple((2 * at + place) % classes if (5 * at + place) % count < live else IGNORED for at in range(count))
