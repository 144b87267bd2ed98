"""Runs inside a runtime: cases of AutoSP on forked ranks, compared with the oracle; prints JSON.

    python autosp_ranks.py WORLD_SIZE reference|mutants|traced|whole

``reference`` runs our own operators in every case, ``traced`` the first case in aot_eager,
``mutants`` every eager control. The answer maps a case or control to what was wrong. ``whole`` forks nothing: it
compares the oracle with a model that was never rewritten, and operators with plain loops over indices.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import sys
from typing import Any

import torch

from jobs import oracle, probes
from jobs.contract import CaseInfo
from jobs.oracle.drawn import drawn
from jobs.probes.autosp.run import model_of
from jobs.probes.autosp.shapes import TOKENS, Exchanged, Rewritten, params_of
from jobs.probes.case import LAYER_AFTER, LAYER_BEFORE, LOSS_SCALE
from jobs.subject.base import RankContext
from jobs.values import dtype_of
from tests.jobs.forked import Build, run
from tests.jobs.slopes import SLOPES


def main() -> None:
    world_size, what = int(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    cases = {case.id: case for case in probes.catalogue() if case.family == "autosp" and case.runs_at(world_size)}
    cases = {name: case for name, case in cases.items() if case.expect == "values"}
    if what == "whole":
        answer = {name: differences(case, world_size) for name, case in cases.items()}
    else:
        mode = "aot_eager" if what == "traced" else "eager"
        chosen = plan(what, mode, cases)
        answer = dict(zip(chosen, run(world_size, chosen.values(), mode=mode), strict=True))
    sys.stdout.write(json.dumps(answer))


def plan(what: str, mode: str, cases: dict[str, CaseInfo]) -> dict[str, tuple[CaseInfo, Build]]:
    module = probes.module("autosp")
    controls = [one for one in probes.controls() if one.family == "autosp" and one.case in cases and mode in one.modes]
    if what != "reference":
        return {one.id: (cases[one.case], functools.partial(module.build_control, one)) for one in controls}
    reference = next(one for one in controls if ".reference" in one.id)

    def build(case: CaseInfo, ctx: RankContext) -> Any:
        return module.build_control(dataclasses.replace(reference, case=case.id), case, ctx)

    # float16 and bfloat16 sums of gathered gradients are judged by their noise elsewhere.
    fits = [case for case in cases.values() if case.exact or "float16" not in case.dtype]
    return {case.id: (case, build) for case in fits}


def differences(case: CaseInfo, world_size: int) -> list[str]:
    params = params_of(case)
    size = params.ranks(world_size)
    truth: dict[tuple[int, str, str], Any] = {
        (one.rank, one.role, one.name): one.tensor for one in oracle.expected(case, world_size) if one.rank < size
    }
    specs = params.tensors(world_size, 0)
    held = [{s.name: drawn(case, s, rank) if s.integers else drawn(case, s, rank).to(dtype_of(case.dtype)).double()
             for s in specs} for rank in range(size)]  # fmt: skip
    if isinstance(params, Rewritten):
        return as_written(params, size, held, truth)
    return by_index(params, size, held, truth)


def as_written(params: Rewritten, size: int, held: list[dict[str, torch.Tensor]], truth: dict[Any, Any]) -> list[str]:
    """The model as its user wrote it, on the whole sequence: its losses, and gradients as the sum of the ranks'."""
    names = list(params.weights(size))
    weights = [held[0][name].clone().requires_grad_() for name in names]
    losses = model_of(params)(*(held[0][name] for name in ("ids", "labels", "positions", "keys")), *weights)
    parts = losses.reshape(params.batch, size, TOKENS).unbind(1)
    wrong = [
        f"y of rank {rank}"
        for rank, part in enumerate(parts)
        if not torch.allclose(part.flatten(), truth[rank, "output", "y"], rtol=1e-9, atol=1e-12)
    ]
    if params.loss == "forward_only":
        return wrong + [name for name in names if truth[0, "grad", name] is not None]
    if params.loss == "weighted":
        sum((part.flatten() * mine["w"]).sum() for part, mine in zip(parts, held, strict=True)).backward()
    else:
        (losses.square().sum() * (LOSS_SCALE if params.loss == "scaled" else 1)).backward()
    for name, weight in zip(names, weights, strict=True):
        total = sum(truth[rank, "grad", name] for rank in range(size))
        wrong += [] if torch.allclose(weight.grad, total, rtol=1e-9, atol=1e-10) else [name]
    return wrong


def by_index(params: Any, size: int, held: list[dict[str, torch.Tensor]], truth: dict[Any, Any]) -> list[str]:
    """Every element's way, in loops: outputs from it, and gradients back along it."""
    factor = LAYER_BEFORE * LAYER_AFTER if params.wrap == "layer" else 1.0
    outputs = [torch.zeros_like(truth[rank, "output", "y"]) for rank in range(size)]
    gradients = [torch.zeros(mine["x"].shape, dtype=torch.float64) for mine in held]
    pairs = list(ways(params, size, held[0]["x"].shape))
    for (source, start), (target, end) in pairs:
        value = held[source]["x"][start] + (held[source]["c"][start] if "c" in held[source] else 0)
        outputs[target][end] += factor * value
    wrong = [f"y {rank}" for rank, y in enumerate(outputs) if not torch.equal(y, truth[rank, "output", "y"])]
    for (source, start), (target, end) in pairs:
        slope = SLOPES.get(params.loss)
        if slope is not None:
            given = {name: float(held[target][name][end]) for name in ("w", "w2") if name in held[target]}
            gradients[source][start] += factor * slope(float(outputs[target][end]), given)
    for rank, gradient in enumerate(gradients):
        right = truth[rank, "grad", "x"]
        absent = params.loss in ("forward_only", "none")
        wrong += [] if (right is None if absent else torch.allclose(gradient, right, rtol=1e-12)) else [f"grad {rank}"]
    return wrong


def ways(params: Any, size: int, shape: tuple[int, ...]) -> Any:
    """Where every element goes: (rank, index) before and after."""
    for rank, index in itertools.product(range(size), itertools.product(*map(range, shape))):
        batch, head, token, feature = index
        if isinstance(params, Exchanged) and params.scatter == "heads":
            share = shape[1] // size
            yield (rank, index), (head // share, (batch, head % share, rank * shape[2] + token, feature))
        elif isinstance(params, Exchanged):
            part = shape[2] // size
            yield (rank, index), (token // part, (batch, rank * shape[1] + head, token % part, feature))
        else:
            at, length = list(index), shape[params.dim]
            if params.way == "gather":
                at[params.dim] += rank * length
                yield from (((rank, index), (target, tuple(at))) for target in range(size))
            else:
                part = length // size
                target, at[params.dim] = divmod(at[params.dim], part)
                yield (rank, index), (target, tuple(at))


if __name__ == "__main__":
    main()
