from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.stored import World, open_world


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty database, migrated once: making one takes longer than most of these tests."""
    path = tmp_path_factory.mktemp("template")
    open_world(path).db.dispose()
    return path


@pytest.fixture
def world(tmp_path: Path, template: Path) -> Iterator[World]:
    opened = open_world(tmp_path / "home", template)
    yield opened
    opened.db.dispose()
