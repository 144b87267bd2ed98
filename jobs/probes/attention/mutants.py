"""The implementations behind the controls: an attention of ours, right, and wrong in one way at a time.

They know nothing of the oracle: the reference sends real messages between the ranks, and its derivative is what
autograd makes of the local attention between them.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

from jobs.contract import ControlInfo
from jobs.probes.attention.core import Core, CoreHF
from jobs.probes.attention.shapes import LAYOUTS, Attention, UlyssesHF, head_shares
from jobs.probes.control import implementation_of
from jobs.probes.exchange.mutants import BACKWARDS, Backward, Route, Sent
from jobs.probes.traced import TracedAllToAll
from jobs.subject.base import RankContext
from jobs.subject.operations.attention import Attend

GRADIENTS: dict[str, tuple[str, str]] = {
    "zeroed": ("kv", "zeroed"),
    "block_zeroed": ("q", "block_zeroed"),
    "times_ranks": ("v", "times_ranks"),
    "over_ranks": ("q", "over_ranks"),
    "swapped": ("q", "swapped"),
    "part_dropped": ("k", "part_dropped"),
    "rank_dropped": ("v", "rank_dropped"),
    "not_sent_back": ("o", "not_sent_back"),
    "stale": ("v", "stale"),
    "not_a_number": ("k", "not_a_number"),
    "cotangent_mutated": ("o", "cotangent_mutated"),
}
"""Per mutant of an exchange's gradient: which exchanges, of q, k, v and the output, and what becomes of it."""


class _Exchange(torch.autograd.Function):
    """A differentiable exchange: there along the route, back along the way back, then the mutation."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, route: Route, mutation: Backward) -> torch.Tensor:
        ctx.route, ctx.mutation, ctx.x = route, mutation, x.detach().clone()
        return route.run(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return ctx.mutation(Sent(ctx.route.back().run(grad), grad, ctx.x, ctx.route)), None, None


def operation(control: ControlInfo, params: Attention, ctx: RankContext) -> Attend:
    """The implementation that ``control`` names."""
    name = implementation_of(control)
    if name == "traced_reference":
        return _traced(params, ctx)
    if name not in ("reference", *GRADIENTS, *OTHERS, "replica_dropped"):
        raise LookupError(f"control {control.id} names no implementation here")
    where, what = GRADIENTS.get(name, ("", ""))
    mutations = dict.fromkeys(where, BACKWARDS[what]) if what else {}
    if isinstance(params, UlyssesHF):
        return _wrapped(params, ctx, repeat=_one_counted if name == "replica_dropped" else _repeat)
    causal = params.causal == "yes" and name != "unmasked"
    attend = _between_exchanges(params, ctx, Core(params.layout, causal), mutations)
    return OTHERS[name](attend, params) if name in OTHERS else attend


def _right(sent: Sent) -> torch.Tensor:
    return sent.right


def _route(params: Attention, ctx: RankContext, shares: tuple[int, ...]) -> Route:
    """From a part of the sequence with all heads to the whole sequence with this rank's share of the heads."""
    names = LAYOUTS[params.layout]
    tokens = (params.tokens(ctx.sp_rank),) * ctx.sp_size
    return Route(names.index("head"), shares, names.index("sequence"), tokens, ctx.sp_rank, ctx.group)


def _between_exchanges(params: Attention, ctx: RankContext, core: Core, mutations: dict[str, Backward]) -> Attend:
    q_shares, kv_shares = head_shares(params.head_count(ctx.world_size), params.kv_count(ctx.world_size), ctx.sp_size)
    routes = {name: _route(params, ctx, q_shares if name == "q" else kv_shares) for name in "qkv"}
    routes["o"] = routes["q"].back()

    def send(name: str, x: torch.Tensor) -> torch.Tensor:
        return _Exchange.apply(x, routes[name], mutations.get(name, _right))

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rotary: torch.Tensor) -> torch.Tensor:
        query, key, value = send("q", q), send("k", k), send("v", v)
        if rotary:
            query, key = (_rotated(x, rotary[0].transpose(0, 1), rotary[1].transpose(0, 1)) for x in (query, key))
        return send("o", core(query, key, value))

    return attend


def _rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    turned, left = x[..., : cos.shape[-1]], x[..., cos.shape[-1] :]
    half = cos.shape[-1] // 2
    quarter_turn = torch.cat([-turned[..., half:], turned[..., :half]], -1)
    return torch.cat([turned * cos + quarter_turn * sin, left], -1)


def _traced(params: Attention, ctx: RankContext) -> Attend:
    """The reference for tracers: exchanges of flat vectors, between rearrangements."""
    names, ranks, core = LAYOUTS[params.layout], ctx.sp_size, Core(params.layout, params.causal == "yes")
    head, sequence = names.index("head"), names.index("sequence")

    def exchange(x: torch.Tensor, cut: int, join: int) -> torch.Tensor:
        blocks = x.unflatten(cut, (ranks, x.shape[cut] // ranks)).movedim(cut, 0)
        arrived = TracedAllToAll.apply(blocks.reshape(-1), ctx.group).reshape(blocks.shape)
        return arrived.movedim(0, join).flatten(join, join + 1)

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return exchange(core(*(exchange(x, head, sequence) for x in (q, k, v))), sequence, head)

    return attend


def _wrapped(params: UlyssesHF, ctx: RankContext, repeat: Callable[[torch.Tensor, int], torch.Tensor]) -> Attend:
    """The reference of the other probe: key/value heads that are fewer than the ranks are repeated before they go."""
    heads, kv_heads = params.head_count(ctx.world_size), params.kv_count(ctx.world_size)
    copies = max(1, ctx.sp_size // kv_heads)
    q_shares, kv_shares = head_shares(heads, kv_heads * copies, ctx.sp_size)
    core, module = CoreHF(params.causal == "yes"), SimpleNamespace(num_key_value_groups=q_shares[0] // kv_shares[0])
    to_query, to_key = _route(params, ctx, q_shares), _route(params, ctx, kv_shares)
    # The core returns [batch, tokens, heads, features].
    back = Route(1, to_query.joins, 2, q_shares, ctx.sp_rank, ctx.group)

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        everywhere = [torch.empty_like(positions) for _ in range(ctx.sp_size)]
        dist.all_gather(everywhere, positions, group=ctx.group)
        query = _Exchange.apply(q, to_query, _right)
        key, value = (_Exchange.apply(repeat(x, copies), to_key, _right) for x in (k, v))
        mixed, _ = core(module, query, key, value, None, position_ids=torch.cat(everywhere, 1))
        return _Exchange.apply(mixed, back, _right).flatten(2)

    return attend


def _repeat(x: torch.Tensor, copies: int) -> torch.Tensor:
    return x.repeat_interleave(copies, 1)


def _one_counted(x: torch.Tensor, copies: int) -> torch.Tensor:
    """The same values, all but the first copy of each head without a gradient."""
    counted = torch.arange(x.shape[1] * copies, device=x.device)[:, None, None] % copies == 0
    return torch.where(counted, _repeat(x, copies), _repeat(x.detach(), copies))


def _detached(attend: Attend, params: Attention) -> Attend:
    return lambda q, k, v: attend(q, k.detach(), v)


def _input_mutated(attend: Attend, params: Attention) -> Attend:
    def mutating(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = attend(q, k, v)
        with torch.no_grad():
            v.mul_(2)
        return y

    return mutating


class _OtherHeads(torch.autograd.Function):
    """The heads in another order, and a derivative that knows nothing of it."""

    @staticmethod
    def forward(ctx: Any, y: torch.Tensor, head: int) -> torch.Tensor:
        return y.flip(head)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad, None


def _forward_permuted(attend: Attend, params: Attention) -> Attend:
    return lambda q, k, v: _OtherHeads.apply(attend(q, k, v), LAYOUTS[params.layout].index("head"))


def _own_tokens(attend: Attend, params: Attention) -> Attend:
    return Core(params.layout, params.causal == "yes")


def _groups_shifted(attend: Attend, params: Attention) -> Attend:
    head = LAYOUTS[params.layout].index("head")
    return lambda q, k, v: attend(q, k.roll(1, head), v.roll(1, head))


OTHERS: dict[str, Callable[[Attend, Attention], Attend]] = {
    "detached": _detached,
    "wrong_shape": lambda attend, params: lambda q, k, v: attend(q, k, v).flatten(0, 1),
    "forward_permuted": _forward_permuted,
    "input_mutated": _input_mutated,
    "unmasked": lambda attend, params: attend,
    "own_tokens": _own_tokens,
    "groups_shifted": _groups_shifted,
}
"""What is wrong elsewhere than in an exchange's gradient."""
