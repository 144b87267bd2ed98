"""Runs inside a runtime: cases of the model on forked ranks, compared with the oracle; prints JSON.

    python model_ranks.py WORLD_SIZE reference|mutants|traced|buffer|second

``reference`` runs our own attention and training in every case, ``traced`` the default ones in aot_eager, ``mutants``
every eager control in float32. The answer maps a case or control to the tensors that were wrong, as ``role/name``.
``buffer`` traces a default case's layers around exchanges that fill a buffer inside an autograd function, and says per
tensor which of its first dimension's blocks are wrong and which of them zero. ``second`` forks nothing and compares the
oracle with a second formulation, in the default cases and all of float64.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import sys
from typing import Any

import torch

from jobs import oracle, probes
from jobs.contract import CaseInfo
from jobs.oracle.dense import NOISE
from jobs.subject.base import RankContext
from jobs.values import dtype_of
from tests.jobs import model_loops
from tests.jobs.forked import Build, Kept, run

ROOM = 4
"""An error may be this many times that of the dense run in the same type, or that many roundings times √n."""
ROUNDING = 1e-6


def main() -> None:
    world_size, what = int(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    cases = {case.id: case for case in probes.catalogue() if case.family == "model" and case.runs_at(world_size)}
    if what == "second":
        some = [case for case in cases.values() if case.suite == "default" or case.dtype == "float64"]
        answer = {case.id: model_loops.differences(case, world_size) for case in some}
    else:
        mode = "aot_eager" if what in ("traced", "buffer") else "eager"
        chosen = plan(what, mode, cases)
        wrong = wrong_blocks if what == "buffer" else wrong_tensors
        answer = dict(zip(chosen, run(world_size, chosen.values(), mode=mode, wrong=wrong), strict=True))
    sys.stdout.write(json.dumps(answer))


def plan(what: str, mode: str, cases: dict[str, CaseInfo]) -> dict[str, tuple[CaseInfo, Build]]:
    module = probes.module("model")
    controls = [one for one in probes.controls() if one.family == "model" and one.case in cases]
    if what == "mutants":
        plain = [one for one in controls if mode in one.modes and cases[one.case].dtype == "float32"]
        return {one.id: (cases[one.case], functools.partial(module.build_control, one)) for one in plain}
    wanted = ".traced_reference" if what == "traced" else ".reference"
    reference = next(one for one in controls if wanted in one.id)
    build = build_as(module, reference)
    able = [case for case in cases.values() if mode in case.modes]
    fits = [case for case in able if what == "reference" or case.suite == "default" or case.id == reference.case]
    fits = [case for case in fits if what != "buffer" or case.params["traced"] == "layer"]
    return {case.id: (case, build) for case in fits}


def build_as(module: Any, control: Any) -> Build:
    """What builds any case as ``control`` does its own."""

    def build(case: CaseInfo, ctx: RankContext) -> Any:
        return module.build_control(dataclasses.replace(control, case=case.id), case, ctx)

    return build


def truth_of(case: CaseInfo, world_size: int) -> tuple[dict[Any, Any], dict[Any, Any]]:
    """What is right, and the dense run in the case's own type, by rank, role and name."""
    right: dict[Any, Any] = {}
    dense: dict[Any, Any] = {}
    for one in oracle.expected(case, world_size):
        side = dense if one.name.startswith(NOISE) else right
        side[one.rank, one.role, one.name.removeprefix(NOISE)] = one.tensor
    return right, dense


def wrong_tensors(case: CaseInfo, world_size: int, ranks: list[tuple[str, Kept]]) -> Any:
    """The tensors that were wrong on any rank, or what ended the ranks otherwise."""
    statuses = sorted({status for status, _ in ranks})
    if statuses != ["ok"]:
        return statuses
    right, dense = truth_of(case, world_size)
    sent = {(rank, *key) for rank, (_, kept) in enumerate(ranks) for key in kept}
    wrong = {f"{role}/{name} unknown" for _, role, name in sent - set(right) if role != "fd"}
    along = size = 0.0
    for (rank, role, name), expected in right.items():
        kept = ranks[rank][1]
        if role == "fd":
            gradient = kept["grad", name]
            products = gradient * expected if gradient is not None else torch.zeros(())
            along, size = along + float(products.sum()), size + float(products.abs().sum())
        elif (role, name) not in kept:
            wrong.add(f"{role}/{name} absent")
        elif is_wrong(case, kept[role, name], expected, dense.get((rank, role, name))):
            wrong.add(f"{role}/{name}")
    moved = sum(float(kept.get(("fd", "loss"), 0.0)) for _, kept in ranks)
    # Where the derivative is zero by nature there is the rounding of the loss itself.
    if all(("fd", "loss") in kept for _, kept in ranks) and not abs(along - moved) <= max(1e-4 * size, ROUNDING):
        wrong.add("fd")
    return sorted(wrong)


def wrong_blocks(case: CaseInfo, world_size: int, ranks: list[tuple[str, Kept]]) -> Any:
    """Per gradient of rank 0, what each half of its first dimension is: right, wrong, or zero."""
    if {status for status, _ in ranks} != {"ok"}:
        return sorted({status for status, _ in ranks})
    right, dense = truth_of(case, world_size)
    said = {}
    for (rank, role, name), expected in right.items():
        if rank == 0 and role == "grad":
            got, noise = ranks[0][1][role, name], dense[rank, role, name]
            halves = zip(*(tensor.tensor_split(2) for tensor in (got, expected, noise)), strict=True)
            said[name] = [
                "right" if not is_wrong(case, *half) else "wrong" if half[0].any() else "zero" for half in halves
            ]
    return said


def is_wrong(case: CaseInfo, got: Any, expected: Any, dense: Any) -> bool:
    if got is None or expected is None:
        return not (got is None and expected is None)
    if got.shape != expected.shape:
        return True
    got, expected = got.double(), expected.double()
    noise = float((dense.double() - expected).norm()) if dense is not None else 0.0
    eps = torch.finfo(dtype_of(case.dtype)).eps
    room = max(noise, float(expected.norm()) * eps * math.sqrt(expected.numel()))
    return not bool((got - expected).norm() <= ROOM * room)


if __name__ == "__main__":
    main()
