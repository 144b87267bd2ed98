"""The truth about a training step: the decoder dense, in one process, over the whole sequence of each group.

A group's loss is a mean of cross entropies over its own sequence; the groups, which share the weights, are averaged,
and the result is counted as often as the case's recipe says. That is float64, with autograd over one copy of every
weight. The noise floor beside it is what a right engine may lose in the case's own type: each rank's tokens meet a copy
of the weights, whose gradients are added up rounded; tokens in order and reversed.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from jobs.contract import CaseInfo
from jobs.oracle import Expected
from jobs.oracle.dense import NOISE
from jobs.oracle.drawn import drawn
from jobs.oracle.model import Named, Said, decoder, stepped, worst
from jobs.probes.engine.shapes import IGNORED, RECIPES, Training, params_of
from jobs.values import dtype_of

GRADIENT = "gradient"


def expected(case: CaseInfo, world_size: int) -> Iterator[Expected]:
    """What every rank must hold after ``case``, and the noise floor beside it."""
    world = _World(case, params_of(case), world_size)
    wide = world.run(torch.float64, copies=False, reverse=False)
    noisy = [world.run(dtype_of(case.dtype), copies=True, reverse=reverse) for reverse in (False, True)]
    for rank in range(world_size):
        for (role, name), right in wide[rank].items():
            yield Expected(rank, role, name, right)
            if right is not None:
                yield Expected(rank, role, NOISE + name, worst(right, [run[rank][role, name] for run in noisy]))
        for name, given in world.given[rank].items():
            if name not in world.weights:
                yield Expected(rank, "input", name, given)


class _World:
    """Every rank of the world, and what it holds."""

    def __init__(self, case: CaseInfo, params: Training, world_size: int) -> None:
        self.params, self.world_size, self.ranks = params, world_size, params.ranks(world_size)
        self.model = params.decoder()
        self.weights = tuple(self.model.weights(world_size))
        self.given: list[Named] = []
        for rank in range(world_size):
            specs = params.tensors(world_size, rank % self.ranks)
            values = {spec.name: drawn(case, spec, rank) for spec in specs}
            self.given.append(
                {name: v if name == "labels" else v.to(dtype_of(case.dtype)) for name, v in values.items()}
            )

    def run(self, dtype: torch.dtype, copies: bool, reverse: bool) -> list[Said]:
        """What each rank must have, calculated in ``dtype``: with copies of the weights per rank, or without."""
        held = [{name: mine[name].to(dtype).clone().requires_grad_() for name in self.weights} for mine in self.given]
        if not copies:
            held = [held[0]] * self.world_size
        said: list[Said] = [{} for _ in held]
        objective = torch.zeros((), dtype=dtype)
        for n in self.model.batches():
            for first in range(0, self.world_size, self.ranks):
                members = range(first, first + self.ranks)
                xs = [self.given[rank][f"x{n}"].to(dtype) for rank in members]
                ys = decoder(self.model, self.world_size, xs, [held[rank] for rank in members], reverse)
                objective = objective + self._losses(n, members, ys, said)
        # Groups are averaged, and so are micro-batches.
        parts = self.world_size // self.ranks * len(self.model.batches())
        (objective * self.params.times(self.world_size) / parts).backward()
        owners = held if copies else held[:1]
        for name in self.weights:
            self._say(name, [mine[name] for mine in owners], said, rounded=copies)
        return said

    def _losses(self, n: str, members: range, ys: list[torch.Tensor], said: list[Said]) -> torch.Tensor:
        """The loss of one group's sequence; notes each member's output and what its recipe calls its loss."""
        sums = [_entropies(y, self.given[rank]["labels"]) for rank, y in zip(members, ys, strict=True)]
        counts = [int((self.given[rank]["labels"] != IGNORED).sum()) for rank in members]
        means = [total / max(count, 1) for total, count in zip(sums, counts, strict=True)]
        over_tokens = torch.stack(sums).sum() / sum(counts)
        for rank, y, mean in zip(members, ys, means, strict=True):
            own = mean if RECIPES[self.params.recipe].weighs == "ranks" else over_tokens
            said[rank]["output", f"y{n}"] = y.detach()
            said[rank]["output", f"loss{n}"] = own.detach()
        return torch.stack(means).mean() if RECIPES[self.params.recipe].weighs == "ranks" else over_tokens

    def _say(self, name: str, copies: list[torch.Tensor], said: list[Said], rounded: bool) -> None:
        """A weight's gradient, or what one step makes of it: the same on every rank."""
        there = [copy.grad for copy in copies if copy.grad is not None]
        gradient = torch.stack(there).sum(0)
        if self.params.look == GRADIENT:
            mine: Said = {("grad", name): gradient}
        else:
            mine = stepped(name, copies[0].detach(), gradient, rounded)
        for each in said:
            each.update(mine)


def _entropies(y: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The sum of the cross entropies of the tokens that count; logits are [batch, tokens, symbols]."""
    live = labels != IGNORED
    at_label = y.gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    return ((torch.logsumexp(y, -1) - at_label) * live).sum()
