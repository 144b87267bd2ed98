"""Adding a torch version: the whole way from a stand-in index, and nothing changed where a step fails."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from service import catalog
from service.config import Settings
from service.errors import UsageError
from tests.support.wheels import FAKE_TORCH, make_catalog, make_torch, make_wheel
from tests.workers.runtimes.conftest import Bench
from workers.runtimes import disk
from workers.runtimes.adding import Added, AddingError, Change, add
from workers.runtimes.locking import locked_versions


@pytest.fixture
def shelf(bench: Bench) -> Path:
    """The index's folder, with a torch between the two that the catalogue has; it needs one more package."""
    make_catalog(bench.settings.catalog.parent, ["8.8.8", "9.9.9"])
    make_torch(bench.index.folder, "9.0.1", needs=["newdep"])
    make_wheel(bench.index.folder, "newdep", "3.0")
    return bench.index.folder


def added(bench: Bench, version: str, variant: str = "index") -> Added:
    return add(version, variant, bench.settings, bench.progress)


def state(settings: Settings) -> dict[str, bytes]:
    """Every file of the catalogue's folder."""
    folder = settings.catalog.parent
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refused(bench: Bench, version: str, variant: str = "index", *, error: type[Exception]) -> str:
    """The error's text, after a look that nothing was left behind."""
    before, built = state(bench.settings), bench.left()
    with pytest.raises(error) as caught:
        added(bench, version, variant)
    assert state(bench.settings) == before
    assert bench.left() == built
    return str(caught.value)


def test_a_version_is_locked_built_checked_and_written(bench: Bench, shelf: Path) -> None:
    text = bench.settings.catalog.read_text()
    assert text.count('torch = "9.9.9"') == 1
    bench.settings.catalog.write_text(text.replace('torch = "9.9.9"', 'torch = "9.9.9" # kept'))
    outcome = added(bench, "9.0.1")

    spec = bench.spec("9.0.1")
    assert outcome.runtime == spec
    assert spec.lock == bench.settings.catalog.parent / "locks" / "9.0.1-index.txt"
    assert locked_versions(spec.lock) == {"torch": "9.0.1", "extra": "1.0", "newdep": "3.0"}
    assert bench.executor.ready(spec)
    assert bench.executor.check(spec).problems == ()
    used = disk.used(bench.executor.folder(spec))
    assert used <= spec.installed_bytes < used * 1.01
    assert [runtime.torch for runtime in catalog.load(bench.settings).runtimes] == ["8.8.8", "9.0.1", "9.9.9"]
    assert 'torch = "9.9.9" # kept' in bench.settings.catalog.read_text()

    assert outcome.older == "8.8.8-index"
    assert outcome.changes == (Change("torch", "8.8.8", "9.0.1"), Change("newdep", None, "3.0"))
    assert outcome.same == 1
    changed = [line for line in outcome.diff.splitlines() if line.startswith(("+", "-"))]
    assert sorted(changed[2:]) == [
        "+",
        "+[[runtimes]]",
        f"+builds.index = {{ download_bytes = {spec.download_bytes:_}, installed_bytes = {spec.installed_bytes:_} }}",
        '+torch = "9.0.1"',
    ]
    said = [what for what, _, _ in bench.said]
    assert said[0] == "9.0.1-index: resolving and locking"
    assert said[-1] == "9.0.1-index: checking"


def test_the_newest_goes_to_the_end(bench: Bench, shelf: Path) -> None:
    make_torch(shelf, "10.0.0")
    outcome = added(bench, "10.0.0")
    assert [runtime.torch for runtime in catalog.load(bench.settings).runtimes] == ["8.8.8", "9.9.9", "10.0.0"]
    assert outcome.older == "9.9.9-index"


def test_the_first_of_a_variant_has_nothing_to_be_compared_with(bench: Bench, shelf: Path) -> None:
    """Its end is part of the request, because this variant's differs from release to release."""
    wide = '\n[variants.cuda]\nsummary = "for GPUs"\nwithout = []\npinned = "version"\n'
    bench.settings.catalog.write_text(bench.settings.catalog.read_text() + wide)
    make_torch(shelf, "8.8.8+cu999")
    said = refused(bench, "8.8.8", "cuda", error=UsageError)
    assert "write the version with its end, such as 8.8.8+cu130" in said
    outcome = added(bench, "8.8.8+cu999", "cuda")
    assert (outcome.runtime.name, outcome.older, outcome.changes) == ("8.8.8-cuda", None, ())
    assert locked_versions(outcome.runtime.lock)["torch"] == "8.8.8+cu999"
    row = next(line for line in outcome.diff.splitlines() if line.startswith("+builds"))
    assert row.startswith('+builds.cuda = { local = "+cu999", download_bytes = ')
    names = [runtime.name for runtime in catalog.load(bench.settings).runtimes]
    assert names == ["8.8.8-index", "8.8.8-cuda", "9.9.9-index"]
    assert bench.executor.check(outcome.runtime).torch == "8.8.8+cu999"


@pytest.mark.parametrize(
    ("version", "variant", "said"),
    [
        ("9.9.9", "index", r"torch 9.9.9 is in .*catalog.toml already, as 9.9.9-index; .*runtimes lock 9.9.9-index"),
        ("9.0.1", "indx", r"there is no variant 'indx' in .*: did you mean index"),
        ("nine", "index", r"'nine' is no version"),
        ("9.0", "index", r"'9.0' is not one exact version"),
        ("9.0.1+cpu", "index", r"9.0.1+cpu is no build of variant 'index': there it is 9.0.1"),
        ("9.0.7", "index", r"has torch 9.0.7: nearest there: 9.0.1, 9.9.9"),
        ("7.0.0", "index", r"has torch 7.0.0: nearest there: 8.8.8"),
    ],
)
def test_what_cannot_be_asked_for_is_said(bench: Bench, shelf: Path, version: str, variant: str, said: str) -> None:
    text = refused(bench, version, variant, error=UsageError)
    assert re.search(re.sub(r"(?<!\.)\.(?!\*)|\+", lambda match: "\\" + match[0], said), text), text


def test_an_index_that_is_not_there_is_said_with_the_step(bench: Bench, shelf: Path) -> None:
    bench.index.fail("torch", "error")
    text = refused(bench, "9.0.1", error=AddingError)
    assert "9.0.1-index was not added, and catalogue and locks are as they were: resolving and locking failed" in text
    assert bench.index.url in text


def test_what_cannot_be_downloaded_changes_nothing(bench: Bench, shelf: Path) -> None:
    bench.index.fail("torch-9.0.1-py3-none-any.whl", "wrong-hash")
    assert "building failed" in refused(bench, "9.0.1", error=AddingError)


def test_too_little_disk_changes_nothing(bench: Bench, shelf: Path) -> None:
    settings = bench.settings.model_copy(update={"disk_spare_bytes": 10**18})
    bench.settings = settings
    text = refused(bench, "9.0.1", error=AddingError)
    assert "building failed\nruntime 9.0.1-index needs 9.0 MB of disk" in text


def test_a_torch_that_cannot_be_imported_changes_nothing(bench: Bench, shelf: Path) -> None:
    files = dict.fromkeys(FAKE_TORCH, "raise ImportError('broken')\n")
    make_wheel(shelf, "torch", "9.0.1", files)
    text = refused(bench, "9.0.1", error=AddingError)
    assert "checking what was built failed" in text
    assert "broken" in text


def test_what_is_not_as_locked_changes_nothing(bench: Bench, shelf: Path) -> None:
    """The wheel brings the metadata of a package that nobody asked for."""
    files = {path: text.replace("{version}", "9.0.1") for path, text in FAKE_TORCH.items()}
    files["stray-2.0.egg-info/PKG-INFO"] = "Metadata-Version: 2.1\nName: stray\nVersion: 2.0\n"
    make_wheel(shelf, "torch", "9.0.1", files)
    text = refused(bench, "9.0.1", error=AddingError)
    assert "checking what was built failed\nstray 2.0 is installed and not locked" in text


def test_a_catalogue_that_cannot_be_written_is_said_at_first(
    bench: Bench, shelf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    text = refused(bench, "9.0.1", error=UsageError)
    assert f"{bench.settings.catalog.parent} cannot be written" in text
    assert bench.index.requests == []


def test_a_layout_that_a_line_does_not_fit_into_is_left_alone(bench: Bench, shelf: Path) -> None:
    text = bench.settings.catalog.read_text()
    head, _, tables = text.partition("[[runtimes]]")
    rows = ("[[runtimes]]" + tables).replace("[[runtimes]]\n", "{ ").replace('"\n', '", ').replace("}\n", "} },\n")
    rows = rows.replace("builds.index = {", "builds = { index = {").replace("} },", "} } },")
    bench.settings.catalog.write_text(f"runtimes = [\n{rows}]\n{head}")
    assert len(catalog.load(bench.settings).runtimes) == 2, "it is a catalogue all the same"
    text = refused(bench, "9.0.1", error=AddingError)
    assert "writing the entry failed" in text
    assert "as that file is laid out" in text


def test_a_failure_while_writing_is_undone(bench: Bench, shelf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The entry is written and cannot be read back: entry and lock are taken away again, and the build too."""
    right = catalog.load
    calls = 0

    def load(settings: Settings, *, locked: bool = True) -> catalog.Catalog:
        nonlocal calls
        calls += bench.settings.catalog == settings.catalog and b"9.0.1" in bench.settings.catalog.read_bytes()
        if calls == 1:
            calls += 1
            raise catalog.CatalogError("torn")
        return right(settings, locked=locked)

    monkeypatch.setattr(catalog, "load", load)
    text = refused(bench, "9.0.1", error=AddingError)
    assert "writing catalogue and lock failed\ntorn" in text
    assert calls == 2, "it had been written"
