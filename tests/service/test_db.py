"""Opening, migrating, and the transactions of both kinds."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext

from service import db, store
from service.models import Host
from service.schema import Base
from tests.support.stored import Home, World, at, open_world

T1 = datetime(2026, 3, 4, 5, 6, 7, 8, tzinfo=timezone(timedelta(hours=-7)))


@pytest.mark.parametrize(
    ("version", "mode"),
    [
        ((3, 40, 1), "DELETE"),
        ((3, 44, 5), "DELETE"),
        ((3, 44, 6), "WAL"),
        ((3, 45, 0), "DELETE"),
        ((3, 50, 6), "DELETE"),
        ((3, 50, 7), "WAL"),
        ((3, 51, 0), "DELETE"),
        ((3, 51, 2), "DELETE"),
        ((3, 51, 3), "WAL"),
        ((3, 52, 0), "WAL"),
        ((4, 0, 0), "WAL"),
    ],
)
def test_wal_only_where_it_is_safe(version: tuple[int, int, int], mode: str) -> None:
    assert db.journal_mode(version) == mode


def test_the_open_database_has_that_journal_and_its_switches(tmp_path: Path) -> None:
    world = open_world(tmp_path)
    with world.db.session() as session:
        wanted = db.journal_mode(sqlite3.sqlite_version_info[:3])
        assert session.execute(sa.text("PRAGMA journal_mode")).scalar() == wanted.lower()
        assert session.execute(sa.text("PRAGMA foreign_keys")).scalar() == 1
        assert session.execute(sa.text("PRAGMA busy_timeout")).scalar() == db.BUSY_MS
    world.db.dispose()


def _tables(engine: sa.Engine) -> dict[str, object]:
    """Everything that a schema says, constraints' names included, in no particular order."""
    inspector = sa.inspect(engine)

    def sort(rows: Iterable[object]) -> list[str]:
        return sorted(str(row) for row in rows)

    return {
        table: [
            sort((c["name"], str(c["type"]), c["nullable"]) for c in inspector.get_columns(table)),
            inspector.get_pk_constraint(table),
            sort(inspector.get_foreign_keys(table)),
            sort(inspector.get_unique_constraints(table)),
            sort(inspector.get_check_constraints(table)),
            sort(
                (
                    i["name"],
                    i["column_names"],
                    i["unique"],
                    [str(value) for value in i.get("dialect_options", {}).values()],
                )
                for i in inspector.get_indexes(table)
            ),
        ]
        for table in inspector.get_table_names()
        if table != "alembic_version"
    }


def test_the_migrations_make_exactly_the_models(tmp_path: Path) -> None:
    world = open_world(tmp_path)
    with world.db.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, Base.metadata) == []
    made = db.create_engine(sa.URL.create("sqlite", database=str(tmp_path / "made.db")))
    Base.metadata.create_all(made)
    assert _tables(world.db.engine) == _tables(made)
    assert len(_tables(made)) == len(Base.metadata.tables) > 10
    world.db.dispose()
    made.dispose()


def test_every_constraint_has_a_name_that_postgresql_keeps_whole() -> None:
    for table in Base.metadata.tables.values():
        names = [c.name for c in table.constraints] + [i.name for i in table.indexes]
        for name in names:
            assert name is not None and len(str(name)) <= 63, (table, name)


def test_a_database_of_a_newer_program_is_refused_and_left_alone(tmp_path: Path) -> None:
    open_world(tmp_path).db.dispose()
    raw = sqlite3.connect(tmp_path / db.FILE)
    raw.execute("UPDATE alembic_version SET version_num = '9999'")
    raw.commit()
    raw.close()
    before = (tmp_path / db.FILE).read_bytes()
    with pytest.raises(db.SchemaError, match=rf"schema 9999, .* up to {db.HEAD}: .* newer gradmatrix"):
        open_world(tmp_path)
    assert (tmp_path / db.FILE).read_bytes() == before


def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    (tmp_path / db.FILE).write_bytes(b"not a database, but long enough to be taken for one" * 20)
    with pytest.raises(db.DatabaseError, match=rf"{db.FILE} cannot be used: file is not a database"):
        open_world(tmp_path)


def test_a_home_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(db.DatabaseError, match=r"file/home cannot be made: .*; set GRADMATRIX_HOME"):
        db.open_database(Home(tmp_path / "file" / "home"))


def test_a_database_elsewhere_is_not_migrated_on_opening(tmp_path: Path) -> None:
    elsewhere = Home(tmp_path, f"sqlite:///{tmp_path / 'other.db'}")
    with pytest.raises(db.SchemaError, match=rf"schema none, .* needs {db.HEAD}: run `gradmatrix db upgrade`"):
        db.open_database(elsewhere)
    db.upgrade(sa.make_url(str(elsewhere.database_url)))
    opened = db.open_database(elsewhere)
    assert not (tmp_path / db.FILE).exists()
    opened.dispose()


def test_many_may_open_a_new_home_at_once(tmp_path: Path) -> None:
    home, failed = tmp_path / "100% new", []
    gate = threading.Barrier(4)

    def work() -> None:
        gate.wait()
        try:
            db.open_database(Home(home)).dispose()
        except Exception as error:  # noqa: BLE001
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []


def test_a_transaction_is_whole_or_nothing(tmp_path: Path) -> None:
    world = open_world(tmp_path)
    with pytest.raises(ZeroDivisionError), world.db.session() as session:
        session.add(Host(name="a", devices=1, transports=[], seen_at=at(0)))
        session.flush()
        raise ZeroDivisionError
    with world.db.read() as session:
        assert session.scalars(sa.select(Host)).all() == []
    world.db.dispose()


def test_a_read_cannot_write_and_a_write_after_it_can(tmp_path: Path) -> None:
    world = open_world(tmp_path)
    with world.db.read() as session:
        session.add(Host(name="a", devices=1, transports=[], seen_at=at(0)))
        with pytest.raises(sa.exc.OperationalError, match="readonly"):
            session.flush()
    with world.db.session() as session:
        session.add(Host(name="a", devices=1, transports=[], seen_at=at(0)))
    world.db.dispose()


def test_foreign_keys_hold(tmp_path: Path) -> None:
    world = open_world(tmp_path)
    view = world.submit()
    with pytest.raises(sa.exc.IntegrityError), world.db.session() as session:
        session.execute(sa.text("DELETE FROM job"))
    assert len(world.view(view.id).jobs) == 1
    world.db.dispose()


def test_writers_wait_for_each_other_instead_of_failing(tmp_path: Path) -> None:
    """A writer that read first would, without the immediate lock, have to give up when another wrote meanwhile."""
    world = open_world(tmp_path)
    with world.db.session() as session:
        session.add(Host(name="a", devices=0, transports=[], seen_at=at(0)))

    def work() -> None:
        for _ in range(10):
            with world.db.session() as session:
                session.scalars(sa.select(Host)).one().devices += 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with world.db.read() as session:
        assert session.scalars(sa.select(Host.devices)).one() == 40
    world.db.dispose()


def test_moments_come_back_in_utc_and_naive_ones_are_refused(tmp_path: Path) -> None:
    world = open_world(tmp_path)
    with world.db.session() as session:
        session.add(Host(name="a", devices=0, transports=[], seen_at=T1))
    with world.db.read() as session:
        seen = session.scalars(sa.select(Host.seen_at)).one()
    assert seen == T1 and seen.tzinfo is UTC
    naive = Host(name="b", devices=0, transports=[], seen_at=datetime(2026, 1, 1))
    with pytest.raises(sa.exc.StatementError, match="naive datetime"), world.db.session() as session:
        session.add(naive)
        session.flush()
    world.db.dispose()


HOT: dict[str, Callable[[World], object]] = {
    "the queue": lambda world: world.claim(),
    "cells of a submission": lambda world: world.rows(1),
    "a submission": lambda world: world.view(1),
    "the same again": lambda world: world.submit(),
    "an answer": lambda world: _answer(world),
}
SMALL = {"host", "gpu_lease", "checkout", "runtime"}
"""Tables that stay small enough to be read whole."""


def _answer(world: World) -> None:
    (job,) = world.claimed().jobs
    world.answer(job, job.cells[0].cell)
    world.finish(job)


@pytest.mark.parametrize("name", HOT)
def test_no_query_reads_a_large_table_from_end_to_end(tmp_path: Path, name: str) -> None:
    world = open_world(tmp_path)
    world.submit([f"case{n}" for n in range(20)])
    said: list[tuple[str, Any]] = []

    def hear(_connection: Any, _cursor: Any, sql: str, values: Any, _context: Any, _many: bool) -> None:
        said.append((sql, values))

    sa.event.listen(world.db.engine, "before_cursor_execute", hear)
    HOT[name](world)
    asked = [(sql, values) for sql, values in said if sql.startswith(("SELECT", "UPDATE", "DELETE"))]
    assert asked
    with world.db.engine.connect() as connection:
        for sql, values in asked:
            plan = connection.exec_driver_sql(
                "EXPLAIN QUERY PLAN " + sql, values[0] if isinstance(values, list) else values
            )
            scanned = {row[3].split()[1] for row in plan if row[3].startswith("SCAN")}
            assert scanned <= SMALL, (sql, scanned)
    world.db.dispose()


def test_no_table_has_a_row_per_tensor_or_rank(tmp_path: Path) -> None:
    world = open_world(tmp_path)
    world.submit(["a"])
    world.run()
    with world.db.read() as session:
        sizes = {
            name: session.scalar(sa.select(sa.func.count()).select_from(t)) for name, t in Base.metadata.tables.items()
        }
    assert max(size for size in sizes.values() if size is not None) == 1
    world.db.dispose()


def test_equal_evidence_is_stored_once(tmp_path: Path) -> None:
    world = open_world(tmp_path)
    world.submit([f"case{n}" for n in range(5)])
    world.run()
    with world.db.read() as session:
        digests = {row.evidence_digest for row in store.cells_of(session, 1)}
        assert session.scalar(sa.text("SELECT count(*) FROM evidence")) == len(digests) == 1
    world.db.dispose()


def test_the_stated_newest_migration_is_the_newest() -> None:
    assert db.head() == db.HEAD
