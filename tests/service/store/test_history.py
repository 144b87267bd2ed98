"""What the store knows beside a submission: the same rows elsewhere, and what can be imported where."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import sqlalchemy as sa

from service import store
from service.catalog import RuntimeSpec
from service.compare import sentences
from service.edges import Known
from service.imports import Import
from service.matrix import plan
from service.models import Result
from service.verdicts import Verdict
from tests.support.stored import World, case, checkout, digest, judgement, runtime

CUSTOM_OP = "needs another torch: torch.library.custom_op"


def past(world: World, **which: int) -> list[tuple[str, str, str | None]]:
    """The history as (runtime, case, verdict)."""
    with world.db.read() as session:
        return [(row.runtime, row.case, row.verdict) for row in store.history(session, **which)]


def submit(world: World, runtimes: list[RuntimeSpec], verdict: Verdict = Verdict.AGREE, **more: Any) -> int:
    """Submit case a on these runtimes, and answer it."""
    checkouts = [checkout("deepspeed==1")]
    planned = plan(checkouts, runtimes, ["gloo"], [2], [case("a")], ["eager"])
    with world.db.session() as session:
        view = store.submit(
            session,
            checkouts=checkouts,
            runtimes=runtimes,
            plan=planned,
            requester="someone",
            reason="manual",
            priority=0,
            request={},
            **more,
        )
    world.run(verdict)
    return view.id


A = "exchange/a[dtype=float32]"


def test_the_same_rows_in_other_runtimes_whoever_asked_for_them(world: World) -> None:
    first = world.submit(["a", "b"], torch=["2.9.1", "2.10.0"]).id
    world.run()
    second = world.submit(["a"], torch=["2.11.0"]).id
    world.run(Verdict.ZERO_GRADIENT)
    assert past(world, submission=second) == [("2.9.1-index", A, "agree"), ("2.10.0-index", A, "agree")]
    assert past(world, submission=first) == [("2.11.0-index", A, "zero_gradient")]
    with world.db.read() as session:
        (row,) = store.history(session, submission=first)
        (own,) = store.cells_of(session, second)
        assert row == own
    assert past(world, cell=own.cell) == past(world, submission=second)
    cell = next(row.cell for row in world.rows(first) if row.case == A and row.torch == "2.9.1")
    assert past(world, cell=cell) == [("2.10.0-index", A, "agree"), ("2.11.0-index", A, "zero_gradient")]


def test_another_checkout_world_size_mode_transport_or_version_is_another_row(world: World) -> None:
    own = world.submit(["a"], torch=["2.11.0"]).id
    world.run()
    world.submit(["a"], torch=["2.9.1"], sizes=[4])
    world.submit(["a"], torch=["2.9.1"], modes=["aot_eager"])
    world.submit(["a"], torch=["2.9.1"], checkouts=[checkout("deepspeed==2")])
    world.run()
    runtimes, checkouts = [runtime("2.9.1")], [checkout("deepspeed==1")]
    for transport, version in (("nccl-dispatch", 1), ("gloo", 2)):
        asked_for = case("a", version, transports=("gloo", "nccl-dispatch"))
        planned = plan(checkouts, runtimes, [transport], [2], [asked_for], ["eager"])
        asked: dict[str, Any] = {"requester": "someone", "reason": "manual", "priority": 0, "request": {}}
        with world.db.session() as session:
            store.submit(session, checkouts=checkouts, runtimes=runtimes, plan=planned, **asked)
    world.run()
    assert past(world, submission=own) == []
    # The same content under another name is the same row.
    world.submit(["a"], torch=["2.9.1"], checkouts=[checkout("path:x", content="deepspeed==1")])
    world.run()
    assert past(world, submission=own) == [("2.9.1-index", A, "agree")]


def test_a_cell_without_an_answer_or_about_to_be_answered_anew_says_nothing(world: World) -> None:
    own = world.submit(["a"], torch=["2.11.0"]).id
    world.run()
    world.submit(["a"], torch=["2.9.1"])
    assert past(world, submission=own) == []
    world.run()
    world.submit(["a"], torch=["2.9.1"], rerun=True)
    assert past(world, submission=own) == []
    world.run(Verdict.RAISED)
    assert past(world, submission=own) == [("2.9.1-index", A, "raised")]


def test_of_runtimes_of_one_name_the_newest_answer_counts_and_builds_and_channels_are_kept_apart(world: World) -> None:
    renewed = replace(runtime("2.9.1"), digest=digest("another lock"))
    cpu = replace(runtime("2.9.1"), digest=digest("cpu"), name="2.9.1-cpu", variant="cpu")
    torch = "2.16.0.dev20261101"
    nightly = replace(runtime(torch), channel="nightly")
    own = submit(world, [runtime("2.11.0")])
    submit(world, [runtime("2.9.1"), cpu], Verdict.RAISED)
    submit(world, [renewed, nightly])
    assert sorted(past(world, submission=own)) == [
        (f"{torch}-index", A, "agree"), ("2.9.1-cpu", A, "raised"), ("2.9.1-index", A, "agree"),
    ]  # fmt: skip
    submit(world, [runtime("2.9.1")], Verdict.MISMATCH, rerun=True)
    assert ("2.9.1-index", A, "mismatch") in past(world, submission=own)
    with world.db.read() as session:
        assert {row.torch: row.channel for row in store.history(session, submission=own)}[torch] == "nightly"


def test_one_query_however_many_cells(world: World) -> None:
    asked: list[str] = []
    names = [f"n{number}" for number in range(30)]
    world.submit(names, torch=["2.9.1"], sizes=[2, 4])
    world.run()
    own = world.submit(names, torch=["2.11.0"], sizes=[2, 4]).id
    world.run()
    with world.db.read() as session:
        sa.event.listen(session.get_bind(), "before_cursor_execute", lambda *call: asked.append(call[2]))
        assert len(store.history(session, submission=own)) == 60
        store.imports(session, [digest("deepspeed==1")])
    assert len([text for text in asked if text.startswith("SELECT")]) == 2


def unimportable(world: World, torch: str, signature: str, names: tuple[str, ...] = ("a", "b")) -> None:
    world.submit(names, torch=[torch])
    claim = world.claimed()
    for job in claim.jobs:
        for spec in job.cells:
            said = replace(judgement(Verdict.UNIMPORTABLE), signature=signature)
            world.answer(job, spec.cell, judgement=said)
        world.finish(job)


def facts(world: World, *names: str) -> list[Import]:
    with world.db.read() as session:
        found = store.imports(session, [digest(name) for name in names])
    return sorted(found, key=lambda fact: (fact.torch, fact.signature))


def test_what_can_be_imported_where(world: World) -> None:
    one = digest("deepspeed==1")
    unimportable(world, "2.2.2", CUSTOM_OP)
    world.submit(["a", "b"], torch=["2.6.0"])
    world.run(Verdict.ZERO_GRADIENT)
    for torch, verdict in (("2.7.1", Verdict.INFRA), ("2.8.0", Verdict.INVALID), ("2.9.1", Verdict.UNSUPPORTED)):
        world.submit(["a"], torch=[torch])
        world.run(verdict)
    assert facts(world, "deepspeed==1") == [
        Import(one, "2.2.2", "2.2.2-index", "release", CUSTOM_OP),
        Import(one, "2.6.0", "2.6.0-index", "release", ""),
    ]
    assert facts(world, "deepspeed==2") == facts(world) == []


def test_an_import_that_failed_for_one_case_fails_and_what_is_answered_last_counts(world: World) -> None:
    unimportable(world, "2.6.0", CUSTOM_OP, ("a",))
    world.submit(["b"], torch=["2.6.0"])
    world.run()
    assert [fact.signature for fact in facts(world, "deepspeed==1")] == [CUSTOM_OP]
    submit(world, [replace(runtime("2.6.0"), digest=digest("another lock"))])
    assert [fact.signature for fact in facts(world, "deepspeed==1")] == [""]


def test_signatures_of_older_results_are_read_in_todays_words(world: World) -> None:
    unimportable(world, "2.2.2", "needs torch.library.custom_op")
    own = world.submit(["a"], torch=["2.3.1"]).id
    world.run()
    with world.db.read() as session:
        assert "needs torch.library.custom_op" in session.scalars(sa.select(Result.signature).distinct()).all()
        assert [row.signature for row in store.cells_of(session, 1)] == [CUSTOM_OP] * 2
        assert [row.signature for row in store.history(session, submission=own)] == [CUSTOM_OP]
    assert [fact.signature for fact in facts(world, "deepspeed==1")] == [CUSTOM_OP, ""]


def test_the_sentences_of_a_run_on_one_version_know_what_earlier_runs_found(world: World) -> None:
    """Right on 2.10.0 and 2.12.1 from two earlier runs, wrong on 2.11.0 now; another checkout is wrong everywhere."""
    world.submit(["a"], torch=["2.10.0"])
    world.submit(["a"], torch=["2.12.1"])
    world.run()
    world.submit(["a"], torch=["2.10.0", "2.11.0"], checkouts=[checkout("deepspeed==2")])
    world.run(Verdict.ZERO_GRADIENT)
    own = world.submit(["a"], torch=["2.11.0"]).id
    world.run(Verdict.ZERO_GRADIENT)
    with world.db.read() as session:
        rows = store.cells_of(session, own)
        known = Known(
            store.history(session, submission=own),
            store.imports(session, {row.checkout for row in rows}),
            ("2.9.1", "2.10.0", "2.11.0", "2.12.1"),
        )
    (finding,) = sentences(rows, known)
    assert finding.text == (
        "deepspeed==1: zero gradient in exchange/a (eager; 2 ranks): torch 2.11.0 only; "
        "right on 2.10.0 and from 2.12.1 on"
    )
    assert (finding.cell, finding.cells) == (rows[0].cell, 1)
