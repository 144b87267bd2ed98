"""Everything that may happen to the store, in any order, and what must hold whatever happened.

What is written must be what an own look at the rows allows; what is kept is held to own queries after every step; and
at the end of every history all that is still open is brought to its end, by workers that do nothing wrong.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import sqlalchemy as sa
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from sqlalchemy.orm import Session

from jobs.contract import Deadlines
from service import store
from service.broker import BrokerDownError, announce
from service.claims import LEASE_S, HostView
from service.matrix import plan
from service.models import HELD, OVER, Attempt, Cell, Job, Resolution, Result, Submission, SubmissionCell
from service.schema import Base
from service.store import ClaimedJob
from service.store.held import MAX_FAILURES
from service.store.resolving import MAX_TRIES, Resolving
from service.verdicts import Verdict
from tests.service.store.promises import PROMISES, TRIES, Held, Memory
from tests.support.stored import World, at, case, checkout, evidence, host, judgement, runtime

HOSTS = (host(4, "large"), host(2, "small"))
NAMES = st.sets(st.sampled_from("abc"), min_size=1).map(sorted)
SIZES = st.sampled_from([[2], [4], [2, 4]])
VERDICTS = st.sampled_from([Verdict.AGREE, Verdict.ZERO_GRADIENT, Verdict.INFRA])
LEAVES = st.sampled_from([store.finish, store.release, store.requeue])
ANY = st.integers(0, 99)
"""Which of those that there are, counted round."""


class Radio:
    """A broker that is away while ``down``; who hears it hears that there is work, and nothing else."""

    down = False

    def publish(self) -> None:
        if self.down:
            raise BrokerDownError("away")


class Machine(RuleBasedStateMachine):
    """The store, and what its users remember of it."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world, self.clock, self.radio = world, 0.0, Radio()
        self.tasks: list[Resolving] = []
        self.submissions: list[int] = []
        self.memory = Memory()
        with world.db.session() as session:
            session.execute(sa.update(Cell).values(result_id=None))
            for table in reversed(Base.metadata.sorted_tables):
                session.execute(table.delete())

    def step(self, seconds: float = 1.0) -> float:
        self.clock += seconds
        return self.clock

    # -- what is asked for ---------------------------------------------------------------------------------------

    @rule(names=NAMES, sizes=SIZES, rerun=st.booleans(), priority=st.integers(0, 2))
    def submit(self, names: Sequence[str], sizes: Sequence[int], rerun: bool, priority: int) -> None:
        view = self.world.submit(names, sizes=sizes, seconds=self.step(), rerun=rerun, priority=priority)
        self.submissions.append(view.id)

    @rule()
    def ask(self) -> None:
        asked: dict[str, Any] = {"requester": "x", "reason": "manual", "priority": 0, "request": {}}
        with self.world.db.session() as session:
            self.submissions.append(store.open_submission(session, **asked, now=at(self.step())).id)
        self.memory.unsent += 1

    @rule()
    def take_on(self) -> None:
        self._take_on()

    def _take_on(self) -> bool:
        with self.world.db.session() as session:
            task = store.claim_resolution(session, at(self.step()))
        self.tasks += [task] if task else []
        return task is not None

    @precondition(lambda self: self.tasks)
    @rule(which=ANY, names=NAMES, sizes=SIZES, rerun=st.booleans(), found=st.booleans())
    def fetched(self, which: int, names: Sequence[str], sizes: Sequence[int], rerun: bool, found: bool) -> None:
        task = self.tasks[which % len(self.tasks)]
        if found:
            self._plan(task, names, sizes, rerun)
            return
        now, allowed = at(self.step()), self._may_resolve(task)
        self._under_fence(lambda session: store.give_back_resolution(session, task, "unreachable", now), allowed)

    def _plan(self, task: Resolving, names: Sequence[str], sizes: Sequence[int], rerun: bool) -> None:
        one, torch = checkout("deepspeed==1"), runtime("2.11.0")
        matrix = plan([one], [torch], ["gloo"], sizes, [case(name) for name in names], ["eager"])
        given: dict[str, Any] = {"checkouts": [one], "runtimes": [torch], "plan": matrix, "rerun": rerun}
        given["now"] = at(self.step())
        self._under_fence(lambda session: store.plan_resolved(session, task, **given), self._may_resolve(task))
        self.memory.unsent += self._allowed

    @precondition(lambda self: self.submissions)
    @rule(which=ANY)
    def rerun(self, which: int) -> None:
        number = self.submissions[which % len(self.submissions)]
        with self.world.db.session() as session:
            mine = sa.select(SubmissionCell.cell_id).where(SubmissionCell.submission_id == number)
            cells = list(session.scalars(mine))
            if cells:
                more: dict[str, Any] = {"requester": "x", "priority": 1, "request": {}, "deadlines": Deadlines()}
                self.submissions.append(store.rerun_cells(session, cells, **more, now=at(self.step())).id)
                self.memory.unsent += 1

    @precondition(lambda self: self.submissions)
    @rule(which=ANY)
    def cancel(self, which: int) -> None:
        with self.world.db.session() as session:
            store.cancel(session, self.submissions[which % len(self.submissions)], at(self.step()))

    # -- what workers do -----------------------------------------------------------------------------------------

    @rule(machine=st.sampled_from(HOSTS))
    def claim(self, machine: HostView) -> None:
        self._claim(machine)

    def _claim(self, machine: HostView) -> list[Held]:
        claim = self.world.claim(self.step(), machine)
        found = [] if claim is None else [Held(machine, claim.container, claim.devices, job) for job in claim.jobs]
        self.memory.held += found
        return found

    @rule(machine=st.sampled_from(HOSTS), verdict=VERDICTS)
    def work(self, machine: HostView, verdict: Verdict) -> None:
        """A claim, and the first answers under it."""
        for held in self._claim(machine):
            for cell in held.job.cells[:1]:
                self.world.answer(held.job, cell.cell, verdict, now=at(self.step()))

    @precondition(lambda self: self.memory.held)
    @rule(which=ANY)
    def start(self, which: int) -> None:
        job = self._job(which)
        now = at(self.step())
        self._under_fence(lambda session: store.start(session, job.job, job.fence, now), self._holds(job))

    @precondition(lambda self: self.memory.held)
    @rule(which=ANY)
    def beat(self, which: int) -> None:
        job = self._job(which)
        allowed = self._holds(job)
        with self.world.db.session() as session:
            stop = store.beat(session, jobs=[(job.job, job.fence)], now=at(self.step()))
        assert stop == (set() if allowed else {job.job}), "a beat says who must stop"

    @precondition(lambda self: self.memory.held)
    @rule(which=ANY, cells=st.lists(ANY, min_size=1, max_size=3), verdict=VERDICTS)
    def report(self, which: int, cells: list[int], verdict: Verdict) -> None:
        """Answers, first or again, in time or late, under this fence or an old one."""
        job = self._job(which)
        if not job.cells:
            return
        given = {job.cells[cell % len(job.cells)].cell for cell in cells}
        new = {cell for cell in given if not self._answered(job, cell)}
        answers = [store.CellAnswer(cell, judgement(verdict), evidence()) for cell in sorted(given)]
        taken: dict[int, int] = {}

        def act(session: Session) -> None:
            taken.update(store.accept(session, job.job, job.fence, job.attempt, answers, at(self.step())))

        self._under_fence(act, self._holds(job))
        assert taken.keys() == new or not self._allowed, "an answer is taken once"

    def _answered(self, job: ClaimedJob, cell: int) -> bool:
        with self.world.db.read() as session:
            given = session.execute(
                sa.select(Result.verdict, Result.attempt_id)
                .join(Attempt)
                .where(Result.cell_id == cell, Attempt.job_id == job.job)
            ).all()
        for_good = len(given) == TRIES or any(verdict != "infra" for verdict, _ in given)
        return for_good or any(attempt == job.attempt for _, attempt in given)

    @precondition(lambda self: self.memory.held)
    @rule(which=ANY, leave=LEAVES)
    def leave(self, which: int, leave: Callable[..., str]) -> None:
        job = self._job(which)
        now = at(self.step())
        with self.world.db.read() as session:
            row, attempt = session.get_one(Job, job.job), session.get_one(Attempt, job.attempt)
            stopped = (row.state, row.fence, attempt.state) == ("cancelled", job.fence, "running")
        allowed = stopped or self._holds(job)
        self._under_fence(lambda session: leave(session, job.job, job.fence, "because", now=now), allowed)

    # -- what time does, and who puts things right -------------------------------------------------------------------

    @rule(seconds=st.sampled_from([LEASE_S / 2, LEASE_S + 1]))
    def wait(self, seconds: float) -> None:
        self.step(seconds)

    @precondition(lambda self: self.memory.held or self.tasks)
    @rule(machine=st.sampled_from(HOSTS))
    def lapse(self, machine: HostView) -> None:
        """Nobody beats for too long, and somebody else takes over: what was held is held under an old fence."""
        self.step(2 * LEASE_S)
        self._take_on()
        self._claim(machine)

    @rule()
    def reconcile(self) -> None:
        with self.world.db.session() as session:
            store.reclaim(session, at(self.step()))
        with self.world.db.session() as session:
            assert store.settle_all(session, at(self.step())) == 0, "nobody else leaves a submission behind"

    @rule(down=st.booleans())
    def send(self, down: bool) -> None:
        """What is sent may be heard by nobody: a broker that was flushed."""
        self.radio.down = down
        sent = announce(self.world.db, self.radio)
        assert sent == (not down or self.memory.unsent == 0), "a hint is gone only once it was sent"
        self.memory.unsent = 0 if sent else self.memory.unsent

    # -- what an own look at the rows allows ---------------------------------------------------------------------

    _allowed = False

    def _job(self, which: int) -> store.ClaimedJob:
        return self.memory.held[which % len(self.memory.held)].job

    def _holds(self, job: store.ClaimedJob) -> bool:
        with self.world.db.read() as session:
            row = session.get_one(Job, job.job)
            return row.state in HELD and row.fence == job.fence

    def _may_resolve(self, task: Resolving) -> bool:
        with self.world.db.read() as session:
            row, submission = (
                session.get_one(Resolution, task.submission),
                session.get_one(Submission, task.submission),
            )
            return (row.fence, row.state) == (task.fence, "fetching") and submission.state not in OVER

    def _under_fence(self, act: Callable[[Session], object], allowed: bool) -> None:
        self._allowed = allowed
        try:
            with self.world.db.session() as session:
                act(session)
        except store.StaleFence:
            assert not allowed, "who holds a job may write"
        else:
            assert allowed, "an old fence writes nothing"

    @invariant()
    def what_is_promised_is_kept(self) -> None:
        with self.world.db.read() as session:
            for promise in PROMISES:
                promise(session, self.memory)

    def teardown(self) -> None:
        """Bring all to its end: everything that is open has to be within reach of somebody."""
        if sys.exc_info()[0] is not None:
            return  # something is wrong already, and is to be told
        for _ in range(MAX_TRIES + 1):
            self.step(100 * LEASE_S)
            while self._take_on():
                self._plan(self.tasks[-1], ["a"], [2], False)
            if not self._states() & {"resolving"}:
                break
        for _ in range(MAX_FAILURES * len(HOSTS) + 1):
            if not self._states() - set(OVER):
                break
            self.step(LEASE_S + 1)
            for machine in HOSTS:
                while found := self._claim(machine):
                    for held in found:
                        for cell in held.job.cells:
                            self.world.answer(held.job, cell.cell, now=at(self.step()))
                        self.world.finish(held.job, self.step())
        self.what_is_promised_is_kept()
        left = self._states() - set(OVER)
        assert not left, f"everything comes to its end, and not to {left}"

    def _states(self) -> set[str]:
        with self.world.db.read() as session:
            return set(session.scalars(sa.select(Submission.state)))
