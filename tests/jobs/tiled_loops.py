"""A second formulation of the tiled functions: plain loops over numbers, with derivatives written out by hand.

It shares no tensor operation with the oracle. A function takes one rank's parameters, what it holds as nested lists,
and a function from an output to the loss's derivative there; it answers with its output and every gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from jobs.probes.case import LOSS_SCALE
from jobs.probes.tiled.base import IGNORED
from jobs.probes.tiled.shapes import ChunkedFeedForward, ChunkedLogitsLoss, ComputeLoss, FeedForward, HeadLoss

Held = dict[str, Any]
Vector = list[float]
Slope = Callable[[tuple[int, ...], float], float]
"""The derivative of the loss at the element of the output with that index and value."""
Answer = tuple[Any, dict[str, Any]]

SLOPES: dict[str, Callable[[float, float, float], float]] = {
    "square": lambda y, w, w2: 2 * y,
    "scaled": lambda y, w, w2: 2 * y * LOSS_SCALE,
    "sum": lambda y, w, w2: 1.0,
    "weighted": lambda y, w, w2: w,
    "shared": lambda y, w, w2: 2 * y + w,
    "accumulate": lambda y, w, w2: w + w2,
    "forward_only": lambda y, w, w2: 0.0,
}


def zeros(like: Any) -> Any:
    return [zeros(one) for one in like] if isinstance(like, list) else 0.0


def at(values: Any, index: Sequence[int]) -> Any:
    return at(values[index[0]], index[1:]) if index else values


def feed_forward(params: FeedForward, held: Held, slope: Slope) -> Answer:
    grads = {name: zeros(values) for name, values in held.items()}
    gate, up = held["gate"], held["up"]
    down = [list(column) for column in zip(*gate, strict=True)] if params.tied == "yes" else held["down"]
    outputs = zeros(held["x"])
    for index in places(held["x"]):
        x, out = at(held["x"], index), []
        a = [dot(row, x) + bias(held, "gate_bias", i) for i, row in enumerate(gate)]
        u = [dot(row, x) + bias(held, "up_bias", i) for i, row in enumerate(up)]
        s = [1 / (1 + math.exp(-value)) for value in a]
        h = [ai * si * ui for ai, si, ui in zip(a, s, u, strict=True)]
        out = [dot(row, h) + bias(held, "down_bias", k) for k, row in enumerate(down)]
        put(outputs, index, out)
        dy = [slope((*index, k), value) for k, value in enumerate(out)]
        dh = [sum(dy[k] * down[k][i] for k in range(len(out))) for i in range(len(h))]
        da = [dh[i] * u[i] * s[i] * (1 + a[i] * (1 - s[i])) for i in range(len(h))]
        du = [dh[i] * a[i] * s[i] for i in range(len(h))]
        put(grads["x"], index, [
            sum(da[i] * gate[i][j] + du[i] * up[i][j] for i in range(len(h))) for j in range(len(x))
        ])  # fmt: skip
        outer(grads["gate"], da, x)
        outer(grads["up"], du, x)
        if params.tied == "yes":
            outer(grads["gate"], h, dy)
        else:
            outer(grads["down"], dy, h)
        for name, delta in (("gate_bias", da), ("up_bias", du), ("down_bias", dy)):
            add(grads.get(name), delta)
    return outputs, grads


def chunked_feed_forward(params: ChunkedFeedForward, held: Held, slope: Slope) -> Answer:
    grads = {name: zeros(values) for name, values in held.items()}
    root, cubic = math.sqrt(2 / math.pi), 0.044715
    outputs = zeros(held["x"])
    for index in places(held["x"]):
        x = at(held["x"], index)
        z = [dot(row, x) + b for row, b in zip(held["first"], held["first_bias"], strict=True)]
        t = [math.tanh(root * (value + cubic * value**3)) for value in z]
        h = [value / 2 * (1 + tanh) for value, tanh in zip(z, t, strict=True)]
        out = [dot(row, h) + b for row, b in zip(held["second"], held["second_bias"], strict=True)]
        put(outputs, index, out)
        dy = [slope((*index, k), value) for k, value in enumerate(out)]
        dz = []
        for i, (value, tanh) in enumerate(zip(z, t, strict=True)):
            steep = (1 + tanh) / 2 + value / 2 * (1 - tanh**2) * root * (1 + 3 * cubic * value**2)
            dz.append(steep * sum(dy[k] * held["second"][k][i] for k in range(len(out))))
        put(grads["x"], index, [sum(dz[i] * held["first"][i][j] for i in range(len(z))) for j in range(len(x))])
        outer(grads["first"], dz, x)
        outer(grads["second"], dy, h)
        add(grads["first_bias"], dz)
        add(grads["second_bias"], dy)
    return outputs, grads


def head_loss(params: HeadLoss, held: Held, slope: Slope) -> Answer:
    """The loss is a sum over tokens, each with a share: that is where reductions and shards differ."""
    grads = {name: zeros(values) for name, values in held.items()}
    shares = shares_of(params, held["labels"])
    losses = {}
    for row, token in shares:
        x = list(held["x"][row][token])
        if "ids" in held:
            add(x, held["head"][held["ids"][row][token]])
        losses[row, token] = token_loss(x, held["head"], held.get("head_bias"), held["labels"][row][token])
    total = sum(share * losses[place][0] for place, share in shares.items())
    y = total if shares or params.reduction == "sum" else math.nan
    for (row, token), share in shares.items():
        _, x, dl = losses[row, token]
        delta = [share * slope((), y) * value for value in dl]
        dx = [sum(d * line[j] for d, line in zip(delta, held["head"], strict=True)) for j in range(len(x))]
        put(grads["x"], (row, token), dx)
        outer(grads["head"], delta, x)
        add(grads.get("head_bias"), delta)
        if "ids" in held:
            add(grads["head"][held["ids"][row][token]], dx)
    return y, grads


def shares_of(params: HeadLoss, labels: list[list[int]]) -> dict[tuple[int, int], float]:
    """What each live token counts for."""
    live = [(row, token) for row, line in enumerate(labels) for token, label in enumerate(line) if label != IGNORED]
    if params.reduction != "mean":
        return dict.fromkeys(live, 1.0 / (len(live) if params.reduction == "balanced" else 1))
    rows, tokens = len(labels), len(labels[0])

    def shard(place: tuple[int, int]) -> int:
        if isinstance(params, ComputeLoss):
            return place[1] // math.ceil(tokens / params.shards)
        return (place[0] * tokens + place[1]) // math.ceil(rows * tokens / params.shards)

    count = len({shard((row, token)) for row in range(rows) for token in range(tokens)})
    members = [shard(place) for place in live]
    return {place: 1 / (count * members.count(shard(place))) for place in live}


def logits_loss(params: Any, held: Held, slope: Slope) -> Answer:
    grads = {name: zeros(values) for name, values in held.items()}
    live = [(r, t) for r, line in enumerate(held["labels"]) for t, label in enumerate(line) if label != IGNORED]
    told = {place: of_logits(at(held["x"], place), at(held["labels"], place)) for place in live}
    y = sum(one for one, _ in told.values()) / len(live) if live else math.nan
    for place, (_, dl) in told.items():
        put(grads["x"], place, [slope((), y) * value / len(live) for value in dl])
    return y, grads


def chunked_logits_loss(params: ChunkedLogitsLoss, held: Held, slope: Slope) -> Answer:
    grads = {name: zeros(values) for name, values in held.items()}
    y = [[0.0] * params.batch for _ in range(params.tokens)]
    for token in range(params.tokens):
        for row in range(params.batch):
            if (label := held["labels"][row][token]) == IGNORED:
                continue
            loss, x, dl = token_loss(held["x"][token][row], held["head"], None, label)
            y[token][row] = loss
            delta = [slope((token, row), loss) * value for value in dl]
            dx = [sum(d * line[j] for d, line in zip(delta, held["head"], strict=True)) for j in range(len(x))]
            put(grads["x"], (token, row), dx)
            outer(grads["head"], delta, x)
    return y, grads


def token_loss(x: Vector, head: list[Vector], bias: Vector | None, label: int) -> tuple[float, Vector, Vector]:
    logits = [dot(line, x) + (bias[v] if bias else 0.0) for v, line in enumerate(head)]
    loss, derivative = of_logits(logits, label)
    return loss, x, derivative


def of_logits(logits: Vector, label: int) -> tuple[float, Vector]:
    """The loss of one token, and its derivative at each logit: the probability, less 1 at the label."""
    top = max(logits)
    total = sum(math.exp(value - top) for value in logits)
    derivative = [math.exp(value - top) / total - (v == label) for v, value in enumerate(logits)]
    return top + math.log(total) - logits[label], derivative


# -- lists -------------------------------------------------------------------------------------------------------


def places(x: Any) -> list[tuple[int, ...]]:
    """The index of every vector in nested lists."""
    if not isinstance(x[0], list):
        return [()]
    return [(i, *rest) for i, one in enumerate(x) for rest in places(one)]


def dot(a: Vector, b: Vector) -> float:
    return math.fsum(p * q for p, q in zip(a, b, strict=True))


def bias(held: Held, name: str, i: int) -> float:
    return held[name][i] if name in held else 0.0


def put(target: Any, index: Sequence[int], value: Any) -> None:
    at(target, index[:-1])[index[-1]] = value


def add(target: Vector | None, delta: Vector) -> None:
    for i, value in enumerate(delta if target is not None else ()):
        target[i] += value  # type: ignore[index]


def outer(target: list[Vector], left: Vector, right: Vector) -> None:
    for i, a in enumerate(left):
        for j, b in enumerate(right):
            target[i][j] += a * b
