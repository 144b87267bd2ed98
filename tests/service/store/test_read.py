"""What is read back, and how it is found."""

from __future__ import annotations

from typing import Any

import pytest

from service import store
from service.evidence import Evidence
from service.verdicts import Verdict
from tests.support.stored import World, blob, evidence, judgement


def test_reading_names_what_there_is(world: World) -> None:
    with world.db.read() as session, pytest.raises(store.StoreError, match="no submission 7; none yet"):
        store.submission(session, 7)
    view = world.submit()
    with world.db.read() as session:
        with pytest.raises(store.StoreError, match=f"no submission 7; the newest is {view.id}"):
            store.cells_of(session, 7)
        unfinished = store.unfinished_submission(session)
    assert unfinished is not None and unfinished.id == view.id
    world.run()
    with world.db.read() as session:
        assert store.unfinished_submission(session) is None


def test_cells_are_found_by_words(world: World) -> None:
    view = world.submit(["a", "b"], sizes=[2, 4], torch=["2.9.1", "2.11.0"], modes=["eager", "aot_eager"])
    with world.db.read() as session:
        detail = store.find_cell(session, "aot_eager exchange/a 4 2.9.1 deepspeed==1")
        row = detail.row
        assert (row.case, row.world_size, row.torch, row.mode) == ("exchange/a[dtype=float32]", 4, "2.9.1", "aot_eager")
        assert store.find_cell(session, str(row.cell)).row == row
        assert detail.info["probe"] == "dim0"
        with pytest.raises(store.StoreError, match="no cell fits 'nothing': nothing is called nothing"):
            store.find_cell(session, "nothing")
        with pytest.raises(store.StoreError, match="more than one cell fits") as several:
            store.find_cell(session, f"{row.checkout[:8]} exchange/a")
        assert f"  {row.cell}: deepspeed==1 2.9.1-index gloo 4" in str(several.value)
    assert view.cells == 16


def test_everything_about_a_cell_is_read_back(world: World) -> None:
    world.submit(["a"])
    (job,) = world.claimed().jobs
    (spec,) = job.cells
    shown: dict[str, Any] = {"job": job.job, "fence": job.fence, "attempt": job.attempt}
    with world.db.session() as session:
        store.record_attempt_facts(session, **shown, facts={"torch": "2.11.0", "gpus": 0}, blobs=[blob("hello")])
        store.record_attempt_facts(session, **shown, facts={"gpus": 1}, blobs=[blob("again")])
        told = ("exchange/zero", "eager", 2, "before", judgement(Verdict.ZERO_GRADIENT), True, evidence(9))
        store.record_controls(session, **shown, controls=[store.ControlAnswer(*told)])
    world.answer(
        job, spec.cell, Verdict.HANG, evidence=evidence(3), blobs=[blob("stack", "stacks", 1), blob("", "log")]
    )
    with world.db.read() as session:
        detail = store.find_cell(session, spec.cell)
        assert Evidence.from_json(detail.evidence) == evidence(3)
        assert detail.evidence["tensors"][0]["max_abs"] == 3
        assert [(b.kind, b.name, b.rank, b.size) for b in detail.blobs] == [
            ("stacks", "stacks/rank1", 1, 5),
            ("log", "log/rankNone", None, 0),
        ]
        assert store.blob(session, detail.blobs[0].digest or "") == b"stack"
        (attempt,) = detail.attempts
        assert attempt.facts == {"torch": "2.11.0", "gpus": 1}
        assert [store.blob(session, b.digest or "") for b in attempt.blobs] == [b"hello", b"again"]
        assert [(c.control, c.verdict, c.as_expected) for c in attempt.controls] == [
            ("exchange/zero", "zero_gradient", True)
        ]
    row = detail.row
    assert (row.verdict, row.error, row.alpha, row.nonzero_got, row.nonzero_expected) == ("hang", 0.25, 1.0, 3, 4)
    assert (row.worst_tensor, row.detail, row.policy_version, row.seconds) == (
        "grad/x on rank 0",
        "it is hang",
        "1",
        0.5,
    )


def test_a_finished_submission_keeps_its_answers_while_others_run_its_cells_again(world: World) -> None:
    first = world.submit(["a", "b"])
    world.run(Verdict.AGREE)
    again = world.submit(["a"], rerun=True, seconds=1)
    view, waits = world.view(first.id), world.view(again.id)
    assert (view.state, view.done, view.counts) == ("done", 2, {"agree": 2})
    assert (waits.state, waits.done, waits.counts) == ("queued", 0, {})
    assert [row.verdict for row in world.rows(first.id)] == ["agree", "agree"]
    assert [(row.state, row.verdict) for row in world.rows(again.id)] == [("queued", None)]
    world.run(Verdict.SCALED, 2)
    assert world.view(first.id).counts == {"agree": 1, "scaled": 1}, "the newest answer is everybody's"
