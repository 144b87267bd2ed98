"""Hand-made tensors, cases, streams and evidence for the tests of collecting and judging."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from jobs.contract import SCHEMA, AttemptSpec, CaseInfo, CellSpec, ControlInfo, JobSpec, Limits
from service.evidence import Evidence, Noise, RankOutcome, TraceEvidence
from workers.collect import Collector, Notice
from workers.collect.assemble import assemble
from workers.collect.measure import Raw

_FORMATS = {"float64": "<f8", "float32": "<f4", "float16": "<f2", "int64": "<i8", "int32": "<i4", "uint8": "u1"}

Named = Mapping[tuple[str, str], Raw | None]


def raw(values: Any, dtype: str = "float32") -> Raw:
    """``values`` as a tensor of ``dtype``."""
    if dtype == "bfloat16":
        array = np.asarray(values, "<f4")
        return Raw(dtype, array.shape, (array.reshape(-1).view("<u4") >> 16).astype("<u2").tobytes())
    array = np.asarray(values).astype(_FORMATS[dtype])
    return Raw(dtype, array.shape, array.tobytes())


def a_case(**changes: Any) -> CaseInfo:
    values: dict[str, Any] = {
        "id": "exchange/dim0[dtype=float32]", "version": 1, "family": "exchange", "probe": "dim0", "params": {},
        "modes": ("eager", "aot_eager"), "dtype": "float32",
    }  # fmt: skip
    return CaseInfo(**(values | changes))


def evidence_of(
    got: Sequence[Named],
    right: Sequence[Named],
    case: CaseInfo | None = None,
    ranks: Sequence[RankOutcome] | None = None,
    trace: TraceEvidence | None = None,
    noise: Mapping[str, Noise] | None = None,
    changes: tuple[str, ...] = (),
) -> Evidence:
    """Evidence measured from real tensors, by rank."""
    outcomes = ranks or [RankOutcome(rank, "ok", "run", repeat_equal=True) for rank in range(len(got))]
    return assemble(case or a_case(), outcomes, got, right, noise or {}, trace, changes)


# -- streams ---------------------------------------------------------------------------------------------------------

CASE = a_case()
REFUSAL = a_case(id="exchange/dim0[blocks=extra]", expect="refusal")
CONTROL = ControlInfo("exchange/dim0.reference", "exchange", CASE.id, ("eager",), ("agree",))


def a_spec(limits: Limits | None = None, world: int = 2) -> AttemptSpec:
    """Job 7 with cell 70 (eager), 71 (aot_eager) and 72 (a refusal)."""
    cells = (
        CellSpec(70, CASE.id, 1, "eager"), CellSpec(71, CASE.id, 1, "aot_eager"), CellSpec(72, REFUSAL.id, 1, "eager"),
    )  # fmt: skip
    return AttemptSpec("a1", "toy", "toy==1", "gloo", (JobSpec(7, world, cells),), limits=limits or Limits())


def a_collector(limits: Limits | None = None, world: int = 2) -> Collector:
    return Collector(a_spec(limits, world), [CASE, REFUSAL], [CONTROL])


def event(kind: str, **fields: Any) -> dict[str, Any]:
    return {"v": SCHEMA, "t": kind, **fields}


def line(said: Mapping[str, Any]) -> bytes:
    return json.dumps(said).encode() + b"\n"


def tensor(role: str, name: str, value: Raw | None) -> dict[str, Any]:
    if value is None:
        return {"role": role, "name": name, "dtype": None, "shape": None, "data": None}
    data = base64.b64encode(value.data).decode()
    return {"role": role, "name": name, "dtype": value.dtype, "shape": list(value.shape), "data": data}


def rank_said(rank: int, status: str = "ok", **changes: Any) -> dict[str, Any]:
    said = {
        "rank": rank, "status": status, "phase": "run", "error": None, "seconds": 0.01, "repeat_equal": True,
        "reason": None,
    }  # fmt: skip
    return said | changes


def an_error(kind: str, message: str, *frames: tuple[str, int, str, str]) -> dict[str, Any]:
    keys = ("file", "line", "function", "owner")
    return {"type": kind, "message": message, "frames": [dict(zip(keys, f, strict=True)) for f in frames]}


X = np.arange(1, 9).reshape(2, 4) / 16
"""The input of rank 0; rank 1 has its negative. The output is 3 · x, the right gradient 2 · x."""


def x_of(rank: int) -> Any:
    return X if rank == 0 else -X


def truth_of(rank: int) -> dict[tuple[str, str], Raw | None]:
    x = x_of(rank)
    return {("output", "y"): raw(3 * x), ("grad", "x"): raw(2 * x), ("input", "x"): raw(x)}


HELLO = event(
    "hello", torch="2.11.0", git_version="abc", python="3.11.9", platform="Linux", cuda=None, nccl=None, driver=None,
    gpus=[], numpy="2.1.0", flags={"default_dtype": "float32"}, compiler=None, processor="a processor",
)  # fmt: skip
SUBJECT = event(
    "subject", status="ok", adapter="toy", version="1", error=None, method="fork", changed=[],
    started={"threads": False, "autograd": False, "cuda": False}, seconds=1.5,
)  # fmt: skip
TRACE = {
    "graphs": 1, "breaks": [], "recompiles": 0, "collective_in_graph": True, "collectives": ["all_to_all"],
    "fullgraph": "ok",
}  # fmt: skip


def opening(world: int = 2) -> list[dict[str, Any]]:
    """Everything before the cells: hello, oracle, a control, the subject."""
    oracle = [
        event("oracle", case=CASE.id, version=1, world_size=world, rank=r, tensor=tensor(*key, value))
        for r in range(world)
        for key, value in truth_of(r).items()
    ]
    control = event(
        "control", control=CONTROL.id, mode="eager", world_size=world, stage="before",
        ranks=[rank_said(r) for r in range(world)],
        tensors=[[tensor(*key, value) for key, value in truth_of(r).items()] for r in range(world)], trace=None,
    )  # fmt: skip
    return [HELLO, event("phase", name="oracle", seconds=0.1), *oracle, control,
            event("phase", name="subject", seconds=0.0), SUBJECT]  # fmt: skip


def cell_events(
    cell: int = 70,
    number: int = 1,
    ranks: Iterable[Mapping[str, Any]] | None = None,
    tensors: Sequence[Named] | None = None,
    trace: Any = None,
    world: int = 2,
) -> list[dict[str, Any]]:
    """One pass of one cell; right unless told otherwise."""
    at = {"job": 7, "cell": cell, "pass": number}
    sent = [truth_of(r) for r in range(world)] if tensors is None else tensors
    said = [
        event("tensor", **at, rank=rank, tensor=tensor(*key, value))
        for rank, one in enumerate(sent)
        for key, value in one.items()
    ]
    outcomes = [rank_said(r) for r in range(world)] if ranks is None else list(ranks)
    return [*said, event("case", **at, ranks=outcomes, trace=trace, seconds=math.pi)]


def zeroed() -> list[dict[tuple[str, str], Raw | None]]:
    """A pass whose forward is right and whose gradient is zero."""
    return [{**truth_of(rank), ("grad", "x"): raw(np.zeros((2, 4)))} for rank in range(2)]


def feed(collector: Collector, events: Iterable[Mapping[str, Any]]) -> list[Notice]:
    return [notice for said in events for notice in collector.feed(line(said))]
