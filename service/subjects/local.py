"""A folder of this machine as a tree: the files as they lie there, committed or not.

On the straight line this stands beside ``archive`` and ``git``: three sources of one kind of tree.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

from service.subjects.errors import TreeRefused, UnknownSubject
from service.subjects.tree import VENV_MARK, Caps, Entry, TreeBuilder, skipped


def read_folder(root: Path, what: str, caps: Caps) -> list[Entry]:
    """The entries of a working tree, without version control, caches, environments and build outputs."""
    builder = TreeBuilder(what, caps)
    folders = [root]
    while folders:
        folder = folders.pop()
        try:
            with os.scandir(folder) as found:
                members = list(found)
        except OSError as error:
            raise builder.refuse(folder.relative_to(root).as_posix(), f"cannot be read: {error.strerror}") from None
        if folder != root and any(member.name == VENV_MARK for member in members):
            continue
        for member in members:
            path = Path(member.path).relative_to(root).as_posix()
            if skipped(path + "/" if member.is_dir(follow_symlinks=False) else path):
                continue
            path = builder.member(path)
            if member.is_dir(follow_symlinks=False):
                folders.append(Path(member.path))
            else:
                _take(builder, path, Path(member.path))
    entries = builder.finish()
    if not entries:
        raise UnknownSubject(f"{what}: the folder {root} holds no files")
    return entries


def _take(builder: TreeBuilder, path: str, file: Path) -> None:
    try:
        status = file.lstat()
        if stat.S_ISLNK(status.st_mode):
            builder.link(path, os.readlink(file))  # noqa: PTH115 - pathlib would tidy the target up
        elif stat.S_ISREG(status.st_mode):
            builder.file(path, status.st_size, bool(status.st_mode & stat.S_IXUSR), lambda: _open(builder, path, file))
        else:
            raise builder.refuse(path, "is neither file, folder nor link (a device, a pipe or a socket)")
    except OSError as error:
        raise builder.refuse(path, f"cannot be read: {error.strerror}") from None


def _open(builder: TreeBuilder, path: str, file: Path) -> BinaryIO:
    """Open what was listed and nothing that took its place: no link is followed, no pipe waited for."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise builder.refuse(path, f"cannot be read: {error.strerror}") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise TreeRefused(f"{builder.what}: {path!a} changed while it was being read; try again")
    return os.fdopen(descriptor, "rb")
