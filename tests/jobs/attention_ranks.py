"""Runs inside a runtime: attention cases on forked ranks, compared with the oracle; prints JSON.

    python attention_ranks.py WORLD_SIZE reference|traced|mutants|rows|slopes|chunked|baseline

``reference`` and ``traced`` run our own right attention on every case that it can carry out, ``mutants`` every eager
control; the others fork nothing. ``rows`` compares the oracle with a second formulation: query by query, a few keys at
a time, with derivatives written out by hand. ``slopes`` compares its derivatives with finite differences, ``chunked``
the tokens of chunks with rows, and ``baseline`` measures a wrong one. The answer maps a case or control to what was
wrong: a list of roles and names, or what every rank said instead.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import sys
from collections.abc import Sequence
from typing import Any

import torch

from jobs import oracle, probes
from jobs.contract import CaseInfo
from jobs.oracle.attention import form_of
from jobs.oracle.dense import NOISE
from jobs.oracle.drawn import drawn
from jobs.probes.attention.shapes import Attention, Chunked, Distributed, UlyssesHF, params_of
from jobs.probes.case import LAYER_AFTER, LOSS_SCALE
from tests.jobs.forked import Build, Kept, run

ROOM = {"float64": 1e-12, "float32": 1e-5, "float16": 1e-2, "bfloat16": 5e-2}
"""The relative error that our own attention may have in each type."""
Tensors = dict[str, torch.Tensor]


def main() -> None:
    world_size, what = int(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    module = probes.module("attention")
    cases = {one.id: one for one in probes.catalogue() if one.family == "attention" and one.runs_at(world_size)}
    right = [one for one in cases.values() if one.expect == "values" and one.probe != "fpdt"]
    controls = {one.id: one for one in probes.controls() if one.case in cases}
    if what in SINGLE:
        answer = SINGLE[what](list(cases.values()), world_size)
    elif what == "mutants":
        chosen = [one for one in controls.values() if "eager" in one.modes]
        builds: list[Build] = [functools.partial(module.build_control, one) for one in chosen]
        said = run(world_size, zip([cases[one.case] for one in chosen], builds, strict=True), wrong=wrong)
        answer = dict(zip([one.id for one in chosen], said, strict=True))
    else:
        name = "traced_reference" if what == "traced" else "reference"
        reference = next(one for one in controls.values() if f".{name}[" in one.id)
        if what == "traced":
            right = [one for one in right if one.probe == "distributed" and one.id == reference.case]

        def build(case: CaseInfo, ctx: Any) -> Any:
            return module.build_control(dataclasses.replace(reference, case=case.id), case, ctx)

        mode = "aot_eager" if what == "traced" else "eager"
        said = run(world_size, [(case, build) for case in right], mode=mode, wrong=wrong)
        answer = dict(zip([one.id for one in right], said, strict=True))
    sys.stdout.write(json.dumps(answer))


def wrong(case: CaseInfo, world_size: int, ranks: list[tuple[str, Kept]]) -> Any:
    """What differs from the oracle, as ``role/name``, with ``fd`` where forward and backward contradict each other."""
    statuses = sorted({status for status, _ in ranks})
    if statuses != ["ok"]:
        return statuses
    found, along, size = set(), 0.0, 0.0
    moved = sum(float(kept.get(("fd", "loss"), 0.0)) for _, kept in ranks)
    for truth in oracle.expected(case, world_size):
        kept = ranks[truth.rank][1]
        if truth.name.startswith(NOISE):
            continue
        if truth.role == "fd":
            assert truth.tensor is not None
            gradient = kept["grad", truth.name]
            products = gradient * truth.tensor if gradient is not None else torch.zeros(1)
            along, size = along + float(products.sum()), size + float(products.abs().sum())
        elif not near(kept[truth.role, truth.name], truth.tensor, ROOM[case.dtype]):
            found.add(f"{truth.role}/{truth.name}")
    told = all(("fd", "loss") in kept for _, kept in ranks)
    return sorted(found | ({"fd"} if told and abs(along - moved) > 1e-3 * max(size, abs(moved)) else set()))


def near(got: Any, truth: Any, room: float) -> bool:
    if got is None or truth is None:
        return got is None and truth is None
    if got.shape != truth.shape:
        return False
    return bool((got - truth.double()).norm() <= room * truth.double().norm())


# -- a second formulation ------------------------------------------------------------------------------------------


FEW = 3


class Row:
    """One query and the keys that it sees, [keys, features]: the softmax is built up a few keys at a time.

    After Milakov and Gimelshein 2018 (the running maximum and sum), with the derivatives of Dao et al. 2022, B.2.
    """

    def __init__(self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        self.q, self.keys, self.values, self.scale = q, keys, values, 1 / math.sqrt(len(q))
        top, total, mixed = -math.inf, 0.0, torch.zeros_like(q)
        for at in range(0, len(keys), FEW):
            scores = keys[at : at + FEW] @ q * self.scale
            higher = max(top, float(scores.max()))
            shrink, weights = math.exp(top - higher), torch.exp(scores - higher)
            total, mixed = total * shrink + float(weights.sum()), mixed * shrink + weights @ values[at : at + FEW]
            top = higher
        self.mixed = mixed / total
        self.log_sum = top + math.log(total)

    def back(self, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The gradients of the query, of its keys and of their values."""
        weights = torch.exp(self.keys @ self.q * self.scale - self.log_sum)
        through = weights * (self.values @ grad - grad @ self.mixed) * self.scale
        return through @ self.keys, torch.outer(through, self.q), torch.outer(weights, grad)


def rows(cases: Sequence[CaseInfo], world_size: int) -> dict[str, list[str]]:
    """What of the oracle differs from the second formulation, per case with values; on many ranks, of small ones."""
    chosen = [one for one in cases if one.expect == "values" and one.probe != "fpdt"]
    if world_size > 2:
        chosen = [one for one in chosen if one.suite == "default" and params_of(one).head_count(world_size) <= MANY]
    return {one.id: of_rows(one, world_size) for one in chosen}


MANY = 10
"""Query heads from which on a formulation of that many rows takes too long."""


def of_rows(case: CaseInfo, world_size: int) -> list[str]:
    params, size = params_of(case), case.sp or world_size
    truth = {(one.rank, one.role, one.name): one.tensor for one in oracle.expected(case, world_size)}
    found = []
    for first in range(0, world_size, size):
        held = [
            {spec.name: drawn(case, spec, first + place) for spec in params.tensors(world_size, place)}
            for place in range(size)
        ]
        for place, (output, gradients) in enumerate(by_hand(params, held)):
            wanted = {("output", "y"): output, **{("grad", name): got for name, got in gradients.items()}}
            for (role, name), got in wanted.items():
                there = truth[first + place, role, name]
                if params.loss == "forward_only" and role == "grad":
                    got = None
                if not near(got, there, 1e-12):
                    found.append(f"{role}/{name} on rank {first + place}")
    return found


def by_hand(params: Attention, held: Sequence[Tensors]) -> list[tuple[torch.Tensor, Tensors]]:
    """Per rank its output, and the gradients of what needs one."""
    tokens = [params.tokens(place) for place in range(len(held))]
    owners = [(place, token) for place, count in enumerate(tokens) for token in range(count)]
    places = {name: index_of(params, name) for name in ("q", "k", "v", "y")}
    given: dict[str, dict[tuple[int, int, int], torch.Tensor]] = {name: {} for name in "qkv"}
    heads, shared = count_heads(params, held[0]["q"]), count_heads(params, held[0]["k"])
    for name, count in (("q", heads), ("k", shared), ("v", shared)):
        for whole, (place, token) in enumerate(owners):
            for batch in range(params.batch):
                for head in range(count):
                    x = held[place][name][places[name](batch, token, head)]
                    given[name][batch, whole, head] = turned(params, held[place], name, whole, x)
    results = [(torch.zeros_like(outputs(params, mine)), empty(params, mine)) for mine in held]
    for batch in range(params.batch):
        sees = seen(params, held, batch)
        for whole, (place, token) in enumerate(owners):
            for head in range(heads):
                group = head * shared // heads
                keys = [other for other in range(len(owners)) if sees(whole, other)]
                row = Row(
                    given["q"][batch, whole, head],
                    torch.stack([given["k"][batch, other, group] for other in keys]),
                    torch.stack([given["v"][batch, other, group] for other in keys]),
                )
                after = LAYER_AFTER if params.wrap == "layer" else 1.0
                at = places["y"](batch, token, head)
                results[place][0][at] = row.mixed * after
                slope = slope_of(params, held[place], at, row.mixed * after) * after
                dq, dk, dv = row.back(slope)
                pull(params, held[place], results[place][1], "q", whole, places["q"](batch, token, head), dq)
                for other, of_key, of_value in zip(keys, dk, dv, strict=True):
                    source, index = owners[other]
                    at = places["k"](batch, index, group)
                    pull(params, held[source], results[source][1], "k", other, at, of_key)
                    pull(params, held[source], results[source][1], "v", other, at, of_value)
    return results


def count_heads(params: Attention, x: torch.Tensor) -> int:
    return int(x.shape[1 if params.layout == "bhsd" else 2])


def index_of(params: Attention, name: str) -> Any:
    """Where one token's features are."""
    if name == "y" and isinstance(params, UlyssesHF):
        width = params.features
        return lambda batch, token, head: (batch, token, slice(head * width, (head + 1) * width))
    return {
        "bshd": lambda batch, token, head: (batch, token, head),
        "sbhd": lambda batch, token, head: (token, batch, head),
        "bhsd": lambda batch, token, head: (batch, head, token),
    }[params.layout]


def outputs(params: Attention, mine: Tensors) -> torch.Tensor:
    q = mine["q"]
    return q.transpose(1, 2).flatten(2) if isinstance(params, UlyssesHF) else q


def empty(params: Attention, mine: Tensors) -> Tensors:
    names = [name for name in "qkv" if name not in params.frozen]
    names += ["a_q", "a_k", "a_v"] if params.wrap == "layer" else []
    return {name: torch.zeros_like(mine[name]) for name in names}


def partners(params: Attention) -> list[tuple[int, int, float]]:
    """Of each rotated feature: itself, the feature that is mixed into it, and with which sign."""
    half = params.rotated // 2 if isinstance(params, Distributed) else 0
    return [(f, f + half, -1.0) if f < half else (f, f - half, 1.0) for f in range(2 * half)]


def turned(params: Attention, mine: Tensors, name: str, whole: int, x: torch.Tensor) -> torch.Tensor:
    """One head of one token as it goes into attention: scaled by the layer, then rotated."""
    scaled = x * mine[f"a_{name}"] if params.wrap == "layer" else x
    y = scaled.clone()
    if name != "v":
        for here, there, sign in partners(params):
            cos, sin = (mine[part].reshape(-1, len(partners(params)))[whole] for part in ("cos", "sin"))
            y[here] = scaled[here] * cos[here] + sign * scaled[there] * sin[here]
    return y


def pull(params: Attention, mine: Tensors, into: Tensors, name: str, whole: int, at: Any, grad: torch.Tensor) -> None:
    """Take the gradient of what went into attention back to what the rank handed in."""
    back = grad.clone()
    if name != "v" and partners(params):
        cos, sin = (mine[part].reshape(-1, len(partners(params)))[whole] for part in ("cos", "sin"))
        back[: len(partners(params))] = 0
        for here, there, sign in partners(params):
            back[here] += grad[here] * cos[here]
            back[there] += sign * grad[here] * sin[here]
    if params.wrap == "layer":
        if f"a_{name}" in into:
            into[f"a_{name}"] += back * mine[name][at]
        back = back * mine[f"a_{name}"]
    if name in into:
        into[name][at] += back


def seen(params: Attention, held: Sequence[Tensors], batch: int) -> Any:
    if not isinstance(params, UlyssesHF):
        return lambda query, key: key <= query or params.causal == "no"
    positions = [int(at) for mine in held for at in mine["positions"][batch]]
    # A document is a run of tokens in which positions rise by one.
    starts = [at for at, position in enumerate(positions) if position == 0]
    of = [max(start for start in starts if start <= at) for at in range(len(positions))]
    return lambda query, key: of[query] == of[key] and (key <= query or params.causal == "no")


def slope_of(params: Attention, mine: Tensors, at: Any, y: torch.Tensor) -> torch.Tensor:
    """The derivative of the rank's loss at some elements of its output."""
    w = {name: mine[name][at] for name in ("w", "w2") if name in mine}
    return {
        "square": lambda: 2 * y,
        "scaled": lambda: 2 * y * LOSS_SCALE,
        "weighted": lambda: w["w"],
        "shared": lambda: 2 * y + w["w"],
        "accumulate": lambda: w["w"] + w["w2"],
        "forward_only": lambda: torch.zeros_like(y),
    }[params.loss]()


# -- finite differences --------------------------------------------------------------------------------------------


def slopes(cases: Sequence[CaseInfo], world_size: int) -> dict[str, bool]:
    """Whether the oracle's derivatives are those of its outputs, by finite differences in float64."""
    chosen = [one for one in cases if one.expect == "values" and one.id.partition("[")[2].count("=") < LONG]
    return {one.id: sloped(one, world_size) for one in chosen if not one.sp and params_of(one).features < 64}


LONG = 6
"""Cases with fewer parameters than this in their id: each probe and each layout is among them."""


def sloped(case: CaseInfo, world_size: int) -> bool:
    params = params_of(case)
    held: list[Tensors] = []
    leaves = []
    for place in range(world_size):
        mine = {}
        for spec in params.tensors(world_size, place):
            values = drawn(case, spec, place).clone()
            if spec.role == "input":
                leaves.append(values.requires_grad_())
            mine[spec.name] = values
        held.append(mine)

    def function(*_: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(form_of(params)(held))

    return bool(torch.autograd.gradcheck(function, leaves, fast_mode=True))


# -- a chunked sequence, and a baseline that is wrong --------------------------------------------------------------


def chunked(cases: Sequence[CaseInfo], world_size: int) -> dict[str, list[str]]:
    """What of the chunked oracle differs from projections and rows, token by token in the order of the sequence."""
    return {one.id: of_chunks(one, world_size) for one in cases if one.probe == "fpdt"}


def of_chunks(case: CaseInfo, world_size: int) -> list[str]:
    params = params_of(case)
    assert isinstance(params, Chunked)
    dtype = getattr(torch, case.dtype)
    held = [
        {spec.name: drawn(case, spec, place).to(dtype).double() for spec in params.tensors(world_size, place)}
        for place in range(world_size)
    ]
    length = params.tokens(0) // params.chunks
    owners = [
        (place, chunk * length + token)
        for chunk in range(params.chunks)
        for place in range(world_size)
        for token in range(length)
    ]
    heads, shared, width = params.head_count(world_size), params.kv_count(world_size), params.features
    truth = {
        one.rank: one.tensor for one in oracle.expected(case, world_size) if (one.role, one.name) == ("output", "y")
    }
    found = []
    for batch in range(params.batch):
        projected = [held[place]["w_qkv"] @ held[place]["x"][at, batch] + held[place]["b_qkv"] for place, at in owners]
        for whole, (place, at) in enumerate(owners):
            mixed = torch.cat([
                Row(
                    projected[whole][head * width : (head + 1) * width],
                    torch.stack([part_of(p, heads + head * shared // heads, width) for p in projected[: whole + 1]]),
                    torch.stack(
                        [part_of(p, heads + shared + head * shared // heads, width) for p in projected[: whole + 1]]
                    ),
                ).mixed
                for head in range(heads)
            ])  # fmt: skip
            expected = truth[place]
            assert expected is not None
            if not near(held[place]["w_out"] @ mixed, expected[at, batch], 1e-12):
                found.append(f"token {whole}")
    return found


def part_of(projected: torch.Tensor, head: int, width: int) -> torch.Tensor:
    return projected[head * width : (head + 1) * width]


def baseline(cases: Sequence[CaseInfo], world_size: int) -> dict[str, float]:
    """How far the truth is from a baseline that takes [tokens, batch, heads, features] for [batch, heads, …]."""
    answer = {}
    for case in cases:
        params = params_of(case)
        if params.features == 64 and params.layout == "sbhd":
            q, k, v = (
                torch.cat([drawn(case, params.tensors(world_size, place)[at], place) for place in range(world_size)])
                for at in range(3)
            )
            wrong = torch.softmax(q @ k.transpose(-1, -2) / 8, -1) @ v
            truth = [one.tensor for one in oracle.expected(case, world_size) if (one.role, one.name) == ("output", "y")]
            right = torch.cat([part for part in truth if part is not None])
            answer[case.id] = float((wrong - right).norm() / right.norm())
    return answer


SINGLE = {"rows": rows, "slopes": slopes, "chunked": chunked, "baseline": baseline}

if __name__ == "__main__":
    main()
