"""A stand-in index with two versions of a tiny torch, and the settings that build runtimes from it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from service import catalog
from service.catalog import RuntimeSpec
from service.config import Settings
from tests.support.index import StandInIndex
from tests.support.wheels import make_catalog, make_lock, make_torch, make_wheel
from workers.runtimes.venv import VenvExecutor


@dataclass
class Bench:
    """Everything a test of the builder needs; ``said`` collects the progress."""

    index: StandInIndex
    settings: Settings
    wheels: dict[str, Path]
    said: list[tuple[str, int, int | None]] = field(default_factory=list)

    def spec(self, name: str = "9.9.9") -> RuntimeSpec:
        return catalog.load(self.settings).select([name])[0]

    @property
    def executor(self) -> VenvExecutor:
        return VenvExecutor(self.settings)

    def progress(self, what: str, done: int, total: int | None) -> None:
        self.said.append((what, done, total))

    def left(self) -> list[str]:
        """What lies among the runtimes, beside the locks."""
        root = self.settings.home / "runtimes"
        return sorted(path.name for path in root.iterdir() if path.name != ".locks") if root.exists() else []

    def fetched(self, name: str) -> int:
        """How often a file of that project was asked for."""
        return sum(path.startswith(f"/files/{name}-") for path in self.index.requests)


@pytest.fixture
def only_index(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """No configuration of pip but what the test sets, and no proxy between us and loopback."""
    for name in [name for name in os.environ if name.startswith("PIP_") or name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    return monkeypatch


@pytest.fixture
def bench(tmp_path: Path, only_index: pytest.MonkeyPatch) -> Iterator[Bench]:
    shelf = tmp_path / "shelf"
    wheels = {
        "torch-9.9.9": make_torch(shelf, "9.9.9"),
        "torch-8.8.8": make_torch(shelf, "8.8.8"),
        "extra": make_wheel(shelf, "extra", "1.0"),
    }
    path = make_catalog(tmp_path / "images", ["9.9.9", "8.8.8"])
    for version in ("9.9.9", "8.8.8"):
        lock = path.parent / "locks" / f"{version}-index.txt"
        make_lock(lock, [wheels[f"torch-{version}"], wheels["extra"]])
    settings = Settings(home=tmp_path / "home", catalog=path, connect_s=3, disk_spare_bytes=2_000_000)
    with StandInIndex(shelf) as index:
        only_index.setenv("PIP_INDEX_URL", index.url)
        yield Bench(index, settings, wheels)
