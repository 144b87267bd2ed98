"""The implementations behind the controls: losses of ours over a split sequence, right, and wrong in one way at a time.

They know nothing of the oracle: real messages go between the ranks, by the one exchange that every tracer so far
differentiates. Every rank knows every rank's labels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch

from jobs.contract import ControlInfo
from jobs.probes.control import implementation_of
from jobs.probes.loss.shapes import IGNORED, Aggregate, Loss, Shards, Tokens
from jobs.probes.passes import Function
from jobs.probes.traced import TracedAllToAll
from jobs.subject.base import RankContext

Backward = Callable[["torch.Tensor", "torch.Tensor", RankContext], "torch.Tensor"]
"""What a mutant makes of the right gradient; it is handed the input too."""


class _Mutated(torch.autograd.Function):
    """The logits as they are, and what a mutant makes of their gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, mutation: Backward, where: RankContext) -> torch.Tensor:
        ctx.mutation, ctx.where, ctx.x = mutation, where, x.detach().clone()
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return ctx.mutation(grad.clone(), ctx.x, ctx.where), None, None


def _block_zeroed(right: torch.Tensor, x: torch.Tensor, where: RankContext) -> torch.Tensor:
    right.select(-2, 0).zero_()
    return right


def _not_a_number(right: torch.Tensor, x: torch.Tensor, where: RankContext) -> torch.Tensor:
    right.view(-1)[0] = float("nan")
    return right


BACKWARDS: dict[str, Backward] = {
    "zeroed": lambda right, x, where: torch.zeros_like(right),
    "block_zeroed": _block_zeroed,
    "times_ranks": lambda right, x, where: right * where.sp_size,
    "over_ranks": lambda right, x, where: right / where.sp_size,
    "swapped": lambda right, x, where: right.transpose(0, 1).reshape(right.shape),
    "rank_dropped": lambda right, x, where: right * (where.sp_rank != where.sp_size - 1),
    "stale": lambda right, x, where: x,
    "not_a_number": _not_a_number,
}
FORWARDS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "wrong_shape": lambda y, x: y.unsqueeze(0),
    "input_mutated": lambda y, x: (x.data.mul_(2), y)[1],
}
INSIDE = (
    "ignored_counted", "last_left_out", "mean_of_means", "own_mean_backward", "own_loss_alone", "boundary_dropped",
    "unshifted",
)  # fmt: skip
"""Mutants that are a wrong step of the calculation itself."""


def function(control: ControlInfo, params: Loss, ctx: RankContext, compose: Callable[..., Function]) -> Function:
    """The implementation that ``control`` names. Raises LookupError for a name that is not known."""
    name = implementation_of(control)
    if name not in ("reference", "traced_reference", "detached", *BACKWARDS, *FORWARDS, *INSIDE):
        raise LookupError(f"control {control.id} names no implementation here")
    way = _Way(name, params, ctx)
    if isinstance(params, Shards):
        right: Function = way.steps if params.one_number else way.loader
    else:
        right = compose(params, way.tokens if isinstance(params, Tokens) else way.aggregate)
    backward, forward = BACKWARDS.get(name), FORWARDS.get(name)
    if name == "detached":
        return lambda x, *labels: right(x.detach(), *labels)
    if backward is not None:
        return lambda x, *labels: right(_Mutated.apply(x, backward, ctx), *labels)
    if forward is not None:
        return lambda x, *labels: forward(right(x, *labels), x)
    return right


@dataclass(frozen=True)
class _Way:
    """A loss of each kind, with the step ``name`` wrong if it is one of :data:`INSIDE`."""

    name: str
    params: Loss
    ctx: RankContext

    def tokens(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Per token, this rank's or the whole sequence's."""
        mine = self._each(x, labels)
        return mine if cast("Tokens", self.params).how == "local" else torch.cat(self._everywhere(mine))

    def aggregate(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """One number for the whole sequence."""
        params, counts = cast("Aggregate", self.params), self._counts()
        whole = self._over_tokens(self._each(x, labels).sum(), counts)
        return whole * sum(counts) if params.reduction == "sum" else whole

    def loader(self, x: torch.Tensor, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Of each sequence, the sum over this rank's shard."""
        return torch.stack([self._each(x[ids], labels).sum() for ids, labels in self._shards()])

    def steps(self, x: torch.Tensor, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The mean over the sequences of the mean over the tokens of each."""
        means = []
        for sequence, (rows, mine) in enumerate(self._shards()):
            counts = [int((labels != IGNORED).sum()) for _, labels in self._cut(sequence)]
            means.append(self._over_tokens(self._each(x[rows], mine).sum(), counts))
        return torch.stack(means).mean()

    def _each(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Cross entropy per token, in float32 at least."""
        logits = torch.log_softmax(x.float() if x.dtype.itemsize == 2 else x, -1)
        picked = -logits.gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1)
        counted = labels != IGNORED
        losses = picked * counted
        return losses + (picked - picked.detach()) * ~counted if self.name == "ignored_counted" else losses

    def _over_tokens(self, total: torch.Tensor, counts: list[int]) -> torch.Tensor:
        """The mean over the tokens of all ranks, of which this one holds the sum over its own."""
        place, last = self.ctx.sp_rank, self.ctx.sp_size - 1
        if self.name == "mean_of_means":
            live = sum(count > 0 for count in counts)
            return torch.stack(self._everywhere(total / max(1, counts[place]))).sum() / live
        parts = self._everywhere(total * 0 if self.name == "last_left_out" and place == last else total)
        whole = torch.stack(parts).sum() / sum(counts)
        if self.name == "own_mean_backward":
            mine = total / max(1, counts[place])
            return whole.detach() + mine - mine.detach()
        return whole

    def _everywhere(self, mine: torch.Tensor) -> list[torch.Tensor]:
        """Every rank's part. Where they are one loss, this rank's part alone has a derivative."""
        alone = self.params.once or self.name == "own_loss_alone"
        flat = mine.reshape(-1)
        sent = (flat.detach() if alone else flat).repeat(self.ctx.sp_size)
        parts = list(TracedAllToAll.apply(sent, self.ctx.group).chunk(self.ctx.sp_size))
        if alone:
            parts[self.ctx.sp_rank] = flat
        return [part.reshape(mine.shape) for part in parts]

    def _counts(self) -> list[int]:
        """How many tokens count on each rank."""
        ranks = range(self.ctx.sp_size)
        handed = [self.params.tensors(self.ctx.world_size, place)[1].integers for place in ranks]
        return [sum(label != IGNORED for label in labels) for labels in handed]

    def _shards(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Of each sequence, the tokens of this rank's shard and the labels that follow them."""
        return [self._cut(sequence)[self.ctx.sp_rank] for sequence in range(self.ctx.sp_size)]

    def _cut(self, sequence: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """The shards of one sequence, in the order of the ranks."""
        _, *specs = self.params.tensors(self.ctx.world_size, sequence)
        ids, labels = (torch.tensor(spec.integers, device=self.ctx.device).reshape(spec.shape) for spec in specs[:2])
        none = torch.full_like(labels[:, :1], IGNORED)
        if self.name == "boundary_dropped":
            cut = [torch.cat([part[:, 1:], none], 1) for part in labels.chunk(self.ctx.sp_size, 1)]
        else:
            shifted = labels if self.name == "unshifted" else torch.cat([labels[:, 1:], none], 1)
            cut = list(shifted.chunk(self.ctx.sp_size, 1))
        return list(zip(ids.chunk(self.ctx.sp_size, 1), cut, strict=True))
