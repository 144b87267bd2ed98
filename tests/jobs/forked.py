"""Runs inside a runtime: functions under test on forked ranks over gloo, compared with the oracle."""

from __future__ import annotations

import os
import pickle
import tempfile
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist

from jobs import oracle, probes
from jobs.contract import CaseInfo
from jobs.oracle.dense import NOISE
from jobs.subject.base import RankContext, Unsupported
from jobs.trace import Recorder

Build = Callable[[CaseInfo, RankContext], Any]
Kept = dict[tuple[str, str], Any]


def run(
    world_size: int,
    units: Iterable[tuple[CaseInfo, Build]],
    transport: str = "gloo",
    mode: str = "eager",
    wrong: Callable[[CaseInfo, int, list[tuple[str, Kept]]], Any] | None = None,
) -> list[Any]:
    """For each unit what was wrong: what ``wrong`` says, or else :func:`wrong_roles`."""
    said = wrong or wrong_roles
    units = list(units)
    pipes, children = [], []
    with tempfile.TemporaryDirectory() as folder:
        for rank in range(world_size):
            read, write = os.pipe()
            child = os.fork()
            if child == 0:
                torch.set_num_threads(1)
                contexts = join(rank, world_size, transport, folder)
                answers = [one(str(n), case, build, contexts, mode) for n, (case, build) in enumerate(units)]
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
    return [said(case, world_size, [rank[index] for rank in ranks]) for index, (case, _) in enumerate(units)]


def join(rank: int, world_size: int, transport: str, folder: str) -> dict[int, RankContext]:
    store = dist.FileStore(f"{folder}/store", world_size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    contexts = {}
    for size in {size for size in (2, 4) if size < world_size} | {world_size}:
        first = rank - rank % size
        groups = [dist.new_group(list(range(start, start + size))) for start in range(0, world_size, size)]
        ranks = tuple(range(first, first + size))
        contexts[size] = RankContext(rank, world_size, transport, size, rank - first, groups[rank // size], ranks)
    # A rank with nothing to exchange would end while another one still connects to it.
    dist.barrier()
    if transport == "nccl-dispatch":
        from jobs.dispatch import take_nccl_branches

        take_nccl_branches()
    return contexts


def one(name: str, case: CaseInfo, build: Build, contexts: dict[int, RankContext], mode: str) -> tuple[str, Kept]:
    kept: Kept = {}
    ctx = contexts[case.sp or max(contexts)]

    def keep(role: str, name: str, tensor: Any) -> None:
        # What crosses the border is read straight from memory, which a tensor of another class need not have.
        assert tensor is None or type(tensor) is torch.Tensor, type(tensor)
        kept[role, name] = None if tensor is None else tensor.detach().double().clone()

    function: Any = None

    def exercise() -> None:
        nonlocal function
        function = build(case, ctx)
        if mode != "eager":
            function = Recorder(mode).wrap(function)
        probes.module(case.family).exercise(case, ctx, function, keep)

    status = how_it_ended(exercise)
    if all_are_well(name, ctx, status):
        status = how_it_ended(lambda: probes.module(case.family).difference(case, ctx, function, keep))
    return status, kept


def how_it_ended(act: Callable[[], None]) -> str:
    try:
        act()
    except Unsupported as reason:
        return f"unsupported: {reason}"
    except Exception as error:  # noqa: BLE001 - whatever was raised is the answer
        return f"raised {type(error).__name__}: {error}"
    return "ok"


def all_are_well(name: str, ctx: RankContext, status: str) -> bool:
    """Whether every rank of the world is: what one does alone, the others would be missing in."""
    store = dist.distributed_c10d._get_default_store()  # no collective: one that failed may have lost its connections
    store.set(f"{name} {ctx.rank}", status)
    return all(store.get(f"{name} {rank}") == b"ok" for rank in range(ctx.world_size))


def wrong_roles(case: CaseInfo, world_size: int, ranks: list[tuple[str, Kept]]) -> Any:
    """The roles that were wrong, or ``refused``, ``unsupported: …``, ``raised …`` where every rank said so."""
    statuses = sorted({status for status, _ in ranks})
    if all(status.startswith("raised") for status in statuses) and case.expect == "refusal":
        return "refused"
    if statuses != ["ok"]:
        return statuses[0] if len(statuses) == 1 else statuses
    wrong, along, moved = set(), 0.0, 0.0
    for truth in oracle.expected(case, world_size):
        if truth.name.startswith(NOISE):
            continue
        kept = ranks[truth.rank][1]
        if truth.role == "fd":
            gradient = kept["grad", truth.name]
            along += float((gradient * truth.tensor).sum()) if gradient is not None else 0.0
            moved += float(kept.get(("fd", "loss"), 0.0)) if truth.name == "x" else 0.0
        elif not same(case, got := kept[truth.role, truth.name], truth.tensor):
            wrong.add(truth.role)
            if got is not None and bool(got.isnan().all()):
                wrong.add("not a number")
    untraced = all(("fd", "loss") in kept for _, kept in ranks)
    return sorted(wrong | ({"fd"} if untraced and not near(case, along, moved) else set()))


def same(case: CaseInfo, got: Any, truth: Any) -> bool:
    if got is None or truth is None:
        return got is None and truth is None
    if got.shape != truth.shape:
        return False
    if case.exact:
        return bool(torch.equal(got, truth.double()))
    return bool(torch.allclose(got, truth.double(), rtol=1e-5, atol=1e-6))


def near(case: CaseInfo, along: float, moved: float) -> bool:
    return along == moved if case.exact else abs(along - moved) <= 1e-4 * max(1.0, abs(along))
