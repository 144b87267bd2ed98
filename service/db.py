"""The database: opening it, its transactions, and bringing its schema up to date.

On the straight line this stands beneath ``service.store``. SQLite (embedded) and PostgreSQL are told apart here and in
``service.store.sql``, nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from service.errors import GradmatrixError

if TYPE_CHECKING:
    from alembic.config import Config
    from sqlalchemy.engine.interfaces import DBAPIConnection
    from sqlalchemy.pool import ConnectionPoolEntry

FILE = "gradmatrix.db"
BUSY_MS = 30_000
HEAD = "0007"
"""The newest migration. Stated here too, so that a database that is up to date needs no migration library to open."""
CONNECTION = {"connect_timeout": 10, "tcp_user_timeout": 20_000, "keepalives_idle": 10, "keepalives_interval": 5}
"""A server that is gone without a word is noticed before a lease runs out: seconds, and one in milliseconds."""
IDLE_S = 30
"""How long a transaction that writes may say nothing. One that froze in it holds rows that others have to pass, to take
over what it held; the server ends it before a lease runs out."""
MIGRATION_LOCK = 0x67726164
"""The advisory lock under which one process at a time migrates a PostgreSQL database."""


class DatabaseError(GradmatrixError):
    """The database cannot be used as it is."""


class SchemaError(DatabaseError):
    """The database's schema is not the one that this program knows."""


class Where(Protocol):
    """What of the settings matters here: the folder, and the URL of a database elsewhere, if it is not in there."""

    @property
    def home(self) -> Path: ...  # noqa: D102
    @property
    def database_url(self) -> str | None: ...  # noqa: D102


def journal_mode(version: tuple[int, int, int]) -> str:
    """The journal that is safe with this SQLite: earlier releases can corrupt a WAL database in a rare race."""
    for fixed in ((3, 44, 6), (3, 50, 7)):
        if version[:2] == fixed[:2]:
            return "WAL" if version >= fixed else "DELETE"
    return "WAL" if version >= (3, 51, 3) else "DELETE"


class Database:
    """An open database. One transaction per ``session()``: committed at the end, rolled back on any exception."""

    def __init__(self, engine: sa.Engine) -> None:
        self.engine = engine
        self._writer = engine.execution_options(gradmatrix="write")
        reading = {"postgresql_readonly": True} if engine.dialect.name == "postgresql" else {}
        self._reader = engine.execution_options(gradmatrix="read", **reading)

    @contextmanager
    def session(self) -> Iterator[Session]:
        """A transaction that writes. On SQLite it takes the write lock at once, so that it never has to give up."""
        with Session(self._writer, expire_on_commit=False) as session, session.begin():
            yield session

    @contextmanager
    def read(self) -> Iterator[Session]:
        """A consistent view for reading; the database refuses writes in it. Keep it short."""
        with Session(self._reader, expire_on_commit=False) as session:
            yield session

    def dispose(self) -> None:
        """Close every connection."""
        self.engine.dispose()


def open_database(settings: Where) -> Database:
    """The database of ``settings``: embedded in its home (and then migrated here), or at ``database_url``."""
    if settings.database_url:
        url = sa.make_url(settings.database_url)
        connection = CONNECTION if url.get_backend_name() == "postgresql" else {}
        database = Database(create_engine(url, pool_pre_ping=True, connect_args=connection))
        with _explained(str(url)):
            check(database.engine)
        return database
    path = settings.home / FILE
    try:
        settings.home.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DatabaseError(f"{settings.home} cannot be made: {error.strerror}; set GRADMATRIX_HOME") from error
    address = sa.URL.create("sqlite", database=str(path))
    with _explained(str(path)):
        upgrade(address)
        engine = create_engine(address)
        _set_journal(engine)
    return Database(engine)


def create_engine(url: sa.URL, **options: Any) -> sa.Engine:
    """An engine whose transactions begin as :class:`Database` says."""
    engine = sa.create_engine(url, **options)
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", _on_connect)
        event.listen(engine, "begin", _on_begin)
    elif engine.dialect.name == "postgresql":
        event.listen(engine, "begin", _on_begin_at_a_server)
    return engine


def _on_connect(connection: DBAPIConnection, _entry: ConnectionPoolEntry) -> None:
    connection.isolation_level = None  # the driver would begin deferred transactions of its own
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout = {BUSY_MS}")
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.close()


def _on_begin(connection: sa.Connection) -> None:
    writes = connection.get_execution_options().get("gradmatrix") != "read"
    connection.exec_driver_sql(f"PRAGMA query_only = {'OFF' if writes else 'ON'}")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _on_begin_at_a_server(connection: sa.Connection) -> None:
    if connection.get_execution_options().get("gradmatrix") == "write":
        connection.exec_driver_sql(f"SET LOCAL idle_in_transaction_session_timeout = '{IDLE_S}s'")


def _set_journal(engine: sa.Engine) -> None:
    raw = engine.raw_connection()
    try:
        cursor = raw.cursor()
        version = tuple(int(part) for part in cursor.execute("SELECT sqlite_version()").fetchone()[0].split("."))
        wanted = journal_mode((version[0], version[1], version[2] if len(version) > 2 else 0))
        # asked for only where it differs: the change needs the file to itself
        if cursor.execute("PRAGMA journal_mode").fetchone()[0].upper() != wanted:
            cursor.execute(f"PRAGMA journal_mode = {wanted}")
        cursor.close()
    finally:
        raw.close()


@contextmanager
def _explained(where: str) -> Iterator[None]:
    try:
        yield
    except sa.exc.DatabaseError as error:
        raise DatabaseError(f"the database {where} cannot be used: {error.orig}") from error


def _script() -> Config:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    return config


def head() -> str:
    """The revision of the schema that this program knows."""
    from alembic.script import ScriptDirectory

    revision = ScriptDirectory.from_config(_script()).get_current_head()
    if revision is None:
        raise SchemaError("no migrations are installed: the installation is incomplete")
    return revision


def _current(connection: sa.Connection) -> str | None:
    """The database's revision, None when it is empty. Raises SchemaError where this program does not know it."""
    from alembic.runtime.migration import MigrationContext
    from alembic.script import ScriptDirectory

    current = MigrationContext.configure(connection).get_current_revision()
    known = {script.revision for script in ScriptDirectory.from_config(_script()).walk_revisions()}
    if current is not None and current not in known:
        raise SchemaError(
            f"the database {connection.engine.url} has schema {current}, this program knows up to {head()}: it was "
            "written by a newer gradmatrix; use that one, or another GRADMATRIX_HOME"
        )
    return current


def _stated(connection: sa.Connection) -> str | None:
    """The revision that the database states, without asking which there are."""
    if not sa.inspect(connection).has_table("alembic_version"):
        return None
    stated: str | None = connection.scalar(sa.text("SELECT version_num FROM alembic_version"))
    return stated


def check(engine: sa.Engine) -> None:
    """Raise SchemaError unless the schema is exactly the one that this program knows."""
    with engine.connect() as connection:
        current = _current(connection)
    if current != head():
        raise SchemaError(
            f"the database {engine.url} has schema {current or 'none'}, this program needs {head()}: "
            "run `gradmatrix db upgrade`"
        )


def upgrade(url: sa.URL) -> None:
    """Bring the schema to :func:`head`, in one transaction that two processes cannot enter at once."""
    engine = create_engine(url, poolclass=NullPool)
    if engine.dialect.name == "sqlite":
        # a migration rebuilds tables that others point at, and the switch has no effect inside a transaction
        event.listen(engine, "connect", lambda raw, _entry: raw.execute("PRAGMA foreign_keys = OFF"))
    try:
        with engine.begin() as connection:
            if engine.dialect.name == "postgresql":
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(MIGRATION_LOCK)))
            if _stated(connection) == HEAD or _current(connection) == head():
                return
            from alembic import command

            config = _script()
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
    finally:
        engine.dispose()
