"""The operations of family ``engine``: a training engine that is told of sequence parallelism, and one step of it.

The convention of a gradient: the sum over the ranks of a sequence-parallel group, each having seen its own tokens, and
the mean over the groups, each having seen a batch of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from jobs.subject.context import RankContext, Unsupported

if TYPE_CHECKING:
    import torch

Make = Callable[[], "torch.nn.Module"]
"""Makes the model, with its weights."""
MakeOptimiser = Callable[[Any], "torch.optim.Optimizer"]
"""From a model's parameters to their optimiser."""


class Engine(Protocol):
    """A model inside a training engine, for one step. Every method but ``forward`` may speak to the other ranks."""

    model: torch.nn.Module
    """What was made, as the engine left it: its parameters stand for what the engine keeps elsewhere."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The model's output."""

    def loss(self, recipe: str) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
        """From this rank's logits and labels to one number for its group; the recipes of family ``loss``."""

    def backward(self, loss: torch.Tensor) -> None:
        """The backward of one micro-batch, and after the last one of a step what belongs to it over the ranks."""

    def gradient(self, parameter: torch.nn.Parameter) -> torch.Tensor | None:
        """A whole gradient before any clipping, in the parameter's shape; between the last backward and the step."""

    def step(self) -> None:
        """One step of the optimiser."""

    def value(self, parameter: torch.nn.Parameter) -> torch.Tensor:
        """A whole parameter, in the precision that it is stepped in."""

    def moment(self, parameter: torch.nn.Parameter, name: str) -> torch.Tensor | None:
        """A whole tensor of the optimiser's state, by the optimiser's own name for it."""

    def close(self) -> None:
        """Give up what the engine holds outside itself."""


class EngineOperations:
    """Training engines."""

    name: str

    def engine(
        self,
        ctx: RankContext,
        *,
        make: Make,
        optimiser: MakeOptimiser,
        stage: int,
        wiring: str,
        scatter: bool,
        partitioned: bool,
        passes: int,
        dtype: str,
    ) -> Engine:
        """A fresh engine around a fresh model.

        stage        of ZeRO: 0 to 3
        wiring       how it is told which ranks share a sequence: ``unit`` (an object that answers questions about
                     ranks and groups), ``state`` (the subject's own module of that kind), ``mesh`` (two sizes)
        scatter      gradients are put together by a reduce-scatter, where the stage has the choice
        partitioned  the model is made from the start as the stage keeps it, instead of whole
        passes       micro-batches of one step
        """
        raise Unsupported(f"{self.name} has no training engine")
