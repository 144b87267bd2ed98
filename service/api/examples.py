"""An example of every answer that is none of an error, for the OpenAPI document: one small submission, told throughout.

On the straight line this stands beside ``service.api.document``, which puts them in. They are made of the classes that
the answers are made of, so that they have every field.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from fastapi.encoders import jsonable_encoder

from jobs.contract import CaseInfo
from service.api.cells import CellDocument, CellHistory
from service.api.fleet import Channel, RuntimeEntry, Worker
from service.api.paging import Page
from service.api.results import ChangeRow, Changes, Grid, GridCell, GridRow
from service.api.webhooks import Taken
from service.compare import Kind
from service.diagnosis import Diagnosis
from service.evidence import Evidence, RankOutcome, TensorEvidence
from service.reports.badge import badge
from service.store import AttemptView, CellRow, DeviceView, JudgementView, SubmissionView
from service.store.views import BlobView, ControlRow, JobView

ASKED, ENDED = datetime(2026, 11, 30, 9, 0, tzinfo=UTC), datetime(2026, 11, 30, 9, 2, tzinfo=UTC)
SHA, DIGEST, RUNTIME = "1f2e3d4c5b6a79880011223344556677889900aa", "5e" * 32, "7a" * 32
CASE = "exchange/dim0[dtype=float32,loss=square]"
JOB = JobView(4, "done", DIGEST, "2.11.0-index", "2.11.0", "gloo", 2, 30, 1, "node-1", 1, 1, {"zero_gradient": 1}, "")
SUBMISSION = SubmissionView(
    id=3,
    key="0f" * 16,
    state="done",
    requester="ci of DeepSpeed",
    reason="manual",
    priority=30,
    request={"wanted": {"subjects": [SHA], "torch": ["2.11.0"]}, "rerun": False},
    note="",
    waiting="",
    pinned=False,
    created_at=ASKED,
    finished_at=ENDED,
    cells=1,
    done=1,
    jobs=(JOB,),
    counts={"zero_gradient": 1},
)
AGAIN = dataclasses.replace(
    SUBMISSION, id=4, key="1e" * 16, state="queued", finished_at=None, done=0, jobs=(), counts={}, request={}
)
RESOLVING = dataclasses.replace(AGAIN, state="resolving", cells=0, request=SUBMISSION.request)
ROW = CellRow(
    cell=17,
    job=4,
    state="done",
    subject="deepspeed",
    checkout=DIGEST,
    label=f"deepspeed@{SHA[:12]}",
    torch="2.11.0",
    runtime="2.11.0-index",
    channel="release",
    transport="gloo",
    world_size=2,
    case=CASE,
    version=1,
    family="exchange",
    mode="eager",
    verdict="zero_gradient",
    forward_ok=True,
    signature="zero gradient: x",
    detail="the gradient of x is zero on every rank",
    worst_tensor="grad/x on rank 0",
    error=1.0,
    alpha=0.0,
    nonzero_got=0,
    nonzero_expected=4,
    evidence_digest="9c" * 32,
    policy_version="1",
    seconds=0.5,
)
RIGHT = dataclasses.replace(
    ROW, cell=16, verdict="agree", signature="", detail="", error=0.0, alpha=1.0, nonzero_got=4, checkout="4d" * 32
)
TENSOR = TensorEvidence("grad", "x", 0, dtype="float32", shape=(4,), numel=4, max_abs=1.0)
EVIDENCE = json.loads(Evidence(ranks=(RankOutcome(0, "ok"),), tensors=(TENSOR,)).canonical())
JUDGEMENT = JudgementView("1", "zero_gradient", True, ROW.signature, ROW.detail, 1.0, 0.0, 0, 4, ENDED, current=True)
DIAGNOSIS = Diagnosis(
    what="the gradient of x is zero on every rank, and should not be",
    training="what is behind x learns nothing",
    eager="",
    torch=None,
    release=None,
    api="",
    tensors={"dead": ("x",)},
)
ATTEMPT = AttemptView(
    attempt=5,
    job=4,
    fence=1,
    container="3b" * 16,
    host="node-1",
    state="done",
    note="",
    started_at=ASKED,
    ended_at=ENDED,
    verdict="zero_gradient",
    facts={"executor": "venv", "hello": {"torch": "2.11.0", "python": "3.11.9"}},
    controls=(ControlRow("exchange/right", "eager", 2, "before", "agree", as_expected=True, detail=""),),
    blobs=(BlobView("log", "log", 0, 12, {}, "8f" * 32),),
)
CASE_INFO = CaseInfo(CASE, 1, "exchange", "dim0", {"loss": "square"}, ("eager",), "float32")
DEVICE = DeviceView("GPU-5a1d2c3b", "NVIDIA H100", "well", "", ASKED, (4,))
WORKER = Worker(
    name="node-1", devices=[DEVICE], transports=["nccl"], trusted_only=True, seen_at=ENDED, alive=True
)  # fmt: skip
RUNTIME_ENTRY = RuntimeEntry(
    name="2.11.0-index",
    torch="2.11.0",
    variant="index",
    channel="release",
    python="3.11",
    digest=RUNTIME,
    download_bytes=900_000_000,
    installed_bytes=2_500_000_000,
    answered=1,
)
AXES = ("checkout", "label", "transport", "world_size", "case", "version", "mode")
GRID_CELL = GridCell(cell=17, verdict="zero_gradient", says="zero", forward_ok=True)
GRID = Grid(
    runtimes=[ROW.runtime],
    rows=[GridRow(**{name: getattr(ROW, name) for name in AXES}, cells={ROW.runtime: GRID_CELL})],
)
CHANGE = ChangeRow(kind=Kind.REGRESSION, before=RIGHT, after=ROW, identical=False, reason="")
CHANGES = Changes(axis="checkout", compared=1, changes=[CHANGE], only_before=[], only_after=[])
TAKEN = Taken(outcome="submitted", reason=f"commit {SHA}", submission=4, key=AGAIN.key, state="resolving")
JUNIT = '<testsuites tests="1" failures="1" errors="0" skipped="0"/>'
METRICS = 'gradmatrix_jobs{state="queued",world_size="2"} 1.0\n'
EVENT = f"event: end\ndata: {json.dumps({'state': 'done'})}\n\n"
BY_ROUTE: Mapping[str, Any] = {
    "post /api/v1/submissions 202": RESOLVING,
    "get /api/v1/submissions 200": Page[SubmissionView](items=[SUBMISSION], next=None),
    "get /api/v1/submissions/{submission} 200": SUBMISSION,
    "patch /api/v1/submissions/{submission} 200": dataclasses.replace(SUBMISSION, pinned=True),
    "get /api/v1/submissions/{submission}/cells 200": Page[CellRow](items=[ROW], next=None),
    "get /api/v1/submissions/{submission}/events 200": EVENT,
    "get /api/v1/submissions/{submission}/junit.xml 200": JUNIT,
    "post /api/v1/submissions/{submission}/cancel 200": dataclasses.replace(AGAIN, state="cancelled"),
    "post /api/v1/submissions/{submission}/rerun 202": RESOLVING,
    "post /api/v1/submissions/{submission}/approve 200": RESOLVING,
    "get /api/v1/cells/{cell} 200": CellDocument(
        row=ROW, case=CASE_INFO.to_json(), evidence=EVIDENCE, diagnosis=DIAGNOSIS, judgements=[JUDGEMENT]
    ),
    "get /api/v1/cells/{cell}/history 200": CellHistory(attempts=[ATTEMPT], other_runtimes=[RIGHT]),
    "get /api/v1/cells/{cell}/logs 200": "== log, rank 0\nbackward began\n",
    "get /api/v1/cells/{cell}/repro 200": "import torch\n",
    "post /api/v1/cells/{cell}/rerun 202": AGAIN,
    "post /api/v1/jobs/{job}/rerun 202": AGAIN,
    "get /api/v1/grid 200": GRID,
    "get /api/v1/compare 200": CHANGES,
    "get /api/v1/runtimes 200": [RUNTIME_ENTRY],
    "get /api/v1/workers 200": [WORKER],
    "patch /api/v1/workers/{host}/devices/{device} 200": DEVICE,
    "get /api/v1/channels 200": [Channel(name="release", torch=["2.10.0", "2.11.0"])],
    "get /badges/{subject}.svg 200": badge("deepspeed gradients", "failing", "failing on 1 of 1"),
    "post /webhooks/github 200": Taken(outcome="pong", reason="GitHub and this service agree on the secret"),
    "post /webhooks/github 202": TAKEN,
    "get /healthz 200": {"status": "ok"},
    "get /readyz 200": {"status": "ready"},
    "get /metrics 200": METRICS,
}
"""By method, path and status."""


def example_of(method: str, path: str, status: str) -> Any:
    """The example of an answer, in JSON's types, or as the text that it is. Raises KeyError where there is none."""
    return jsonable_encoder(BY_ROUTE[f"{method} {path} {status}"])
