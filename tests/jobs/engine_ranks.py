"""Runs inside a runtime: one step of an engine of ours on forked ranks, compared with the oracle; prints JSON.

    python engine_ranks.py WORLD_SIZE reference|mutants|traced|formulation

``reference`` runs the engine of ours in every case whose recipe it knows, ``traced`` the same in aot_eager, ``mutants``
every eager control; the answer maps a case or control to the tensors that were wrong, as ``role/name``.
``formulation`` forks nothing: it maps a case to how far the oracle's gradient is from a central difference of a second
formulation of its loss, relative to its size.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import sys
from typing import Any

import torch

from jobs import oracle, probes
from jobs.contract import CaseInfo
from jobs.oracle.drawn import direction, drawn
from jobs.probes.engine.shapes import params_of
from jobs.probes.model.decoder import Decoding
from jobs.subject.base import RankContext
from tests.jobs.forked import run
from tests.jobs.model_ranks import build_as, wrong_tensors

KNOWN = ("local", "in_place", "all_reduce")
"""Recipes that the engine of ours carries out, or that come to the same with it."""
STEP = 2.0**-12


def main() -> None:
    world_size, what = int(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    module = probes.module("engine")
    cases = {case.id: case for case in probes.catalogue() if case.family == "engine" and case.runs_at(world_size)}
    controls = [one for one in probes.controls() if one.family == "engine" and one.case in cases]
    mode = "aot_eager" if what == "traced" else "eager"
    chosen: dict[str, Any]
    if what == "formulation":
        looked = {name: case for name, case in cases.items() if case.probe == "gradient" and case.dtype == "float32"}
        sys.stdout.write(json.dumps({name: off(case, world_size) for name, case in distinct(looked).items()}))
        return
    if what == "mutants":
        chosen = {one.id: (cases[one.case], functools.partial(module.build_control, one)) for one in controls
                  if "eager" in one.modes}  # fmt: skip
    else:
        wanted = ".traced_reference" if what == "traced" else ".reference"
        build = build_as(module, next(one for one in controls if wanted in one.id))
        known = {
            name: case
            for name, case in cases.items()
            if params_of(case).recipe in KNOWN and mode in case.modes and not rough(case)
        }
        chosen = {name: (case, build) for name, case in distinct(known).items()}
    answers = run(world_size, chosen.values(), mode=mode, wrong=wrong_tensors)
    sys.stdout.write(json.dumps(dict(zip(chosen, answers, strict=True))))


def rough(case: CaseInfo) -> bool:
    """Whether a step turns on rounding: where a gradient is next to zero, 16 bits may move its weight another way."""
    return case.probe == "step" and case.dtype == "bfloat16"


def distinct(cases: dict[str, CaseInfo]) -> dict[str, CaseInfo]:
    """One case of those that differ in nothing but what a library is told: neither an oracle nor an engine of ours."""
    told: dict[str, Any] = {"stage": 0, "wiring": "unit", "scatter": "off", "made": "whole", "via": "distributed"}
    first: dict[Any, str] = {}
    for name, case in cases.items():
        params = params_of(case)
        # What divides once more is another truth.
        kept = {"stage": 3, "scatter": "on"} if params.scattered else {}
        first.setdefault(dataclasses.replace(params, **(told | kept)), name)
    return {name: cases[name] for name in first.values()}


def off(case: CaseInfo, world_size: int) -> float:
    """How far the oracle's gradients, along a direction of all weights, are from a central difference."""
    params = params_of(case)
    specs = {spec.name: spec for spec in params.tensors(world_size, 0) if spec.shared}
    along = {name: direction(case, spec, 0) for name, spec in specs.items()}
    truth = {one.name: one.tensor for one in oracle.expected(case, world_size) if one.rank == 0 and one.role == "grad"}
    slope = sum(float((truth[name] * move).sum()) for name, move in along.items())
    size = sum(float((truth[name] * move).abs().sum()) for name, move in along.items())
    weights = {name: drawn(case, spec, 0).float().double() for name, spec in specs.items()}
    moved = [
        loss(case, world_size, {name: weights[name] + sign * STEP * move for name, move in along.items()})
        for sign in (1, -1)
    ]
    return abs((moved[0] - moved[1]) / (2 * STEP) - slope) / size


def loss(case: CaseInfo, world_size: int, weights: dict[str, torch.Tensor]) -> float:
    """What the engine's gradient is that of: the decoder as ranks run it, on a whole sequence, and plain sums."""
    params = params_of(case)
    ranks, model = params.ranks(world_size), params.decoder()
    whole = RankContext(0, world_size, "gloo", ranks, 0, None, tuple(range(ranks)))
    decoding = Decoding(dataclasses.replace(model, dtype="float64"), whole)
    network = decoding.model(decoding.layer(attention))
    parts = []
    for n in model.batches():
        for first in range(0, world_size, ranks):
            held = [
                {spec.name: drawn(case, spec, first + place) for spec in params.tensors(world_size, place)}
                for place in range(ranks)
            ]
            x = torch.cat([mine[f"x{n}"].float().double() for mine in held], 1)
            logits = network(x, *(weights[name] for name in decoding.weights))
            parts.append(_times(case, world_size, logits, [mine["labels"] for mine in held]))
    return sum(parts) / len(parts)


def _times(case: CaseInfo, world_size: int, logits: torch.Tensor, labels: list[torch.Tensor]) -> float:
    """The sum over the ranks of what each one's loss is made of, written out token by token.

    A rank whose loss comes back to every rank, or that divides by its own tokens alone, counts as one whole loss.
    """
    chances = torch.log_softmax(logits, -1)
    tokens = [
        [(rank, i) for i, label in enumerate(mine[0].tolist()) if label != -100] for rank, mine in enumerate(labels)
    ]
    length = labels[0].shape[1]
    costs = [
        [-float(chances[0, rank * length + i, int(labels[rank][0, i])]) for _, i in mine]
        for rank, mine in enumerate(tokens)
    ]
    params, everything = params_of(case), [cost for mine in costs for cost in mine]
    by = len(labels) if params.stage == 3 and params.scatter == "on" else 1
    if params.recipe == "local":
        return sum(sum(mine) / len(mine) for mine in costs if mine) / by
    mean = sum(everything) / len(everything)
    return (mean if params.recipe == "in_place" else mean * len(labels)) / by


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Causal attention, [batch, tokens, heads, features]; each key/value head serves as many query heads."""
    share = q.shape[2] // k.shape[2]
    q, k, v = q.transpose(1, 2), *(part.repeat_interleave(share, 2).transpose(1, 2) for part in (k, v))
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


if __name__ == "__main__":
    main()
