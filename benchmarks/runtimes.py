"""Building runtimes from nothing against `uv pip install` of the same locks one after the other.

    python -m benchmarks.runtimes [2.2..2.11 ...] [--at-once 2] [--folder DIR] [--json FILE]

Each begins with an empty package cache in a folder of its own, which is removed before the other begins: the disk must
hold the runtimes once. An index's mirror may have to fetch files for whoever asks first, so believe the second run.
Plain uv gets no `--compile-bytecode`; what that takes on top, with everything in the cache, is measured beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from packaging.utils import canonicalize_name
from rich.console import Console

from service import catalog
from service.catalog import RuntimeSpec
from service.config import Settings, load_settings
from workers.cli.progress import PlainWatcher
from workers.cli.runtimes import ensure
from workers.runtimes.disk import human, used
from workers.runtimes.locking import ensure_locked
from workers.runtimes.uv import Uv
from workers.runtimes.venv import VenvExecutor

FLAGS = ("--no-deps", "--require-hashes", "--no-build", "--link-mode=hardlink")


@contextmanager
def empty_home(settings: Settings, folder: Path | None) -> Iterator[Settings]:
    """Settings with a home of their own in ``folder``, gone afterwards."""
    within = folder or settings.home
    within.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="benchmark-", dir=within) as home:
        yield settings.model_copy(update={"home": Path(home)})


def plain(settings: Settings, specs: Sequence[RuntimeSpec], *flags: str) -> float:
    """Seconds that uv takes for all, one after the other; what it makes beside the cache is removed again."""
    uv, began, excluded = Uv(settings), time.monotonic(), 0.0
    base = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    for spec in specs:
        folder = settings.home / "plain" / spec.name
        started = time.monotonic()
        uv.run("creating", ["venv", "--quiet", "--python", base, str(folder)])
        install = ["pip", "install", *FLAGS, *flags, *uv.index_arguments()]
        uv.run(spec.name, [*install, "--python", str(folder / "bin" / "python"), "-r", str(spec.lock)])
        print(f"uv {' '.join(flags)} {spec.name}: {time.monotonic() - started:.1f} s", file=sys.stderr)
        removing = time.monotonic()
        shutil.rmtree(folder)
        excluded += time.monotonic() - removing
    return time.monotonic() - began - excluded


def download_bytes(settings: Settings, specs: Sequence[RuntimeSpec]) -> int:
    """Bytes of all wheels that the locks name, each once, as the index states them."""
    uv, sizes = Uv(settings), dict[tuple[str, str], int]()
    with tempfile.TemporaryDirectory() as name:
        for spec in specs:
            pylock = Path(name) / "pylock.toml"
            command = ["pip", "compile", "--quiet", "--no-deps", "--format", "pylock.toml", "--only-binary", ":all:"]
            command += ["--python-version", spec.python, "--python-platform", "x86_64-manylinux_2_28"]
            uv.run(spec.name, [*command, *uv.index_arguments(), str(spec.lock), "-o", str(pylock)])
            for package in tomllib.loads(pylock.read_text("utf-8"))["packages"]:
                known = [int(wheel.get("size", 0)) for wheel in package.get("wheels", ())]
                sizes[canonicalize_name(package["name"]), package["version"]] = max(known, default=0)
            pylock.unlink()
    return sum(sizes.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=["2.2..2.11"], metavar="RUNTIME")
    parser.add_argument("--at-once", type=int, help="builds at once; the configured number by default")
    parser.add_argument("--folder", type=Path, help="where to build; GRADMATRIX_HOME by default")
    parser.add_argument("--json", type=Path, help="write the numbers here too")
    asked = parser.parse_args()
    settings, console = load_settings(), Console(highlight=False, soft_wrap=True)
    if asked.at_once:
        settings = settings.model_copy(update={"parallel_builds": asked.at_once})
    specs = catalog.load(settings).select(asked.names)
    specs = ensure_locked(specs, settings, lambda what, done, total: None)
    with empty_home(settings, asked.folder) as own:
        download = download_bytes(own, specs)
        uv_s = plain(own, specs)
        compile_s = plain(own, specs, "--compile-bytecode")
    with empty_home(settings, asked.folder) as own:
        began = time.monotonic()
        with PlainWatcher(Console(stderr=True, markup=False, highlight=False)) as watch:
            ensure(VenvExecutor(own), specs, watch)
        ours_s = time.monotonic() - began
        taken = used(own.home)
    console.print(f"{len(specs)} runtimes ({', '.join(spec.name for spec in specs)}), {human(download)} of wheels")
    console.print(
        f"uv, one after the other      {uv_s:8.1f} s, and {compile_s:.1f} s more to link and compile bytecode"
    )
    console.print(f"gradmatrix, {settings.parallel_builds} at once        {ours_s:8.1f} s, bytecode compiled")
    console.print(f"                             {ours_s / uv_s:8.2f} times as long, {human(taken)} on the disk")
    if asked.json:
        numbers = {"uv": uv_s, "compile": compile_s, "gradmatrix": ours_s, "download": download, "disk": taken}
        asked.json.write_text(json.dumps(numbers, indent=1) + "\n")


if __name__ == "__main__":
    main()
