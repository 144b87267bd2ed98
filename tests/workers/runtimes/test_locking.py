"""Locks: made from whatever index is configured, and without a trace of it."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from service import catalog
from service.catalog import RuntimeSpec
from service.config import Settings
from tests.support.index import StandInIndex
from tests.support.wheels import make_catalog, make_torch, make_wheel
from workers.runtimes import SourceUnavailableError
from workers.runtimes.locking import lock, locked_versions


@pytest.fixture
def shelf(tmp_path: Path) -> Path:
    folder = tmp_path / "shelf"
    make_torch(folder, "9.9.9", needs=["triton", "Some.Dep>=1"])
    for name, version in (("triton", "3.0"), ("extra", "1.0"), ("some_dep", "1.0")):
        make_wheel(folder, name, version)
    return folder


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    path = make_catalog(tmp_path / "images", ["9.9.9"], without=["triton"])
    return Settings(home=tmp_path / "home", catalog=path, connect_s=3)


def spec(settings: Settings) -> RuntimeSpec:
    return catalog.load(settings, locked=False).runtimes[0]


def test_a_lock_names_versions_and_hashes_and_no_place(
    shelf: Path, settings: Settings, only_index: pytest.MonkeyPatch
) -> None:
    with StandInIndex(shelf) as index:
        only_index.setenv("PIP_INDEX_URL", index.url)
        locked = lock(spec(settings), settings)
    assert locked.path == spec(settings).lock
    assert locked.packages == 3
    assert locked.download_bytes is None, "an index of plain pages states no sizes"
    assert locked_versions(locked.path) == {"extra": "1.0", "some-dep": "1.0", "torch": "9.9.9"}
    text = locked.path.read_text()
    wheels = [wheel for wheel in shelf.iterdir() if not wheel.name.startswith("triton")]
    assert all(f"--hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}" in text for wheel in wheels)
    assert "127.0.0.1" not in text
    assert str(shelf.parent) not in text
    assert spec(settings).digest


def test_sizes_come_from_a_find_links_folder(shelf: Path, settings: Settings, only_index: pytest.MonkeyPatch) -> None:
    only_index.setenv("PIP_NO_INDEX", "1")
    only_index.setenv("PIP_FIND_LINKS", str(shelf))
    locked = lock(spec(settings), settings)
    wheels = [wheel for wheel in shelf.iterdir() if not wheel.name.startswith("triton")]
    assert locked.download_bytes == sum(wheel.stat().st_size for wheel in wheels)


def test_versions_stay_unless_told_otherwise(shelf: Path, settings: Settings, only_index: pytest.MonkeyPatch) -> None:
    only_index.setenv("PIP_NO_INDEX", "1")
    only_index.setenv("PIP_FIND_LINKS", str(shelf))
    lock(spec(settings), settings)
    first = spec(settings).digest
    make_wheel(shelf, "extra", "2.0")
    lock(spec(settings), settings)
    assert spec(settings).digest == first
    lock(spec(settings), settings, upgrade=True)
    assert locked_versions(spec(settings).lock)["extra"] == "2.0"
    assert spec(settings).digest != first


def test_what_cannot_be_had_leaves_the_old_lock(
    shelf: Path, settings: Settings, only_index: pytest.MonkeyPatch
) -> None:
    only_index.setenv("PIP_NO_INDEX", "1")
    only_index.setenv("PIP_FIND_LINKS", str(shelf))
    lock(spec(settings), settings)
    before = spec(settings).lock.read_bytes()
    (shelf / "torch-9.9.9-py3-none-any.whl").unlink()
    with pytest.raises(SourceUnavailableError, match=r"(?s)locking 9\.9\.9-index failed.*torch"):
        lock(spec(settings), settings)
    assert [path.name for path in spec(settings).lock.parent.iterdir()] == ["9.9.9-index.txt"]
    assert spec(settings).lock.read_bytes() == before
