"""What the mutants of family ``tiled`` make of a right output, and of right gradients: wrong in one way at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from jobs.subject.base import RankContext

Gradients = list["torch.Tensor | None"]
"""Of the activation, then of the parameters; None where none is needed."""


@dataclass(frozen=True)
class Scene:
    """What a backward has at hand.

    right     the right gradients
    again     the right gradients for another incoming one
    kept      what the forward was given: the activation, then the parameters
    """

    right: Gradients
    incoming: torch.Tensor
    again: Callable[[torch.Tensor], Gradients]
    kept: Sequence[torch.Tensor]
    shards: int
    ctx: RankContext

    @property
    def x(self) -> torch.Tensor:
        """The right gradient of the activation."""
        assert self.right[0] is not None  # noqa: S101 - mutants stand on cases whose activation needs one
        return self.right[0]

    @property
    def last_shard(self) -> slice:
        """The tokens of the last shard."""
        tokens = self.kept[0].shape[1]
        step = -(-tokens // self.shards)
        return slice((tokens - 1) // step * step, tokens)

    def scaled(self, factor: float, first: int = 0) -> Gradients:
        """The right gradients times ``factor``, from the one at ``first`` on."""
        return [g if g is None or i < first else g * factor for i, g in enumerate(self.right)]

    def with_x(self, gradient: torch.Tensor) -> Gradients:
        """The right gradients, but for that of the activation."""
        return [gradient, *self.right[1:]]


def right(y: torch.Tensor, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """What is no mutant of the forward: the output as it is."""
    return y


def right_gradients(scene: Scene) -> Gradients:
    """What is no mutant of the backward: the gradients as they are."""
    return scene.right


def _input_mutated(y: torch.Tensor, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    tensors[0].mul_(2)
    return y


def _left_behind(y: torch.Tensor, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    for tensor in tensors[1:]:
        tensor.grad = torch.ones_like(tensor)
    return y


def _block_zeroed(scene: Scene) -> Gradients:
    scene.x[:, scene.last_shard] = 0
    return scene.right


def _parameter_zeroed(scene: Scene) -> Gradients:
    return [g * (i != 1) if g is not None else None for i, g in enumerate(scene.right)]


def _part_dropped(scene: Scene) -> Gradients:
    rest = scene.incoming.clone()
    rest[:, scene.last_shard] = 0
    return [scene.x, *scene.again(rest)[1:]]


def _not_a_number(scene: Scene) -> Gradients:
    scene.x.view(-1)[0] = float("nan")
    return scene.right


def _cotangent_mutated(scene: Scene) -> Gradients:
    scene.incoming.mul_(2)
    return scene.right


FORWARDS: dict[str, Callable[[torch.Tensor, Sequence[torch.Tensor]], torch.Tensor]] = {
    "wrong_shape": lambda y, tensors: y.flatten(0, 1),
    "forward_permuted": lambda y, tensors: y.flip(1),
    "input_mutated": _input_mutated,
    "left_behind": _left_behind,
}
"""What a mutant makes of the right output, and of what went in while it is at it."""
BACKWARDS: dict[str, Callable[[Scene], Gradients]] = {
    "zeroed": lambda scene: scene.with_x(torch.zeros_like(scene.x)),
    "block_zeroed": _block_zeroed,
    "parameter_zeroed": _parameter_zeroed,
    "times_ranks": lambda scene: scene.scaled(scene.ctx.sp_size),
    "over_ranks": lambda scene: scene.scaled(1 / scene.ctx.sp_size),
    "over_shards": lambda scene: scene.scaled(1 / scene.shards, first=1),
    "swapped": lambda scene: scene.with_x(scene.x.transpose(1, 2).reshape(scene.x.shape)),
    "part_dropped": _part_dropped,
    "rank_dropped": lambda scene: scene.with_x(scene.x * (scene.ctx.sp_rank != scene.ctx.sp_size - 1)),
    "stale": lambda scene: scene.with_x(scene.kept[0].detach()),
    "not_a_number": _not_a_number,
    "cotangent_mutated": _cotangent_mutated,
    "scale_forgotten": lambda scene: [scene.x, *scene.again(torch.ones_like(scene.incoming))[1:]],
}
"""What a mutant makes of the right gradients."""
