"""What the keeper of a service does: tokens, and the schema."""

from __future__ import annotations

import os
import socket
from datetime import timedelta
from pathlib import Path

import pytest

from service import store
from service.claims import LEASE_S
from service.config import Settings
from service.db import HEAD, open_database
from service.store.sql import utcnow
from service.verdicts import Verdict
from tests.support.stored import World, blob, host
from tests.workers.cli.conftest import Gradmatrix
from workers.choose import choose
from workers.serving import alone, served_at


def test_a_token_is_shown_once_listed_without_its_secret_and_revoked(gradmatrix: Gradmatrix, home: Path) -> None:
    status, out, err = gradmatrix("token", "create", "ci of one repository", "--scope", "submit")
    secret = out.strip()
    assert (status, secret[:3], len(secret)) == (0, "gm_", 46)
    assert "shown only now" in err
    database = open_database(Settings(home=home))
    with database.read() as session:
        found = store.find_token(session, secret)
        assert found is not None
        assert (found.name, found.scope) == ("ci of one repository", "submit")
    _, listed, _ = gradmatrix("token", "list")
    assert secret[:11] in listed
    assert secret not in listed
    assert gradmatrix("token", "revoke", "1")[0] == 0
    with database.read() as session:
        assert store.find_token(session, secret) is None
    assert "revoked" in gradmatrix("token", "list")[1]
    database.dispose()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("create", "x", "--scope", "wrte"), "scope 'wrte' is not known: there are read, submit, admin"),
        (("create", " ", "--scope", "read"), "a token needs a name"),
        (("revoke", "7"), "there is no token 7"),
    ],
)
def test_bad_input_is_one_error(gradmatrix: Gradmatrix, words: tuple[str, ...], said: str) -> None:
    status, out, err = gradmatrix("token", *words)
    assert (status, out) == (2, "")
    assert said in err


def test_the_schema_is_brought_up_to_date(gradmatrix: Gradmatrix) -> None:
    assert gradmatrix("db", "upgrade")[:2] == (0, f"the schema is {HEAD}, as this program needs it\n")


@pytest.mark.parametrize("address", ["nonsense", "127.0.0.1:99999", ":80"])
def test_an_address_that_is_none_is_refused(
    gradmatrix: Gradmatrix, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.setenv("GRADMATRIX_LISTEN", address)
    status, _, err = gradmatrix("serve")
    assert status == 2
    assert "HOST:PORT" in err
    monkeypatch.delenv("GRADMATRIX_LISTEN")
    status, _, err = gradmatrix("serve", "--listen", address)
    assert status == 2
    assert "HOST:PORT" in err


def test_a_second_service_over_one_home_says_where_the_first_is(gradmatrix: Gradmatrix, home: Path) -> None:
    with alone(home, "http://127.0.0.1:8470"):
        status, out, err = gradmatrix("serve", "--listen", "127.0.0.1:0")
    assert (status, out) == (2, "")
    assert f"http://127.0.0.1:8470, process {os.getpid()}" in err
    assert "GRADMATRIX_HOME" in err
    with alone(home, "http://127.0.0.1:8471"):
        assert served_at(home).startswith("http://127.0.0.1:8471, ")


def test_a_port_that_is_taken_is_named(gradmatrix: Gradmatrix) -> None:
    from workers.serving import bound

    taken = bound("127.0.0.1:0")
    taken.listen()
    try:
        address = "{}:{}".format(*taken.getsockname())
        status, _, err = gradmatrix("serve", "--listen", address)
    finally:
        taken.close()
    assert status == 2
    assert f"cannot listen on {address}: " in err


def test_retention_says_what_is_too_old_and_removes_it_when_told_to(
    gradmatrix: Gradmatrix, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = open_database(Settings(home=home))
    world = World(database)
    world.submit(["a"])
    (job,) = world.claimed().jobs
    world.answer(job, job.cells[0].cell, Verdict.SCALED, blobs=[blob("x" * 2048, "got")])
    world.finish(job)
    status, said, _ = gradmatrix("retention")
    assert status == 0 and "tensors   90 days   1        2 kB" in said
    assert "the reconciler leaves it: retention.apply is off" in said
    assert "ever" in gradmatrix_with(monkeypatch, gradmatrix, "GRADMATRIX_RETENTION__TENSORS_DAYS", "0")
    assert gradmatrix("retention", "--apply")[0] == 0
    assert "tensors   90 days   0" in gradmatrix("retention")[1]
    database.dispose()


def gradmatrix_with(monkeypatch: pytest.MonkeyPatch, gradmatrix: Gradmatrix, variable: str, value: str) -> str:
    with monkeypatch.context() as patch:
        patch.setenv(variable, value)
        return gradmatrix("retention")[1]


def test_a_part_says_whether_it_works(gradmatrix: Gradmatrix, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = socket.gethostname()
    assert gradmatrix("healthy", "worker") == (2, "", f"worker: host {here} has never looked for work\n")
    database = open_database(Settings(home=home))
    for now, status in ((utcnow(), 0), (utcnow() - timedelta(seconds=LEASE_S + 1), 2)):
        with database.session() as session:
            store.claim(session, host(name=here), choose, now)
        assert gradmatrix("healthy", "worker")[0] == status
    database.dispose()
    status, _, said = gradmatrix("healthy", "beat")
    assert status == 2 and said.startswith("beat: gradmatrix serve is its own reconciler, and none runs over ")
    with alone(home, "http://127.0.0.1:8470"):
        assert gradmatrix("healthy", "beat") == (0, "beat: works\n", "")
    assert gradmatrix("healthy", "beat")[0] == 2, "the lock went with it"
    monkeypatch.setenv("GRADMATRIX_LISTEN", "127.0.0.1:1")
    status, _, said = gradmatrix("healthy", "api")
    assert status == 2 and said.startswith("api: http://127.0.0.1:1 does not answer: ")
    status, _, said = gradmatrix("healthy", "workers")
    assert status == 2 and "did you mean worker" in said


@pytest.mark.parametrize("part", ["api", "worker", "beat"])
def test_a_part_of_a_fleet_needs_its_database(gradmatrix: Gradmatrix, part: str) -> None:
    status, _, said = gradmatrix(part)
    assert status == 2 and "set database_url" in said


def test_what_is_wrong_with_a_table_is_named_by_its_variables(
    gradmatrix: Gradmatrix, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADMATRIX_RETENTION__LOGS_DAYS", "-3")
    assert "gradmatrix: GRADMATRIX_RETENTION__LOGS_DAYS: days are 0" in gradmatrix("token", "list")[2]
