"""Runs inside a runtime: cases of family ``tiled`` on forked ranks, compared with the oracle; prints JSON.

    python tiled_ranks.py WORLD_SIZE reference|mutants [MODE]
    python tiled_ranks.py WORLD_SIZE loops|differences

``reference`` runs our own right implementation on every case of the mode, ``mutants`` every control of it; ``loops``
compares the oracle with a second formulation and ``differences`` its gradients with central differences of its own
forward: both fork nothing. The answer maps a case or control to what was wrong: a list of what differs, or what
``forked`` says.
"""

from __future__ import annotations

import functools
import json
import math
import sys
from collections.abc import Sequence
from typing import Any

import torch

from jobs import oracle, probes, trace
from jobs.contract import CaseInfo
from jobs.oracle import dense, tiled
from jobs.oracle.drawn import direction, drawn
from jobs.probes.case import LAYER_AFTER, LAYER_BEFORE
from jobs.probes.tiled import run as module
from jobs.probes.tiled.base import Tiled
from jobs.probes.tiled.mutants import Ours
from jobs.probes.tiled.shapes import ChunkedFeedForward, ChunkedLogitsLoss, FeedForward, HeadLoss, LogitsLoss, params_of
from tests.jobs import tiled_loops as loops
from tests.jobs.forked import Build, Kept, run

FORMULAS: dict[type[Tiled], Any] = {
    FeedForward: loops.feed_forward,
    HeadLoss: loops.head_loss,
    LogitsLoss: loops.logits_loss,
    ChunkedFeedForward: loops.chunked_feed_forward,
    ChunkedLogitsLoss: loops.chunked_logits_loss,
}
ROOM = {"float64": 1e-6, "float32": 2e-5, "float16": 2e-2, "bfloat16": 1e-1}
"""Relative errors of a right implementation; in float64 the differences are coarser."""


Units = dict[str, tuple[CaseInfo, Build]]


def main() -> None:
    world_size, what, *rest = int(sys.argv[1]), *sys.argv[2:]
    mode = rest[0] if rest else "eager"
    cases = [case for case in probes.catalogue() if case.family == "tiled" and case.runs_at(world_size)]
    valued = [case for case in cases if case.expect == "values"]
    if what in ("loops", "differences"):
        check = {"loops": by_loops, "differences": by_differences}[what]
        answer: dict[str, Any] = {case.id: check(case, world_size) for case in valued}
    else:
        trace.warm(() if mode == "eager" else (mode,))
        torch.set_num_threads(1)
        known = {case.id: case for case in cases}
        if what == "mutants":
            controls = [one for one in probes.controls() if one.family == "tiled" and mode in one.modes]
            units: Units = {one.id: (known[one.case], functools.partial(module.build_control, one)) for one in controls}
        else:
            ours = Ours("reference" if mode == "eager" else "traced_reference")
            chosen = [case for case in cases if mode in case.modes]
            units = {case.id: (case, lambda case, ctx: module.build(case, ctx, ours)) for case in chosen}
        answer = dict(zip(units, run(world_size, units.values(), mode=mode, wrong=wrong), strict=True))
    sys.stdout.write(json.dumps(answer))


def wrong(case: CaseInfo, world_size: int, ranks: list[tuple[str, Kept]]) -> Any:
    """The tensors that are wrong, as role/name; or what every rank said."""
    statuses = sorted({status for status, _ in ranks})
    if statuses != ["ok"]:
        raised = all(status.startswith("raised") for status in statuses)
        return "refused" if case.expect == "refusal" and raised else statuses
    found, along, moved = set(), 0.0, sum(float(kept.get(("fd", "loss"), 0.0)) for _, kept in ranks)
    for truth in oracle.expected(case, world_size):
        kept = ranks[truth.rank][1]
        if truth.name.startswith(dense.NOISE):
            continue
        if truth.role == "fd":
            gradient = kept["grad", truth.name]
            along += 0.0 if gradient is None else float((gradient * truth.tensor).sum())
        elif not near(case, kept[truth.role, truth.name], truth.tensor):
            found.add(f"{truth.role}/{truth.name}")
    differs = all(("fd", "loss") in kept for _, kept in ranks) and math.isfinite(moved)
    if differs and case.dtype == "float64" and abs(along - moved) > 1e-4 * max(1e-3, abs(along)):
        found.add("fd")
    return sorted(found)


def near(case: CaseInfo, got: Any, truth: Any) -> bool:
    if got is None or truth is None:
        return got is None and truth is None
    if got.shape != truth.shape:
        return False
    truth = truth.double()
    if case.accepts == "oracle or zero" and not got.any():
        return True
    if not torch.equal(got.isnan(), truth.isnan()):
        return False
    error, size = (got - truth).nan_to_num().norm(), truth.nan_to_num().norm()
    return bool(error <= ROOM[case.params.get("effective", case.dtype)] * size)


def by_loops(case: CaseInfo, world_size: int) -> list[str]:
    """What of the oracle differs from a formulation in plain loops."""
    params, size = params_of(case), case.sp or world_size
    formula: Any = next(function for kind, function in FORMULAS.items() if isinstance(params, kind))
    truth = {(one.rank, one.role, one.name): one.tensor for one in oracle.expected(case, world_size)}
    found = []
    for first in range(0, world_size, size):
        told = [formula(params, *_given(case, params, world_size, first, place)) for place in range(size)]
        after = LAYER_AFTER if params.wrap == "layer" else 1.0
        outputs = [_times(y, after) for y, _ in told]
        if getattr(params, "part", "own") == "whole":
            outputs = [[row for part in outputs for row in part]] * size
        for place, (_, gradients) in enumerate(told):
            rank = first + place
            if not _same(truth[rank, "output", "y"], outputs[place]):
                found.append(f"output on rank {rank}")
            for spec in params.tensors(world_size, place):
                if spec.role == "cotangent":
                    continue
                expected = truth[rank, "grad", spec.name]
                wanted = spec.role == "input" and params.loss != "forward_only"
                before = LAYER_BEFORE if params.wrap == "layer" and spec.name == "x" else 1.0
                got = _times(gradients[spec.name], before)
                if (expected is not None) != wanted or (expected is not None and not _same(expected, got)):
                    found.append(f"gradient of {spec.name} on rank {rank}")
    return found[:5]


def _given(case: CaseInfo, params: Tiled, world_size: int, first: int, place: int) -> tuple[Any, Any]:
    """What the rank at ``place`` holds, and the derivative of its loss at its output."""
    held = {spec.name: drawn(case, spec, first + place).tolist() for spec in params.tensors(world_size, place)}
    w, w2 = held.pop("w", None), held.pop("w2", None)
    before, after = (LAYER_BEFORE, LAYER_AFTER) if params.wrap == "layer" else (1.0, 1.0)
    held["x"] = _times(held["x"], before)
    # The formulas differentiate everything; what needs no gradient is not compared.
    rule = loops.SLOPES[params.loss]

    def slope(index: Sequence[int], y: float) -> float:
        ws = [loops.at(one, index) if one is not None else 0.0 for one in (w, w2)]
        return float(after * rule(after * y, *ws))

    return held, slope


def _times(values: Any, factor: float) -> Any:
    return [_times(one, factor) for one in values] if isinstance(values, list) else values * factor


def _same(expected: torch.Tensor, got: Any) -> bool:
    mine = torch.tensor(got, dtype=torch.float64)
    room = 1e-11 * float(1 + expected.nan_to_num().abs().max())
    return bool(torch.allclose(mine, expected, rtol=1e-9, atol=room, equal_nan=True))


def by_differences(case: CaseInfo, world_size: int) -> list[str]:
    """Which gradients of the oracle differ from central differences of its own forward, in float64."""
    params, size = params_of(case), case.sp or world_size
    if params.loss == "forward_only":
        return []
    truth = {(one.rank, one.role, one.name): one.tensor for one in oracle.expected(case, world_size)}
    specs = [params.tensors(world_size, place) for place in range(size)]
    held = [{spec.name: drawn(case, spec, place).clone() for spec in mine} for place, mine in enumerate(specs)]
    found = []
    for spec in specs[0]:
        if spec.role != "input":
            continue
        # Along a direction of its own, moved on one rank alone: what is shared is one parameter per rank here.
        along = direction(case, spec, 0) / spec.step
        losses = []
        for step in (2, 1, -1, -2):
            moved = [{**held[0], spec.name: held[0][spec.name] + step * 2.0**-14 * along}, *held[1:]]
            outputs = tiled._group(params, moved)
            losses.append(sum(float(dense.loss(params.loss, y, mine)) for y, mine in zip(outputs, moved, strict=True)))
        # Five points: what is left is of the fourth order.
        slope = (8 * (losses[1] - losses[2]) - (losses[0] - losses[3])) / (12 * 2.0**-14)
        gradient = truth[0, "grad", spec.name]
        wanted, room = float((gradient * along).sum()), 1e-7 * float((gradient * along).abs().sum() + 1e-3)
        if math.isfinite(slope) and abs(slope - wanted) > room:
            found.append(f"{spec.name}: {slope} and not {wanted}")
    return found


if __name__ == "__main__":
    main()
