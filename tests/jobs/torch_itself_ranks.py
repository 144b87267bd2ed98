"""Runs inside a runtime: torch's own cases on forked ranks, compared with the oracle; prints JSON.

    python torch_itself_ranks.py WORLD_SIZE cases|reference|mutants|racing|late|steady|elsewhere [TRANSPORT MODE [ID…]]
    python torch_itself_ranks.py WORLD_SIZE dense

``cases`` runs torch itself, ``reference`` our own right implementation on every case, ``mutants`` every control of the
mode; ``racing`` the reference with an error in every third call on the last rank of the world, ``late`` with one after
24 calls, ``steady`` with one in every call on all ranks, ``elsewhere`` in every call outside the first group; ``dense``
compares the oracle with autograd through one process that holds all ranks, and forks nothing. The answer maps a case or
control to what was wrong; see ``forked``.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import sys
from collections.abc import Callable

import torch

from jobs import oracle, probes, trace
from jobs.contract import CaseInfo, ControlInfo
from jobs.probes.case import input_key
from jobs.probes.torch_itself import run as family
from jobs.probes.torch_itself.shapes import IGNORED, Aggregation, Collective, params_of
from jobs.subject.base import Operation, RankContext
from jobs.values import dyadic
from tests.jobs.forked import Build, run

Parts = list[torch.Tensor]


def main() -> None:
    world_size, what, *rest = sys.argv[1:]
    transport, mode, *wanted = rest or ("gloo", "eager")
    cases = [case for case in probes.catalogue() if case.family == "torch-itself" and case.runs_at(int(world_size))]
    if what == "dense":
        answer = {case.id: dense(case, int(world_size)) for case in cases}
    else:
        trace.warm(() if mode == "eager" else (mode,))
        torch.set_num_threads(1)
        units = plan(what, cases, transport, mode)
        units = {name: unit for name, unit in units.items() if not wanted or name in wanted}
        answer = dict(zip(units, run(int(world_size), units.values(), transport, mode), strict=True))
    sys.stdout.write(json.dumps(answer))


def plan(what: str, cases: list[CaseInfo], transport: str, mode: str) -> dict[str, tuple[CaseInfo, Build]]:
    known = {case.id: case for case in cases}
    if what == "cases":
        here = [case for case in cases if transport in case.transports and mode in case.modes]
        return {case.id: (case, family.build) for case in here}
    controls = [one for one in probes.controls() if one.family == "torch-itself" and one.case in known]
    if what == "reference" or what in RAISES:
        reference = next(one for one in controls if ".reference[" in one.id)

        def build(case: CaseInfo, ctx: RankContext) -> Operation:
            right = family.build_control(dataclasses.replace(reference, case=case.id), case, ctx)
            return raising(right, ctx, RAISES[what]) if what in RAISES else right

        return {case.id: (case, build) for case in cases}

    def build_of(control: ControlInfo) -> Build:
        return lambda case, ctx: family.build_control(control, case, ctx)

    return {one.id: (known[one.case], build_of(one)) for one in controls if mode in one.modes}


RAISES: dict[str, Callable[[int, RankContext], bool]] = {
    "racing": lambda call, ctx: ctx.rank == ctx.world_size - 1 and call % 3 == 0,
    "late": lambda call, ctx: ctx.rank == ctx.world_size - 1 and call == 25,
    "steady": lambda call, ctx: True,
    "elsewhere": lambda call, ctx: ctx.ranks[0] > 0,
}
"""Whether a rank raises, by the number of its call, from 1."""


class OddError(RuntimeError):
    """An error whose class the other ranks may not know."""


def raising(right: Operation, ctx: RankContext, raises: Callable[[int, RankContext], bool]) -> Operation:
    calls = itertools.count(1)

    def operation(x: torch.Tensor) -> torch.Tensor:
        y = right(x)
        if raises(next(calls), ctx):
            raise OddError("went wrong")
        return y

    return operation


def dense(case: CaseInfo, world_size: int) -> list[str]:
    """What of the oracle differs from autograd through all ranks in one process."""
    params, wrong = params_of(case), []
    truth = {(one.rank, one.role, one.name): one.tensor for one in oracle.expected(case, world_size)}
    size = params.ranks(world_size)
    for first in range(0, world_size, size):
        named: dict[str, Parts] = {}
        for place in range(size):
            for spec in params.tensors(world_size, place):
                drawn = dyadic(input_key(case, spec, first + place), spec.drawn, torch.float64).expand(spec.shape)
                named.setdefault(spec.name, []).append(drawn.clone().requires_grad_(spec.role == "input"))
        outputs = aggregated(params, named["x"], world_size) if isinstance(params, Aggregation) else WHOLE[
            params.collective](params, named["x"], world_size)  # fmt: skip
        losses = [LOSSES[params.loss](y, named["w"][place] if "w" in named else y) for place, y in enumerate(outputs)]
        # What a broadcast leaves out is in no rank's loss.
        total = sum(losses, torch.zeros((), dtype=torch.float64))
        found = torch.autograd.grad(total, named["x"], allow_unused=True)
        gradients = [torch.zeros_like(x) if one is None else one for one, x in zip(found, named["x"], strict=True)]
        for place in range(size):
            for role, name, got in (("output", "y", outputs[place]), ("grad", "x", gradients[place])):
                told = truth[first + place, role, name]
                if told is None or told.shape != got.shape or not torch.allclose(told, got, rtol=1e-14, atol=0):
                    wrong.append(f"{role} {first + place}")
    return wrong


LOSSES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "square": lambda y, w: y.pow(2).sum(),
    "sum": lambda y, w: y.sum(),
    "weighted": lambda y, w: torch.dot(y.reshape(-1), w.reshape(-1)),
}


def all_to_all(params: Collective, parts: Parts, world_size: int) -> Parts:
    """Row by row: what each source holds for a target starts behind what it holds for the targets before."""
    arrived: list[Parts] = [[] for _ in parts]
    for source, part in enumerate(parts):
        row = 0
        for target, count in enumerate(params.counts(world_size, source)):
            arrived[target] += [part[row + offset] for offset in range(count)]
            row += count
    return [torch.stack(rows) for rows in arrived]


def reduce_scatter(params: Collective, parts: Parts, world_size: int) -> Parts:
    rows = parts[0].shape[0] // len(parts)
    return [sum((part[place * rows : (place + 1) * rows] for part in parts), torch.zeros(())) for place in
            range(len(parts))]  # fmt: skip


WHOLE: dict[str, Callable[[Collective, Parts, int], Parts]] = {
    "all_to_all": all_to_all,
    "all_reduce": lambda params, parts, world_size: [sum(parts, torch.zeros(())) for _ in parts],
    "all_gather": lambda params, parts, world_size: [torch.vstack(parts) for _ in parts],
    "reduce_scatter": reduce_scatter,
    "broadcast": lambda params, parts, world_size: [parts[0] * 1 for _ in parts],
}


def aggregated(params: Aggregation, parts: Parts, world_size: int) -> Parts:
    labels = [label for place in range(len(parts)) for label in params.labels(world_size, place)]
    loss = torch.nn.functional.nll_loss(torch.vstack(parts), torch.tensor(labels), ignore_index=IGNORED)
    return [loss * 1 for _ in parts]


if __name__ == "__main__":
    main()
