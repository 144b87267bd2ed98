"""Runs inside a runtime: exchange cases on forked ranks, compared with the oracle; prints JSON.

    python exchange_ranks.py WORLD_SIZE reference|mutants|loops|CHECKOUT

``reference`` runs our own right exchange on every case, ``mutants`` every eager control, a checkout its own adapter;
``loops`` compares the oracle with a second formulation and forks nothing. The answer maps a case or control to what
was wrong: a list of roles, or ``refused``, ``unsupported: …``, ``raised …`` where every rank said so.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import sys
from collections.abc import Iterator
from typing import Any

import torch

from jobs import oracle, probes
from jobs.contract import CaseInfo
from jobs.probes.case import LAYER_AFTER, LAYER_BEFORE, input_key
from jobs.probes.exchange.shapes import params_of
from jobs.subject import load_adapter
from jobs.subject.base import RankContext
from jobs.values import dyadic
from tests.jobs.forked import Build, run
from tests.jobs.slopes import SLOPES


def main() -> None:
    world_size, what = int(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    cases = [case for case in probes.catalogue() if case.family == "exchange" and case.runs_at(world_size)]
    if what == "loops":
        answer = {case.id: loops(case, world_size) for case in cases if case.expect == "values"}
    else:
        names, builds, units = plan(what, cases)
        answer = dict(zip(names, run(world_size, zip(units, builds, strict=True)), strict=True))
    sys.stdout.write(json.dumps(answer))


def plan(what: str, cases: list[CaseInfo]) -> tuple[list[str], list[Build], list[CaseInfo]]:
    module = probes.module("exchange")
    known = {case.id: case for case in cases}
    controls = [one for one in probes.controls() if "eager" in one.modes and one.case in known]
    if what == "mutants":
        builds: list[Build] = [functools.partial(module.build_control, one) for one in controls]
        return [one.id for one in controls], builds, [known[one.case] for one in controls]
    if what == "reference":
        reference = next(one for one in controls if ".reference" in one.id)
        chosen = [case for case in cases if case.expect == "values" and case.probe in ("dim0", "seq_head")]

        def build(case: CaseInfo, ctx: RankContext) -> Any:
            return module.build_control(dataclasses.replace(reference, case=case.id), case, ctx)

        return [case.id for case in chosen], [build] * len(chosen), chosen
    subject = load_adapter("checkout", what)
    subject.prepare_import(what)
    sys.path.insert(0, what)
    subject.load(what)
    assert subject.version() == "0.3"
    return [case.id for case in cases], [lambda case, ctx: module.build(case, ctx, subject)] * len(cases), cases


def loops(case: CaseInfo, world_size: int) -> list[str]:
    """What of the oracle differs from a formulation in plain loops over indices: no tensor operation in common."""
    params = params_of(case)
    size = case.sp or world_size
    factor = LAYER_BEFORE * LAYER_AFTER if params.wrap == "layer" else 1.0
    truth: dict[tuple[int, str, str], Any] = {
        (one.rank, one.role, one.name): one.tensor for one in oracle.expected(case, world_size)
    }
    wrong = []
    for first in range(0, world_size, size):
        given = {}
        for place in range(size):
            for spec in params.tensors(world_size, place):
                drawn = dyadic(input_key(case, spec, first + place), spec.drawn, torch.float64)
                given[place, spec.name] = drawn.expand(spec.shape)
        for (source, start), (target, end) in moves(case, world_size, size):
            x = factor * float(given[source, "x"][start])
            if params.loss == "frozen":
                x += factor * float(given[source, "c"][start])
            if x != float(truth[first + target, "output", "y"][end]):
                wrong.append(f"output {target} {end}")
            w = {name: float(given[target, name][end]) for name in ("w", "w2") if (target, name) in given}
            slope = SLOPES.get(params.loss)
            gradient = truth[first + source, "grad", "x"]
            if slope is None or gradient is None:
                wrong += ["a gradient where there is none"] if slope is not None or gradient is not None else []
            elif factor * slope(x, w) != float(gradient[start]):
                wrong.append(f"grad {source} {start}")
    return wrong[:5]


def moves(case: CaseInfo, world_size: int, size: int) -> Iterator[tuple[tuple[int, tuple[int, ...]], ...]]:
    """Where every element goes: (rank, index) before and after."""
    params = params_of(case)
    if not params.layout:
        for source in range(size):
            for block, *rest in indices(params.shapes(world_size, source)[0]):
                yield (source, (block, *rest)), (block, (source, *rest))
        return
    tokens = 5 if params.length == "odd" else 4
    owners = dealt(params.head_count(world_size), size)
    first_head = [owners.index(rank) for rank in range(size)]
    for token, batch, head, feature in indices((tokens * size, params.batch, len(owners), 4)):
        by_tokens = (token // tokens, (batch, token % tokens, head, feature))
        by_heads = (owners[head], (batch, token, head - first_head[owners[head]], feature))
        pair = (by_tokens, by_heads) if params.scatter == "heads" else (by_heads, by_tokens)
        if params.layout == "sbhd":
            pair = tuple((rank, (index[1], index[0], *index[2:])) for rank, index in pair)  # type: ignore[assignment]
        yield pair


def indices(shape: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    if not shape:
        yield ()
        return
    for index in range(shape[0]):
        for rest in indices(shape[1:]):
            yield (index, *rest)


def dealt(heads: int, ranks: int) -> list[int]:
    """The owner of each head: dealt out one by one for the counts, then in consecutive runs."""
    counts = [0] * ranks
    for head in range(heads):
        counts[head % ranks] += 1
    return [rank for rank in range(ranks) for _ in range(counts[rank])]


if __name__ == "__main__":
    main()
