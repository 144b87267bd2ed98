"""The reader of the history: silent where all is well, and every rule speaks when what it forbids was planted."""

from __future__ import annotations

import time
from collections.abc import Iterator

import psycopg
import pytest

from service import db, store
from service.claims import LEASE_S
from service.config import Settings
from service.db import open_database
from tests.campaign import reader
from tests.support.postgres import Postgres
from tests.support.stored import World, at

pytestmark = pytest.mark.services
PLANTED = {
    "a cell that was asked for has no answer": "UPDATE cell SET result_id = NULL WHERE id = 1",
    "an answer that was accepted is gone": "DELETE FROM result WHERE cell_id = 1",
    "a cell was answered more than once, though asked for once": """
        INSERT INTO campaign (what, job, fence, cell, result)
        SELECT what, job, fence, cell, result FROM campaign WHERE what = 'result' AND cell = 1""",
    "an answer counts that was accepted under no fence that held": """
        UPDATE campaign SET fence = fence - 1 WHERE what = 'result' AND fence = 2""",
    "the fences of a job's answers go back": """
        UPDATE campaign SET fence = 9 WHERE seq = (SELECT min(seq) FROM campaign WHERE what = 'result')""",
    "a job's fence does not count its claims": """
        UPDATE campaign SET fence = fence + 1
        WHERE seq = (SELECT max(seq) FROM campaign WHERE what = 'job' AND state = 'leased')""",
    "a job is not over": "UPDATE job SET state = 'queued' WHERE id = 1",
    "a job was given up": "UPDATE job SET note = 'given up with 1 cells unanswered: it died' WHERE id = 1",
    "a job was over too late": "UPDATE campaign SET at = at + interval '1 hour' WHERE what = 'job' AND state = 'done'",
    "a job's count is not that of its answers": "UPDATE job SET cells_done = cells_done - 1 WHERE id = 1",
    "a device was given out while it was in use": """
        DELETE FROM campaign WHERE seq = (SELECT min(seq) FROM campaign WHERE what = 'freed')""",
    "a device is still leased": """
        INSERT INTO gpu_lease (host_id, device, container, lease_until, ends_at) VALUES (1, 'x', 'c', now(), now())""",
    "an attempt is still open": "UPDATE attempt SET state = 'running' WHERE id = 1",
    "a submission is not done": "UPDATE submission SET state = 'running' WHERE id = 1",
    "a hint was never sent": "INSERT INTO hint (kind, created_at) VALUES ('work', now())",
}


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    """With one history: a job that was claimed, lost after its first answer, claimed anew and done."""
    made = Postgres()
    try:
        made.create("history")
        url = made.url("history")
        db.upgrade(url)
        reader.record(conninfo(made, "history"))
        world = World(open_database(Settings(database_url=url.render_as_string(hide_password=False))))
        world.submit(["a", "b"])
        (lost,) = world.claimed().jobs
        world.answer(lost, lost.cells[0].cell)
        (again,) = world.claimed(LEASE_S + 1).jobs
        with pytest.raises(store.StaleFence):
            world.answer(lost, lost.cells[1].cell)
        world.answer(again, again.cells[0].cell, now=at(LEASE_S + 2))
        world.finish(again, LEASE_S + 3)
        world.db.dispose()
        yield made
    finally:
        made.stop()


def conninfo(server: Postgres, name: str) -> str:
    return server.url(name).set(drivername="postgresql").render_as_string(hide_password=False)


def test_where_all_is_well_it_says_nothing(server: Postgres) -> None:
    assert reader.read(conninfo(server, "history"), latest=time.time() + 60) == []
    assert reader.count(conninfo(server, "history")) == {
        "submissions": 1, "cells": 2, "jobs": 1, "claims": 2, "lost": 1, "answers": 2,
    }  # fmt: skip


@pytest.mark.parametrize("rule", reader.RULES)
def test_every_rule_speaks(rule: str, server: Postgres) -> None:
    name = f"planted{list(reader.RULES).index(rule)}"
    server.create(name, "history")
    with psycopg.connect(conninfo(server, name)) as connection:
        connection.execute("SET session_replication_role = replica")  # neither recorded nor refused
        assert connection.execute(PLANTED[rule]).rowcount >= 1
    found = reader.read(conninfo(server, name), latest=time.time() + 60)
    assert rule in {broken.rule for broken in found}
