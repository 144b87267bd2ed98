"""Lock files: making one from the catalogue's requirements, and reading the versions back.

On the straight line this stands before planning: what a runtime is, is known once it has a lock. Most locks are made by
maintainers when the catalogue changes; a runtime that is pinned by version only gets its own where it is first used. A
lock names versions and hashes and no host, so that it serves whatever index a user's pip is configured for.
"""

from __future__ import annotations

import os
import re
import tempfile
import tomllib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from service.catalog import RuntimeSpec, relocked
from service.config import Settings
from workers.runtimes import Progress, RuntimeBuildError, SourceUnavailableError
from workers.runtimes.uv import Uv

_PLATFORM = "x86_64-manylinux_2_28"
_PIN = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)==([^\s;\\]+)", re.MULTILINE)
_HOST = re.compile(r"https?://|file:|--index|--find-links|--extra-index")


@dataclass(frozen=True)
class Locked:
    """What a lock came out as; ``download_bytes`` is None where the index states no sizes."""

    path: Path
    packages: int
    download_bytes: int | None


def lock(
    runtime: RuntimeSpec, settings: Settings, *, to: Path | None = None, upgrade: bool = False, replace: bool = True
) -> Locked:
    """Write the runtime's lock anew, or another one at ``to``. Raises RuntimeBuildError; the old lock stays then.

    Versions already in the runtime's lock are kept where they still fit, unless ``upgrade``. With ``replace=False`` a
    lock that somebody else has written meanwhile stays.
    """
    uv, path = Uv(settings), to or runtime.lock
    with tempfile.TemporaryDirectory(prefix="gradmatrix-lock-") as name:
        folder = Path(name)
        wanted, left_out, result = folder / "wanted.txt", folder / "left-out.txt", folder / "lock.txt"
        wanted.write_text("".join(f"{line}\n" for line in runtime.requirements), "utf-8")
        # An override that holds nowhere is how a dependency is left out.
        left_out.write_text("".join(f"{line}; sys_platform == 'never'\n" for line in runtime.without), "utf-8")
        if runtime.lock.exists() and not upgrade:
            result.write_bytes(runtime.lock.read_bytes())
        common, what = _compile(uv, runtime), f"locking {runtime.name}"
        uv.run(what, [*common, "--generate-hashes", "--override", str(left_out), str(wanted), "-o", str(result)])
        sizes = folder / "pylock.toml"
        uv.run(what, [*common, "--no-deps", "--format", "pylock.toml", str(result), "-o", str(sizes)])
        text = _header(runtime) + result.read_text("utf-8")
        if _HOST.search(text):
            raise RuntimeBuildError(f"{what}: the lock came out with an address in it; it was not written")
        _check_torch(runtime, _versions(text))
        _write(path, text, replace=replace)
        return Locked(path, len(locked_versions(path)), _download_bytes(sizes))


def ensure_locked(runtimes: Sequence[RuntimeSpec], settings: Settings, progress: Progress) -> tuple[RuntimeSpec, ...]:
    """The runtimes, every one with a lock: those that are pinned by version only get one, in the home folder.

    Raises SourceUnavailableError where no index that holds such a build can be reached; other locks are kept. Two
    processes at once come out with the same lock.
    """
    return tuple(runtime if runtime.locked else _lock_first(runtime, settings, progress) for runtime in runtimes)


def _lock_first(runtime: RuntimeSpec, settings: Settings, progress: Progress) -> RuntimeSpec:
    progress(f"{runtime.name}: locking, on its first use", 0, None)
    try:
        lock(runtime, settings, replace=False)
    except SourceUnavailableError as error:
        raise SourceUnavailableError(without_source(runtime, error)) from None
    return relocked(runtime, runtime.lock)


def without_source(runtime: RuntimeSpec, error: SourceUnavailableError) -> str:
    """What to do where the index that holds a build cannot be reached."""
    return (
        f"torch {_exact(runtime)}, which runtime {runtime.name} is made of, is not to be had here. An index or a "
        f"find-links folder of pip's configuration must hold that build: add the address that torch's installation "
        f"page gives for it (pip config set global.extra-index-url ADDRESS), or take a runtime of another variant\n"
        f"{error}"
    )


def neighbours(runtime: RuntimeSpec, settings: Settings) -> tuple[str, ...]:
    """The torch versions next to the runtime's that the configured indexes have, its own minor version's first.

    Local parts are left out; empty where the indexes cannot be reached.
    """
    version = runtime.torch
    asked = (f"=={version}.*", "highest"), (f"<{version}", "highest"), (f">{version}", "lowest")
    found = (_resolved(runtime, settings, f"torch{bound}", resolution) for bound, resolution in asked)
    return tuple(dict.fromkeys(version.partition("+")[0] for version in found if version))


def _resolved(runtime: RuntimeSpec, settings: Settings, requirement: str, resolution: str) -> str | None:
    uv = Uv(settings)
    with tempfile.TemporaryDirectory(prefix="gradmatrix-lock-") as name:
        wanted, result = Path(name) / "wanted.txt", Path(name) / "lock.txt"
        wanted.write_text(f"{requirement}\n", "utf-8")
        arguments = [*_compile(uv, runtime), "--no-deps", "--resolution", resolution, str(wanted), "-o", str(result)]
        with suppress(RuntimeBuildError):
            uv.run("looking for torch", arguments, quick=True)
            return locked_versions(result).get("torch")
    return None


def _compile(uv: Uv, runtime: RuntimeSpec) -> list[str]:
    common = ["pip", "compile", "--quiet", "--no-header", "--no-annotate", "--only-binary", ":all:"]
    return [*common, "--python-version", runtime.python, "--python-platform", _PLATFORM, *uv.index_arguments()]


def _check_torch(runtime: RuntimeSpec, versions: dict[str, str]) -> None:
    """Refuse a lock of another build: a version's name may be written in several ways, and the runtime's has one."""
    want = _exact(runtime)
    if versions.get("torch") != want:
        raise RuntimeBuildError(
            f"locking {runtime.name}: asked for torch {want}, the lock came out with {versions.get('torch', 'none')}; "
            f"it was not written"
        )


def _exact(runtime: RuntimeSpec) -> str:
    """The torch version with its local part."""
    return str(Requirement(runtime.requirements[0]).specifier).lstrip("=")


def locked_versions(path: Path) -> dict[str, str]:
    """Every package in a lock, by its normalised name."""
    return _versions(path.read_text("utf-8"))


def exactly(path: Path) -> str:
    """The lock for the installer, with ``===`` for ``==``.

    Where 2.13.0+cpu is there beside 2.13.0, ``==2.13.0`` would mean the former, and the hash is the latter's.
    """
    return _PIN.sub(r"\1===\2", path.read_text("utf-8"))


def _versions(text: str) -> dict[str, str]:
    return {str(canonicalize_name(name)): version for name, version in _PIN.findall(text)}


def _header(runtime: RuntimeSpec) -> str:
    return (
        f"# torch {runtime.torch}, variant {runtime.variant}, Python {runtime.python}, Linux on x86-64.\n"
        "# Made by `gradmatrix runtimes lock` from images/catalog.toml; do not edit.\n"
    )


def _write(path: Path, text: str, *, replace: bool) -> None:
    """Write it whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    number, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    temporary = Path(name)
    try:
        with os.fdopen(number, "w", encoding="utf-8") as file:
            file.write(text)
        temporary.chmod(0o644)
        if replace:
            temporary.replace(path)
        else:
            with suppress(FileExistsError):
                path.hardlink_to(temporary)
    finally:
        temporary.unlink(missing_ok=True)


def _download_bytes(pylock: Path) -> int | None:
    """The wheels' sizes in all, as the index or the find-links folder tells them."""
    data = tomllib.loads(pylock.read_text("utf-8"))
    sizes = [_wheel_bytes(package, pylock.parent) for package in data["packages"]]
    return None if None in sizes else sum(size for size in sizes if size is not None)


def _wheel_bytes(package: dict[str, Any], folder: Path) -> int | None:
    wheels = package.get("wheels") or [package.get("archive") or {}]
    known: list[int] = []
    for wheel in wheels:
        local = urlsplit(wheel.get("url", "")).path if wheel.get("url", "").startswith("file:") else wheel.get("path")
        if "size" in wheel:
            known.append(int(wheel["size"]))
        elif local and (file := folder / unquote(local)).exists():
            known.append(file.stat().st_size)
    return max(known, default=None)
