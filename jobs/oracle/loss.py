"""The truth about losses: cross entropy over the whole sequence, put together in one process from every rank's part.

Cross entropy of a token is log Σexp(logits) minus the logit at its label, and nothing where the label is ignored. Where
the ranks hold one and the same loss whose gradient counts once (``params.once``), each rank's share of that gradient is
one part of as many as there are ranks; elsewhere the loss of every rank counts. Labels are shifted in the whole
sequence, before it is cut into the ranks' shards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from jobs.contract import CaseInfo
from jobs.oracle import Expected, dense
from jobs.oracle.dense import Holding
from jobs.probes.case import LAYER_AFTER, LAYER_BEFORE
from jobs.probes.loss.shapes import IGNORED, Aggregate, Shards, Tokens, params_of

Parts = list[torch.Tensor]


def expected(case: CaseInfo, world_size: int) -> Iterator[Expected]:
    """What every rank must hold after ``case``, and the noise floor."""
    params = params_of(case)

    def form(held: Sequence[Holding]) -> Parts:
        if isinstance(params, Shards):
            return FORMS[case.probe](params, world_size, held)
        parts = _in_layer(params, held, "x")
        if params.loss == "frozen":
            parts = [x + c for x, c in zip(parts, _in_layer(params, held, "c"), strict=True)]
        factor = LAYER_AFTER if params.wrap == "layer" else 1.0
        return [factor * y for y in parts]

    yield from dense.expected(case, world_size, params, form)


def cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Per token; logits [..., classes], labels [...]. Zero where a label is ignored."""
    at_label = logits.gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    return torch.where(labels == IGNORED, torch.zeros_like(at_label), torch.logsumexp(logits, -1) - at_label)


def _in_layer(params: Tokens | Aggregate, held: Sequence[Holding], name: str) -> Parts:
    """Each rank's output for the logits of that name."""
    factor = LAYER_BEFORE if params.wrap == "layer" else 1.0
    losses = [cross_entropy(mine[name] * factor, mine["t"]) for mine in held]
    if isinstance(params, Tokens):
        return losses if params.how == "local" else _everywhere(torch.cat(losses), len(held), params.once)
    total = torch.stack([one.sum() for one in losses]).sum()
    if params.reduction == "mean":
        total = total / sum((mine["t"] != IGNORED).sum() for mine in held)
    return _everywhere(total, len(held), params.once)


def _everywhere(whole: torch.Tensor, ranks: int, once: bool) -> Parts:
    """What every rank holds; of one loss, each holds the whole value and its share of the derivative."""
    return [whole.detach() + (whole - whole.detach()) / ranks if once else whole * 1 for _ in range(ranks)]


def _shards(params: Shards, held: Sequence[Holding]) -> list[list[tuple[torch.Tensor, torch.Tensor]]]:
    """Per rank and sequence: the rank's own logits for its shard, and the labels that follow each of its tokens."""
    ranks = len(held)
    shifted = [torch.cat([mine["t"][:, 1:], torch.full_like(mine["t"][:, :1], IGNORED)], 1) for mine in held]
    cut = [
        list(zip(mine["i"].tensor_split(ranks, 1), labels.tensor_split(ranks, 1), strict=True))
        for mine, labels in zip(held, shifted, strict=True)
    ]
    return [
        [(held[place]["x"][cut[sequence][place][0]], cut[sequence][place][1]) for sequence in range(ranks)]
        for place in range(ranks)
    ]


def _loader(params: Shards, world_size: int, held: Sequence[Holding]) -> Parts:
    """Per rank: of every sequence, the sum over the rank's shard."""
    return [
        torch.stack([cross_entropy(logits, labels).sum() for logits, labels in mine]) for mine in _shards(params, held)
    ]


def _steps(params: Shards, world_size: int, held: Sequence[Holding]) -> Parts:
    """On every rank: the mean over the sequences of each one's mean over its tokens that count."""
    sums = _loader(params, world_size, held)
    counts = [(mine["t"][:, 1:] != IGNORED).sum() for mine in held]
    means = torch.stack(sums).sum(0) / torch.stack(counts)
    return _everywhere(means.mean(), len(held), once=False)


FORMS: dict[str, Callable[[Shards, int, Sequence[Holding]], Parts]] = {"loader": _loader, "fwd_loss_bwd": _steps}
"""Per probe that cuts sequences, its outputs."""
