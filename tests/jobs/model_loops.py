"""A second formulation of the decoder: token by token and head by head, and derivatives as differences of its loss.

It shares with the oracle only what is handed in. Every parameter and input is moved along a drawn direction by itself,
so that each gradient is checked apart from the others; one step of Adam is torch's own, on the oracle's gradient.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from jobs import oracle
from jobs.contract import CaseInfo
from jobs.oracle.drawn import direction, drawn
from jobs.probes.case import LOSS_SCALE
from jobs.probes.model import shapes
from jobs.probes.model.shapes import Decoder, params_of
from jobs.values import dtype_of

Held = dict[str, torch.Tensor]
STEP = 2.0**-9
"""A moved value is x + STEP·v: the error of a central difference with four points falls with its fourth power."""


def differences(case: CaseInfo, world_size: int) -> list[str]:
    """What of the oracle differs from this formulation, for the first group."""
    params = params_of(case)
    size = params.ranks(world_size)
    truth: dict[tuple[int, str, str], Any] = {
        (one.rank, one.role, one.name): one.tensor for one in oracle.expected(case, world_size) if one.rank < size
    }
    specs = params.tensors(world_size, 0)
    # One tensor per parameter, and one per rank of what is each rank's own.
    held: Held = {}
    along: Held = {}
    for spec in specs:
        for rank in range(1 if spec.shared else size):
            key = spec.name if spec.shared else f"{spec.name}@{rank}"
            held[key] = drawn(case, spec, rank).to(dtype_of(case.dtype)).double()
            along[key] = direction(case, spec, rank)
    wrong = []
    for n in params.batches():
        for rank, y in enumerate(logits(params, size, held, n)):
            if not torch.allclose(y, truth[rank, "output", f"y{n}"], rtol=1e-10, atol=1e-12):
                wrong.append(f"output y{n}")
    for spec in specs:
        for rank in range(1 if spec.shared else size):
            if spec.role == "cotangent":
                continue
            gradient = truth[rank, "grad", spec.name]
            if spec.role != "input" or params.loss == "forward_only":
                wrong += [] if gradient is None else [f"a gradient of {spec.name}"]
                continue
            key = spec.name if spec.shared else f"{spec.name}@{rank}"
            slope = _slope(params, size, held, key, along[key])
            product = float((gradient * along[key]).sum())
            scale = float((gradient * along[key]).abs().sum()) + 1e-6
            if abs(slope - product) > 1e-5 * scale:
                wrong.append(f"grad {key}: {slope} against {product}")
    return wrong + _steps(params, specs, held, truth)


def _slope(params: Decoder, size: int, held: Held, key: str, along: torch.Tensor) -> float:
    """The derivative of the group's loss along a direction, from four points."""
    unit = along / along.abs().max()

    def at(step: float) -> float:
        return total(params, size, held | {key: held[key] + step * unit})

    near, far = at(STEP) - at(-STEP), at(2 * STEP) - at(-2 * STEP)
    return (8 * near - far) / (12 * STEP) * float(along.abs().max())


def _steps(params: Decoder, specs: Any, held: Held, truth: dict[Any, Any]) -> list[str]:
    if params.step != "adam":
        return []
    wrong = []
    for spec in [spec for spec in specs if spec.shared]:
        gradient, master = truth[0, "grad", spec.name], held[spec.name].clone().requires_grad_()
        master.grad = torch.zeros_like(master) if gradient is None else gradient.clone()
        adam = torch.optim.Adam([master], lr=shapes.LEARNING_RATE, betas=shapes.BETAS, eps=shapes.ADAM_EPS)
        adam.step()
        state = adam.state[master]
        for prefix, got in (
            (shapes.STEP, master.detach() - held[spec.name]),
            (shapes.MOMENT, state["exp_avg"]),
            (shapes.ROOT, state["exp_avg_sq"].sqrt()),
        ):
            # A sixteen-bit gradient was rounded before the step; the truth's own is not.
            if not torch.allclose(got, truth[0, "grad", prefix + spec.name], rtol=1e-9, atol=1e-13):
                wrong.append(prefix + spec.name)
    return wrong


def total(params: Decoder, size: int, held: Held) -> float:
    """The loss of the whole group."""
    if params.loss == "forward_only":
        return 0.0
    loss = 0.0
    for n in params.batches():
        for rank, y in enumerate(logits(params, size, held, n)):
            w, tokens = held[f"w{n}@{rank}"], size * y.shape[1]
            if params.loss == "weighted":
                loss += float((y * w).sum())
                continue
            shares = torch.exp(y) / torch.exp(y).sum(-1, keepdim=True)
            mine = -float((torch.log(shares) * w).sum()) / tokens
            if params.loss == "shared":
                mine += float((y**2).sum()) / tokens
            loss += mine * (LOSS_SCALE if params.loss == "scaled" else 1.0)
    return loss


def logits(params: Decoder, size: int, held: Held, n: str) -> list[torch.Tensor]:
    """The logits of each rank's tokens."""
    x = torch.cat([held[f"x{n}@{rank}"] for rank in range(size)], 1)
    rows = [[token @ held["embed"] for token in row] for row in x]
    for index in range(shapes.LAYERS):
        layer = {name.rpartition(".")[2]: t for name, t in held.items() if name.startswith(f"layer{index}.")}
        rows = [_layer(params, size, row, layer) for row in rows]
    last = held["embed" if params.tied == "yes" else "head"]
    whole = torch.stack([torch.stack([last @ _norm(h, held["norm"]) for h in row]) for row in rows])
    return list(whole.split(shapes.TOKENS, 1))


def _layer(params: Decoder, size: int, row: list[torch.Tensor], weight: Held) -> list[torch.Tensor]:
    heads, kv_heads = params.heads(size)
    out = []
    normed = [_norm(h, weight["norm_before"]) for h in row]
    keys = [_heads(params, weight, "k", h, kv_heads, place) for place, h in enumerate(normed)]
    values = [_heads(params, weight, "v", h, kv_heads, place) for place, h in enumerate(normed)]
    for place, h in enumerate(row):
        queries = _heads(params, weight, "q", normed[place], heads, place)
        seen = range(place + 1) if params.mask == "causal" else range(len(row))
        mixed = []
        for head, query in enumerate(queries):
            group = head * kv_heads // heads
            powers = [math.exp(float(query @ keys[other][group]) / math.sqrt(shapes.FEATURES)) for other in seen]
            mixed.append(sum(p / sum(powers) * values[other][group] for p, other in zip(powers, seen, strict=True)))
        joined = torch.cat(mixed)
        if params.gate == "yes":
            wide = weight["q_proj"][1] @ normed[place]
            wide = wide + weight["q_bias"][1] if params.bias == "qkv" else wide
            joined = joined / (1 + torch.exp(-wide))
        h = h + weight["o_proj"] @ joined
        inner = weight["up_proj"] @ _norm(h, weight["norm_after"])
        out.append(h + weight["down_proj"] @ (inner / (1 + torch.exp(-inner))))
    return out


def _heads(params: Decoder, weight: Held, name: str, h: torch.Tensor, count: int, place: int) -> list[torch.Tensor]:
    """Each head's query, key or value of one token, turned by its place where that is asked for."""
    matrix = weight[f"{name}_proj"][0] if name == "q" else weight[f"{name}_proj"]
    flat = matrix @ h
    if params.bias == "qkv":
        flat = flat + (weight["q_bias"][0] if name == "q" else weight[f"{name}_bias"])
    heads = list(flat.reshape(count, shapes.FEATURES))
    if params.rotary == "no" or name == "v":
        return heads
    half = shapes.FEATURES // 2
    turned = []
    for head in heads:
        pairs = []
        for i in range(half):
            turn = complex(math.cos(angle := place / shapes.ROTARY_BASE ** (i / half)), math.sin(angle))
            pairs.append(complex(float(head[i]), float(head[half + i])) * turn)
        turned.append(torch.tensor([p.real for p in pairs] + [p.imag for p in pairs], dtype=torch.float64))
    return turned


def _norm(h: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return h * weight / math.sqrt(float((h**2).sum()) / len(h) + shapes.NORM_EPS)
