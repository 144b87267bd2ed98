"""The decoder as one rank runs it: plain torch on this rank's tokens, but for an attention that is handed in.

On the straight line this stands inside jobs, under :mod:`jobs.probes.model.run`. What a traced mode traces is one of
the functions that :class:`Decoding` makes; the rest stays as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch.nn.functional import silu

from jobs.probes.model.shapes import FEATURES, LAYERS, NORM_EPS, ROTARY_BASE, TOKENS, Decoder
from jobs.subject.base import RankContext
from jobs.values import dtype_of

Attend = Callable[["torch.Tensor", "torch.Tensor", "torch.Tensor"], "torch.Tensor"]
"""This rank's queries, keys and values of all heads to what the whole sequence gives them, all in the case's layout."""
Function = Callable[..., "torch.Tensor"]
Rotation = tuple[torch.Tensor, torch.Tensor]


class Decoding:
    """The model's parts as functions of tensors, for one case and rank."""

    def __init__(self, params: Decoder, ctx: RankContext) -> None:
        self.params, self.ctx = params, ctx
        self.names = tuple(params.layer(ctx.world_size))
        self.weights = tuple(params.weights(ctx.world_size))

    def rotation(self) -> Rotation | None:
        """Cosine and sine per token of this rank and feature, by the token's place in the whole sequence."""
        if self.params.rotary == "no":
            return None
        half, first = FEATURES // 2, self.ctx.sp_rank * TOKENS
        angles = [[(first + t) / ROTARY_BASE ** (i / half) for i in range(half)] for t in range(TOKENS)]
        tables = (torch.tensor([[turn(a) for a in row] * 2 for row in angles], dtype=torch.float64)
                  for turn in (math.cos, math.sin))  # fmt: skip
        cosine, sine = (table.to(self.ctx.device, dtype_of(self.params.dtype)).unsqueeze(1) for table in tables)
        return cosine, sine

    def layer(self, attend: Attend) -> Function:
        """One layer around an attention: from this rank's tokens and the layer's weights to this rank's tokens."""
        params, names, rotation = self.params, self.names, self.rotation()
        gated, sequence_first = params.gate == "yes", params.layout == "sbhd"

        def layer(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
            weight = dict(zip(names, weights, strict=True))
            h = normed(x, weight["norm_before"])
            wide = project(h, weight["q_proj"].flatten(0, 1))
            k, v = project(h, weight["k_proj"]), project(h, weight["v_proj"])
            if params.bias == "qkv":
                wide = wide + weight["q_bias"].flatten()
                k, v = k + weight["k_bias"], v + weight["v_bias"]
            half = wide.shape[-1] // 2 if gated else wide.shape[-1]
            q = wide[..., :half]
            q, k, v = (part.unflatten(-1, (-1, FEATURES)) for part in (q, k, v))
            if rotation is not None:
                q, k = turned(q, rotation), turned(k, rotation)
            if sequence_first:
                q, k, v = (part.transpose(0, 1) for part in (q, k, v))
            seen = attend(q, k, v)
            if sequence_first:
                seen = seen.transpose(0, 1)
            seen = seen.flatten(2)
            if gated:
                seen = seen * torch.sigmoid(wide[..., half:])
            x = x + project(seen, weight["o_proj"])
            inner = silu(project(normed(x, weight["norm_after"]), weight["up_proj"]))
            return x + project(inner, weight["down_proj"])

        return layer

    def model(self, layer: Function) -> Function:
        """All of it around a layer: from tokens and every weight to one number per token and symbol."""
        names, each, tied = self.weights, self.names, self.params.tied == "yes"

        def model(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
            weight = dict(zip(names, weights, strict=True))
            h = x @ weight["embed"]
            for index in range(LAYERS):
                h = layer(h, *(weight[f"layer{index}.{name}"] for name in each))
            return project(normed(h, weight["norm"]), weight["embed" if tied else "head"])

        return model


def project(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """A linear map without a bias; ``weight`` is [out, in]."""
    return torch.nn.functional.linear(x, weight)


def normed(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Divided by the root of the mean square over the last dimension, and weighted."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + NORM_EPS) * weight


def turned(x: torch.Tensor, rotation: Rotation) -> torch.Tensor:
    """Pairs of features, half a head apart, turned by their token's angle; [batch, tokens, heads, features]."""
    cosine, sine = rotation
    first, second = x.chunk(2, -1)
    return x * cosine + torch.cat((-second, first), -1) * sine


def scopes(traced: str, decoding: Decoding, attend: Attend) -> Function:
    """The function that a traced mode traces: only the attention, a layer at a time, or all of the model."""
    if traced == "attention":
        return attend
    layer = decoding.layer(attend)
    return layer if traced == "layer" else decoding.model(layer)


def whole(traced: str, decoding: Decoding, part: Function) -> Function:
    """The model around ``part``, which is :func:`scopes`' function, traced or not."""
    if traced == "model":
        return part
    return decoding.model(decoding.layer(part) if traced == "attention" else part)


def arguments(made: dict[str, torch.Tensor], x: str, names: Sequence[str]) -> list[torch.Tensor]:
    """What the model is called with."""
    return [made[x], *(made[name] for name in names)]
