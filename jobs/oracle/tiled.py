"""The truth about tiled functions: the same functions in one piece, written out in formulas.

Nothing is cut into shards, but for one reduction: a mean over shards is documented as the mean of the shards' means,
which is the mean over the tokens only where all shards hold equally many live ones.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from jobs.contract import CaseInfo
from jobs.oracle import Expected, dense
from jobs.oracle.dense import Holding
from jobs.probes.case import LAYER_AFTER, LAYER_BEFORE
from jobs.probes.tiled.base import IGNORED, Tiled
from jobs.probes.tiled.shapes import (
    ChunkedFeedForward,
    ChunkedLogitsLoss,
    ComputeLoss,
    FeedForward,
    HeadLoss,
    LogitsLoss,
    params_of,
)


def expected(case: CaseInfo, world_size: int) -> Iterator[Expected]:
    """What every rank must hold after ``case``."""
    params = params_of(case)
    yield from dense.expected(case, world_size, params, functools.partial(_group, params))


def _group(params: Tiled, holdings: Sequence[Holding]) -> list[torch.Tensor]:
    """The outputs of all ranks of a group; each comes from its own holding, but for losses that are gathered."""
    before, after = (LAYER_BEFORE, LAYER_AFTER) if params.wrap == "layer" else (1.0, 1.0)
    held = [{**holding, "x": holding["x"] * before} for holding in holdings]
    function = next(form for kind, form in FORMS.items() if isinstance(params, kind))
    outputs = [function(params, one) * after for one in held]
    if isinstance(params, ChunkedLogitsLoss) and params.part == "whole":
        return [torch.cat(outputs)] * len(outputs)
    return outputs


def _feed_forward(params: FeedForward, held: Holding) -> torch.Tensor:
    """(silu(x·gateᵀ + a) * (x·upᵀ + b))·downᵀ + c, where silu(z) = z / (1 + exp(-z))."""
    x, gate, up = held["x"], held["gate"], held["up"]
    gated = x @ gate.T + held.get("gate_bias", 0.0)
    inner = gated * torch.sigmoid(gated) * (x @ up.T + held.get("up_bias", 0.0))
    return inner @ (gate if params.tied == "yes" else held["down"].T) + held.get("down_bias", 0.0)


def _negative_log_likelihood(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Of each live token, in order: log Σ exp(logit) - logit at the label. In 32 bits where logits have fewer."""
    wide = logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits
    live = labels != IGNORED
    rows, wanted = wide[live], labels[live]
    return torch.logsumexp(rows, -1) - rows[torch.arange(len(wanted)), wanted]


def _head_loss(params: HeadLoss, held: Holding) -> torch.Tensor:
    """The loss of x·headᵀ + bias, where x may have the head's own rows added as an embedding."""
    x, labels, head = held["x"], held["labels"], held["head"]
    x = x + head[held["ids"]] if "ids" in held else x
    logits = x @ head.T + held.get("head_bias", 0.0)
    if params.reduction != "mean":
        total = _negative_log_likelihood(logits, labels).sum()
        return total / (labels != IGNORED).sum() if params.reduction == "balanced" else total
    shards = zip(_shards(params, logits), _shards(params, labels), strict=True)
    return torch.stack([_mean(*shard) for shard in shards]).mean()


def _shards(params: HeadLoss, whole: torch.Tensor) -> Sequence[torch.Tensor]:
    """The shards as documented, none of them empty: of each row's tokens, or of the tokens of all rows in one line."""
    if isinstance(params, ComputeLoss):
        return whole.split(math.ceil(params.tokens / params.shards), 1)
    return whole.flatten(0, 1).split(math.ceil(params.batch * params.tokens / params.shards))


def _mean(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The mean over live tokens: of none, not a number, with a gradient of zero."""
    losses = _negative_log_likelihood(logits, labels)
    return losses.sum() / len(losses) if len(losses) else losses.sum() * 0 + float("nan")


def _logits_loss(params: LogitsLoss, held: Holding) -> torch.Tensor:
    return _mean(held["x"], held["labels"])


def _chunked_feed_forward(params: ChunkedFeedForward, held: Holding) -> torch.Tensor:
    """gelu(z) = z/2 · (1 + tanh(√(2/π) · (z + 0.044715 z³))) of z = x·firstᵀ + its bias; then ·secondᵀ + its bias."""
    z = held["x"] @ held["first"].T + held["first_bias"]
    gelu = 0.5 * z * (1 + torch.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)))
    return gelu @ held["second"].T + held["second_bias"]


def _chunked_logits_loss(params: ChunkedLogitsLoss, held: Holding) -> torch.Tensor:
    """[tokens, batch]: the loss of each token, 0 where its label is ignored."""
    logits, labels = held["x"] @ held["head"].T, held["labels"].T
    losses = torch.zeros(labels.shape, dtype=torch.promote_types(logits.dtype, torch.float32))
    return losses.index_put((labels != IGNORED).nonzero(as_tuple=True), _negative_log_likelihood(logits, labels))


FORMS: dict[type[Tiled], Callable[[Any, Holding], torch.Tensor]] = {
    FeedForward: _feed_forward,
    HeadLoss: _head_loss,
    LogitsLoss: _logits_loss,
    ChunkedFeedForward: _chunked_feed_forward,
    ChunkedLogitsLoss: _chunked_logits_loss,
}
"""Per kind of parameters, the function in one piece."""
