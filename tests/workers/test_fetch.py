"""From what was asked for to queued jobs: real repositories and folders, real locks, no cell."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobs.contract import Deadlines
from service import store
from service.broker import LocalBroker
from service.checkouts import ensure_checkout, known_commit, pieces
from service.config import Settings
from service.db import Database, open_database
from service.order import Wanted
from service.subjects import Cache, SubjectError, parse_subject, resolve
from tests.support.trees import make_repository
from workers.fetch import Fetcher


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    make_repository(tmp_path / "repository")
    return tmp_path / "repository"


@pytest.fixture
def settings(tmp_path: Path, repository: Path) -> Settings:
    return Settings(home=tmp_path / "home", default_repository=str(repository), deadlines=Deadlines())


@pytest.fixture
def database(settings: Settings) -> Iterator[Database]:
    opened = open_database(settings)
    yield opened
    opened.dispose()


def asked(database: Database, *subjects: str, **more: Any) -> int:
    words = {"torch": ("2.11.0",), "transports": ("gloo",), "modes": ("eager",), "families": ("exchange",), **more}
    request = {"wanted": Wanted(subjects=subjects, **words).to_json(), "rerun": False}
    with database.session() as session:
        return store.open_submission(session, requester="me", reason="manual", priority=30, request=request).id


def view(database: Database, submission: int) -> store.SubmissionView:
    with database.read() as session:
        return store.submission(session, submission)


def test_a_branch_becomes_jobs_of_its_full_sha(settings: Settings, database: Database, repository: Path) -> None:
    submission = asked(database, f"git+{repository}@main")
    fetcher = Fetcher(settings, database, broker := LocalBroker())
    assert fetcher.one() is True
    now = view(database, submission)
    assert (now.state, now.note, len(now.jobs)) == ("queued", "", 1)
    assert now.cells > 5
    assert broker.wait(0), "whoever runs jobs is told"
    with database.read() as session:
        row = store.cells_of(session, submission)[0]
    assert row.label.startswith("deepspeed@")
    assert ensure_checkout(settings, database, row.checkout).is_file()
    assert fetcher.one() is False


@pytest.mark.parametrize(
    ("subject", "said"),
    [
        ("git+{}@no-such-branch", "has no branch or tag 'no-such-branch'"),
        ("git+/elsewhere@main", "is not on the allow-list"),
    ],
)
def test_what_cannot_be_found_fails_with_the_reason(
    settings: Settings, database: Database, repository: Path, subject: str, said: str
) -> None:
    submission = asked(database, subject.format(repository))
    assert Fetcher(settings, database, LocalBroker()).one()
    now = view(database, submission)
    assert now.state == "failed"
    assert said in now.note


def test_a_remote_that_is_away_is_tried_again(settings: Settings, database: Database, repository: Path) -> None:
    repository.rename(repository.with_name("moved"))
    submission = asked(database, f"git+{repository}@main")
    assert Fetcher(settings, database, LocalBroker()).one()
    now = view(database, submission)
    assert now.state == "resolving"
    assert "cannot fetch from" in now.note


def test_it_works_on_a_hint_until_it_is_stopped(settings: Settings, database: Database, repository: Path) -> None:
    stop, broker = threading.Event(), LocalBroker()
    thread = threading.Thread(target=Fetcher(settings, database, broker).run, args=(stop,))
    thread.start()
    submission = asked(database, f"git+{repository}@main")
    broker.publish()
    for _ in range(300):
        if view(database, submission).state == "queued":
            break
        stop.wait(0.1)
    stop.set()
    thread.join()
    assert view(database, submission).state == "queued"


def test_a_checkout_comes_from_the_database_where_another_host_fetched_it(
    settings: Settings, database: Database, repository: Path, tmp_path: Path
) -> None:
    submission = asked(database, f"git+{repository}@main")
    Fetcher(settings, database, LocalBroker()).one()
    with database.read() as session:
        digest = store.cells_of(session, submission)[0].checkout
    tar = ensure_checkout(settings, database, digest)
    found = resolve(parse_subject(f"git+{repository}@main", settings), settings)
    with database.session() as session, tar.open("rb") as file:
        store.keep_checkout(session, found, file)
    fleet = settings.model_copy(update={"home": tmp_path / "other", "database_url": "postgresql+psycopg://x/y"})
    there = ensure_checkout(fleet, database, digest)
    assert there.is_relative_to(tmp_path / "other")
    assert there.read_bytes() == tar.read_bytes()
    with pytest.raises(SubjectError, match="is not what its digest says"):
        Cache(tmp_path / "third").adopt("0" * 64, pieces(database, digest))
    assert list((tmp_path / "third").rglob("*.tar")) == []


def test_a_fetcher_that_is_stopped_gives_back_what_it_had_without_a_try(
    settings: Settings, database: Database, repository: Path
) -> None:
    asked(database, f"git+{repository}@main")
    stop = threading.Event()
    stop.set()
    assert Fetcher(settings, database, LocalBroker()).one(stop)
    with database.session() as session:
        again = store.claim_resolution(session)
    assert again is not None and again.fence == 2, "at once, and not when its lease has run out"


def test_a_commit_that_another_host_fetched_is_not_fetched_again(
    settings: Settings, database: Database, repository: Path, tmp_path: Path
) -> None:
    fleet = settings.model_copy(update={"database_url": "postgresql+psycopg://x/y"})
    asked(database, f"git+{repository}@main")
    assert Fetcher(fleet, database, LocalBroker()).one()
    sha = resolve(parse_subject(f"git+{repository}@main", settings), settings).ref
    other = fleet.model_copy(update={"home": tmp_path / "other"})
    told: list[tuple[str, int, int | None]] = []
    repository.rename(tmp_path / "away")
    repository.mkdir()
    found = known_commit(
        other, database, parse_subject(f"git+{repository}@{sha}", other), lambda *now: told.append(now)
    )
    assert found is not None
    assert told == [(f"taking {found.label} from the database", 0, found.size)]
    assert (found.ref, found.tar.stat().st_size) == (sha, found.size)
    submission = asked(database, f"git+{repository}@{sha}")
    third = fleet.model_copy(update={"home": tmp_path / "third"})
    assert Fetcher(third, database, LocalBroker()).one()
    assert view(database, submission).state in ("queued", "done"), view(database, submission).note
    assert not (tmp_path / "third" / "mirrors").exists(), "nothing of the repository was asked"
    assert known_commit(third, database, parse_subject(f"git+{repository}@{'0' * 40}", third), print) is None


def test_a_submission_of_too_many_cells_fails_with_their_number(
    settings: Settings, database: Database, repository: Path
) -> None:
    submission = asked(database, f"git+{repository}@main")
    small = settings.model_copy(update={"cells_max": 5})
    assert Fetcher(small, database, LocalBroker()).one()
    now = view(database, submission)
    assert (now.state, now.cells) == ("failed", 0)
    assert "cells, and this service takes 5 at most (cells_max)" in now.note
