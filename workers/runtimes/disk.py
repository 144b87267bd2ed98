"""Bytes on the disk: what folders take with hard links counted once, what is free, and how to say it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
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


class Growth:
    """How much a tree has grown since the start, looking only at what was not there then.

    New entries are told apart down to the second level: that is where package caches put what they unpack, and
    walking all of an old cache every second would cost more than the work that is measured.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._old = set(self._entries())

    def bytes(self) -> int:
        """Bytes in new entries."""
        new = set(self._entries()) - self._old
        return used(*(path for path in new if path.parent not in new))

    def _entries(self) -> list[Path]:
        first = _children(self._folder)
        return first + [path for parent in first for path in _children(parent)]


def _children(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []
