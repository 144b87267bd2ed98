"""The truth about the decoder: dense, in one process, over the whole sequence of each sequence-parallel group.

All ranks' tokens are joined, every parameter is one tensor, and autograd differentiates the sum of the ranks' losses:
so a parameter's gradient is that over the whole group. That is float64. The noise floor beside it is what a right
implementation may lose in the case's own type: each rank's tokens meet a copy of the parameters, whose gradients are
rounded before they are added up, or they do not; tokens in order and reversed; of all the largest error, element by
element. In float64 too sums are rounded otherwise then, and a gradient that is zero but for rounding shows as such.

The first step of Adam is written out: with gradient g its moments are (1 - β₁)·g and (1 - β₂)·g², both are divided by
the same factors again, and what is added is -lr · g / (|g| + ε) (Kingma and Ba, arXiv:1412.6980, algorithm 1, t = 1).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from jobs.contract import CaseInfo
from jobs.oracle import Expected
from jobs.oracle.dense import NOISE
from jobs.oracle.drawn import direction, drawn
from jobs.probes.case import LOSS_SCALE, has_difference
from jobs.probes.model.shapes import (
    ADAM_EPS,
    BETAS,
    FEATURES,
    LAYERS,
    LEARNING_RATE,
    MOMENT,
    NORM_EPS,
    ROOT,
    ROTARY_BASE,
    STEP,
    Decoder,
    params_of,
)
from jobs.values import dtype_of

Named = dict[str, torch.Tensor]
Said = dict[tuple[str, str], "torch.Tensor | None"]
"""What one rank must have, by role and name."""


def expected(case: CaseInfo, world_size: int) -> Iterator[Expected]:
    """What every rank must hold after ``case``, group by group, and the noise floor beside it."""
    params = params_of(case)
    ranks = params.ranks(world_size)
    for first in range(0, world_size, ranks):
        group = _Group(case, params, world_size, range(first, first + ranks))
        wide = group.run(torch.float64, copies=False, reverse=False)
        own = dtype_of(case.dtype)
        noisy = [group.run(own, copies, reverse) for copies, reverse in ((True, False), (True, True), (False, True))]
        for place, rank in enumerate(group.members):
            for (role, name), right in wide[place].items():
                yield Expected(rank, role, name, right)
                if right is not None:
                    yield Expected(rank, role, NOISE + name, worst(right, [run[place][role, name] for run in noisy]))
            yield from group.left_alone(place)


def worst(right: torch.Tensor, others: Sequence[torch.Tensor | None]) -> torch.Tensor:
    """What is right with an error to each element: the largest of ``others``, at least twice the tensor's usual one.

    A few runs say little about a single element: that it was exact in all of them does not mean that it always is.
    """
    errors = torch.stack([other.double() - right for other in others if other is not None])
    error = errors.gather(0, errors.abs().argmax(0, keepdim=True)).squeeze(0)
    least = 2 * error.square().mean().sqrt()
    return right + torch.where(error.abs() < least, least, error)


class _Group:
    """The ranks of one sequence-parallel group, and what they hold."""

    def __init__(self, case: CaseInfo, params: Decoder, world_size: int, members: range) -> None:
        self.case, self.params, self.world_size, self.members = case, params, world_size, members
        self.specs = params.tensors(world_size, 0)
        given = [{spec.name: drawn(case, spec, members[0]) for spec in self.specs if spec.shared}]
        given += [{spec.name: drawn(case, spec, rank) for spec in self.specs if not spec.shared} for rank in members]
        typed = [{name: values.to(dtype_of(case.dtype)) for name, values in each.items()} for each in given]
        self.given = [typed[0] | mine for mine in typed[1:]]

    def left_alone(self, place: int) -> Iterator[Expected]:
        """What was handed in, and the directions of the central difference.

        A parameter is moved on all ranks alike, and its gradient is that of the whole group: it counts on the first.
        """
        rank = self.members[place]
        for spec in self.specs:
            same = self.given[place][spec.name]
            yield Expected(rank, "cotangent" if spec.role == "cotangent" else "input", spec.name, same)
            if spec.role == "input" and self.params.loss != "forward_only" and has_difference(self.case):
                counts = place == 0 or not spec.shared
                along = direction(self.case, spec, rank) if counts else torch.zeros(spec.shape, dtype=torch.float64)
                yield Expected(rank, "fd", spec.name, along)

    def run(self, dtype: torch.dtype, copies: bool, reverse: bool) -> list[Said]:
        """What each rank must have, calculated in ``dtype``: with copies of the parameters per rank, or without."""
        # First in the case's type, as each rank is given it; then in what is calculated in.
        held = [
            {spec.name: mine[spec.name].to(dtype).clone().requires_grad_(spec.role == "input") for spec in self.specs}
            for mine in self.given
        ]
        shared = [spec.name for spec in self.specs if spec.shared]
        if not copies:
            held = [mine | {name: held[0][name] for name in shared} for mine in held]
        total = torch.zeros((), dtype=dtype)
        said: list[Said] = [{} for _ in held]
        for n in self.params.batches():
            outputs = decoder(self.params, self.world_size, [mine[f"x{n}"] for mine in held], held, reverse)
            for mine, y, tensors in zip(said, outputs, held, strict=True):
                mine["output", f"y{n}"] = y.detach()
                if self.params.loss != "forward_only":
                    total = total + loss(self.params, len(held), y, tensors[f"w{n}"])
        if total.requires_grad:
            total.backward()
        owners = held if copies else held[:1]
        sums = {name: _total([mine[name].grad for mine in owners]) for name in shared}
        steps: Said = {}
        for name in shared if self.params.step == "adam" else ():
            steps |= stepped(name, held[0][name].detach(), sums[name], rounded=copies or reverse)
        for mine, tensors in zip(said, held, strict=True):
            for spec in self.specs:
                if spec.role != "cotangent":
                    mine["grad", spec.name] = sums[spec.name] if spec.shared else tensors[spec.name].grad
            mine |= steps
        return said


def _total(gradients: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
    there = [gradient for gradient in gradients if gradient is not None]
    return torch.stack([part.double() for part in there]).sum(0).to(there[0].dtype) if there else None


def stepped(name: str, parameter: torch.Tensor, gradient: torch.Tensor | None, rounded: bool) -> Said:
    """What the first step of Adam adds to a parameter, and its moments: zero where there is no gradient.

    ``rounded``: what is left of that in the parameter, which is stepped in float32 where its own type is shorter.
    """
    before = parameter if parameter.dtype == torch.float64 else parameter.float()
    g = torch.zeros_like(before) if gradient is None else gradient.to(before.dtype)
    step = -LEARNING_RATE * g / (g.abs() + ADAM_EPS)
    return {
        ("grad", STEP + name): (before + step) - before if rounded else step,
        ("grad", MOMENT + name): (1 - BETAS[0]) * g,
        ("grad", ROOT + name): (1 - BETAS[1]) ** 0.5 * g.abs(),
    }


# -- the model -------------------------------------------------------------------------------------------------------


def loss(params: Decoder, ranks: int, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """One rank's part of the loss of the whole sequence: logits and weights are [batch, tokens, symbols]."""
    if params.loss == "weighted":
        return (y * w).sum()
    tokens = ranks * y.shape[1]
    entropy = ((torch.logsumexp(y, -1, keepdim=True) - y) * w).sum() / tokens
    if params.loss == "shared":
        return entropy + y.square().sum() / tokens
    return entropy * LOSS_SCALE if params.loss == "scaled" else entropy


def decoder(
    params: Decoder, world_size: int, parts: Sequence[torch.Tensor], weights: Sequence[Named], reverse: bool = False
) -> list[torch.Tensor]:
    """Logits per part of a sequence, [batch, tokens, symbols], from mixtures of symbols of the same shape.

    All but attention looks at a token by itself, so that each part may have a copy of the weights. ``reverse``: tokens
    are put together in the reversed order, which changes nothing but roundings.
    """
    hs = [torch.einsum("bsv,vc->bsc", x, weight["embed"]) for x, weight in zip(parts, weights, strict=True)]
    for index in range(LAYERS):
        mine = [{name: weight[f"layer{index}.{name}"] for name in params.layer(world_size)} for weight in weights]
        normed = [_normed(h, weight["norm_before"]) for h, weight in zip(hs, mine, strict=True)]
        looked = _attention(params, world_size, normed, mine, reverse)
        hs = [_fed(h + seen, weight) for h, seen, weight in zip(hs, looked, mine, strict=True)]
    last = "embed" if params.tied == "yes" else "head"
    return [
        torch.einsum("bsc,vc->bsv", _normed(h, weight["norm"]), weight[last])
        for h, weight in zip(hs, weights, strict=True)
    ]


def _fed(h: torch.Tensor, weight: Named) -> torch.Tensor:
    """A token and what its feed-forward adds to it."""
    wide = torch.einsum("bsc,ic->bsi", _normed(h, weight["norm_after"]), weight["up_proj"])
    return h + torch.einsum("bsi,ci->bsc", wide * torch.sigmoid(wide), weight["down_proj"])


def _attention(
    params: Decoder, world_size: int, hs: Sequence[torch.Tensor], weights: Sequence[Named], reverse: bool
) -> list[torch.Tensor]:
    """Every query head looks at all tokens through its group's key/value head; [batch, tokens, hidden] per part."""
    heads = params.heads(world_size)
    projected = [_projected(params, h, weight) for h, weight in zip(hs, weights, strict=True)]
    q, k, v = (torch.cat([part[i] for part in projected], 1).unflatten(-1, (-1, FEATURES)) for i in range(3))
    places = torch.arange(q.shape[1])
    if params.rotary == "yes":
        q, k = _turned(q, places), _turned(k, places)
    if reverse:
        q, k, v, places = q.flip(1), k.flip(1), v.flip(1), places.flip(0)
    groups = q.unflatten(2, (heads[1], heads[0] // heads[1]))
    scores = torch.einsum("bskgf,btkf->bkgst", groups / FEATURES**0.5, k)
    if params.mask == "causal":
        scores = scores.masked_fill(places[:, None] < places, float("-inf"))
    joined = torch.einsum("bkgst,btkf->bskgf", torch.softmax(scores, -1), v).flatten(2)
    cut = (joined.flip(1) if reverse else joined).tensor_split(len(hs), 1)
    return [
        torch.einsum("bsf,cf->bsc", part * gate, weight["o_proj"])
        for part, (_, _, _, gate), weight in zip(cut, projected, weights, strict=True)
    ]


def _projected(
    params: Decoder, h: torch.Tensor, weight: Named
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries, keys and values, all heads in a row, and the gate: 1 where there is none."""
    q, k, v = (torch.einsum("bsc,...fc->...bsf", h, weight[f"{name}_proj"]) for name in "qkv")
    if params.bias == "qkv":
        q = q + weight["q_bias"][:, None, None]
        k, v = k + weight["k_bias"], v + weight["v_bias"]
    return q[0], k, v, torch.sigmoid(q[1]) if params.gate == "yes" else torch.ones_like(q[0])


def _normed(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x / torch.sqrt(x.square().mean(-1, keepdim=True) + NORM_EPS) * weight


def _turned(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Feature i and its partner half a head on, turned by place · base^(-2i/features); [batch, tokens, heads, f]."""
    half = FEATURES // 2
    angle = places[:, None].double() * ROTARY_BASE ** (-torch.arange(half, dtype=torch.float64) / half)
    cosine, sine = (part.to(x.dtype)[:, None] for part in (angle.cos(), angle.sin()))
    first, second = x[..., :half], x[..., half:]
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), -1)
