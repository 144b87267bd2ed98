"""The parameters of a case of the engine, and the tensors that follow from them. Nothing here imports torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from jobs.contract import CaseInfo
from jobs.probes.case import TensorSpec, from_strings
from jobs.probes.model.shapes import SYMBOLS, TOKENS, Decoder

IGNORED = -100

LIVE: dict[str, Callable[[int, int], int]] = {
    "even": lambda ranks, place: TOKENS,
    "uneven": lambda ranks, place: 1 + (ranks - 1 - place) % TOKENS,
    "one_empty": lambda ranks, place: 0 if place == ranks - 1 else TOKENS - place % 2,
}
"""How many tokens of a rank count, from the number of ranks and the rank's place."""


@dataclass(frozen=True)
class Recipe:
    """How a rank makes its loss.

    weighs  what the whole is: the mean over ``tokens``, or the mean over the ``ranks`` of each one's own mean
    whole   every rank's loss is that of the whole sequence and comes back to every rank, so that the gradient is
            as many times that of the whole as there are ranks; likewise where no rank divides by their number
    """

    weighs: str
    whole: bool
    summary: str


RECIPES: dict[str, Recipe] = {
    "local": Recipe("ranks", True, "each rank's loss is the mean over its own tokens, and nothing is put together"),
    "all_gather": Recipe("tokens", True, "means and counts are gathered, and every rank weighs them alike"),
    "all_reduce": Recipe("tokens", True, "sums and counts are reduced apart"),
    "weighted_all_reduce": Recipe("tokens", True, "means times counts, and counts, are reduced apart"),
    "in_place": Recipe(
        "tokens", False, "sums and counts are reduced in place, so that each rank's gradient is that of its own tokens"
    ),
}


@dataclass(frozen=True)
class Training:
    """The parameters of one case.

    stage   of ZeRO, 0 to 3
    via     which of the subject's attentions is in the layers: distributed · ulysses
    wiring  how the engine is told which ranks share a sequence: unit (Megatron's object) · state (the library's module
            of that kind) · mesh (two sizes)
    recipe  RECIPES
    tokens  how many count on each rank: LIVE
    scatter whether gradients are put together by a reduce-scatter: off · on (DeepSpeed's default)
    made    the model is made whole, or ``partitioned`` from the start (stage 3)
    passes  micro-batches of the step: one · two
    look    at the gradients, or at what a ``step`` of Adam made of weights and moments
    """

    stage: int = 0
    wiring: str = "unit"
    recipe: str = "all_reduce"
    tokens: str = "uneven"
    scatter: str = "off"
    made: str = "whole"
    passes: str = "one"
    dtype: str = "float32"
    look: str = "gradient"
    via: str = "distributed"
    sp: int = 0

    def ranks(self, world_size: int) -> int:
        """The ranks of one sequence-parallel group."""
        return self.sp or world_size

    @property
    def scattered(self) -> bool:
        """Whether gradients take the path that divides by the ranks of a group as well."""
        return self.stage == 3 and self.scatter == "on"

    def times(self, world_size: int) -> float:
        """How many times the gradient of the whole sequence's loss an engine's gradient is: by this case's recipe, and
        by the path that gradients take through the engine."""
        ranks = self.ranks(world_size)
        return (ranks if RECIPES[self.recipe].whole else 1) / (ranks if self.scattered else 1)

    def decoder(self) -> Decoder:
        """The model, of family ``model``."""
        return Decoder(
            via=self.via,
            dtype=self.dtype,
            loss="accumulate" if self.passes == "two" else "entropy",
            step="adam" if self.look == "step" else "none",
            sp=self.sp,
        )

    def labels(self, world_size: int, place: int) -> tuple[int, ...]:
        """The next symbol of each token of the rank at ``place``; the last tokens do not count."""
        live = LIVE[self.tokens](self.ranks(world_size), place)
        return tuple((3 * place + 5 * i + 1) % SYMBOLS if i < live else IGNORED for i in range(TOKENS))

    def tensors(self, world_size: int, place: int) -> tuple[TensorSpec, ...]:
        """What the rank at ``place`` hands in: tokens as mixtures of symbols, weights, then labels."""
        model = self.decoder()
        given = [spec for spec in model.tensors(world_size, place) if spec.role != "cotangent"]
        # A training step asks for the gradients of weights alone.
        specs = [spec if spec.shared else _frozen(spec) for spec in given]
        labels = self.labels(world_size, place)
        shape = (model.batch, len(labels))
        return (*specs, TensorSpec("labels", "frozen", shape, shape, integers=labels))

    def dims(self, world_size: int) -> dict[str, tuple[str, ...]]:
        """The names of the dimensions of every tensor."""
        return self.decoder().dims(world_size) | {"labels": ("batch", "sequence"), "loss": ()}


def _frozen(spec: TensorSpec) -> TensorSpec:
    return TensorSpec(spec.name, "frozen", spec.shape, spec.drawn, factor=spec.factor)


def params_of(case: CaseInfo) -> Training:
    """The typed parameters of a case of this family."""
    return from_strings(Training, case)
