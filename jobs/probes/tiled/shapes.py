"""The parameters of each probe of family ``tiled``, and the shapes that follow. Nothing here imports torch."""

from __future__ import annotations

from dataclasses import dataclass

from jobs.contract import CaseInfo
from jobs.probes.case import TensorSpec, from_strings
from jobs.probes.tiled.base import (
    FACTOR,
    HIDDEN,
    IGNORED,
    INNER,
    LARGE,
    VOCABULARY,
    WIDE_VOCABULARY,
    Chunked,
    Tiled,
    label_spec,
    targets,
)


@dataclass(frozen=True)
class FeedForward(Tiled):
    """A gated feed-forward layer, silu(x·gateᵀ) * (x·upᵀ), times downᵀ.

    bias   absent, or one on every projection
    tied   yes: the way down is the gate's own weight, transposed
    listed which parameters are named as engaged in the calculation: all, or None as its documentation allows
    rank   the dimensions of the activation: 3, or 2 without a batch
    """

    bias: str = "absent"
    tied: str = "no"
    listed: str = "all"
    rank: int = 3

    def activation(self) -> tuple[int, ...]:
        """[batch, tokens, features], or without the batch."""
        return super().activation() if self.rank == 3 else (self.tokens, HIDDEN)

    def result(self) -> tuple[int, ...]:
        """That of the activation."""
        return self.activation()

    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Three projections, or two, each with a bias or not."""
        weights = {"gate": (INNER, HIDDEN), "up": (INNER, HIDDEN)}
        weights |= {} if self.tied == "yes" else {"down": (HIDDEN, INNER)}
        biases = {"gate_bias": (INNER,), "up_bias": (INNER,), "down_bias": (HIDDEN,)}
        return {**weights, **(biases if self.bias == "present" else {})}


@dataclass(frozen=True)
class Compute(FeedForward):
    """The same layer through the general tiling function.

    entry     the documented wrapper, or the function that it wraps
    passed    parameters as attributes of a module, or as tensors
    widening  yes: the layer's way down ends in another number of features
    """

    entry: str = "wrapper"
    passed: str = "module"
    widening: str = "no"

    def result(self) -> tuple[int, ...]:
        """That of the activation, with as many features as the layer ends in."""
        return (*self.activation()[:-1], self.parameters()["down"][0]) if self.tied == "no" else self.activation()

    def parameters(self) -> dict[str, tuple[int, ...]]:
        """As the layer's, the way down wider where it is."""
        wide = {"down": (2 * HIDDEN, INNER)} if self.widening == "yes" else {}
        return {**super().parameters(), **wide}


@dataclass(frozen=True)
class HeadLoss(Tiled):
    """Cross entropy of what an output projection makes of the activation.

    reduction  of the shards' losses: mean (of the shards' means), sum, or balanced (a sum that is divided by the
               number of live tokens afterwards, as is recommended where shards differ)
    labels     which are live; LIVE
    bias       of the projection: absent or present
    tied       yes: the projection is the embedding as well, whose rows are added to the activation
    """

    loss: str = "sum"
    reduction: str = "mean"
    labels: str = "all"
    bias: str = "absent"
    tied: str = "no"
    listed: str = "all"

    def parameters(self) -> dict[str, tuple[int, ...]]:
        """The projection and its bias."""
        return {"head": (VOCABULARY, HIDDEN), **({"head_bias": (VOCABULARY,)} if self.bias == "present" else {})}

    def more(self, place: int) -> tuple[TensorSpec, ...]:
        """Labels, and the tokens that an embedding looks up."""
        specs = [label_spec("labels", self.target(place), (self.batch, self.tokens))]
        if self.tied == "yes":
            tokens = tuple(value % VOCABULARY for value in range(3 * place, 3 * place + self.batch * self.tokens))
            specs.append(label_spec("ids", tokens, (self.batch, self.tokens)))
        return tuple(specs)

    def target(self, place: int) -> tuple[int, ...]:
        """The labels of the rank at ``place``, row by row."""
        return targets(self, self.labels, VOCABULARY, place)


@dataclass(frozen=True)
class ComputeLoss(HeadLoss):
    """The same loss through the general tiling function; see :class:`Compute`.

    unshard    what becomes of the shards' losses: one number each (0), or parts of a sequence (1, the default)
    """

    entry: str = "wrapper"
    passed: str = "module"
    unshard: int = 0


@dataclass(frozen=True)
class FusedLoss(HeadLoss):
    """The same loss through the tiled function that fuses projection and loss.

    mask   given: labels that do not count are named by a mask beside them
    """

    mask: str = "absent"

    def more(self, place: int) -> tuple[TensorSpec, ...]:
        """With the mask."""
        specs = super().more(place)
        if self.mask == "absent":
            return specs
        live = tuple(int(label != IGNORED) for label in self.target(place))
        return (*specs, label_spec("mask", live, (self.batch, self.tokens)))


@dataclass(frozen=True)
class LogitsLoss(Tiled):
    """The token mean of the cross entropy of logits that are there already: x is the logits."""

    loss: str = "sum"
    labels: str = "all"

    def activation(self) -> tuple[int, ...]:
        """[batch, tokens, vocabulary]."""
        return (self.batch, self.tokens, VOCABULARY)

    def parameters(self) -> dict[str, tuple[int, ...]]:
        """None."""
        return {}

    def more(self, place: int) -> tuple[TensorSpec, ...]:
        """Labels."""
        return (label_spec("labels", targets(self, self.labels, VOCABULARY, place), (self.batch, self.tokens)),)


@dataclass(frozen=True)
class ChunkedFeedForward(Chunked):
    """gelu(x·firstᵀ + its bias)·secondᵀ + its bias, with the tanh form of gelu.

    bias  the second: added to the result, or returned beside it for the caller to add
    """

    bias: str = "added"

    def result(self) -> tuple[int, ...]:
        """That of the activation."""
        return self.activation()

    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Two projections and their biases."""
        return {"first": (INNER, HIDDEN), "first_bias": (INNER,), "second": (HIDDEN, INNER), "second_bias": (HIDDEN,)}


@dataclass(frozen=True)
class ChunkedLogitsLoss(Chunked):
    """The loss of every token, gathered from all ranks of the group.

    vocabulary  small (16), or one with more entries (128) than the ignored label, -100, is below zero
    logits      usual, or large
    part        of the gathered losses that is looked at: a rank's own, in which its gradient counts, or the whole
    """

    labels: str = "all"
    vocabulary: str = "small"
    logits: str = "usual"
    part: str = "own"

    @property
    def size(self) -> int:
        """The entries of the vocabulary."""
        return VOCABULARY if self.vocabulary == "small" else WIDE_VOCABULARY

    def parameters(self) -> dict[str, tuple[int, ...]]:
        """The projection."""
        return {"head": (self.size, HIDDEN)}

    def result(self) -> tuple[int, ...]:
        """[tokens, batch] of this rank; where the whole is looked at, no incoming gradient is needed."""
        return (self.tokens, self.batch)

    def more(self, place: int) -> tuple[TensorSpec, ...]:
        """Labels, batch first."""
        return (label_spec("labels", targets(self, self.labels, self.size, place), (self.batch, self.tokens)),)

    def factor(self, name: str) -> float:
        """An activation with large logits is larger."""
        return LARGE if name == "x" and self.logits == "large" else FACTOR


PARAMS: dict[str, type[Tiled]] = {
    "compute": Compute,
    "compute_loss": ComputeLoss,
    "mlp": FeedForward,
    "fused_logits_loss": FusedLoss,
    "loss": LogitsLoss,
    "fpdt_ffn": ChunkedFeedForward,
    "fpdt_logits_loss": ChunkedLogitsLoss,
}
"""Per probe, the class of its parameters."""


def params_of(case: CaseInfo) -> Tiled:
    """The typed parameters of a case of this family."""
    return from_strings(PARAMS[case.probe], case)
