"""A tiny sequence-parallel library: tensors are [heads, tokens, width], and a team deals one or the other out.

``deal_heads(team, x)`` turns the team's tokens with all heads into all tokens with a part of the heads;
``deal_tokens(team, x)`` is its inverse. What the team cannot deal out evenly is refused by every member.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

__version__ = "0.3"


@dataclass(frozen=True)
class Team:
    """The members of a process group."""

    group: Any

    @property
    def size(self) -> int:
        return int(dist.get_world_size(self.group))


class _Swap(torch.autograd.Function):  # type: ignore[misc]
    """Cut along ``cut``, send each member its piece, and lay what arrives side by side along ``side``."""

    @staticmethod
    def forward(ctx: Any, x: Any, team: Team, cut: int, side: int) -> Any:
        ctx.team, ctx.cut, ctx.side = team, cut, side
        pieces = torch.stack(x.chunk(team.size, cut)).contiguous()
        arrived = torch.empty_like(pieces)
        dist.all_to_all_single(arrived, pieces, group=team.group)
        return torch.cat(arrived.unbind(0), side)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return _Swap.apply(grad, ctx.team, ctx.side, ctx.cut), None, None, None


def deal_heads(team: Team, x: Any) -> Any:
    tokens = [torch.zeros(1, dtype=torch.int64) for _ in range(team.size)]
    dist.all_gather(tokens, torch.tensor([x.shape[1]]), group=team.group)
    if x.shape[0] % team.size or len({int(count) for count in tokens}) != 1:
        raise ValueError(f"{x.shape[0]} heads of {[int(count) for count in tokens]} tokens cannot be dealt out evenly")
    return _Swap.apply(x, team, 0, 1)


def deal_tokens(team: Team, x: Any) -> Any:
    if x.shape[1] % team.size:
        raise ValueError(f"{x.shape[1]} tokens cannot be dealt out to {team.size}")
    return _Swap.apply(x, team, 1, 0)
