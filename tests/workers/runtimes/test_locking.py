"""Locks: made from whatever index is configured, and without a trace of it."""

from __future__ import annotations

import dataclasses
import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from service import catalog
from service.catalog import RuntimeSpec
from service.config import Settings
from tests.support.index import StandInIndex
from tests.support.wheels import make_catalog, make_torch, make_wheel
from workers.runtimes import RuntimeBuildError, SourceUnavailableError
from workers.runtimes.locking import ensure_locked, lock, locked_versions, neighbours

ROOT = Path(__file__).resolve().parents[3]
LOCKER = """
import sys
from pathlib import Path
from service import catalog
from service.config import Settings
from workers.runtimes.locking import ensure_locked
settings = Settings(home=Path(sys.argv[1]), catalog=Path(sys.argv[2]), connect_s=3)
spec = catalog.load(settings).runtimes[0]
print("ready", flush=True)
sys.stdin.readline()
print(ensure_locked([spec], settings, lambda what, done, total: None)[0].digest)
"""


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


@pytest.fixture
def unlocked(tmp_path: Path) -> Settings:
    """A catalogue whose runtimes are pinned by version only."""
    path = make_catalog(tmp_path / "images", ["9.9.9"], without=["triton"], pinned="version")
    return Settings(home=tmp_path / "home", catalog=path, connect_s=3)


def test_a_runtime_pinned_by_version_is_locked_on_first_use(
    shelf: Path, unlocked: Settings, only_index: pytest.MonkeyPatch
) -> None:
    only_index.setenv("PIP_NO_INDEX", "1")
    only_index.setenv("PIP_FIND_LINKS", str(shelf))
    before = catalog.load(unlocked).runtimes
    assert [runtime.locked for runtime in before] == [False]
    said: list[str] = []
    (after,) = ensure_locked(before, unlocked, lambda what, done, total: said.append(what))
    assert said == ["9.9.9-index: locking, on its first use"]
    assert after.locked
    assert after.lock.is_relative_to(unlocked.home / "locks")
    assert not (unlocked.catalog.parent / "locks").exists(), "the catalogue's folder is not this machine's to write"
    assert catalog.load(unlocked).runtimes == (after,), "from now on"

    make_wheel(shelf, "extra", "2.0")
    assert ensure_locked([after], unlocked, lambda what, done, total: said.append(what)) == (after,)
    assert said[1:] == [], "once"


def test_its_lock_is_made_anew_where_the_catalogue_asks_for_something_else(
    shelf: Path, unlocked: Settings, only_index: pytest.MonkeyPatch
) -> None:
    only_index.setenv("PIP_NO_INDEX", "1")
    only_index.setenv("PIP_FIND_LINKS", str(shelf))
    ensure_locked(catalog.load(unlocked).runtimes, unlocked, lambda what, done, total: None)
    text = unlocked.catalog.read_text()
    unlocked.catalog.write_text(text.replace('["extra"]', '["extra", "some-dep"]'))
    assert not catalog.load(unlocked).runtimes[0].locked
    unlocked.catalog.write_text(text)
    assert catalog.load(unlocked).runtimes[0].locked


def test_a_lock_beside_the_catalogue_goes_first(
    shelf: Path, unlocked: Settings, only_index: pytest.MonkeyPatch
) -> None:
    only_index.setenv("PIP_NO_INDEX", "1")
    only_index.setenv("PIP_FIND_LINKS", str(shelf))
    (own,) = ensure_locked(catalog.load(unlocked).runtimes, unlocked, lambda what, done, total: None)
    make_wheel(shelf, "extra", "2.0")
    beside = catalog.lock_beside(unlocked.catalog, "9.9.9-index")
    lock(own, unlocked, to=beside)
    assert locked_versions(beside)["extra"] == "1.0", "versions already locked are kept"
    assert catalog.load(unlocked).runtimes == (dataclasses.replace(own, lock=beside),), "and with them the identity"
    lock(own, unlocked, to=beside, upgrade=True)
    assert catalog.load(unlocked).runtimes[0].lock == beside
    assert catalog.load(unlocked).runtimes[0].digest != own.digest


def test_two_processes_at_once_come_out_with_one_lock(
    shelf: Path, unlocked: Settings, only_index: pytest.MonkeyPatch
) -> None:
    only_index.setenv("PIP_NO_INDEX", "1")
    only_index.setenv("PIP_FIND_LINKS", str(shelf))
    command = [sys.executable, "-c", LOCKER, str(unlocked.home), str(unlocked.catalog)]
    processes = [
        subprocess.Popen(command, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(3)
    ]
    for process in processes:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
    said = {process.communicate("go\n", timeout=60)[0] for process in processes}
    assert said == {catalog.load(unlocked).runtimes[0].digest + "\n"}
    assert len(list((unlocked.home / "locks").iterdir())) == 1, "and nothing half-written"


def test_a_lock_written_meanwhile_stays(shelf: Path, unlocked: Settings, only_index: pytest.MonkeyPatch) -> None:
    only_index.setenv("PIP_NO_INDEX", "1")
    only_index.setenv("PIP_FIND_LINKS", str(shelf))
    (stale,) = catalog.load(unlocked).runtimes
    ensure_locked([stale], unlocked, lambda what, done, total: None)
    first = stale.lock.read_bytes()
    stale.lock.write_bytes(first + b"# another process was first\n")
    (late,) = ensure_locked([stale], unlocked, lambda what, done, total: None)
    assert late.lock.read_bytes() == first + b"# another process was first\n"
    assert late == catalog.load(unlocked).runtimes[0]


def test_where_no_index_has_the_build_it_says_which_and_what_to_do(
    shelf: Path, unlocked: Settings, only_index: pytest.MonkeyPatch
) -> None:
    only_index.setenv("PIP_NO_INDEX", "1")
    only_index.setenv("PIP_FIND_LINKS", str(shelf))
    text = unlocked.catalog.read_text()
    unlocked.catalog.write_text(text.replace('local = ""', 'local = "+cpu"'))
    with pytest.raises(SourceUnavailableError) as caught:
        ensure_locked(catalog.load(unlocked).runtimes, unlocked, lambda what, done, total: None)
    said = str(caught.value)
    assert said.startswith("torch 9.9.9+cpu, which runtime 9.9.9-index is made of, is not to be had here. ")
    assert "pip config set global.extra-index-url ADDRESS" in said
    assert not list((unlocked.home).glob("locks/*"))


def test_a_build_with_a_local_part_is_not_taken_for_the_plain_one(
    shelf: Path, settings: Settings, only_index: pytest.MonkeyPatch
) -> None:
    """For ==, 9.9.9+cpu is a 9.9.9 too, and the newer one."""
    only_index.setenv("PIP_NO_INDEX", "1")
    only_index.setenv("PIP_FIND_LINKS", str(shelf))
    make_torch(shelf, "9.9.9+cpu")
    lock(spec(settings), settings)
    assert locked_versions(spec(settings).lock)["torch"] == "9.9.9"


def test_a_lock_of_another_version_than_the_name_says_is_refused(
    shelf: Path, tmp_path: Path, only_index: pytest.MonkeyPatch
) -> None:
    only_index.setenv("PIP_NO_INDEX", "1")
    only_index.setenv("PIP_FIND_LINKS", str(shelf))
    make_torch(shelf, "9.8.0")
    short = Settings(home=tmp_path / "home", catalog=make_catalog(tmp_path / "short", ["9.8"]), connect_s=3)
    with pytest.raises(RuntimeBuildError, match=r"asked for torch 9\.8, the lock came out with 9\.8\.0"):
        lock(spec(short), short)
    assert not spec(short).lock.exists()


def test_a_wheel_without_a_manylinux_tag_is_found(
    shelf: Path, settings: Settings, only_index: pytest.MonkeyPatch
) -> None:
    """The CUDA and CPU builds of older releases are tagged so."""
    only_index.setenv("PIP_NO_INDEX", "1")
    only_index.setenv("PIP_FIND_LINKS", str(shelf))
    wheel = shelf / "torch-9.9.9-py3-none-any.whl"
    wheel.rename(shelf / "torch-9.9.9-cp311-cp311-linux_x86_64.whl")
    lock(spec(settings), settings)
    assert locked_versions(spec(settings).lock)["torch"] == "9.9.9"


def test_the_neighbours_of_a_version_that_the_index_lacks(
    shelf: Path, settings: Settings, only_index: pytest.MonkeyPatch
) -> None:
    for version in ("9.8.0", "9.8.1", "9.9.1+cpu"):
        make_torch(shelf, version)
    missing = dataclasses.replace(spec(settings), torch="9.8.2")
    with StandInIndex(shelf) as index:
        only_index.setenv("PIP_INDEX_URL", index.url)
        assert neighbours(missing, settings) == ("9.8.1", "9.9.1")
        assert neighbours(dataclasses.replace(missing, torch="9.8"), settings) == ("9.8.1",)
        index.fail("torch", "error")
        assert neighbours(dataclasses.replace(missing, torch="9.8.3"), settings) == ()
