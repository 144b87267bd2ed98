from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from service import db
from tests.support.postgres import TEMPLATE, Postgres
from tests.support.stored import Template, World, open_world


@pytest.fixture(scope="session", params=["sqlite", pytest.param("postgresql", marks=pytest.mark.services)])
def template(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Template]:
    """An empty database, migrated once: making one takes longer than most of these tests."""
    path = tmp_path_factory.mktemp("template")
    if request.param == "sqlite":
        open_world(path).db.dispose()
        yield Template(path)
        return
    server = Postgres()
    try:
        server.create(TEMPLATE)
        db.upgrade(server.url(TEMPLATE))
        yield Template(path, server)
    finally:
        server.stop()


@pytest.fixture
def world(tmp_path: Path, template: Template) -> Iterator[World]:
    opened = open_world(tmp_path / "home", template)
    yield opened
    opened.db.dispose()
