"""Later judgements are appended, and the cell points at the newest; nothing that was stored is changed or lost."""

from __future__ import annotations

import copy
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from jobs.contract import ControlInfo
from service import db, store
from service.models import Result
from service.policy import load_policy, policy_to_data
from service.verdicts import Verdict
from tests.support.stored import Template, World, at, blob, case, checkout, evidence, judgement, migrate, open_world

POLICY_2 = dataclasses.replace(load_policy(), version="2")
POLICY_3 = dataclasses.replace(load_policy(), version="3")


def results(world: World) -> list[dict[str, Any]]:
    """Every row of the table, as it is stored."""
    with world.db.read() as session:
        rows = session.scalars(sa.select(Result).order_by(Result.id)).all()
        return [{column.name: getattr(row, column.name) for column in Result.__table__.columns} for row in rows]


def test_a_later_judgement_is_the_answer_and_the_old_one_is_kept(world: World) -> None:
    view = world.submit(["a", "b"])
    world.run(Verdict.MISMATCH)
    before = results(world)
    cells = world.judge(POLICY_2, Verdict.SCALED, seconds=7)
    assert len(cells) == 2
    assert results(world)[:2] == before
    rows = world.rows(view.id)
    assert [(row.verdict, row.policy_version, row.state) for row in rows] == [("scaled", "2", "done")] * 2
    same = ("cell_id", "attempt_id", "evidence_digest", "first_digest", "alone_digest", "seconds", "created_at")
    for old, new in zip(before, results(world)[2:], strict=True):
        assert {name: old[name] for name in same} == {name: new[name] for name in same}
        assert (old["judged_at"], new["judged_at"]) == (at(0), at(7))
    # Counts follow, of the job and of the submission.
    view = world.view(view.id)
    assert (view.counts, view.done, view.jobs[0].counts, view.jobs[0].cells_done) == (
        {"scaled": 2}, 2, {"scaled": 2}, 2,
    )  # fmt: skip


def test_a_cell_tells_every_judgement_of_its_answer_and_keeps_its_blobs(world: World) -> None:
    world.submit(["a"])
    (job,) = world.claimed().jobs
    world.answer(job, job.cells[0].cell, Verdict.MISMATCH, blobs=[blob("why")])
    world.finish(job)
    world.judge(POLICY_2, Verdict.AGREE, seconds=1)
    world.judge(POLICY_3, Verdict.SCALED, seconds=2)
    with world.db.read() as session:
        detail = store.find_cell(session, 1)
        assert [blob.name for blob in detail.blobs] == ["log/rankNone"]
        told = [(one.policy_version, one.verdict, one.current) for one in detail.judgements]
        assert told == [("1", "mismatch", False), ("2", "agree", False), ("3", "scaled", True)]
        assert [attempt.verdict for attempt in detail.attempts] == ["scaled"]


def test_the_same_judgement_again_appends_nothing(world: World) -> None:
    world.submit(["a"])
    world.run(Verdict.MISMATCH)
    assert len(world.judge(POLICY_2, Verdict.MISMATCH, seconds=1)) == 1  # the same words, by another policy
    assert world.judge(POLICY_2, Verdict.MISMATCH, seconds=2) == []
    assert len(results(world)) == 2


def test_an_answer_that_came_meanwhile_stays(world: World) -> None:
    world.submit(["a"])
    world.run(Verdict.MISMATCH)
    with world.db.read() as session:
        (stale,) = store.answers(session)
    world.submit(["a"], rerun=True)
    world.run(Verdict.AGREE, seconds=5)
    said = dataclasses.replace(judgement(Verdict.SCALED), policy_version="2")
    with world.db.session() as session:
        assert store.append_judgements(session, [(stale.result, said, "")], at(9)) == []
    assert [row.verdict for row in world.rows(2)] == ["agree"]


def test_an_older_answer_that_is_judged_later_is_no_newer_answer(world: World) -> None:
    """Of two runtimes of one name the newer answer counts in the history, whatever was judged again last."""
    from tests.support.stored import runtime

    renewed = dataclasses.replace(runtime("2.11.0"), digest="f" * 64)
    world.submit(["a"])
    world.run(Verdict.MISMATCH)
    world.submit(["a"], torch=["2.10.0"])
    world.run(Verdict.AGREE)
    with world.db.session() as session:
        from service.matrix import plan

        one = checkout("deepspeed==1")
        planned = plan([one], [renewed], ["gloo"], [2], [case("a")], ["eager"])
        asked: dict[str, Any] = {"requester": "x", "reason": "manual", "priority": 0, "request": {}}
        store.submit(session, checkouts=[one], runtimes=[renewed], plan=planned, now=at(0), **asked)
    world.run(Verdict.SCALED, seconds=3)
    with world.db.session() as session:
        old = next(a for a in store.answers(session) if a.row.cell == 1)
        said = dataclasses.replace(judgement(Verdict.PERMUTED), policy_version="2")
        assert store.append_judgements(session, [(old.result, said, "")], at(9)) == [1]
    with world.db.read() as session:
        past = store.history(session, submission=2)
    assert [(row.runtime, row.verdict) for row in past] == [("2.11.0-index", "scaled")]


def test_what_was_kept_is_handed_out_whole(world: World) -> None:
    world.submit(["a"])
    (job,) = world.claimed().jobs
    told: dict[str, Any] = {"job": job.job, "fence": job.fence, "attempt": job.attempt}
    control = ControlInfo("exchange/zero", "exchange", case("a").id, ("eager",), ("zero_gradient",))
    with world.db.session() as session:
        store.record_control_set(session, **told, controls=[(control, case("a"))])
        said = store.ControlAnswer(control.id, "eager", 2, "before", judgement(), True, evidence(1))
        store.record_controls(session, **told, controls=[said])
    passes = {"evidence": evidence(3), "first": evidence(2), "alone": evidence(3)}
    world.answer(job, job.cells[0].cell, Verdict.MISMATCH, **passes)
    world.judge(POLICY_2, Verdict.SCALED, seconds=1)
    with world.db.read() as session:
        assert store.count_answers(session) == 1
        assert store.answers(session, after=1) == []
        (answer,) = store.answers(session)
        kept = store.controls_of(session, answer.attempt)
    documents = [json.loads(one.canonical()) for one in (evidence(3), evidence(2), evidence(3))]
    assert [answer.evidence, answer.first, answer.alone] == documents
    assert (answer.row.verdict, answer.then[0]) == ("scaled", "mismatch")
    stored = {"modes": ["eager", "aot_eager"], "transports": ["gloo", "nccl"], "weights": []}
    assert answer.info == case("a").to_json() | stored
    assert kept.due == ({"control": json.loads(json.dumps(control.to_json())), "case": answer.info},)
    assert [one.evidence for one in kept.answers] == [json.loads(evidence(1).canonical())]


def test_the_judgement_rests_on_the_pass_that_it_says(world: World) -> None:
    world.submit(["a"])
    (job,) = world.claimed().jobs
    world.answer(job, job.cells[0].cell, evidence=evidence(3), first=evidence(2), alone=evidence(3))
    said = dataclasses.replace(judgement(Verdict.LEAK), policy_version="2")
    with world.db.session() as session:
        (answer,) = store.answers(session)
        store.append_judgements(session, [(answer.result, said, "first")], at(1))
    assert world.rows(1)[0].evidence_digest == evidence(2).digest()


def exported(world: World) -> list[dict[str, Any]]:
    with world.db.read() as session:
        return [json.loads(json.dumps(record)) for record in store.export_all(session)]


@pytest.fixture
def other(tmp_path: Path, template: Template) -> Any:
    opened = open_world(tmp_path / "other", template)
    yield opened
    opened.db.dispose()


def test_later_judgements_travel_and_the_newest_is_the_answer_there_too(world: World, other: World) -> None:
    world.submit(["a"])
    world.run(Verdict.MISMATCH)
    with other.db.session() as session:
        store.import_records(session, exported(world))
    world.judge(POLICY_2, Verdict.SCALED, seconds=1)
    with other.db.session() as session:
        counts = store.import_records(session, exported(world))
    assert (counts.added["result"], counts.added["policy"], counts.known["result"]) == (1, 1, 1)
    assert [(row.verdict, row.policy_version) for row in other.rows(1)] == [("scaled", "2")]
    assert other.view(1).jobs[0].counts == {"scaled": 1}
    assert exported(other) == exported(world)


def test_the_newest_judgement_is_the_answer_in_whatever_order_they_arrive(world: World, other: World) -> None:
    world.submit(["a"])
    world.run(Verdict.MISMATCH)
    world.judge(POLICY_2, Verdict.SCALED, seconds=1)
    records = exported(world)
    at_, later = (n for n, record in enumerate(records) if record["record"] == "result")
    records[at_], records[later] = records[later], records[at_]
    with other.db.session() as session:
        store.import_records(session, records)
    assert [(row.verdict, row.policy_version) for row in other.rows(1)] == [("scaled", "2")]


def test_an_export_of_an_older_program_is_read(world: World, other: World) -> None:
    world.submit(["a"])
    world.run(Verdict.MISMATCH)
    records = exported(world)
    for record in records:
        for name in ("judged_at", "first_digest", "alone_digest", "control_set_digest"):
            record.pop(name, None)
    with other.db.session() as session:
        store.import_records(session, records)
    assert exported(other) == exported(world)


def test_a_policy_that_is_another_one_here_is_refused(world: World, other: World) -> None:
    world.submit(["a"])
    world.run()
    world.judge(POLICY_2, Verdict.SCALED)
    records = exported(world)
    changed = copy.deepcopy(records)
    (policy,) = [record for record in changed if record["record"] == "policy"]
    policy["content"]["tolerance"]["k"] = 9.0
    with other.db.session() as session:
        store.keep_policy(session, POLICY_2)
    for content, why in (
        (policy["content"], "another policy than the one that is known here as version '2'"),
        (policy_to_data(POLICY_3), "is of version '3'"),
        ({"version": "2"}, "must be a policy: the policy lacks tolerance"),
    ):
        policy["content"] = content
        with other.db.session() as session, pytest.raises(store.ImportRefusedError, match=why):
            store.import_records(session, copy.deepcopy(changed))
    with other.db.session() as session:
        store.import_records(session, records)


def test_every_known_policy_is_found_by_its_version(world: World) -> None:
    with world.db.session() as session:
        assert store.policies(session) == {"1": load_policy()}
        store.keep_policy(session, POLICY_2)
        store.keep_policy(session, POLICY_2)
        assert store.policies(session) == {"1": load_policy(), "2": POLICY_2}


def test_a_database_of_the_first_schema_keeps_everything_both_ways(tmp_path: Path, world: World) -> None:
    world.submit(["a", "b"])
    world.run(Verdict.MISMATCH)
    world.judge(POLICY_2, Verdict.SCALED, seconds=1)
    first = [row for row in results(world) if row["policy_version"] == "1"]
    url = world.db.engine.url
    world.db.dispose()
    migrate(url, "0001")
    raw = db.create_engine(url)
    with raw.connect() as connection:
        stored = connection.execute(sa.text("SELECT id, verdict FROM result ORDER BY id")).all()
        current = connection.execute(sa.text("SELECT result_id FROM cell ORDER BY id")).all()
    raw.dispose()
    assert [tuple(row) for row in stored] == [(1, "mismatch"), (2, "mismatch")]
    assert [row[0] for row in current] == [1, 2]
    migrate(url, "head")
    assert results(world) == first
    assert world.judge(POLICY_2, Verdict.SCALED, seconds=1) == [1, 2]
