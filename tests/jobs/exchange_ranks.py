"""Runs inside a runtime: exchange cases on forked ranks over gloo, compared with the oracle; prints JSON.

    python exchange_ranks.py WORLD_SIZE reference|mutants|loops|CHECKOUT

``reference`` runs our own right exchange on every case, ``mutants`` every eager control, a checkout its own adapter;
``loops`` compares the oracle with a second formulation and forks nothing. The answer maps a case or control to what
was wrong: a list of roles, or ``refused``, ``unsupported: …``, ``raised …`` where every rank said so.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import pickle
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from jobs import oracle, probes
from jobs.contract import CaseInfo
from jobs.probes.case import input_key
from jobs.probes.exchange.shapes import LAYER_AFTER, LAYER_BEFORE, LOSS_SCALE, params_of
from jobs.subject import load_adapter
from jobs.subject.base import RankContext, Unsupported
from jobs.values import dyadic

Build = Callable[[CaseInfo, RankContext], Any]


def main() -> None:
    world_size, what = int(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    cases = [case for case in probes.catalogue() if case.runs_at(world_size)]
    if what == "loops":
        answer = {case.id: loops(case, world_size) for case in cases if case.expect == "values"}
    else:
        names, builds, units = plan(what, cases)
        answer = dict(zip(names, run(world_size, units, builds), strict=True))
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


def run(world_size: int, units: list[CaseInfo], builds: list[Build]) -> list[Any]:
    pipes, children = [], []
    with tempfile.TemporaryDirectory() as folder:
        for rank in range(world_size):
            read, write = os.pipe()
            child = os.fork()
            if child == 0:
                answers = [one(case, build, ctxs) for ctxs in [join(rank, world_size, folder)] for case, build in
                           zip(units, builds, strict=True)]  # fmt: skip
                with os.fdopen(write, "wb") as pipe:
                    pickle.dump(answers, pipe)
                os._exit(0)
            os.close(write)
            pipes.append(read)
            children.append(child)
        ranks = []
        for read in pipes:
            with os.fdopen(read, "rb") as pipe:
                ranks.append(pickle.load(pipe))  # noqa: S301 - from our own child
        for child in children:
            os.waitpid(child, 0)
    return [judge(case, world_size, [rank[index] for rank in ranks]) for index, case in enumerate(units)]


def join(rank: int, world_size: int, folder: str) -> dict[int, RankContext]:
    store = dist.FileStore(f"{folder}/store", world_size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    contexts = {}
    for size in {size for size in (2, 4) if size < world_size} | {world_size}:
        first = rank - rank % size
        groups = [dist.new_group(list(range(start, start + size))) for start in range(0, world_size, size)]
        ranks = tuple(range(first, first + size))
        contexts[size] = RankContext(rank, world_size, "gloo", size, rank - first, groups[rank // size], ranks)
    return contexts


def one(case: CaseInfo, build: Build, contexts: dict[int, RankContext]) -> tuple[str, dict[tuple[str, str], Any]]:
    kept: dict[tuple[str, str], Any] = {}
    ctx = contexts[case.sp or max(contexts)]

    def keep(role: str, name: str, tensor: Any) -> None:
        kept[role, name] = None if tensor is None else tensor.detach().double().clone()

    try:
        probes.module("exchange").exercise(case, ctx, build(case, ctx), keep)
    except Unsupported as reason:
        return f"unsupported: {reason}", kept
    except Exception as error:  # noqa: BLE001 - whatever was raised is the answer
        return f"raised {type(error).__name__}: {error}", kept
    return "ok", kept


def judge(case: CaseInfo, world_size: int, ranks: list[tuple[str, dict[tuple[str, str], Any]]]) -> Any:
    statuses = sorted({status for status, _ in ranks})
    if all(status.startswith("raised") for status in statuses) and case.expect == "refusal":
        return "refused"
    if statuses != ["ok"]:
        return statuses[0] if len(statuses) == 1 else statuses
    wrong, along, moved = set(), 0.0, 0.0
    for truth in oracle.expected(case, world_size):
        kept = ranks[truth.rank][1]
        if truth.role == "fd":
            gradient = kept["grad", truth.name]
            along += float((gradient * truth.tensor).sum()) if gradient is not None else 0.0
            moved += float(kept["fd", "loss"]) if truth.name == "x" else 0.0
        elif not same(kept[truth.role, truth.name], truth.tensor):
            wrong.add(truth.role)
    return sorted(wrong | ({"fd"} if along != moved else set()))


def same(got: Any, truth: Any) -> bool:
    if got is None or truth is None:
        return got is None and truth is None
    return bool(got.shape == truth.shape and torch.equal(got, truth.double()))


SLOPES: dict[str, Callable[[float, dict[str, float]], float]] = {
    "square": lambda y, w: 2 * y,
    "frozen": lambda y, w: 2 * y,
    "scaled": lambda y, w: 2 * y * LOSS_SCALE,
    "weighted": lambda y, w: w["w"],
    "shared": lambda y, w: 2 * y + w["w"],
    "accumulate": lambda y, w: w["w"] + w["w2"],
}
"""The derivative of each loss at one element of the output."""


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
                drawn = dyadic(input_key(case, spec.name, first + place), spec.drawn, torch.float64)
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
