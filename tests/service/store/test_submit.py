"""What is planned, linked, shared and run again."""

from __future__ import annotations

import dataclasses

import pytest
import sqlalchemy as sa

from service import store
from service.matrix import plan
from service.models import Cell, Job
from service.store.submit import ASK_AGAIN
from service.verdicts import Verdict
from tests.support.stored import World, case, checkout, runtime


def test_a_job_is_a_checkout_a_runtime_and_a_world_size(world: World) -> None:
    both = (checkout("deepspeed==1"), checkout("deepspeed==2"))
    view = world.submit(
        ["a", "b"], sizes=[2, 4], torch=["2.9.1", "2.11.0"], modes=["eager", "aot_eager"], checkouts=both
    )
    assert len(view.jobs) == 2 * 2 * 2
    assert view.cells == 8 * 2 * 2
    assert (view.state, view.done) == ("queued", 0)
    assert {job.cells_total for job in view.jobs} == {4}
    assert {row.state for row in world.rows(view.id)} == {"queued"}


def test_a_second_submission_of_the_same_runs_nothing(world: World) -> None:
    first = world.submit()
    ran = world.run()
    second = world.submit()
    assert len(ran) == 2
    assert (second.state, second.jobs, second.done, second.counts) == ("done", (), 2, {"agree": 2})
    assert world.claim() is None
    assert [row.cell for row in world.rows(second.id)] == [row.cell for row in world.rows(first.id)]


def test_overlapping_submissions_share_the_live_job_and_plan_only_the_rest(world: World) -> None:
    first = world.submit(["a", "b"])
    second = world.submit(["b", "c"])
    assert second.jobs[0].id == first.jobs[0].id
    assert [job.cells_total for job in second.jobs] == [2, 1]
    ran = world.run()
    assert len(ran) == len(set(ran)) == 3
    assert world.view(first.id).state == world.view(second.id).state == "done"


def test_a_shared_job_takes_the_higher_priority(world: World) -> None:
    world.submit(priority=1)
    assert world.submit(priority=5).jobs[0].priority == 5
    assert world.submit(priority=0).jobs[0].priority == 5


@pytest.mark.parametrize("verdict", list(Verdict))
def test_what_says_nothing_of_the_subject_is_missing_next_time(world: World, verdict: Verdict) -> None:
    world.submit(["a"])
    world.run(verdict)
    again = world.submit(["a"])
    assert bool(again.jobs) == (verdict in (Verdict.INFRA, Verdict.INVALID)) == (verdict in ASK_AGAIN)


def test_rerun_asks_again_and_the_old_answer_is_history_until_then(world: World) -> None:
    world.submit(["a"])
    (cell,) = world.run(Verdict.ZERO_GRADIENT)
    again = world.submit(["a"], rerun=True)
    (row,) = world.rows(again.id)
    assert (row.state, row.verdict, again.done) == ("queued", None, 0)
    assert world.run() == [cell]
    (row,) = world.rows(again.id)
    assert (row.state, row.verdict) == ("done", "agree")
    with world.db.read() as session:
        history = store.cells_of(session, again.id, only_latest=False)
        detail = store.find_cell(session, cell)
    assert [each.verdict for each in history] == ["zero_gradient", "agree"]
    assert [each.verdict for each in detail.attempts] == ["zero_gradient", "agree"]


def test_rerun_shares_what_is_on_its_way(world: World) -> None:
    first = world.submit(["a"])
    assert [job.id for job in world.submit(["a"], rerun=True).jobs] == [first.jobs[0].id]


def test_another_version_of_a_case_is_another_cell(world: World) -> None:
    world.submit(["a"])
    world.run()
    raised = case("a", version=2, params={"n": "other"})
    with world.db.session() as session:
        view = store.submit(
            session,
            checkouts=[checkout("deepspeed==1")],
            runtimes=[runtime("2.11.0")],
            plan=plan([checkout("deepspeed==1")], [runtime("2.11.0")], ["gloo"], [2], [raised], ["eager"]),
            requester="x",
            reason="manual",
            priority=0,
            request={},
        )
    assert len(view.jobs) == 1
    with world.db.read() as session:
        assert session.scalar(sa.select(sa.func.count()).select_from(Cell)) == 2


@pytest.mark.parametrize(
    ("name", "value"), [("scale", 2.0), ("exact", False), ("params", {"n": "z"}), ("dtype", "int32")]
)
def test_a_case_that_changed_under_its_version_is_refused_and_nothing_is_stored(
    world: World, name: str, value: object
) -> None:
    world.submit(["a"])
    changed = dataclasses.replace(case("a"), **{name: value})  # type: ignore[arg-type]
    planned = plan([checkout("d")], [runtime("2.9.1")], ["gloo"], [2], [changed], ["eager"])
    with pytest.raises(store.CaseChangedError, match=rf"\({name}\).*version 1"), world.db.session() as session:
        store.submit(
            session,
            checkouts=[checkout("d")],
            runtimes=[runtime("2.9.1")],
            plan=planned,
            requester="x",
            reason="manual",
            priority=0,
            request={},
        )
    with world.db.read() as session:
        assert len(store.submissions(session)) == 1


def test_one_content_keeps_the_name_that_each_submission_gave_it(world: World) -> None:
    release, tree = checkout("deepspeed==1", "same"), checkout("path:mine", "same")
    first = world.submit(["a"], checkouts=[release])
    second = world.submit(["a"], checkouts=[tree])
    assert [row.label for row in world.rows(first.id)] == ["deepspeed==1"]
    assert [row.label for row in world.rows(second.id)] == ["path:mine"]
    assert len(second.jobs) == 1 and second.jobs[0].id == first.jobs[0].id


def test_only_one_live_job_for_one_set_of_cells(world: World) -> None:
    view = world.submit()
    with world.db.read() as session:
        job = session.get_one(Job, view.jobs[0].id)
        columns = {name: getattr(job, name) for name in Job.__table__.columns.keys() if name not in ("id", "key")}  # noqa: SIM118
    with pytest.raises(sa.exc.IntegrityError), world.db.session() as session:
        session.add(Job(**columns, key="f" * 32))
    world.run()
    with world.db.session() as session:  # the first is done: not live
        session.add(Job(**columns, key="e" * 32))


def test_cancelling_keeps_answers_and_what_others_wait_for(world: World) -> None:
    first = world.submit(["a", "b"])
    second = world.submit(["b", "c"])
    claim = world.claimed()
    mine = next(job for job in claim.jobs if job.job == first.jobs[0].id)
    world.answer(mine, mine.cells[0].cell)
    with world.db.session() as session:
        assert store.cancel(session, first.id) == []  # the second waits for it too
        assert store.beat(session, jobs=[(mine.job, mine.fence)]) == set()
        assert store.cancel(session, second.id) == sorted(job.id for job in second.jobs)
        assert store.cancel(session, second.id) is None, "it is over"
        assert store.beat(session, jobs=[(mine.job, mine.fence)]) == {mine.job}
    with pytest.raises(store.StaleFence, match="cancelled"):
        world.answer(mine, mine.cells[1].cell)
    assert sorted(row.state for row in world.rows(first.id)) == ["cancelled", "done"]
    assert [world.view(view.id).state for view in (first, second)] == ["cancelled", "cancelled"]
    assert world.submit(["a", "b", "c"]).jobs[0].cells_total == 2


def test_devices_of_a_cancelled_job_are_free_once_its_worker_has_stopped(world: World) -> None:
    first = world.submit()
    (job,) = world.claimed().jobs
    world.submit(["c"], torch=["2.9.1"])
    with world.db.session() as session:
        store.cancel(session, first.id)
    assert world.claim() is None
    with world.db.session() as session:
        assert store.release(session, job.job, job.fence, "cancelled") == "cancelled"
    assert world.claim() is not None
