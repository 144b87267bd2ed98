"""The catalogue of runtimes, its selection and its locks."""

from __future__ import annotations

import dataclasses
import re
import shutil
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from service import catalog
from service.catalog import Catalog, CatalogError, RuntimeSpec, UnknownRuntimeError
from service.config import Settings
from service.errors import UsageError

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ROOT / "images"
SPECS = catalog.load(Settings()).runtimes
LOCKS = [*sorted((IMAGES / "locks").iterdir()), *sorted((ROOT / "requirements").iterdir())]
PIN = re.compile(r"^([a-z0-9][a-z0-9.-]*)==(\S+)( ; .*)? \\$")


def pins(lock: Path) -> dict[str, str]:
    found = (PIN.match(line) for line in lock.read_text("utf-8").splitlines())
    return {match[1]: match[2] for match in found if match}


@pytest.fixture
def copy(tmp_path: Path) -> Settings:
    """The real catalogue somewhere else, to be changed."""
    shutil.copytree(IMAGES, tmp_path / "images")
    return Settings(catalog=tmp_path / "images" / "catalog.toml")


def change(settings: Settings, old: str, new: str) -> None:
    text = settings.catalog.read_text("utf-8")
    assert old in text
    settings.catalog.write_text(text.replace(old, new, 1), "utf-8")


def test_the_runtimes_there_are() -> None:
    assert [spec.name for spec in SPECS] == ["2.2.2-index", "2.9.1-index", "2.11.0-index", "2.13.0-cpu"]
    assert {spec.python for spec in SPECS} == {"3.11"}, "torch is the only axis"
    assert {spec.channel for spec in SPECS} == {"release"}
    assert len({spec.digest for spec in SPECS}) == len(SPECS)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_a_lock_holds_what_the_catalogue_asks_for(spec: RuntimeSpec) -> None:
    locked = pins(spec.lock)
    for requirement in map(Requirement, spec.requirements):
        assert requirement.specifier.contains(locked[str(canonicalize_name(requirement.name))], prereleases=True)
    assert not set(spec.without) & set(locked)
    assert locked["torch"] == {"index": spec.torch, "cpu": f"{spec.torch}+cpu"}[spec.variant]


def test_numpy_is_1_exactly_where_torch_needs_it() -> None:
    assert [spec.torch for spec in SPECS if "numpy<2" in spec.requirements] == ["2.2.2"]
    numpy = {spec.torch: pins(spec.lock)["numpy"] for spec in SPECS}
    assert {torch for torch, version in numpy.items() if version in SpecifierSet("<2")} == {"2.2.2"}


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: f"{lock.parent.name}/{lock.name}")
def test_locks_hash_everything_and_name_no_place(lock: Path) -> None:
    lines = [line for line in lock.read_text("utf-8").splitlines() if not line.startswith("#")]
    assert len(lines) > 50
    for before, line in zip(["", *lines], lines, strict=False):
        if PIN.match(line):
            assert before == "" or (before.startswith("    --hash=") and not before.endswith("\\")), line
        else:
            assert re.fullmatch(r"    --hash=sha256:[0-9a-f]{64}( \\)?", line), line
            assert before.endswith("\\")


def test_requirements_hold_what_the_project_declares() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    main = [Requirement(text) for text in project["project"]["dependencies"]]
    dev = [Requirement(text) for text in project["dependency-groups"]["dev"]]
    for name, wanted in {"main.txt": main, "dev.txt": main + dev}.items():
        locked = pins(ROOT / "requirements" / name)
        for requirement in wanted:
            version = locked[str(canonicalize_name(requirement.name))]
            assert requirement.specifier.contains(version, prereleases=True), f"{name}: {requirement}"


def select(*texts: str, variant: str = "index") -> list[str]:
    return [spec.name for spec in Catalog(SPECS, variant).select(texts)]


def test_a_bare_version_means_the_configured_variant() -> None:
    assert select("2.11.0", " 2.2.2 ") == ["2.11.0-index", "2.2.2-index"]
    assert select("2.13.0", variant="cpu") == ["2.13.0-cpu"]
    assert select("2.13.0-cpu", "2.11.0-index", "2.11.0") == ["2.13.0-cpu", "2.11.0-index"]


def test_a_bare_version_means_the_only_variant_where_there_is_one() -> None:
    assert select("2.13.0") == ["2.13.0-cpu"]
    assert select("2.11.0", variant="cpu") == ["2.11.0-index"]
    assert [spec.name for spec in Catalog(SPECS, "index").bare()] == [spec.name for spec in SPECS]


def test_of_several_variants_none_of_which_is_configured_one_must_be_named() -> None:
    cpu = SPECS[-1]
    two = (cpu, dataclasses.replace(cpu, name="2.13.0-cuda", variant="cuda"))
    with pytest.raises(UnknownRuntimeError, match=r"as variant 'index'.* in full: 2\.13\.0-cpu or 2\.13\.0-cuda"):
        Catalog(two, "index").select(["2.13.0"])
    assert Catalog(two, "index").bare() == ()
    assert Catalog(two, "cuda").bare() == two[1:]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("2.11.1", r"torch 2\.11\.1 is not in the catalogue: did you mean 2\.11\.0"),
        ("2.11.0-indx", r"did you mean 2\.11\.0-index"),
        ("2.9", r"catalogue: did you mean 2\.9\.1\?$"),
        ("2.13", r"catalogue: did you mean 2\.13\.0\?$"),
        ("2", r"catalogue: known: 2"),
        ("", r"known: "),
    ],
)
def test_an_unknown_version_is_answered_with_the_nearest(text: str, said: str) -> None:
    with pytest.raises(UnknownRuntimeError, match=said) as caught:
        select(text)
    assert isinstance(caught.value, UsageError)


def test_identity_is_content_not_place_or_size(copy: Settings) -> None:
    change(copy, "installed_bytes = 4", "installed_bytes = 5")
    moved = catalog.load(copy).runtimes
    assert [spec.digest for spec in moved] == [spec.digest for spec in SPECS]
    moved[1].lock.write_text(moved[1].lock.read_text("utf-8") + "# changed\n", "utf-8")
    changed = catalog.load(copy).runtimes
    assert [a.digest == b.digest for a, b in zip(changed, SPECS, strict=True)] == [True, False, True, True]


def test_identity_holds_the_build_recipe(copy: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "RECIPE", catalog.RECIPE + 1)
    assert not {spec.digest for spec in catalog.load(copy).runtimes} & {spec.digest for spec in SPECS}


def test_a_missing_lock_is_an_error_except_to_make_it(copy: Settings) -> None:
    lock = catalog.load(copy).runtimes[0].lock
    lock.unlink()
    with pytest.raises(CatalogError, match=r"2\.2\.2-index: cannot read its lock .*2\.2\.2-index\.txt"):
        catalog.load(copy)
    assert catalog.load(copy, locked=False).runtimes[0].digest == ""


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('python = "3.11"', 'pyhton = "3.11"', r"pyhton is not known: did you mean python"),
        ('variant = "index"', 'varient = "index"', r"runtimes\.0\.varient is not known: did you mean variant"),
        ('variant = "index"', 'variant = "indx"', r"2\.2\.2-indx: no such variant: did you mean index"),
        ('torch = "2.9.1"', 'torch = "2.2.2"', r"more than once: 2\.2\.2-index"),
        ('torch = "2.9.1"', 'torch = "two"', r"runtimes\.1\.torch: .*'two'"),
        ('torch = "<2.3"', 'torch = "under 2.3"', r"bounds\.0\.torch: .*under 2\.3"),
        ("download_bytes = 2", "download_bytes = -2", r"runtimes\.0\.download_bytes: .*greater than 0"),
        ("[variants.cpu]", "[variants.cpu", r"is not TOML"),
    ],
)
def test_mistakes_in_the_catalogue_are_named(copy: Settings, old: str, new: str, said: str) -> None:
    change(copy, old, new)
    with pytest.raises(CatalogError, match=said):
        catalog.load(copy)


def test_an_unknown_variant_or_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match=r"variant 'gpu' is not in .*did you mean cpu"):
        catalog.load(Settings(variant="gpu"))
    with pytest.raises(CatalogError, match=r"cannot read the catalogue .*none\.toml"):
        catalog.load(Settings(catalog=tmp_path / "none.toml"))
