"""The parameters of a case of torch's own, and the shapes that follow from them. Nothing here imports torch."""

from __future__ import annotations

from dataclasses import dataclass

from jobs.contract import CaseInfo
from jobs.probes.case import TensorSpec, from_strings, strided

AGGREGATION = "loss_aggregation"
ROW = (2, 4, 4)
"""What lies behind the first dimension of every tensor."""
ROWS = 2
"""Rows of one rank's part where a collective has parts; of an all-to-all each block has a row of its own."""
TOKENS, CLASSES = 6, 5
"""Of one rank, where a loss is aggregated."""
IGNORED = -100

LIVE = {
    "even": (4, 4, 4, 4, 4, 4, 4, 4),
    "uneven": (5, 2, 6, 1, 4, 3, 6, 2),
    "one_empty": (5, 2, 6, 1, 4, 3, 6, 2),
}
"""Tokens that count, by the rank's place; of ``one_empty``, the last place has none."""


@dataclass(frozen=True)
class Collective:
    """The parameters of a collective's case.

    collective  all_to_all · all_reduce · all_gather · reduce_scatter · broadcast
    api         how it is called; jobs.probes.torch_itself.apis
    loss        square (Σy²) · weighted (a random incoming gradient)
    input       contiguous, or how it is strided: transposed · expanded · offset; ``cotangent`` likewise
    splits      of an all-to-all along the first dimension: even, or uneven over source and target
    root        how a broadcast's source is named: by its global rank, or by its place in the group
    """

    collective: str = ""
    api: str = ""
    dtype: str = "float32"
    loss: str = "square"
    input: str = "contiguous"
    cotangent: str = "contiguous"
    splits: str = "even"
    root: str = "global"
    sp: int = 0

    def ranks(self, world_size: int) -> int:
        """The ranks of one group."""
        return self.sp or world_size

    def counts(self, world_size: int, source: int) -> tuple[int, ...]:
        """The rows that the rank at ``source`` sends to each place, in an all-to-all."""
        even = self.splits == "even"
        return tuple(1 if even else 1 + (source + 2 * target) % 3 for target in range(self.ranks(world_size)))

    def received(self, world_size: int, target: int) -> tuple[int, ...]:
        """The rows that arrive at ``target`` from each place."""
        return tuple(self.counts(world_size, source)[target] for source in range(self.ranks(world_size)))

    def shapes(self, world_size: int, place: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The shapes of what goes in and what comes out on the rank at ``place`` of its group."""
        before = after = ROWS
        if self.collective == "all_to_all":
            before, after = sum(self.counts(world_size, place)), sum(self.received(world_size, place))
        elif self.collective == "all_gather":
            after *= self.ranks(world_size)
        elif self.collective == "reduce_scatter":
            before *= self.ranks(world_size)
        return (before, *ROW), (after, *ROW)

    def tensors(self, world_size: int, place: int) -> tuple[TensorSpec, ...]:
        """What the rank at ``place`` hands in: the input, then the incoming gradient where the case has one."""
        before, after = self.shapes(world_size, place)
        specs = [strided("x", "input", before, self.input)]
        if self.loss == "weighted":
            specs.append(strided("w", "cotangent", after, self.cotangent))
        return tuple(specs)


@dataclass(frozen=True)
class Aggregation:
    """The parameters of a loss aggregated over ranks.

    recipe  all_gather (means and counts gathered, their weighted sum) · all_reduce (sums and counts reduced apart)
    tokens  how many tokens count on each rank; LIVE
    loss    sum (the aggregated loss itself, on every rank) · weighted (a random factor on each)
    """

    recipe: str = ""
    tokens: str = ""
    dtype: str = "float32"
    loss: str = "sum"
    sp: int = 0

    def ranks(self, world_size: int) -> int:
        """The ranks of one group."""
        return self.sp or world_size

    def labels(self, world_size: int, place: int) -> tuple[int, ...]:
        """The target class of every token of the rank at ``place``; IGNORED where it does not count."""
        last = place == self.ranks(world_size) - 1
        live = 0 if self.tokens == "one_empty" and last else LIVE[self.tokens][place]
        # 5 has no factor in common with 6 tokens: as many of them count as there are live ones, scattered.
        return tuple(
            (2 * token + place) % CLASSES if (5 * token + place) % TOKENS < live else IGNORED for token in range(TOKENS)
        )

    def tensors(self, world_size: int, place: int) -> tuple[TensorSpec, ...]:
        """What the rank at ``place`` hands in: log-probabilities per token and class, then the loss's factor."""
        specs = [strided("x", "input", (TOKENS, CLASSES), "contiguous")]
        if self.loss == "weighted":
            specs.append(strided("w", "cotangent", (), "contiguous"))
        return tuple(specs)


def params_of(case: CaseInfo) -> Collective | Aggregation:
    """The typed parameters of a case of this family."""
    return from_strings(Aggregation, case) if case.probe == AGGREGATION else from_strings(Collective, case)
