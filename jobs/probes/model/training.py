"""One step of training, as one rank does it: loss, gradients summed over the sequence group, and the optimiser.

On the straight line this stands inside jobs, under :mod:`jobs.probes.model.run`. The convention: a parameter's gradient
is the sum over the ranks of its sequence-parallel group, each having seen its own tokens. It is not averaged over
groups, so that each of them is seen by itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from jobs.probes.case import LOSS_SCALE
from jobs.probes.model.shapes import ADAM_EPS, BETAS, LEARNING_RATE, MOMENT, ROOT, STEP, TOKENS, Decoder
from jobs.subject.base import RankContext

Named = dict[str, torch.Tensor]


def loss_of(params: Decoder, ranks: int, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """The loss of one rank's tokens; the ranks' add up to that of the whole sequence."""
    if params.loss == "weighted":
        return (y * w).sum()
    tokens = TOKENS * ranks
    entropy = -(torch.log_softmax(y, -1) * w).sum() / tokens
    if params.loss == "shared":
        return entropy + (y * y).sum() / tokens
    return entropy * LOSS_SCALE if params.loss == "scaled" else entropy


class Trainer:
    """What becomes of the parameters once their gradients are there."""

    def total(self, ctx: RankContext, parameters: Named) -> Named:
        """Their gradients, each summed over the sequence group; without those that this rank has none of."""
        # In one message, and in float64: so the order of the ranks does not matter, and only the result is rounded.
        parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters.values()]
        flat = torch.cat([self.contribution(ctx, part).reshape(-1).double() for part in parts])
        dist.all_reduce(flat, group=ctx.group)
        sums = flat.split([part.numel() for part in parts])
        return {
            name: total.view(p.shape).to(p.dtype)
            for (name, p), total in zip(parameters.items(), sums, strict=True)
            if p.grad is not None
        }

    def contribution(self, ctx: RankContext, gradient: torch.Tensor) -> torch.Tensor:
        """What this rank adds to the sum."""
        return gradient

    def optimiser(self, masters: Named) -> torch.optim.Optimizer:
        """Adam, without weight decay."""
        return torch.optim.Adam(list(masters.values()), lr=LEARNING_RATE, betas=BETAS, eps=ADAM_EPS)

    def step(self, parameters: Named, gradients: Named) -> Named:
        """One step: per parameter what was added to it and both moments, by name.

        Parameters of sixteen bits are stepped in float32, as mixed precision does: in their own type a step would be
        lost beside them. A parameter without a gradient has no moments, and those are reported as zero.
        """
        masters = {name: _master(p) for name, p in parameters.items()}
        before = {name: master.detach().clone() for name, master in masters.items()}
        for name, master in masters.items():
            master.grad = gradients[name].to(master.dtype) if name in gradients else None
        optimiser = self.optimiser(masters)
        optimiser.step()
        said = {}
        for name, master in masters.items():
            state, nothing = optimiser.state.get(master, {}), torch.zeros_like(master).detach()
            said[STEP + name] = master.detach() - before[name]
            said[MOMENT + name] = state.get("exp_avg", nothing)
            # In the gradient's own unit, where what is noise in one is noise in the other.
            said[ROOT + name] = state.get("exp_avg_sq", nothing).sqrt()
        return said


def _master(parameter: torch.Tensor) -> torch.Tensor:
    wide = parameter.dtype if parameter.dtype == torch.float64 else torch.float32
    return parameter.detach().to(wide).clone().requires_grad_()


def trained(parameters: Sequence[str], made: Named) -> Named:
    """Those of ``parameters`` that need a gradient."""
    return {name: made[name] for name in parameters if made[name].requires_grad}
