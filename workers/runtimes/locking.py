"""Lock files: making one from the catalogue's requirements, and reading the versions back.

On the straight line this stands before everything: maintainers run it when the catalogue changes. A lock names
versions and hashes and no host, so that it serves whatever index a user's pip is configured for.
"""

from __future__ import annotations

import re
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from packaging.utils import canonicalize_name

from service.catalog import RuntimeSpec
from service.config import Settings
from workers.runtimes import RuntimeBuildError
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


def lock(runtime: RuntimeSpec, settings: Settings, *, upgrade: bool = False) -> Locked:
    """Write the runtime's lock anew. Versions already in it are kept where they still fit, unless ``upgrade``."""
    uv = Uv(settings)
    with tempfile.TemporaryDirectory(prefix="gradmatrix-lock-") as name:
        folder = Path(name)
        wanted, left_out, result = folder / "wanted.txt", folder / "left-out.txt", folder / "lock.txt"
        wanted.write_text("".join(f"{line}\n" for line in runtime.requirements), "utf-8")
        # An override that holds nowhere is how a dependency is left out.
        left_out.write_text("".join(f"{line}; sys_platform == 'never'\n" for line in runtime.without), "utf-8")
        if runtime.lock.exists() and not upgrade:
            result.write_bytes(runtime.lock.read_bytes())
        common = ["pip", "compile", "--quiet", "--no-header", "--no-annotate", "--only-binary", ":all:"]
        common += ["--python-version", runtime.python, "--python-platform", _PLATFORM, *uv.index_arguments()]
        what = f"locking {runtime.name}"
        uv.run(what, [*common, "--generate-hashes", "--override", str(left_out), str(wanted), "-o", str(result)])
        sizes = folder / "pylock.toml"
        uv.run(what, [*common, "--no-deps", "--format", "pylock.toml", str(result), "-o", str(sizes)])
        text = _header(runtime) + result.read_text("utf-8")
        if _HOST.search(text):
            raise RuntimeBuildError(f"{what}: the lock came out with an address in it; it was not written")
        _replace(runtime.lock, text)
        return Locked(runtime.lock, len(locked_versions(runtime.lock)), _download_bytes(sizes))


def locked_versions(path: Path) -> dict[str, str]:
    """Every package in a lock, by its normalised name."""
    return {str(canonicalize_name(name)): version for name, version in _PIN.findall(path.read_text("utf-8"))}


def _header(runtime: RuntimeSpec) -> str:
    return (
        f"# torch {runtime.torch}, variant {runtime.variant}, Python {runtime.python}, Linux on x86-64.\n"
        "# Made by `gradmatrix runtimes lock` from images/catalog.toml; do not edit.\n"
    )


def _replace(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".part")
    temporary.write_text(text, "utf-8")
    temporary.replace(path)


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
