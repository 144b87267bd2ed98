"""A home of one's own, and pip configured for a stand-in index and nothing else."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.config import Settings
from tests.support.index import StandInIndex


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def settings(home: Path) -> Settings:
    return Settings(home=home, connect_s=5, fetch_s=20, archive_bytes=2**20, archive_file_bytes=2**18)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandInIndex]:
    for name in list(os.environ):
        if name.startswith("PIP_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    folder = tmp_path / "served"
    folder.mkdir()
    with StandInIndex(folder) as index:
        monkeypatch.setenv("PIP_INDEX_URL", index.url)
        yield index


def left_over(home: Path) -> list[str]:
    """Every file below the cache: what a refusal must leave empty."""
    return sorted(path.relative_to(home).as_posix() for path in (home / "checkouts").rglob("*") if path.is_file())
