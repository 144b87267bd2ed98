"""The implementations behind the controls: a training engine of ours, right, and wrong in one way at a time.

They know nothing of the oracle: every rank's gradients are sent to every rank and added up there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from jobs.contract import ControlInfo
from jobs.probes.control import implementation_of
from jobs.probes.engine.controls import MUTANTS
from jobs.probes.engine.network import weights_of
from jobs.probes.engine.recipes import Loss, count, entropies
from jobs.probes.engine.shapes import Training
from jobs.probes.model import mutants
from jobs.probes.model.decoder import Function
from jobs.probes.model.shapes import LEARNING_RATE
from jobs.subject.context import RankContext
from jobs.subject.operations.engine import Make, MakeOptimiser

LOSER, DECAY = "layer1.v_proj", 2.0**-3
Change = Callable[[torch.Tensor, torch.Tensor], "torch.Tensor | None"]
"""What a mutant makes of one weight's right gradient, and of the weight."""


def layer(control: ControlInfo, params: Training, ctx: RankContext) -> Function:
    """One layer around the attention of family ``model``'s reference: what is wrong here is the engine."""
    traced = "traced_" if implementation_of(control).startswith("traced_") else ""
    return mutants.function(dataclasses.replace(control, id=f"model/decoder.{traced}reference"), params.decoder(), ctx)


class _Sum(torch.autograd.Function):
    """The sum over a group, and the sum of what comes back to its ranks."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        total = x.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _Sum.apply(grad.contiguous(), ctx.group), None


class OwnEngine:
    """What an engine is to a step: gradients summed over all ranks, divided by the groups, and torch's optimiser.

    ``scattered``: divided by the ranks of a group as well.
    """

    def __init__(
        self, ctx: RankContext, make: Make, optimiser: MakeOptimiser, name: str, passes: int, scattered: bool
    ) -> None:
        self.model = make()
        self.weights = weights_of(self.model)
        self._ctx, self._name, self._passes = ctx, name, passes
        self._optimiser = optimiser(list(self.weights.values()))
        self._left = passes
        self._parts = ctx.world_size if scattered else ctx.world_size // ctx.sp_size

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The model's output."""
        y: torch.Tensor = self.model(x)
        return y

    def loss(self, recipe: str) -> Loss:
        """The mean over the group's tokens, by sums that all ranks take part in: what every recipe here comes to."""
        group = self._ctx.group

        def loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            tokens = count(labels)
            dist.all_reduce(tokens, group=group)
            total: torch.Tensor = _Sum.apply(entropies(logits, labels), group)
            return total / tokens

        return loss

    def backward(self, loss: torch.Tensor) -> None:
        """The backward of one micro-batch; after the last one, gradients are put together."""
        (loss / self._passes).backward()
        self._left -= 1
        if self._left == 0 and self._name != "own_alone":
            for weight in self.weights.values():
                weight.grad = self._together(weight)
        change = CHANGES.get(self._name)
        if self._left == 0 and change is not None:
            loser = self.weights[LOSER]
            if loser.grad is not None:
                loser.grad = change(loser.grad, loser.detach())

    def _together(self, weight: torch.Tensor) -> torch.Tensor:
        """One weight's gradient over all ranks."""
        own = torch.zeros_like(weight) if weight.grad is None else weight.grad
        if self._name == "rank_dropped" and self._ctx.rank == self._ctx.world_size - 1:
            own = own * 0
        total = own.double()
        dist.all_reduce(total)
        factor = {"times_ranks": self._ctx.world_size, "over_ranks": 1 / self._ctx.world_size}.get(self._name, 1)
        return (total * factor / self._parts).to(weight.dtype)

    def gradient(self, parameter: torch.nn.Parameter) -> torch.Tensor | None:
        """As it is."""
        return parameter.grad

    def step(self) -> None:
        """The optimiser's step, and what a mutant makes of it."""
        before = {name: weight.detach().clone() for name, weight in self.weights.items()}
        for _ in range(2 if self._name == "stepped_twice" else 1):
            self._optimiser.step()
        with torch.no_grad():
            if self._name == "not_stepped":
                self.weights[LOSER].copy_(before[LOSER])
            if self._name == "decayed":
                for name, weight in self.weights.items():
                    weight.sub_(LEARNING_RATE * DECAY * before[name])

    def value(self, parameter: torch.nn.Parameter) -> torch.Tensor:
        """As it is."""
        return parameter.detach()

    def moment(self, parameter: torch.nn.Parameter, name: str) -> torch.Tensor | None:
        """The optimiser's own."""
        if self._name == "moments_lost" and parameter is self.weights[LOSER]:
            return None
        state: torch.Tensor | None = self._optimiser.state.get(parameter, {}).get(name)
        return state

    def close(self) -> None:
        """Nothing is held."""


def _half_zeroed(grad: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    grad[: grad.shape[0] // 2] = 0
    return grad


def _not_a_number(grad: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    grad[0, 0] = float("nan")
    return grad


CHANGES: dict[str, Change] = {
    "weight_zeroed": lambda grad, weight: torch.zeros_like(grad),
    "block_zeroed": _half_zeroed,
    "shifted": lambda grad, weight: grad.flatten().roll(1).view_as(grad),
    "stale": lambda grad, weight: weight.clone(),
    "not_a_number": _not_a_number,
    "none": lambda grad, weight: None,
}


def engine(control: ControlInfo, params: Training, ctx: RankContext, make: Make, optimiser: MakeOptimiser) -> OwnEngine:
    """The engine that ``control`` names."""
    name = implementation_of(control)
    if name not in ("reference", "traced_reference", *MUTANTS):
        raise LookupError(f"control {control.id} names no implementation here")
    return OwnEngine(ctx, make, optimiser, name, len(params.decoder().batches()), params.scattered)
