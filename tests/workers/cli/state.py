"""A home folder with a finished submission in it, made through the real store; no job ran for it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jobs.contract import CaseInfo
from service import store
from service.catalog import RuntimeSpec
from service.claims import Choice, Holder, HostView
from service.config import Settings
from service.db import open_database
from service.evidence import Blob, Evidence, RankOutcome, TensorEvidence, TraceEvidence
from service.judge import Judgement
from service.matrix import Plan, PlannedCell, PlannedJob
from service.subjects import Checkout
from service.verdicts import Verdict

HOST = HostView(name="test", devices=("cpu:0", "cpu:1"), holder=Holder("boot", 1, "0"))
MODES = ("eager", "aot_eager")
FACTS = {"hello": {"torch": "2.11.0+cpu", "git_version": "abcdef0123456789", "python": "3.11.7", "gpus": []}}


def case(name: str = "dim0[loss=square]") -> CaseInfo:
    return CaseInfo(
        id=f"exchange/{name}",
        version=1,
        family="exchange",
        probe=name.partition("[")[0],
        params={},
        modes=MODES,
        dtype="float32",
        summary="Exchange along dimension 0.",
    )


def checkout(label: str, digest: str) -> Checkout:
    return Checkout("deepspeed", "release", label, label.rpartition("=")[2], digest * 64, Path("/none"), 10, {})


def runtime(torch: str) -> RuntimeSpec:
    digest = (torch.replace(".", "") * 32)[:64]
    return RuntimeSpec(f"{torch}-index", torch, "index", "release", "3.11", (), (), Path("/none"), digest, 1, 1)


def judgement(verdict: str, **changes: Any) -> Judgement:
    failing = Verdict(verdict).failing
    made = Judgement(Verdict(verdict), True, "", "", "grad/x on rank 0" if failing else None, 0.0, None, 64, 64, "1")
    return dataclasses.replace(made, **changes)


EVIDENCE = Evidence(
    ranks=(RankOutcome(0, "ok"), RankOutcome(1, "ok")),
    tensors=(
        TensorEvidence("grad", "x", 0, dtype="float32", shape=(8,), expected_shape=(8,), numel=8, nonzero_expected=8),
    ),
    trace=TraceEvidence(1, (), 0, True, ("all_to_all_single",), "ok"),
)
Answers = Mapping[tuple[str, str, str], tuple[Judgement, tuple[Blob, ...]]]
"""(label, torch, mode): what a cell answers; every other one agrees."""

KNOWN_FAULT: Answers = {
    ("deepspeed==0.18.3", "2.11.0", "aot_eager"): (
        judgement("zero_gradient", nonzero_got=0, detail="grad/x is zero [red]\x1b[31m", error=1.0),
        (Blob("log", "log", b"hello \x1b[2J [bold]\nworld\xff\n"), Blob("stacks", "stacks/rank1", b"File x.py\n")),
    )
}


def submit(
    home: Path,
    *,
    labels: tuple[str, ...] = ("deepspeed==0.18.3", "deepspeed==0.19.8"),
    torch: tuple[str, ...] = ("2.9.1", "2.11.0"),
    cases: tuple[CaseInfo, ...] = (case(),),
    answers: Answers = KNOWN_FAULT,
    jobs: int = 99,
    digests: str = "abcdef",
) -> int:
    """Submit and answer the first ``jobs`` jobs; the submission's number."""
    database = open_database(Settings(home=home))
    checkouts = [checkout(label, digest) for label, digest in zip(labels, digests, strict=False)]
    specs = [runtime(version) for version in torch]
    cells = tuple(PlannedCell(info.id, info.version, mode) for info in cases for mode in MODES)
    jobs_planned = (PlannedJob(c.digest, spec.digest, "gloo", 2, cells) for c in checkouts for spec in specs)
    planned = Plan(tuple(jobs_planned), cases)
    with database.session() as session:
        view = store.submit(
            session,
            checkouts=checkouts,
            runtimes=specs,
            plan=planned,
            requester="me",
            reason="manual",
            priority=0,
            request={"subjects": list(labels)},
        )
    for _ in range(jobs):
        if not answer_one(database, view.id, answers):
            break
    database.dispose()
    return view.id


def answer(home: Path, submission: int, answers: Answers) -> None:
    """Answer whatever ``submission`` still waits for."""
    database = open_database(Settings(home=home))
    while answer_one(database, submission, answers):
        pass
    database.dispose()


def answer_one(database: Any, submission: int, answers: Answers) -> bool:
    with database.session() as session:
        claim = store.claim(
            session,
            HOST,
            lambda queue, host, leases, now: Choice(tuple(queue[:1]), host.devices, 60.0),
            only=submission,
        )
        if claim is None:
            return False
        (job,) = claim.jobs
        store.start(session, job.job, job.fence)
        for cell in job.cells:
            key = (claim.label, claim.runtime_name.removesuffix("-index"), cell.mode)
            verdict, blobs = answers.get(key, (judgement("agree"), ()))
            answer = store.CellAnswer(cell.cell, verdict, EVIDENCE, blobs=blobs, seconds=0.1)
            store.accept(session, job.job, job.fence, job.attempt, [answer])
        store.record_attempt_facts(session, job=job.job, fence=job.fence, attempt=job.attempt, facts=FACTS)
        store.finish(session, job.job, job.fence, "")
    return True
