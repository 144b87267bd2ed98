"""A PostgreSQL server of the tests' own: no port, a socket in a folder, and nothing left behind."""

from __future__ import annotations

import hashlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa

FOLDERS = ("/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/opt/homebrew/opt/postgresql*/bin")
OWNER = "gradmatrix"
TEMPLATE = "template_migrated"
START_S = 30.0


class Postgres:
    """A server in a folder of its own; :meth:`stop` ends it and removes the folder."""

    def __init__(self) -> None:
        self.programs = _programs()
        # A socket's path is short by law, and the server runs as another user where the tests run as root.
        self._folder = Path(tempfile.mkdtemp(prefix="gm-pg-"))
        self._user = _another_user() if os.geteuid() == 0 else None
        if self._user is not None:
            os.chown(self._folder, self._user, -1)
        self._folder.chmod(0o700 if self._user is None else 0o755)
        self._data = self._folder / "data"
        options = ["-D", str(self._data), "-U", OWNER, "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]
        done = subprocess.run(
            [self.programs / "initdb", *options], user=self._user, capture_output=True, text=True, cwd="/", check=False
        )
        assert done.returncode == 0, done.stderr
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Start it, and wait until it answers."""
        settings = ("listen_addresses=", f"unix_socket_directories={self._folder}", "fsync=off", "max_connections=200")
        options = [part for setting in settings for part in ("-c", setting)]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self.programs / "postgres", "-D", self._data, *options],
                user=self._user, stdout=log, stderr=log, cwd="/", start_new_session=True,
            )  # fmt: skip
        deadline = time.monotonic() + START_S
        while True:
            try:
                psycopg.connect(self._conninfo("postgres")).close()
                return
            except psycopg.OperationalError:
                assert time.monotonic() < deadline, (self._folder / "log").read_text()
                time.sleep(0.05)

    def halt(self, how: signal.Signals = signal.SIGINT) -> None:
        """End the server; its data stay. SIGINT ends every connection at once, SIGQUIT does not even say goodbye."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(START_S)
            self._process = None

    def stop(self) -> None:
        """End it, and leave nothing."""
        self.halt()
        shutil.rmtree(self._folder, ignore_errors=True)

    def url(self, database: str) -> sa.URL:
        """The address of one database, as the setting ``database_url`` has it."""
        return sa.URL.create("postgresql+psycopg", username=OWNER, database=database, query={"host": str(self._folder)})

    def create(self, name: str, template: str = "template0") -> None:
        """Make a database, as a copy of another."""
        with psycopg.connect(self._conninfo("postgres"), autocommit=True) as connection:
            connection.execute(psycopg.sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(
                psycopg.sql.Identifier(name), psycopg.sql.Identifier(template)))  # fmt: skip

    def has(self, name: str) -> bool:
        """Whether there is such a database."""
        with psycopg.connect(self._conninfo("postgres")) as connection:
            return bool(connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [name]).fetchone())

    def database_for(self, path: Path) -> sa.URL:
        """The database that stands for ``path``: migrated when it is made, and the same at every call."""
        name = "t" + hashlib.sha256(str(path).encode()).hexdigest()[:16]
        if not self.has(name):
            self.create(name, TEMPLATE)
        return self.url(name)

    def _conninfo(self, database: str) -> str:
        return f"host={self._folder} user={OWNER} dbname={database}"


def _programs() -> Path:
    found = shutil.which("initdb")
    if found is not None:
        return Path(found).resolve().parent
    for folder in sorted(path for pattern in FOLDERS for path in Path("/").glob(pattern[1:])):
        if (folder / "initdb").is_file():
            return folder
    pytest.skip("no PostgreSQL server is installed here")


def _another_user() -> int:
    try:
        return pwd.getpwnam("postgres").pw_uid
    except KeyError:
        pytest.skip("PostgreSQL refuses to run as root, and there is no user postgres")
