"""The application over a database of its own, and callers with every scope."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from httpx2 import Response
from starlette.testclient import TestClient

from service import store
from service.api.state import State
from service.broker import LocalBroker
from service.cases import CaseCatalogue
from service.config import Settings
from service.db import FILE, Database, open_database
from service.main import create_app
from service.models import SCOPES
from tests.support.stored import World, case, open_world
from tests.support.trees import make_repository


@dataclass
class Api:
    """The service as its callers see it; ``world`` is what a worker would do."""

    client: TestClient
    world: World
    settings: Settings
    broker: LocalBroker
    repository: Path
    secrets: dict[str, str]

    def headers(self, scope: str | None) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.secrets[scope]}"} if scope else {}

    def get(self, path: str, scope: str | None = "read", **params: Any) -> Response:
        return self.client.get(f"/api/v1{path}", params=params, headers=self.headers(scope))

    def post(self, path: str, json: Any = None, scope: str | None = "submit", key: str = "") -> Response:
        headers = self.headers(scope) | ({"Idempotency-Key": key} if key else {})
        return self.client.post(f"/api/v1{path}", json=json, headers=headers)


def api_over(home: Path, database: Database, *, embedded: bool = False, **more: Any) -> Api:
    repository = home.parent / "repository"
    if not repository.exists():
        make_repository(repository)
    settings = Settings(home=home, default_repository=str(repository), **more)
    broker = LocalBroker()
    secrets = {}
    with database.session() as session:
        for scope in SCOPES:
            secrets[scope], _ = store.create_token(session, f"the {scope} one", scope)
    app = create_app(State(settings, database, broker, embedded))
    client = TestClient(app, raise_server_exceptions=False)
    return Api(client, World(database), settings, broker, repository, secrets)


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("template")
    open_world(path).db.dispose()
    return (path / FILE).read_bytes()


@pytest.fixture
def database(tmp_path: Path, migrated: bytes) -> Iterator[Database]:
    home = tmp_path / "home"
    home.mkdir()
    (home / FILE).write_bytes(migrated)
    opened = open_database(Settings(home=home))
    yield opened
    opened.dispose()


@pytest.fixture
def api(tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch) -> Api:
    """Its cases a to e are those that there are today."""
    there = CaseCatalogue(tuple(case(name) for name in "abcde"), ())
    monkeypatch.setattr("service.api.cells.catalogue", lambda: there)
    return api_over(tmp_path / "home", database)
