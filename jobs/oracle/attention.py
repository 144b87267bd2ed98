"""The truth about attention: the ranks' parts put together, attention over the whole sequence, and cut again.

Nothing is exchanged here. Rotation, grouped heads and masks are written as their definitions are: a query sees the
tokens of its own document, of those no later one where attention is causal, and shares a key head with its neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from jobs.contract import CaseInfo
from jobs.oracle import Expected, dense
from jobs.oracle.dense import Form, Holding
from jobs.probes.attention.shapes import LAYOUTS, Attention, Chunked, Distributed, UlyssesHF, params_of
from jobs.probes.case import LAYER_AFTER


def expected(case: CaseInfo, world_size: int) -> Iterator[Expected]:
    """What every rank must hold after ``case``."""
    params = params_of(case)
    yield from dense.expected(case, world_size, params, form_of(params))


def form_of(params: Attention) -> Form:
    """The dense form of a case."""
    return lambda held: FORMS[type(params)](params, held)


def _distributed(params: Distributed, held: Sequence[Holding]) -> Sequence[torch.Tensor]:
    q, k, v = (_whole(params, held, name) for name in "qkv")
    if params.rotated:
        cos, sin = (held[0][name].reshape(-1, params.rotated) for name in ("cos", "sin"))
        q, k = rotated(q, cos, sin), rotated(k, cos, sin)
    tokens = q.shape[2]
    seen = _before(torch.arange(tokens)[None]) if params.causal == "yes" else torch.ones(1, tokens, tokens).bool()
    return [_in_layout(params, part) for part in _parts(params, attention(q, k, v, seen), held)]


def _ulysses(params: UlyssesHF, held: Sequence[Holding]) -> Sequence[torch.Tensor]:
    q, k, v = (_whole(params, held, name) for name in "qkv")
    positions = torch.cat([mine["positions"] for mine in held], 1)
    # Each document starts at position 0.
    document = (positions == 0).cumsum(1)
    seen = document[:, :, None] == document[:, None, :]
    if params.causal == "yes":
        seen = seen & _before(positions)
    mixed = _parts(params, attention(q, k, v, seen), held)
    return [part.permute(0, 2, 1, 3).flatten(2) for part in mixed]


def _chunked(params: Chunked, held: Sequence[Holding]) -> Sequence[torch.Tensor]:
    """Tokens in order are chunk 0 of every rank, then chunk 1 of every rank, …; weights are each rank's own copy."""
    ranks, chunks, features = len(held), params.chunks, params.features
    hidden = held[0]["x"].shape[-1]
    projected = [mine["x"] @ mine["w_qkv"].T + mine["b_qkv"] for mine in held]
    in_order = torch.cat([part.chunk(chunks)[chunk] for chunk in range(chunks) for part in projected])
    sizes = [hidden, (in_order.shape[-1] - hidden) // 2, (in_order.shape[-1] - hidden) // 2]
    q, k, v = (x.unflatten(-1, (-1, features)).permute(1, 2, 0, 3) for x in in_order.split(sizes, -1))
    mixed = attention(q, k, v, _before(torch.arange(q.shape[2])[None])).permute(2, 0, 1, 3).flatten(2)
    pieces = mixed.chunk(ranks * chunks)
    return [torch.cat(pieces[place::ranks]) @ held[place]["w_out"].T for place in range(ranks)]


FORMS: dict[type[Attention], Callable[..., Sequence[torch.Tensor]]] = {
    Distributed: _distributed,
    UlyssesHF: _ulysses,
    Chunked: _chunked,
}


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    """softmax(q kᵀ / √d) v of [batch, heads, tokens, d], after Vaswani et al. 2017, equation 1.

    k and v may have fewer heads: query head h belongs to key head h // (heads / key heads) (Ainslie et al. 2023).
    seen: [batch or 1, tokens, tokens], whether a query (row) sees a key (column).
    """
    batch, heads, tokens, features = q.shape
    groups = q.reshape(batch, k.shape[1], heads // k.shape[1], tokens, features)
    scores = torch.einsum("bkgqd,bktd->bkgqt", groups, k) / features**0.5
    weights = scores.masked_fill(~seen[:, None, None], float("-inf")).softmax(-1)
    return torch.einsum("bkgqt,bktd->bkgqd", weights, v).reshape(q.shape)


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """The first features of [batch, heads, tokens, d] rotated: (a, b) becomes (a cos - b sin, b cos + a sin).

    a and b are the two halves of the rotated features, and cos and sin [tokens, rotated] have a number for each.
    """
    turned, left = x.split([cos.shape[-1], x.shape[-1] - cos.shape[-1]], -1)
    a, b = turned.chunk(2, -1)
    (cos_a, cos_b), (sin_a, sin_b) = cos.chunk(2, -1), sin.chunk(2, -1)
    return torch.cat([a * cos_a - b * sin_a, b * cos_b + a * sin_b, left], -1)


def _before(positions: torch.Tensor) -> torch.Tensor:
    return positions[:, :, None] >= positions[:, None, :]


def _whole(params: Attention, held: Sequence[Holding], name: str) -> torch.Tensor:
    """The whole sequence of one of q, k and v, scaled where the case has a layer: [batch, heads, tokens, features]."""
    parts = [mine[name] * mine[f"a_{name}"] if params.wrap == "layer" else mine[name] for mine in held]
    names = LAYOUTS[params.layout]
    whole = torch.cat(parts, names.index("sequence"))
    return whole.permute([names.index(dim) for dim in LAYOUTS["bhsd"]])


def _parts(params: Attention, mixed: torch.Tensor, held: Sequence[Holding]) -> Sequence[torch.Tensor]:
    """Each rank's tokens of [batch, heads, tokens, features]."""
    after = LAYER_AFTER if params.wrap == "layer" else 1.0
    return (mixed * after).split([params.tokens(place) for place in range(len(held))], 2)


def _in_layout(params: Attention, part: torch.Tensor) -> torch.Tensor:
    return part.permute([LAYOUTS["bhsd"].index(dim) for dim in LAYOUTS[params.layout]])
