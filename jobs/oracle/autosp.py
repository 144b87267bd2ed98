"""The truth about AutoSP's operators and its pass: what they do to a sequence that was never cut.

An exchange joins all parts of the sequence and cuts the heads, or the reverse; a gathering joins, and its opposite adds
up and cuts; and the rewritten model is the model as it was written, on the whole sequence, each token of it with its
rank's copy of the weights. Autograd differentiates these forms.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from jobs.contract import CaseInfo
from jobs.oracle import Expected, dense
from jobs.oracle.dense import Holding
from jobs.probes.autosp.shapes import FEATURES, LAYERS, PROJECTIONS, Exchanged, Gathered, Rewritten, params_of
from jobs.probes.case import LAYER_AFTER, LAYER_BEFORE

HEAD, SEQUENCE = 1, 2
"""Dimensions of [batch, heads, sequence, features]."""


def expected(case: CaseInfo, world_size: int) -> Iterator[Expected]:
    """What every rank must hold after ``case``, and the noise floor beside it."""
    params = params_of(case)

    def form(held: Sequence[Holding]) -> Sequence[torch.Tensor]:
        return _tokens(params, held) if isinstance(params, Rewritten) else _moved(params, held)

    return dense.expected(case, world_size, params, form)


def _moved(params: Exchanged | Gathered, held: Sequence[Holding]) -> list[torch.Tensor]:
    factor = LAYER_BEFORE * LAYER_AFTER if params.wrap == "layer" else 1.0
    parts = [factor * (mine["x"] + mine["c"] if "c" in mine else mine["x"]) for mine in held]
    if isinstance(params, Exchanged):
        join, cut = (SEQUENCE, HEAD) if params.scatter == "heads" else (HEAD, SEQUENCE)
        return list(torch.cat(parts, join).tensor_split(len(parts), cut))
    if params.way == "gather":
        return [torch.cat(parts, params.dim)] * len(parts)
    return list(torch.stack(parts).sum(0).tensor_split(len(parts), params.dim))


def _tokens(params: Rewritten, held: Sequence[Holding]) -> list[torch.Tensor]:
    """The loss of every token, by rank: minus the logarithm of its label's share; tokens row by row."""
    ranks = len(held)
    ids, labels, positions = (held[0][name].tensor_split(ranks, 1) for name in ("ids", "labels", "positions"))
    hs = [mine["symbols"][i] + mine["places"][p] for mine, i, p in zip(held, ids, positions, strict=True)]
    for index in range(LAYERS):
        q, k, v = (
            torch.cat([torch.einsum("bsc,fc->bsf", h, mine[f"layer{index}.{name}_proj"])
                       for h, mine in zip(hs, held, strict=True)], 1).unflatten(-1, (-1, FEATURES))
            for name in PROJECTIONS
        )  # fmt: skip
        scores = torch.einsum("bshf,bthf->bhst", q, k) / FEATURES**0.5
        later = torch.arange(q.shape[1])[:, None] < torch.arange(q.shape[1])
        weights = torch.softmax(scores.masked_fill(later, float("-inf")), -1)
        seen = torch.einsum("bhst,bthf->bshf", weights, v).flatten(2).tensor_split(ranks, 1)
        hs = [
            h + torch.einsum("bsf,cf->bsc", part, mine[f"layer{index}.o_proj"])
            for h, part, mine in zip(hs, seen, held, strict=True)
        ]
    losses = []
    for h, mine, label in zip(hs, held, labels, strict=True):
        logits = torch.einsum("bsc,vc->bsv", h, mine["head"])
        losses.append((torch.logsumexp(logits, -1) - logits.gather(-1, label[..., None]).squeeze(-1)).flatten())
    return losses
