"""What has been built: listing it with its sizes, and removing it with what only it needed of the package cache."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from service.catalog import RuntimeSpec
from service.errors import UsageError, nearest
from workers.runtimes import RuntimeBusyError
from workers.runtimes.disk import used
from workers.runtimes.guard import Guard
from workers.runtimes.uv import Uv

MARKER = "gradmatrix.json"
LOCKS = ".locks"
DIGEST_LETTERS = 12


@dataclass(frozen=True)
class Built:
    """One runtime's folder.

    key       the folder's name, RUNTIME-DIGEST
    complete  whether the build was finished
    current   whether the catalogue still has this runtime with this content
    bytes     on the disk; files that lie in the package cache too are counted here and not there
    """

    key: str
    name: str
    path: Path
    complete: bool
    current: bool
    bytes: int
    packages: dict[str, str]


def key(runtime: RuntimeSpec) -> str:
    """The name of a runtime's folder."""
    return f"{runtime.name}-{runtime.digest[:DIGEST_LETTERS]}"


def lock_path(root: Path, key: str) -> Path:
    """The lock file of the runtime whose folder in ``root`` is ``key``."""
    return root / LOCKS / f"{key}.lock"


def read_marker(folder: Path) -> dict[str, object] | None:
    """What the builder wrote when it had finished, or None."""
    try:
        data = json.loads((folder / MARKER).read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) else None


def list_built(root: Path, catalog: Iterable[RuntimeSpec]) -> tuple[Built, ...]:
    """Every runtime's folder in ``root``, complete or not."""
    current = {key(runtime) for runtime in catalog}
    inside = root.iterdir() if root.exists() else ()
    folders = sorted(path for path in inside if path.is_dir() and path.name != LOCKS)
    seen: set[tuple[int, int]] = set()
    built = []
    for folder in folders:
        marker = read_marker(folder)
        packages = marker.get("packages") if marker else None
        built.append(
            Built(
                key=folder.name,
                name=folder.name.rpartition("-")[0],
                path=folder,
                complete=marker is not None,
                current=folder.name in current,
                bytes=used(folder, seen=seen),
                packages=packages if isinstance(packages, dict) else {},
            )
        )
    return tuple(built)


def cache_bytes(uv: Uv, built: Iterable[Built]) -> int:
    """What the package cache takes beyond the runtimes that share its files."""
    seen: set[tuple[int, int]] = set()
    used(*(item.path for item in built), seen=seen)
    return used(uv.cache, seen=seen)


def choose(built: Sequence[Built], names: Collection[str], *, unused: bool = False) -> tuple[Built, ...]:
    """The built runtimes that ``names`` mean (with or without the digest); ``unused`` adds those no longer needed."""
    known = {item.name for item in built} | {item.key for item in built}
    for name in names:
        if name not in known:
            raise UsageError(f"runtime {name} is not built: {nearest(name, known)}")
    return tuple(
        item
        for item in built
        if item.name in names or item.key in names or (unused and not (item.complete and item.current))
    )


def remove(
    root: Path, uv: Uv, gone: Sequence[Built], built: Sequence[Built], tick: Callable[[], None] = lambda: None
) -> int:
    """Remove ``gone`` out of ``built``, and from the package cache what no other one needs. Returns bytes freed.

    Raises RuntimeBusyError before anything is removed if a job runs in one of them or somebody builds it. ``tick`` is
    called while the package cache is pruned, which waits for whoever else works in it.
    """
    before = used(root, uv.cache)
    guards = []
    try:
        for item in gone:
            guards.append(Guard(lock_path(root, item.key)))
            if not guards[-1].take():
                raise RuntimeBusyError(f"runtime {item.key} is in use: wait for its job or build to end")
        for item in gone:
            (item.path / MARKER).unlink(missing_ok=True)  # first: what is half removed must not look whole
            shutil.rmtree(item.path)
    finally:
        for guard in guards:
            guard.close()
    left = [item for item in built if item not in gone]
    _prune(uv, gone, left, tick)
    return before - used(root, uv.cache)


def _prune(uv: Uv, gone: Sequence[Built], left: Sequence[Built], tick: Callable[[], None]) -> None:
    if not uv.cache.exists():
        return
    if not left:
        uv.run("emptying the package cache", ["cache", "clean"], tick=lambda written: tick())
        return
    kept = {package for item in left for package in item.packages.items()}
    names = sorted({name for item in gone for name, version in item.packages.items() if (name, version) not in kept})
    if names:
        uv.run("pruning the package cache", ["cache", "clean", *names], tick=lambda written: tick())
