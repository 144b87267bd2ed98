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
SPECS = catalog.load(Settings(home=Path("/nonexistent/home"))).runtimes
TORCHES = [
    "2.2.2",
    "2.3.1",
    "2.4.1",
    "2.5.1",
    "2.6.0",
    "2.7.1",
    "2.8.0",
    "2.9.1",
    "2.10.0",
    "2.11.0",
    "2.12.1",
    "2.13.0",
    "2.14.1",
    "2.15.0",
]
LOCKED = [spec for spec in SPECS if catalog.lock_beside(IMAGES / "catalog.toml", spec.name).exists()]
LOCKS = [*sorted((IMAGES / "locks").iterdir()), *sorted((ROOT / "requirements").iterdir())]
PIN = re.compile(r"^([a-z0-9][a-z0-9.-]*)==(\S+)( ; .*)? \\$")


def pins(lock: Path) -> dict[str, str]:
    found = (PIN.match(line) for line in lock.read_text("utf-8").splitlines())
    return {match[1]: match[2] for match in found if match}


@pytest.fixture
def copy(tmp_path: Path) -> Settings:
    """The real catalogue somewhere else, to be changed."""
    shutil.copytree(IMAGES, tmp_path / "images")
    return Settings(home=tmp_path / "home", catalog=tmp_path / "images" / "catalog.toml")


def change(settings: Settings, old: str, new: str) -> None:
    text = settings.catalog.read_text("utf-8")
    assert old in text
    settings.catalog.write_text(text.replace(old, new, 1), "utf-8")


def test_the_runtimes_there_are() -> None:
    assert [spec.name for spec in SPECS] == [
        f"{torch}-{kind}" for torch in TORCHES for kind in ("index", "gpu", "cpu", "cuda")
    ]
    assert {spec.python for spec in SPECS} == {"3.11"}, "torch is the only axis"
    assert {spec.channel for spec in SPECS} == {"release"}
    pinned = {f"{torch}-{kind}" for torch in TORCHES for kind in ("index", "gpu")}
    assert {spec.name for spec in LOCKED} == pinned | {"2.13.0-cpu"}
    assert len({spec.digest for spec in LOCKED}) == len(LOCKED)


def test_identities_that_results_are_stored_under() -> None:
    """A change of these makes every stored result of theirs one of a runtime that is no more."""
    begun = {"2.2.2-index": "0cf02e0f34aa", "2.11.0-index": "066129b26a91", "2.13.0-cpu": "16a1f2d6a139"}
    assert {spec.name: spec.digest[:12] for spec in SPECS if spec.name in begun} == begun


@pytest.mark.parametrize("spec", LOCKED, ids=lambda spec: spec.name)
def test_a_lock_holds_what_the_catalogue_asks_for(spec: RuntimeSpec) -> None:
    locked = pins(spec.lock)
    for requirement in map(Requirement, spec.requirements):
        assert requirement.specifier.contains(locked[str(canonicalize_name(requirement.name))], prereleases=True)
    assert not set(spec.without) & set(locked)
    assert locked["torch"] == {"cpu": f"{spec.torch}+cpu"}.get(spec.variant, spec.torch)


@pytest.mark.parametrize("torch", TORCHES)
def test_on_gpus_a_version_is_what_it_is_on_the_cpu_and_its_triton(torch: str) -> None:
    locks = {spec.variant: spec.lock.read_text("utf-8") for spec in LOCKED if spec.torch == torch}
    index, gpu = (set(re.split(r"\n(?=[a-z0-9])", locks[kind])[1:]) for kind in ("index", "gpu"))
    assert [block.partition("==")[0] for block in gpu - index] == ["triton"]
    assert not index - gpu


CUDA = re.compile(r"^nvidia-cuda-runtime(?:-cu12)?==(\d+)\.(\d+)\.", re.MULTILINE)


@pytest.mark.parametrize("torch", TORCHES)
def test_the_cuda_build_is_of_the_cuda_that_the_indexs_own_build_has(torch: str) -> None:
    by_name = {spec.name: spec for spec in SPECS}
    found = CUDA.search(by_name[f"{torch}-index"].lock.read_text("utf-8"))
    assert found
    cuda, cpu = by_name[f"{torch}-cuda"], by_name[f"{torch}-cpu"]
    assert cuda.requirements[0] == f"torch==={torch}+cu{found[1]}{found[2]}"
    assert cpu.requirements[0] == f"torch==={torch}+cpu"
    assert [spec.without for spec in (cuda, cpu)] == [(), ("triton",)], "triton is for GPUs"


def test_torch_is_the_only_axis_in_the_locks() -> None:
    """Where torch does not ask for it itself, a package has one version everywhere; numpy is held back on purpose."""
    asked = {Requirement(text).name for text in SPECS[0].requirements} - {"torch", "numpy"}
    versions = {name: {pins(spec.lock)[name] for spec in LOCKED} for name in asked}
    assert {name: found for name, found in versions.items() if len(found) > 1} == {}


def test_numpy_is_1_exactly_where_torch_needs_it() -> None:
    assert {spec.torch for spec in SPECS if "numpy<2" in spec.requirements} == {"2.2.2"}
    numpy = {spec.torch: pins(spec.lock)["numpy"] for spec in LOCKED}
    assert {torch for torch, version in numpy.items() if version in SpecifierSet("<2")} == {"2.2.2"}


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: f"{lock.parent.name}/{lock.name}")
def test_locks_hash_everything_and_name_no_place(lock: Path) -> None:
    lines = [line for line in lock.read_text("utf-8").splitlines() if not line.startswith("#")]
    assert len(lines) > (50 if lock.name != "build.txt" else 10)
    for before, line in zip(["", *lines], lines, strict=False):
        if PIN.match(line):
            assert before == "" or (before.startswith("    --hash=") and not before.endswith("\\")), line
        else:
            assert re.fullmatch(r"    --hash=sha256:[0-9a-f]{64}( \\)?", line), line
            assert before.endswith("\\")


def test_one_version_of_a_package_has_the_same_hashes_in_every_lock() -> None:
    """An index that has only some of a version's files would leave the others' hashes out."""
    seen: dict[tuple[str, str], set[frozenset[str]]] = {}
    for spec in LOCKED:
        text = spec.lock.read_text("utf-8")
        for name, version in pins(spec.lock).items():
            block = re.search(
                rf"^{re.escape(name)}=={re.escape(version)} \\\n((?:    --hash=\S+(?: \\)?\n)+)", text, re.M
            )
            assert block
            seen.setdefault((name, version), set()).add(frozenset(re.findall(r"[0-9a-f]{64}", block[1])))
    assert {pin: found for pin, found in seen.items() if len(found) > 1} == {}


def test_requirements_hold_what_the_project_declares() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    main = [Requirement(text) for text in project["project"]["dependencies"]]
    groups = project["dependency-groups"]
    build, dev = ([Requirement(text) for text in groups[name] if isinstance(text, str)] for name in ("build", "dev"))
    assert {"include-group": "build"} in groups["dev"]
    for name, wanted in {"main.txt": main, "build.txt": build, "dev.txt": main + build + dev}.items():
        locked = pins(ROOT / "requirements" / name)
        for requirement in wanted:
            version = locked[str(canonicalize_name(requirement.name))]
            assert requirement.specifier.contains(version, prereleases=True), f"{name}: {requirement}"


def select(*texts: str, variant: str = "index") -> list[str]:
    return [spec.name for spec in Catalog(SPECS, variant).select(texts)]


INDEX = [f"{torch}-index" for torch in TORCHES]


def test_a_bare_version_means_the_configured_variant() -> None:
    assert select("2.11.0", " 2.2.2 ") == ["2.11.0-index", "2.2.2-index"]
    assert select("2.13.0", variant="cpu") == ["2.13.0-cpu"]
    assert select("2.13.0-cpu", "2.11.0-index", "2.11.0") == ["2.13.0-cpu", "2.11.0-index"]
    assert [spec.name for spec in Catalog(SPECS, "index").bare()] == INDEX


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("2.11", ["2.11.0-index"]),
        ("2.2", ["2.2.2-index"]),
        ("2.2-cuda", ["2.2.2-cuda"]),
        ("latest", ["2.15.0-index"]),
        ("latest-cpu", ["2.15.0-cpu"]),
        ("all", INDEX),
        ("all-cpu", [f"{torch}-cpu" for torch in TORCHES]),
        ("2.2..2.11", INDEX[:10]),
        ("2.9..2.10", INDEX[7:9]),
        ("2.2.2..2.3.0", INDEX[:1]),
        ("2.2.3..2.3", INDEX[1:2]),
        ("2.14..3", INDEX[12:]),
        ("2.14..2.14", INDEX[12:13]),
        ("2.13.0..2.13", INDEX[11:12]),
        ("2.3..2.4-cuda", ["2.3.1-cuda", "2.4.1-cuda"]),
    ],
)
def test_one_text_may_name_several(text: str, names: list[str]) -> None:
    assert select(text) == names


def test_each_runtime_comes_once_where_it_is_named_first() -> None:
    assert select("2.11", "2.10..2.12", "latest", "all")[:4] == [
        "2.11.0-index",
        "2.10.0-index",
        "2.12.1-index",
        "2.15.0-index",
    ]
    assert len(select("all", "all", "2.2..2.15")) == 14


def some(*names: str) -> tuple[RuntimeSpec, ...]:
    """Runtimes of these names, in this order."""
    parts = [(name, *name.rsplit("-", 1)) for name in names]
    return tuple(dataclasses.replace(SPECS[0], name=name, torch=torch, variant=kind) for name, torch, kind in parts)


def test_versions_are_compared_as_numbers_and_not_as_text() -> None:
    known = Catalog(some("2.10.0-index", "2.9.1-index", "2.9.10-index", "2.9.2-index"), "index")
    assert [spec.name for spec in known.select(["latest", "2.9"])] == ["2.10.0-index", "2.9.10-index"]
    assert [spec.torch for spec in known.select(["2.9..2.10"])] == ["2.10.0", "2.9.1", "2.9.10", "2.9.2"]


def test_a_bare_version_means_the_only_variant_where_there_is_one() -> None:
    known = Catalog(some("2.11.0-index", "2.12.0-index", "2.12.0-cpu", "2.13.0-cpu"), "index")
    assert [spec.name for spec in known.select(["2.13.0"])] == ["2.13.0-cpu"]
    assert [spec.name for spec in known.select(["all"])] == ["2.11.0-index", "2.12.0-index", "2.13.0-cpu"]
    assert [spec.name for spec in known.select(["2.12..2.13"])] == ["2.12.0-index", "2.13.0-cpu"]
    assert [spec.name for spec in known.select(["latest"])] == ["2.12.0-index"], "the configured variant has one"
    assert [spec.name for spec in Catalog(some("2.13.0-cpu"), "index").select(["latest"])] == ["2.13.0-cpu"]


def test_of_several_variants_none_of_which_is_configured_one_must_be_named() -> None:
    two = some("2.13.0-cpu", "2.13.0-cuda")
    for text in ("2.13.0", "2.13..2.14", "latest", "2.13"):
        with pytest.raises(UnknownRuntimeError, match=r"as variant 'index'.* in full: 2\.13\.0-cpu or 2\.13\.0-cuda"):
            Catalog(two, "index").select([text])
    with pytest.raises(UnknownRuntimeError, match=r"2\.14\.0 is not .* as variant 'cpu'; .* in full: 2\.14\.0-cuda"):
        Catalog((*two, *some("2.14.0-cuda")), "index").select(["2.14.0-cpu"])
    assert Catalog(two, "index").bare() == ()
    assert Catalog(two, "cuda").bare() == two[1:]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("2.11.1", r"torch 2\.11\.1 is not in the catalogue: did you mean 2\.11\.0\?$"),
        ("2.11.0-indx", r"there is no variant 'indx', did you mean index\?"),
        ("all-gpus", r"there is no variant 'gpus', did you mean gpu"),
        ("2.16", r"catalogue: did you mean 2\.15\.0\?$"),
        ("2.99", r"catalogue: did you mean 2\.15\.0\?$"),
        ("3", r"catalogue: did you mean 2\.15\.0\?$"),
        ("1", r"catalogue: did you mean 2\.2\.2\?$"),
        ("1.13.1", r"catalogue: did you mean 2\.2\.2\?$"),
        ("lates", r"catalogue: did you mean latest\?$"),
        ("2.16..2.20", r"torch 2\.16\.\.2\.20 is not in the catalogue: did you mean 2\.15\.0\?$"),
        ("2.3.5..2.3.9", r"did you mean 2\.3\.1\?$"),
        ("2.12..2.3", r"the range runs backwards: did you mean 2\.3\.\.2\.12\?$"),
        ("2.11.1..2.11.0", r"the range runs backwards"),
        ("2.2..", r"a range is written FIRST\.\.LAST"),
        ("..2.3", r"a range is written FIRST\.\.LAST"),
        ("2.2...2.4", r"a range is written FIRST\.\.LAST"),
        ("2.2-cpu..2.4-cpu", r"a range is written FIRST\.\.LAST"),
        ("2", r"catalogue: known: 2\.2\.2, 2\.3\.1, .*, 2\.15\.0, all, latest$"),
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
    lock = next(spec.lock for spec in moved if spec.name == "2.3.1-index")
    lock.write_text(lock.read_text("utf-8") + "# changed\n", "utf-8")
    changed = catalog.load(copy).runtimes
    assert [a.name for a, b in zip(changed, SPECS, strict=True) if a.digest != b.digest] == ["2.3.1-index"]


def test_identity_holds_the_build_recipe(copy: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "RECIPE", catalog.RECIPE + 1)
    changed = {spec.digest for spec in catalog.load(copy).runtimes if spec.locked}
    assert len(changed) == len(LOCKED)
    assert not changed & {spec.digest for spec in SPECS}


def test_a_missing_lock_is_an_error_except_to_make_it(copy: Settings) -> None:
    lock = catalog.load(copy).runtimes[0].lock
    lock.unlink()
    with pytest.raises(CatalogError, match=r"2\.2\.2-index: cannot read its lock .*2\.2\.2-index\.txt"):
        catalog.load(copy)
    unlocked = catalog.load(copy, locked=False).runtimes[0]
    assert (unlocked.digest, unlocked.locked, unlocked.lock) == ("", False, lock)


def test_what_is_pinned_by_version_only_needs_no_lock(copy: Settings) -> None:
    """It is where it is first used that one is made, in the home folder: this folder may belong to everybody."""
    by_name = {spec.name: spec for spec in catalog.load(copy).runtimes}
    cpu, cuda = by_name["2.5.1-cpu"], by_name["2.5.1-cuda"]
    assert (cpu.digest, cpu.locked, cuda.locked) == ("", False, False)
    assert cpu.lock.parent == cuda.lock.parent == copy.home / "locks"
    assert cpu.lock != cuda.lock
    shutil.copy(by_name["2.13.0-cpu"].lock, catalog.lock_beside(copy.catalog, "2.5.1-cpu"))
    assert {spec.name: spec for spec in catalog.load(copy).runtimes}["2.5.1-cpu"].locked


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('python = "3.11"', 'pyhton = "3.11"', r"pyhton is not known: did you mean python"),
        ("builds.index", "bilds.index", r"runtimes\.0\.bilds is not known: did you mean builds"),
        (
            "download_bytes = 2",
            "downlod_bytes = 2",
            r"runtimes\.0\.builds\.index\.downlod_bytes is not known: .*download",
        ),
        ("builds.index", "builds.indx", r"2\.2\.2-indx: no such variant: did you mean index"),
        ('{ local = "+cu121", ', "{ ", r"2\.2\.2-cuda: its version's end is missing: local = "),
        ('local = "+cu121"', 'local = "cu121"', r"runtimes\.0\.builds\.cuda\.local: "),
        ('pinned = "hash"', 'pinned = "hsh"', r"variants\.index\.pinned: .*'hash' or 'version'"),
        ('torch = "2.3.1"', 'torch = "2.2.2"', r"more than once: 2\.2\.2-index"),
        ('torch = "2.3.1"', 'torch = "two"', r"runtimes\.1\.torch: .*'two'"),
        ('torch = "<2.3"', 'torch = "under 2.3"', r"bounds\.0\.torch: .*under 2\.3"),
        ("download_bytes = 2", "download_bytes = -2", r"runtimes\.0\.builds\.index\.download_bytes: .*greater than 0"),
        ("[variants.cpu]", "[variants.cpu", r"is not TOML"),
    ],
)
def test_mistakes_in_the_catalogue_are_named(copy: Settings, old: str, new: str, said: str) -> None:
    change(copy, old, new)
    with pytest.raises(CatalogError, match=said):
        catalog.load(copy)


def test_an_unknown_variant_or_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match=r"variant 'gpux' is not in .*did you mean gpu"):
        catalog.load(Settings(variant="gpux"))
    with pytest.raises(CatalogError, match=r"cannot read the catalogue .*none\.toml"):
        catalog.load(Settings(catalog=tmp_path / "none.toml"))
