"""What operators watch, counted by hand beside it, on both databases."""

from __future__ import annotations

import dataclasses

import pytest
from prometheus_client.parser import text_string_to_metric_families

from service import store
from service.broker import LocalBroker
from service.metrics import text
from service.reconcile import Reconciler, acting, acts
from service.retention import Retention
from service.verdicts import Verdict
from tests.support.stored import World, at, host


def said(world: World, seconds: float) -> dict[tuple[str, ...], float]:
    """Every sample, by its name and the values of its labels."""
    with world.db.read() as session:
        page = text(store.numbers(session), at(seconds)).decode()
    return {
        (sample.name.removeprefix("gradmatrix_"), *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


def test_queue_leases_answers_and_durations(world: World) -> None:
    world.submit(["a", "b"], sizes=[2], seconds=0)
    world.submit(["a"], sizes=[4], seconds=10)
    (job,) = world.claimed(20, dataclasses.replace(host(2), shares=False)).jobs
    world.answer(job, job.cells[0].cell, Verdict.AGREE)
    world.answer(job, job.cells[1].cell, Verdict.SCALED)
    world.submit(["c"], sizes=[2], seconds=30)
    found = said(world, 100)
    assert found["jobs_queued", "2"] == 1
    assert found["jobs_queued", "4"] == 1
    assert found["queue_age_seconds", "2"] == 70
    assert found["queue_age_seconds", "4"] == 90
    assert found["jobs", "running"] == 1
    assert (found["devices", "here"], found["devices_leased", "here"]) == (2, 2)
    assert found["host_seen_seconds", "here"] == 80
    assert (found["results_total", "agree"], found["results_total", "scaled"]) == (1, 1)
    assert (found["case_seconds_count", "exchange", "eager"], found["case_seconds_sum", "exchange", "eager"]) == (
        2,
        1.0,
    )
    world.finish(job, 50)
    found = said(world, 100)
    assert (found["attempt_seconds_count", "done"], found["attempt_seconds_sum", "done"]) == (1, 30)
    assert found["devices_leased", "here"] == 0
    assert found["submissions", "done"] == 1


def test_what_the_reconciler_put_right_is_counted(world: World) -> None:
    world.submit(["a"])
    world.claimed(0)
    assert Reconciler(world.db, LocalBroker(), Retention()).once()["requeued"] == 1, "its lease ran out long ago"
    assert Reconciler(world.db, LocalBroker(), Retention()).once()["requeued"] == 0
    assert said(world, 0)["reconciler_acts_total", "requeued"] == 1


def test_an_empty_store_has_numbers_too(world: World) -> None:
    assert said(world, 0) == {}


def test_it_is_known_whether_anybody_reconciles(world: World) -> None:
    if world.db.engine.dialect.name != "postgresql":
        pytest.skip("an embedded database has no reconciler but its service's")
    assert not acts(world.db)
    with acting(world.db) as mine:
        assert mine() and acts(world.db)
    assert not acts(world.db)
