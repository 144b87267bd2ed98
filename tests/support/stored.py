"""Small real things to store: checkouts, runtimes, cases, evidence, judgements, and a host that claims them."""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from alembic import command

from jobs.contract import CaseInfo
from service import db, store
from service.catalog import RuntimeSpec
from service.claims import Holder, HostView
from service.db import FILE, Database, open_database
from service.evidence import Blob, Evidence, RankOutcome, TensorEvidence
from service.judge import Judgement
from service.matrix import Plan, plan
from service.policy import Policy
from service.store import Claim, ClaimedJob, SubmissionView
from service.subjects import Checkout
from service.verdicts import Verdict
from tests.support.postgres import Postgres
from workers.choose import choose

T0 = datetime(2026, 1, 1, tzinfo=UTC)


def at(seconds: float) -> datetime:
    """The virtual clock, ``seconds`` after its start."""
    return T0 + timedelta(seconds=seconds)


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def checkout(name: str, content: str = "") -> Checkout:
    return Checkout(
        "deepspeed", "release", name, "1", digest(content or name), Path("none.tar"), 10, {"from": "a test"}
    )


def runtime(torch: str) -> RuntimeSpec:
    return RuntimeSpec(
        name=f"{torch}-index",
        torch=torch,
        variant="index",
        channel="release",
        python="3.11",
        requirements=(),
        without=(),
        lock=Path("none.txt"),
        digest=digest(torch),
        download_bytes=1,
        installed_bytes=1,
    )


def case(name: str, version: int = 1, modes: tuple[str, ...] = ("eager", "aot_eager"), **more: Any) -> CaseInfo:
    values = {"family": "exchange", "probe": "dim0", "params": {"n": name}, "dtype": "float32", **more}
    return CaseInfo(f"{values['family']}/{name}[dtype=float32]", version, modes=modes, **values)


def evidence(number: float = 0.0) -> Evidence:
    """Evidence that is another document for every ``number``."""
    tensors = (TensorEvidence("grad", "x", 0, dtype="float32", shape=(4,), numel=4, max_abs=number),)
    return Evidence(ranks=(RankOutcome(0, "ok"),), tensors=tensors)


def judgement(verdict: Verdict = Verdict.AGREE) -> Judgement:
    return Judgement(verdict, True, "", f"it is {verdict}", "grad/x on rank 0", 0.25, 1.0, 3, 4, "1")


def blob(text: str, kind: Any = "log", rank: int | None = None) -> Blob:
    return Blob(kind, f"{kind}/rank{rank}", text.encode(), rank)


def host(devices: int = 2, name: str = "here", pid: int = 1) -> HostView:
    return HostView(name, tuple(f"cpu:{n}" for n in range(devices)), Holder("boot", pid, str(pid)))


@dataclass(frozen=True)
class Home:
    """What :func:`open_database` needs of the settings."""

    home: Path
    database_url: str | None = None


@dataclass(frozen=True)
class World:
    """A database, and one checkout and runtime to try it on."""

    db: Database

    def submit(
        self,
        names: Sequence[str] = ("a", "b"),
        *,
        sizes: Sequence[int] = (2,),
        modes: Sequence[str] = ("eager",),
        checkouts: Sequence[Checkout] = (checkout("deepspeed==1"),),
        torch: Sequence[str] = ("2.11.0",),
        seconds: float = 0.0,
        **more: Any,
    ) -> SubmissionView:
        """Submit the cases ``names`` over the axes."""
        runtimes = [runtime(version) for version in torch]
        planned: Plan = plan(checkouts, runtimes, ["gloo"], sizes, [case(name) for name in names], modes)
        asked = {"requester": "someone", "reason": "manual", "priority": 0, "request": {"asked": list(names)}, **more}
        with self.db.session() as session:
            return store.submit(session, checkouts=checkouts, runtimes=runtimes, plan=planned, now=at(seconds), **asked)

    def claim(self, seconds: float = 0.0, machine: HostView | None = None, only: int | None = None) -> Claim | None:
        """Claim for ``machine``."""
        with self.db.session() as session:
            return store.claim(session, machine or host(), choose, at(seconds), only=only)

    def claimed(self, seconds: float = 0.0, machine: HostView | None = None) -> Claim:
        """Claim, where there must be something to claim."""
        claim = self.claim(seconds, machine)
        assert claim is not None
        return claim

    def answer(self, job: ClaimedJob, cell: int, verdict: Verdict = Verdict.AGREE, **more: Any) -> int | None:
        """Accept an answer to one cell of a claimed job; the result, unless the job had answered it before."""
        now = more.pop("now", T0)
        given = {"evidence": evidence(), "judgement": judgement(verdict), "seconds": 0.5, **more}
        with self.db.session() as session:
            answers = [store.CellAnswer(cell, **given)]
            return store.accept(session, job.job, job.fence, job.attempt, answers, now).get(cell)

    def finish(self, job: ClaimedJob, seconds: float = 0.0) -> str:
        with self.db.session() as session:
            return store.finish(session, job.job, job.fence, now=at(seconds))

    def run(self, verdict: Verdict = Verdict.AGREE, seconds: float = 0.0) -> list[int]:
        """Claim, answer and finish until the queue is empty; the cells that were run."""
        cells = []
        while claim := self.claim(seconds):
            for job in claim.jobs:
                for spec in job.cells:
                    self.answer(job, spec.cell, verdict, now=at(seconds))
                    cells.append(spec.cell)
                self.finish(job, seconds)
        return cells

    def judge(self, policy: Policy, verdict: Verdict, seconds: float = 0.0) -> list[int]:
        """Judge everything that has an answer again, as if ``policy`` said ``verdict`` of all of it."""
        with self.db.session() as session:
            store.keep_policy(session, policy, at(seconds))
            said = dataclasses.replace(judgement(verdict), policy_version=policy.version)
            answers = store.answers(session, limit=10**6)
            return store.append_judgements(session, [(a.result, said, "") for a in answers], at(seconds))

    def rows(self, submission: int) -> list[store.CellRow]:
        with self.db.read() as session:
            return store.cells_of(session, submission)

    def view(self, submission: int) -> SubmissionView:
        with self.db.read() as session:
            return store.submission(session, submission)


def migrate(url: sa.URL, to: str) -> None:
    """Bring a database to the revision ``to``, back or forth; ``head`` is the newest."""
    engine = db.create_engine(url)
    if url.get_backend_name() == "sqlite":
        sa.event.listen(engine, "connect", lambda raw, _entry: raw.execute("PRAGMA foreign_keys = OFF"))
    with engine.begin() as connection:
        config = db._script()
        config.attributes["connection"] = connection
        (command.downgrade if to != "head" else command.upgrade)(config, to)
    engine.dispose()


@dataclass(frozen=True)
class Template:
    """What new databases are copies of: an empty one that is migrated already, on a server or in a folder."""

    path: Path
    server: Postgres | None = None


def open_world(path: Path, template: Template | None = None) -> World:
    """The database of ``path``; a new one starts as a copy of ``template``. Once opened, its path alone finds it."""
    path.mkdir(exist_ok=True)
    named = path / "database_url"
    if template is not None and template.server is not None:
        named.write_text(template.server.database_for(path).render_as_string(hide_password=False))
    elif template is not None and not (path / FILE).exists():
        shutil.copy(template.path / FILE, path / FILE)
    return World(open_database(Home(path, named.read_text() if named.exists() else None)))
