"""The commands that the documentation names for a backup, as they stand there: what is restored is what there was."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from service import db, store
from service.claims import LEASE_S
from service.schema import Base
from tests.support.postgres import Postgres
from tests.support.stored import Home, World, at, open_world

PAGE = Path(__file__).parents[2] / "docs" / "deploy.md"
BLOCKS = re.findall(r"```\n(.*?)```", PAGE.read_text("utf-8").partition("## Backup and restore")[2], re.DOTALL)


@pytest.fixture
def postgres() -> Iterator[Postgres]:
    server = Postgres()
    yield server
    server.stop()


def filled(world: World) -> int:
    """A world with an answered cell, a job that runs, and a token; the running job."""
    world.submit(["a"])
    world.run()
    world.submit(["b"])
    (job,) = world.claimed().jobs
    with world.db.session() as session:
        store.create_token(session, "me", "read")
    return job.job


def contents(world: World) -> dict[str, list[tuple[object, ...]]]:
    """Every row of every table."""
    with world.db.read() as session:
        return {
            table.name: [tuple(row) for row in session.execute(sa.select(table).order_by(*table.primary_key.columns))]
            for table in Base.metadata.sorted_tables
        }


def goes_on(world: World, job: int) -> None:
    """What was running when the copy was made is taken up again."""
    db.check(world.db.engine)
    with world.db.session() as session:
        assert store.reclaim(session, at(LEASE_S + 1)) == [job]
    assert len(world.run(seconds=LEASE_S + 2)) == 1


@pytest.mark.services
def test_postgresql(postgres: Postgres, tmp_path: Path) -> None:
    postgres.create("gradmatrix")
    db.upgrade(postgres.url("gradmatrix"))
    before = World(db.open_database(Home(tmp_path, postgres.url("gradmatrix").render_as_string(hide_password=False))))
    job = filled(before)
    folder = str(postgres.url("gradmatrix").query["host"])
    environment = {**os.environ, "PGHOST": folder, "PATH": f"{postgres.programs}{os.pathsep}{os.environ['PATH']}"}
    prefix = "docker compose exec -T postgres "
    lines = BLOCKS[0].splitlines()
    assert [line.startswith(prefix) for line in lines] == [True] * 3
    for line in lines:
        subprocess.run(line.removeprefix(prefix), shell=True, env=environment, cwd=tmp_path, check=True)  # noqa: S602
    after = World(db.open_database(Home(tmp_path, postgres.url("restored").render_as_string(hide_password=False))))
    assert contents(after) == contents(before)
    goes_on(after, job)
    for world in (before, after):
        world.db.dispose()


def test_an_embedded_file(tmp_path: Path) -> None:
    before = open_world(tmp_path / "home")
    job = filled(before)
    program, file, statement = shlex.split(BLOCKS[1])
    assert (program, file) == ("sqlite3", db.FILE)
    with sqlite3.connect(tmp_path / "home" / file) as connection:  # what the program does
        connection.execute(statement.replace("backup.db", str(tmp_path / "backup.db")))
    connection.close()
    (tmp_path / "restored").mkdir()
    shutil.copy(tmp_path / "backup.db", tmp_path / "restored" / db.FILE)
    after = open_world(tmp_path / "restored")
    assert contents(after) == contents(before)
    goes_on(after, job)
    for world in (before, after):
        world.db.dispose()
