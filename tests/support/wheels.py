"""Wheels of a kilobyte and catalogues that lock them, for tests that build runtimes from a stand-in index."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

FAKE_TORCH = {
    "torch/__init__.py": "from torch import version\n__version__ = '{version}'\n",
    "torch/version.py": "git_version = 'feedbeef'\n",
}


def make_wheel(
    folder: Path, name: str, version: str, files: Mapping[str, str] | None = None, needs: Sequence[str] = ()
) -> Path:
    """A pure wheel with the given files, or with one module of the project's name."""
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    content = {
        **(files or {f"{name}.py": f"version = {version!r}\n"}),
        f"{info}/METADATA": metadata + "".join(f"Requires-Dist: {need}\n" for need in needs),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},,\n" for path in [*content, f"{info}/RECORD"])
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for inside, text in {**content, f"{info}/RECORD": record}.items():
            archive.writestr(inside, text)
    return path


def make_torch(folder: Path, version: str, needs: Sequence[str] = ()) -> Path:
    """A wheel that can be imported as torch, and says its version and commit."""
    files = {path: text.replace("{version}", version) for path, text in FAKE_TORCH.items()}
    return make_wheel(folder, "torch", version, files, needs)


def make_lock(path: Path, wheels: Sequence[Path]) -> None:
    """A lock of exactly ``wheels``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = []
    for wheel in wheels:
        name, version = wheel.name.split("-")[:2]
        lines.append(f"{name}=={version} --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}\n")
    path.write_text("".join(lines), "utf-8")


def make_catalog(
    folder: Path, torches: Sequence[str], *, python: str = "3.11", without: Sequence[str] = (), pinned: str = "hash"
) -> Path:
    """A catalogue of these torch versions in variant ``index``, needing ``extra`` beside torch; no locks yet."""
    left_out = ", ".join(f'"{name}"' for name in without)
    text = f'python = "{python}"\nneeds = ["extra"]\n'
    text += f'[variants.index]\nsummary = "for tests"\nlocal = ""\nwithout = [{left_out}]\npinned = "{pinned}"\n'
    for torch in torches:
        text += f'[[runtimes]]\ntorch = "{torch}"\n'
        text += "builds.index = { download_bytes = 4_000_000, installed_bytes = 9_000_000 }\n"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "catalog.toml"
    path.write_text(text, "utf-8")
    return path
