"""Claims: one holder at a time, all devices or none, and nothing is written under an old fence."""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from sqlalchemy.orm import Session

from jobs.contract import CaseInfo
from service import store
from service.claims import LEASE_S, Choice, Holder, HostView, LeaseView, QueuedJob
from service.evidence import Evidence
from service.judge import judge
from service.models import Attempt, Cell, GpuLease, Job, Result
from service.policy import load_policy
from service.reports.junit import junit
from service.store.answered import INFRA_TRIES
from service.store.held import AGAIN_S, MAX_FAILURES, recount
from service.verdicts import Verdict
from tests.support.stored import Template, World, at, evidence, host, open_world


def test_a_claim_is_the_job_with_its_cells_under_a_new_fence(world: World) -> None:
    view = world.submit(["a", "b"], modes=["eager", "aot_eager"])
    claim = world.claimed()
    (job,) = claim.jobs
    assert (claim.subject, claim.label, claim.runtime_name) == ("deepspeed", "deepspeed==1", "2.11.0-index")
    assert (claim.transport, claim.devices, job.fence, job.world_size) == ("gloo", ("cpu:0", "cpu:1"), 1, 2)
    assert job.ids == {"submissions": (view.id,), "job": job.job, "attempt": job.attempt}
    assert [(spec.case, spec.mode) for spec in job.cells] == [
        ("exchange/a[dtype=float32]", "eager"),
        ("exchange/b[dtype=float32]", "eager"),
        ("exchange/a[dtype=float32]", "aot_eager"),
        ("exchange/b[dtype=float32]", "aot_eager"),
    ]
    assert world.claim() is None
    assert {row.state for row in world.rows(view.id)} == {"leased"}
    with world.db.session() as session:
        store.start(session, job.job, job.fence)
    assert {row.state for row in world.rows(view.id)} == {"running"}
    assert world.view(view.id).state == "running"


def test_jobs_of_one_checkout_and_runtime_share_a_container(world: World) -> None:
    world.submit(sizes=[2, 4], torch=["2.9.1", "2.11.0"])
    first, second = world.claimed(machine=host(8)), world.claimed(machine=host(8))
    assert [job.world_size for job in first.jobs] == [job.world_size for job in second.jobs] == [2, 4]
    assert (len(first.devices), len(second.devices)) == (4, 4)
    assert not set(first.devices) & set(second.devices)
    assert first.container != second.container
    one, two = first.jobs
    for spec in one.cells:
        world.answer(one, spec.cell)
    world.finish(one)
    with world.db.read() as session:  # the second job of the container still runs on these devices
        assert session.scalar(sa.select(sa.func.count()).select_from(GpuLease)) == 8
    with world.db.session() as session:
        store.release(session, two.job, two.fence)
        assert session.scalar(sa.select(sa.func.count()).select_from(GpuLease)) == 4


def test_only_limits_the_queue_to_one_submission(world: World) -> None:
    world.submit(["a"])
    second = world.submit(["b"], torch=["2.9.1"])
    claim = world.claim(only=second.id)
    assert claim is not None and [job.job for job in claim.jobs] == [second.jobs[0].id]


def test_a_choice_that_overlaps_a_lease_takes_nothing_at_all(world: World) -> None:
    world.submit(["a"], torch=["2.9.1", "2.11.0"])
    held = world.claimed(machine=host(4))

    def greedy(queue: Sequence[QueuedJob], machine: HostView, leases: Sequence[LeaseView], now: datetime) -> Choice:
        return Choice(tuple(queue), ("cpu:3", *held.devices), 10.0)

    with world.db.session() as session:
        assert store.claim(session, host(4), greedy, at(0)) is None
    with world.db.read() as session:
        assert sorted(session.scalars(sa.select(GpuLease.device))) == sorted(held.devices)
        assert Counter(session.scalars(sa.select(Job.state))) == {"leased": 1, "queued": 1}
        assert session.scalar(sa.select(sa.func.count()).select_from(Attempt)) == 1


def test_a_job_that_another_host_took_meanwhile_gives_everything_back(world: World) -> None:
    world.submit(["a"], torch=["2.9.1", "2.11.0"])
    stolen: list[int] = []

    def stale(queue: Sequence[QueuedJob], machine: HostView, leases: Sequence[LeaseView], now: datetime) -> Choice:
        stolen.append(queue[1].id)
        return Choice(tuple(queue), machine.devices, 10.0)

    with world.db.session() as session:
        gone = sa.update(Job).where(Job.id == 2).values(state="leased").execution_options(synchronize_session=False)

        def choose_late(*args: object) -> Choice:
            choice = stale(*args)  # type: ignore[arg-type]
            session.execute(gone)  # as if another host's transaction had come between the look and the claim
            return choice

        assert store.claim(session, host(4), choose_late, at(0)) is None
    with world.db.read() as session:
        assert session.get_one(Job, 1).state == "queued" and session.get_one(Job, 1).fence == 0
        assert session.scalar(sa.select(sa.func.count()).select_from(GpuLease)) == 0


def _race(home: Path, gate: threading.Barrier, won: object) -> None:
    world = open_world(home)
    gate.wait()
    claim = world.claim(machine=host(2, name=multiprocessing.current_process().name))
    won.put(None if claim is None else [(job.job, job.fence) for job in claim.jobs])  # type: ignore[attr-defined]
    world.db.dispose()


def test_processes_race_for_one_job_and_exactly_one_wins(world: World, tmp_path: Path) -> None:
    view = world.submit(["a"])
    spawn = multiprocessing.get_context("spawn")
    gate, won = spawn.Barrier(3), spawn.Queue()
    racers = [spawn.Process(target=_race, args=(tmp_path / "home", gate, won)) for _ in range(3)]
    for racer in racers:
        racer.start()
    results = [won.get(timeout=120) for _ in racers]
    for racer in racers:
        racer.join(120)
    assert [result for result in results if result] == [[(view.jobs[0].id, 1)]]


def test_threads_race_for_many_jobs_and_none_is_taken_twice(world: World) -> None:
    world.submit(["a"], torch=[f"2.{minor}.0" for minor in range(6)])
    gate, taken = threading.Barrier(4), []

    def work(name: str) -> None:
        gate.wait()
        while claim := world.claim(machine=host(2, name=name)):
            for job in claim.jobs:
                taken.append((job.job, job.fence))
                world.answer(job, job.cells[0].cell)
                world.finish(job)

    threads = [threading.Thread(target=work, args=(f"host{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == [(job, 1) for job in range(1, 7)]


def test_an_old_fence_writes_nothing_after_the_job_was_claimed_anew(world: World) -> None:
    view = world.submit(["a", "b"])
    (old,) = world.claimed().jobs
    (new,) = world.claimed(LEASE_S + 1).jobs
    assert (new.job, old.fence, new.fence) == (old.job, 1, 2)
    cell = old.cells[0].cell
    told: dict[str, Any] = {"job": old.job, "fence": old.fence}
    with pytest.raises(store.StaleFence, match="its fence is 2, not 1"):
        world.answer(old, cell)
    for refused in (store.start, store.finish, store.release):
        with pytest.raises(store.StaleFence), world.db.session() as session:
            refused(session, **told)
    with pytest.raises(store.StaleFence), world.db.session() as session:
        store.record_attempt_facts(session, **told, attempt=old.attempt, facts={"a": 1})
    with pytest.raises(store.StaleFence, match="attempt"), world.db.session() as session:
        store.record_attempt_facts(session, job=new.job, fence=new.fence, attempt=old.attempt, facts={"a": 1})
    with world.db.session() as session:
        assert store.beat(session, jobs=[(old.job, 1), (new.job, 2)], now=at(70)) == {old.job}
        assert session.get_one(Attempt, old.attempt).facts == {}
    assert world.view(view.id).done == 0
    world.answer(new, cell)
    assert world.view(view.id).done == 1


def test_a_cell_is_accepted_once_and_only_from_its_own_job(world: World) -> None:
    world.submit(["a"], torch=["2.9.1", "2.11.0"])
    first, second = (claim.jobs[0] for claim in (world.claimed(machine=host(4)), world.claimed(machine=host(4))))
    cell = first.cells[0].cell
    world.answer(first, cell)
    assert world.answer(first, cell, Verdict.ZERO_GRADIENT) is None
    with pytest.raises(store.StoreError, match=f"cell {cell} is not one of job {second.job}"):
        world.answer(second, cell)
    with world.db.read() as session:
        assert list(session.scalars(sa.select(Result.verdict))) == ["agree"]


def test_a_crash_between_two_cells_costs_only_the_second(world: World) -> None:
    view = world.submit(["a", "b"])
    (before,) = world.claimed().jobs
    world.answer(before, before.cells[0].cell)
    dead = {Holder("boot", 1, "1")}
    with world.db.session() as session:  # well before the lease runs out
        assert store.reclaim(session, at(1), lambda holder: holder not in dead) == [before.job]
    (after,) = world.claimed(2).jobs
    assert (after.fence, [spec.cell for spec in after.cells]) == (2, [before.cells[1].cell])
    world.answer(after, after.cells[0].cell)
    assert world.finish(after) == "done"
    assert world.view(view.id).state == "done"
    with world.db.read() as session:
        attempts = store.find_cell(session, before.cells[1].cell).attempts
    assert [(each.state, each.note, each.verdict) for each in attempts] == [
        ("lost", "its process 1 is gone", None),
        ("done", "", "agree"),
    ]


def test_a_crash_after_the_last_cell_needs_no_further_claim(world: World) -> None:
    view = world.submit(["a"])
    (job,) = world.claimed().jobs
    world.answer(job, job.cells[0].cell)
    with world.db.session() as session:
        assert store.reclaim(session, at(1), lambda holder: False) == []
    assert world.view(view.id).state == "done"
    assert world.claim(1) is None


def test_of_two_that_take_a_job_from_a_dead_holder_at_once_one_does(world: World) -> None:
    """The second finds the job's row locked, or an attempt that has ended meanwhile."""
    world.submit(["a"])
    world.claimed()
    again: list[list[int]] = []

    def reclaim() -> None:
        with world.db.session() as session:
            again.append(store.reclaim(session, at(LEASE_S + 1)))

    second = threading.Thread(target=reclaim)
    with world.db.session() as session:
        again.append(store.reclaim(session, at(LEASE_S + 1)))
        second.start()
        if world.db.engine.dialect.name == "postgresql":  # SQLite lets nobody begin meanwhile
            second.join(30)
            assert again == [[1], []], "nobody waits for the other"
    second.join()
    assert again == [[1], []]


def blocked(session: Session) -> None:
    """Return as soon as somebody waits for a lock."""
    deadline = time.monotonic() + 30
    while not session.scalar(sa.text("SELECT count(*) FROM pg_locks WHERE NOT granted")):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_who_cancels_and_who_claims_never_wait_for_each_other(world: World) -> None:
    """The claim takes back the second job of a submission, and would then have the first one, which is cancelled."""
    if world.db.engine.dialect.name == "sqlite":
        pytest.skip("an embedded database has one writer")
    view = world.submit(["a"], torch=["2.9.1", "2.11.0"])
    first, second = (job.id for job in view.jobs)
    with world.db.session() as session:
        assert store.claim(session, host(), lambda queue, *_: Choice((queue[1],), ("cpu:0",), 10.0), at(0))
    cancelled: list[object] = []

    def cancel() -> None:
        with world.db.session() as session:
            cancelled.append(store.cancel(session, view.id, at(LEASE_S + 1)))

    canceller = threading.Thread(target=cancel)

    def chosen(queue: Sequence[QueuedJob], machine: HostView, *_: object) -> Choice:
        canceller.start()  # it locks the first job, and waits for the second
        with world.db.read() as looking:
            blocked(looking)
        return Choice(tuple(job for job in queue if job.id == first), ("cpu:1",), 10.0, reserve=first)

    with world.db.session() as session:
        assert store.claim(session, host(name="other"), chosen, at(LEASE_S + 1)) is None
    canceller.join(30)
    assert cancelled == [[first, second]]
    assert {row.state for row in world.rows(view.id)} == {"cancelled"}


def test_a_claim_does_not_wait_for_a_job_that_is_being_changed(world: World) -> None:
    """It would have both jobs, in an order of its own; whoever cancels them locks them by their numbers."""
    if world.db.engine.dialect.name == "sqlite":
        pytest.skip("an embedded database has one writer")
    view = world.submit(["a"], torch=["2.9.1", "2.11.0"])
    last = view.jobs[1].id
    done: list[object] = []

    def claim() -> None:
        with world.db.session() as session:
            both = lambda queue, *_: Choice((queue[1], queue[0]), ("cpu:0",), 10.0)  # noqa: E731
            done.append(store.claim(session, host(), both, at(0)))

    def cancel() -> None:
        with world.db.session() as session:
            done.append(store.cancel(session, view.id, at(0)))

    threads = [threading.Thread(target=claim), threading.Thread(target=cancel)]
    with world.db.session() as session:
        session.get(Job, last, with_for_update=True)
        threads[0].start()
        threads[0].join(30)
        assert done == [None]
        threads[1].start()
        blocked(session)
    threads[1].join(30)
    assert done == [None, [job.id for job in view.jobs]]


def test_who_freezes_inside_a_transaction_keeps_nobody_waiting(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    if world.db.engine.dialect.name == "sqlite":
        pytest.skip("one process has the file, and its threads freeze together")
    monkeypatch.setattr("service.db.IDLE_S", 1)
    world.submit(["a"])
    (job,) = world.claimed().jobs
    deadline = time.monotonic() + 30
    with pytest.raises(sa.exc.DBAPIError), world.db.session() as frozen:
        store.start(frozen, job.job, job.fence, at(1))
        again: list[int] = []
        while not again:  # until the server has cut it off
            assert time.monotonic() < deadline
            with world.db.session() as session:
                again = store.reclaim(session, at(LEASE_S + 1))
        assert again == [job.job]
        store.finish(frozen, job.job, job.fence, now=at(LEASE_S + 2))


@pytest.mark.parametrize(("alive", "reclaimed"), [(True, False), (None, False), (False, True)])
def test_only_a_holder_known_to_be_dead_loses_its_job_before_its_lease(
    world: World, alive: bool | None, reclaimed: bool
) -> None:
    world.submit(["a"])
    (job,) = world.claimed().jobs
    with world.db.session() as session:
        assert store.reclaim(session, at(LEASE_S), lambda holder: alive) == ([job.job] if reclaimed else [])


def test_beats_keep_a_claim_and_its_devices(world: World) -> None:
    world.submit(["a"])
    (job,) = world.claimed().jobs
    for second in range(0, 200, 50):
        with world.db.session() as session:
            assert store.beat(session, jobs=[(job.job, job.fence)], now=at(second)) == set()
    assert world.claim(150 + LEASE_S) is None
    with world.db.session() as session:
        assert session.scalars(sa.select(GpuLease.lease_until)).first() == at(150 + LEASE_S)
    assert world.claimed(150 + LEASE_S + 1).jobs[0].fence == 2


def give_up(world: World, reason: str = "the container died") -> list[str]:
    """Claim and fail until nothing more can be claimed; the job's state after each time."""
    states = []
    while claim := world.claim():
        for job in claim.jobs:
            with world.db.session() as session:
                states.append(store.requeue(session, job.job, job.fence, reason, now=at(0)))
    return states


def test_a_job_that_never_answers_is_given_up_and_its_cells_say_that_the_machine_failed(world: World) -> None:
    view = world.submit(["a", "b"])
    assert give_up(world) == ["queued"] * (MAX_FAILURES - 1) + ["done"]
    seen = world.view(view.id)
    assert (seen.state, seen.done, seen.cells, seen.counts) == ("done", 2, 2, {"infra": 2})
    assert seen.jobs[0].note == "given up with 2 cells unanswered: the container died"
    said = {(row.state, row.verdict, row.detail) for row in world.rows(view.id)}
    assert said == {("done", "infra", f"given up after {MAX_FAILURES} attempts: the container died")}
    assert world.submit(["a", "b"]).jobs[0].cells_total == 2, "they are asked once more"
    root = ElementTree.fromstring(junit(world.rows(view.id)))  # noqa: S314 - our own
    assert [len(list(root.iter(kind))) for kind in ("testcase", "error", "failure")] == [2, 2, 0]


def test_what_a_job_had_answered_before_it_was_given_up_stays(world: World) -> None:
    view = world.submit(["a", "b", "c"])
    (job,) = world.claimed().jobs
    right, met, _ = (spec.cell for spec in job.cells)
    world.answer(job, right)
    world.answer(job, met, Verdict.INFRA)
    with world.db.session() as session:
        store.release(session, job.job, job.fence)
    give_up(world, "its GPU fell off the bus")
    rows = {row.cell: (row.verdict, row.detail) for row in world.rows(view.id)}
    assert (rows.pop(right), rows.pop(met)) == (("agree", "it is agree"), ("infra", "it is infra"))
    assert list(rows.values()) == [("infra", f"given up after {MAX_FAILURES} attempts: its GPU fell off the bus")]
    assert world.view(view.id).counts == world.view(view.id).jobs[0].counts == {"agree": 1, "infra": 2}


def test_whoever_judges_again_what_was_given_up_comes_to_the_same(world: World) -> None:
    world.submit(["a"])
    give_up(world)
    with world.db.read() as session:
        (kept,) = store.answers(session)
    again = judge(Evidence.from_json(kept.evidence), CaseInfo.from_json(kept.info), load_policy())
    assert (again.verdict, again.signature, again.detail) == (Verdict.INFRA, kept.row.signature, kept.row.detail)


def test_an_answer_forgives_failures_and_giving_back_is_none(world: World) -> None:
    world.submit(["a", "b", "c", "d", "e", "f"])
    for _ in range(2 * MAX_FAILURES):
        (job,) = world.claimed().jobs
        with world.db.session() as session:
            assert store.release(session, job.job, job.fence, "stopped") == "queued"
    for left in range(6, 1, -1):
        (job,) = world.claimed().jobs
        assert len(job.cells) == left
        world.answer(job, job.cells[0].cell)
        assert world.finish(job) == "queued"


STEPS = st.lists(
    st.tuples(st.sampled_from(["submit", "claim", "answer", "answer", "answer", "leave", "expire"]), st.integers(0, 5)),
    max_size=25,
)


# shrinking would open hundreds of databases: the steps as they are say enough
@settings(max_examples=12, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(steps=STEPS, verdicts=st.lists(st.sampled_from(list(Verdict)), min_size=1, max_size=5))
def test_counts_are_what_the_results_say_whatever_happens(
    steps: list[tuple[str, int]], verdicts: list[Verdict], template: Template, tmp_path_factory: pytest.TempPathFactory
) -> None:
    world = open_world(tmp_path_factory.mktemp("counts"), template)
    held: list[store.ClaimedJob] = []
    for clock, (step, number) in enumerate(steps):
        seconds = clock * (LEASE_S + 1 if step == "expire" else 1)
        try:
            if step == "submit":
                world.submit("abcdef"[number:][:3], seconds=seconds, rerun=number == 0)
            elif step == "claim" and (claim := world.claim(seconds, host(8))):
                held += claim.jobs
            elif step == "answer" and held:
                job = held[number % len(held)]
                spec = job.cells[clock % len(job.cells)]
                world.answer(job, spec.cell, verdicts[clock % len(verdicts)], evidence=evidence(number))
            elif step == "leave" and held:
                world.finish(held.pop(number % len(held)), seconds)
            elif step == "expire":
                with world.db.session() as session:
                    store.reclaim(session, at(seconds))
        except store.StaleFence:
            pass
        _check(world)
    world.db.dispose()


def _check(world: World) -> None:
    with world.db.read() as session:
        for job in session.scalars(sa.select(Job)):
            said = session.execute(
                sa.select(Result.verdict, Result.cell_id).join(Attempt).where(Attempt.job_id == job.id)
            ).all()
            failed = Counter(cell for verdict, cell in said if verdict == Verdict.INFRA)
            answers = [(cell, verdict) for verdict, cell in said if verdict != Verdict.INFRA]
            over = [*answers, *((cell, "infra") for cell, times in failed.items() if times == INFRA_TRIES)]
            assert job.counts == Counter(verdict for _, verdict in over)
            assert job.cells_done == len({cell for cell, _ in over}) == len(over) <= job.cells_total
            open_ = list(session.scalars(sa.select(Attempt.fence).filter_by(job_id=job.id, state="running")))
            assert open_ == ([job.fence] if job.state in ("leased", "running") else [])
        held = set(session.scalars(sa.select(Attempt.container).where(Attempt.state == "running")))
        assert set(session.scalars(sa.select(GpuLease.container))) == held
        for cell in session.scalars(sa.select(Cell).where(Cell.result_id.is_not(None))):
            newest = sa.select(sa.func.max(Result.id)).where(Result.cell_id == cell.id)
            assert cell.result_id == session.scalar(newest)
        for view in store.submissions(session):
            assert view.live == any(job.state in ("queued", "leased", "running") for job in view.jobs)


def test_a_job_that_failed_on_a_host_is_left_to_another_if_there_is_one(world: World) -> None:
    world.submit(["a"])
    here, there = host(2, name="here"), host(2, name="there")
    assert world.claim(0, there, only=99) is None  # the other host looks for work, and so shows that it is there
    (job,) = world.claimed(1, here).jobs
    with world.db.session() as session:
        store.requeue(session, job.job, job.fence, "its machine failed", now=at(2))
    assert world.claim(3, here) is None
    (again,) = world.claimed(4, there).jobs
    assert again.job == job.job


def test_a_job_that_failed_on_the_only_host_is_tried_there_again_at_once(world: World) -> None:
    world.submit(["a"])
    here = host(2, name="here")
    assert world.claim(0, host(2, name="gone long ago"), only=99) is None
    (job,) = world.claimed(LEASE_S + 1, here).jobs
    with world.db.session() as session:
        store.requeue(session, job.job, job.fence, "its machine failed", now=at(LEASE_S + 2))
    assert [one.job for one in world.claimed(LEASE_S + 3, here).jobs] == [job.job]


def test_what_nobody_else_takes_comes_back_to_the_host_where_it_failed(world: World) -> None:
    world.submit(["a"])
    here, there = host(2, name="here"), host(2, name="there")
    (job,) = world.claimed(1, here).jobs
    with world.db.session() as session:
        store.requeue(session, job.job, job.fence, "its machine failed", now=at(2))
    assert world.claim(50, there, only=99) is None
    assert world.claim(51, here) is None
    assert world.claim(61, there, only=99) is None
    assert [one.job for one in world.claimed(63, here).jobs] == [job.job]


def test_a_cell_is_run_again_where_the_machine_failed_and_twice_at_most(world: World) -> None:
    view = world.submit(["a", "b"])
    (job,) = world.claimed().jobs
    good, bad = (spec.cell for spec in job.cells)
    world.answer(job, good)
    for attempt in (1, 2):
        world.answer(job, bad, Verdict.INFRA)
        assert world.answer(job, bad) is None
        now = attempt * 3 * AGAIN_S
        assert (world.view(view.id).jobs[0].cells_done, world.finish(job, now)) == (1, "queued"), attempt
        assert world.claim(now + attempt * AGAIN_S - 1) is None, "nobody else is there, and the machine may recover"
        (job,) = world.claimed(now + attempt * AGAIN_S).jobs
        assert [spec.cell for spec in job.cells] == [bad]
    world.answer(job, bad, Verdict.INFRA)
    assert world.finish(job) == "done"
    assert (world.view(view.id).state, world.view(view.id).jobs[0].cells_done) == ("done", 2)
    with world.db.read() as session:
        assert session.get_one(Job, job.job).counts == {"agree": 1, "infra": 1}
        assert session.scalar(sa.select(sa.func.count()).where(Result.cell_id == bad)) == 3


def test_the_answer_after_the_machine_failed_is_the_cells(world: World) -> None:
    view = world.submit(["a"])
    (job,) = world.claimed().jobs
    world.answer(job, job.cells[0].cell, Verdict.INFRA)
    world.finish(job)
    world.run(Verdict.SCALED, AGAIN_S)
    assert [row.verdict for row in world.rows(view.id)] == ["scaled"]
    assert world.view(view.id).jobs[0].counts == {"scaled": 1}


def test_what_the_machine_failed_at_is_left_to_another_host_first(world: World) -> None:
    world.submit(["a"])
    assert world.claim(machine=host(name="elsewhere", pid=2), only=0) is None  # only to be seen
    (job,) = world.claimed().jobs
    world.answer(job, job.cells[0].cell, Verdict.INFRA)
    world.finish(job, 1.0)
    assert world.claim(1.0) is None
    assert world.claim(1.0, machine=host(name="elsewhere", pid=2)) is not None


def test_what_the_machine_failed_at_waits_where_nobody_else_is_but_not_for_whoever_stands_beside_it(
    world: World,
) -> None:
    view = world.submit(["a"])
    (job,) = world.claimed().jobs
    world.answer(job, job.cells[0].cell, Verdict.INFRA)
    world.finish(job, 1.0)
    assert world.claim(AGAIN_S) is None
    beside = world.claim(2.0, only=view.id)
    assert beside is not None
    world.answer(beside.jobs[0], job.cells[0].cell, Verdict.INFRA)
    world.finish(beside.jobs[0], 3.0)
    assert world.claim(AGAIN_S + 3) is None, "the second time it waits twice as long"
    elsewhere = host(name="new here", pid=2)
    assert world.claim(AGAIN_S + 3, elsewhere, only=0) is None  # only to be seen
    assert world.claim(2 * AGAIN_S + 2) is None, "now it is left to that one"
    assert world.claim(AGAIN_S + 3, elsewhere) is not None


def test_a_job_that_a_cell_of_its_own_broke_goes_on_at_once(world: World) -> None:
    world.submit(["a", "b"])
    (job,) = world.claimed().jobs
    world.answer(job, job.cells[0].cell, Verdict.CRASH)
    world.finish(job, 1.0)
    assert world.claim(1.0) is not None


def test_a_judgement_of_a_running_job_counts_no_cell_that_is_to_be_run_again(world: World) -> None:
    view = world.submit(["a", "b"])
    (job,) = world.claimed().jobs
    world.answer(job, job.cells[0].cell, Verdict.INFRA)
    with world.db.session() as session:
        recount(session, session.get_one(Job, job.job))
    assert world.view(view.id).jobs[0].cells_done == 0
