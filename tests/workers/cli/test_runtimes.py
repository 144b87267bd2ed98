"""The runtimes' commands: what is listed, and adding, locking and building from a stand-in index."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from service import catalog
from service.config import Settings
from tests.support.index import StandInIndex
from tests.support.wheels import make_catalog, make_torch, make_wheel
from tests.workers.cli.conftest import Gradmatrix


@pytest.fixture
def index(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandInIndex]:
    """An index with a tiny torch in three versions, one of which the configured catalogue has, locked by version."""
    for name in [name for name in os.environ if name.startswith("PIP_") or name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    shelf = tmp_path / "shelf"
    for version in ("8.8.8", "9.0.1", "9.9.9"):
        make_torch(shelf, version, needs=["newdep"] if version == "9.0.1" else [])
    make_wheel(shelf, "extra", "1.0")
    make_wheel(shelf, "newdep", "3.0")
    path = make_catalog(tmp_path / "images", ["8.8.8"], pinned="version")
    monkeypatch.setenv("GRADMATRIX_CATALOG", str(path))
    monkeypatch.setenv("GRADMATRIX_DISK_SPARE_BYTES", "0")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    with StandInIndex(shelf) as served:
        monkeypatch.setenv("PIP_INDEX_URL", served.url)
        yield served


def rows(out: str) -> dict[str, str]:
    """Per runtime of the list what its line says, without the sizes."""
    table = [line.split("  ") for line in out.splitlines() if "-" in line.split(" ")[0]]
    return {line[0].strip(): [part.strip() for part in line if part.strip()][2] for line in table}


def test_the_list_shows_the_configured_variant(gradmatrix: Gradmatrix, home: Path) -> None:
    status, out, _ = gradmatrix("runtimes", "list")
    known = catalog.load(Settings(home=home))
    assert status == 0
    assert rows(out) == {spec.name: "not built" for spec in known.bare()}
    assert "not shown: 14 of variant gpu, 14 of variant cpu, 14 of variant cuda (--all shows them)" in out


def test_the_list_of_all_says_what_is_not_locked(gradmatrix: Gradmatrix, home: Path) -> None:
    _, out, _ = gradmatrix("runtimes", "list", "--all")
    known = catalog.load(Settings(home=home)).runtimes
    assert list(rows(out)) == [spec.name for spec in known]
    unlocked = {name for name, state in rows(out).items() if state == "not locked"}
    assert unlocked == {spec.name for spec in known if spec.variant not in ("index", "gpu")} - {"2.13.0-cpu"}
    assert "not shown" not in out
    _, out, _ = gradmatrix("runtimes", "list", "--json")
    listed = {entry["name"]: entry["locked"] for entry in json.loads(out)["runtimes"]}
    assert {name for name, locked in listed.items() if not locked} == unlocked


def test_another_variant_is_shown_once_it_is_built(
    gradmatrix: Gradmatrix, index: StandInIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Settings(catalog=os.environ["GRADMATRIX_CATALOG"]).catalog
    path.write_text(path.read_text() + '\n[variants.other]\nsummary = "x"\nlocal = ""\nwithout = []\n')
    assert gradmatrix("runtimes", "build", "8.8.8")[0] == 0
    monkeypatch.setenv("GRADMATRIX_VARIANT", "other")
    path.write_text(
        path.read_text().replace(
            "builds.index", "builds.other = { download_bytes = 1, installed_bytes = 1 }\nbuilds.index"
        )
    )
    path.with_name("locks").mkdir()
    catalog.lock_beside(path, "8.8.8-other").write_text("# none\n")
    _, out, _ = gradmatrix("runtimes", "list")
    assert rows(out) == {"8.8.8-other": "not built", "8.8.8-index": "built"}


def test_building_locks_first_what_is_pinned_by_version(
    gradmatrix: Gradmatrix, index: StandInIndex, home: Path
) -> None:
    status, _, err = gradmatrix("runtimes", "build", "8.8")
    assert status == 0, err
    assert "locks: 1 runtime locked on first use" in err
    assert [path.name.rpartition("-")[0] for path in (home / "locks").iterdir()] == ["8.8.8-index"]
    status, out, _ = gradmatrix("runtimes", "check")
    assert (status, out[:28]) == (0, "ok    8.8.8-index: torch 8.8")
    _, _, err = gradmatrix("runtimes", "build", "8.8")
    assert "locks" not in err


def test_a_range_removes_what_is_built_of_it_and_no_name_builds_nothing(
    gradmatrix: Gradmatrix, index: StandInIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_catalog(tmp_path / "three", ["8.8.8", "9.0.1", "9.9.9"], pinned="version")
    monkeypatch.setenv("GRADMATRIX_CATALOG", str(path))
    status, _, err = gradmatrix("runtimes", "build")
    assert (status, "name the runtimes to build" in err) == (2, True)
    assert gradmatrix("runtimes", "build", "8.8", "9.9")[0] == 0
    status, out, err = gradmatrix("runtimes", "remove", "8.8..9.0")
    assert (status, out.splitlines()[-1].partition(",")[0]) == (0, "1 runtime removed"), err
    assert "removed 8.8.8-index-" in out
    status, _, err = gradmatrix("runtimes", "remove", "9.0")
    assert (status, "runtime 9.0.1-index is not built" in err) == (2, True)


def test_locks_are_written_beside_the_catalogue(gradmatrix: Gradmatrix, index: StandInIndex, tmp_path: Path) -> None:
    status, out, _ = gradmatrix("runtimes", "lock")
    assert (status, out) == (0, ""), "what is pinned by version is locked only by name"
    status, out, _ = gradmatrix("runtimes", "lock", "8.8.8")
    assert out.startswith("8.8.8-index: 2 packages, size unknown: ")
    assert [path.name for path in (tmp_path / "images" / "locks").iterdir()] == ["8.8.8-index.txt"]
    _, out, _ = gradmatrix("runtimes", "lock")
    assert out.startswith("8.8.8-index: 2 packages")


def test_adding_a_version_shows_what_changed(gradmatrix: Gradmatrix, index: StandInIndex, tmp_path: Path) -> None:
    assert gradmatrix("runtimes", "lock", "8.8.8")[0] == 0
    status, out, err = gradmatrix("runtimes", "add", "9.0.1")
    assert status == 0, err
    images = tmp_path / "images"
    lines = out.splitlines()
    assert lines[:2] == [f"--- {images / 'catalog.toml'}", f"+++ {images / 'catalog.toml'} with it"]
    assert '+torch = "9.0.1"' in lines
    assert lines[-5:] == [
        "packages, 8.8.8-index -> 9.0.1-index:",
        "  torch 8.8.8 -> 9.0.1",
        "  newdep 3.0 added",
        "  1 other the same",
        f"lock: {images / 'locks' / '9.0.1-index.txt'}",
    ]
    for step in ("resolving and locking", "asking the package index", "checking", "built and checked, "):
        assert f"9.0.1-index: {step}" in err
    assert rows(gradmatrix("runtimes", "list")[1]) == {"8.8.8-index": "not built", "9.0.1-index": "built"}

    status, _, err = gradmatrix("runtimes", "add", "9.0.1")
    assert status == 2
    assert "torch 9.0.1 is in " in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("9.0.2",),
            "no index or find-links folder of pip's configuration has torch 9.0.2: nearest there: 9.0.1, 9.9.9",
        ),
        (("9.0.1", "--variant", "indx"), "there is no variant 'indx'"),
    ],
)
def test_what_cannot_be_added_changes_nothing(
    gradmatrix: Gradmatrix, index: StandInIndex, tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    before = (tmp_path / "images" / "catalog.toml").read_bytes()
    status, out, err = gradmatrix("runtimes", "add", *words)
    assert (status, out) == (2, "")
    assert said in err
    assert [path.name for path in (tmp_path / "images").iterdir()] == ["catalog.toml"]
    assert (tmp_path / "images" / "catalog.toml").read_bytes() == before
