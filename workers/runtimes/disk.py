"""Bytes on the disk: what folders take with hard links counted once, what is free or promised, and how to say it."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path


def human(count: float) -> str:
    """``3 900 000 000`` as ``3.9 GB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit in ("B", "kB") else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def free(folder: Path) -> int:
    """Bytes free where ``folder`` is, or would be if it existed."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def used(*folders: Path, seen: set[tuple[int, int]] | None = None) -> int:
    """Bytes that ``folders`` take on the disk; a file with several names counts once.

    Files already in ``seen`` count nothing and new ones are added to it. What vanishes meanwhile is left out.
    """
    seen = set() if seen is None else seen
    total = 0
    for folder in folders:
        for stat in _stats(folder):
            key = (stat.st_dev, stat.st_ino)
            if key not in seen:
                seen.add(key)
                total += stat.st_blocks * 512
    return total


def _stats(folder: Path) -> Iterator[os.stat_result]:
    pending = [os.fspath(folder)]
    while pending:
        try:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    try:
                        yield entry.stat(follow_symlinks=False)
                    except OSError:
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
        except OSError:
            continue


class Promised:
    """What builds in progress will still write: free now, and spoken for. May be used from several threads."""

    def __init__(self) -> None:
        self._left: dict[str, int] = {}
        self._lock = threading.Lock()

    def take(self, name: str, size: int, room: Callable[[], int]) -> int | None:
        """Promise ``size`` bytes to ``name`` if ``room()`` has them beside what is promised already.

        None if they are promised now. Otherwise the bytes that others still have to write: while there are any, some
        may turn out not to be needed; with 0 there is nothing to wait for.
        """
        with self._lock:
            others = sum(self._left.values())
            if room() < others + size:
                return others
            self._left[name] = size
            return None

    def written(self, name: str, left: int) -> None:
        """Of what was promised to ``name`` so much is left to be written; nothing if nothing was promised."""
        with self._lock:
            if name in self._left:
                self._left[name] = left

    def release(self, name: str) -> None:
        """``name`` writes no more."""
        with self._lock:
            self._left.pop(name, None)
