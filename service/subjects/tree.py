"""The files of a checkout: what is allowed in, their digest, and the tar that carries them.

On the straight line this stands inside ``service.subjects``: archive, commit and folder all feed a
:class:`TreeBuilder`, so that the same rules hold for each and the same files give the same digest whatever they
came from. No name from outside ever touches the file system here; names only become headers of our own tar.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tarfile
import unicodedata
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, BinaryIO, Protocol

from service.subjects.errors import TreeRefused

CHUNK = 2**16
_FORMAT = b"gradmatrix tree 1\n"
_PATH_BYTES, _NAME_BYTES, _HOPS = 1024, 255, 16

_SKIPPED_NAMES = frozenset((
    ".git", ".hg", ".svn", "__pycache__", ".venv", ".tox", ".nox", ".eggs", ".mypy_cache", ".pytest_cache",
    ".ruff_cache", ".hypothesis", ".DS_Store",
))  # fmt: skip
_SKIPPED_SUFFIXES = (".pyc", ".pyo")
_SKIPPED_AT_ROOT = frozenset(["build", "dist"])
VENV_MARK = "pyvenv.cfg"


@dataclass(frozen=True)
class Caps:
    """How much one checkout may hold, unpacked."""

    total: int = 2**30
    per_file: int = 64 * 2**20
    files: int = 50_000
    links: int = 2_000


class Reader(Protocol):
    """What a file's content is read from."""

    def read(self, size: int, /) -> bytes:
        """At most ``size`` further bytes; none at the end."""

    def close(self) -> None:
        """Nothing more is read."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One file or symbolic link. ``open`` gives a file's content, and is called once, in the order of the entries."""

    path: str
    executable: bool = False
    size: int = 0
    target: str | None = None
    open: Callable[[], Reader] | None = None


class TreeBuilder:
    """Takes the members of a tree one by one and refuses what no checkout may hold; ``what`` names it in errors."""

    def __init__(self, what: str, caps: Caps) -> None:
        self.what, self.caps = what, caps
        self.entries: dict[str, Entry] = {}
        self._members = self._bytes = 0

    def refuse(self, path: str, why: str) -> TreeRefused:
        """The error for ``path``, which is printed escaped, since it may hold anything."""
        name = ascii(path if len(path) <= 120 else path[:117] + "…")
        return TreeRefused(f"{self.what}: refused, nothing was kept: {name} {why}")

    def clean(self, path: str) -> str:
        """``path`` without empty and ``.`` parts ("" for the root itself); refused when unsafe as a name."""
        if path.startswith("/"):
            raise self.refuse(path, "is an absolute path")
        parts = [part for part in path.split("/") if part not in ("", ".")]
        if ".." in parts:
            raise self.refuse(path, "climbs out with '..'")
        try:
            lengths = [len(part.encode()) for part in parts]
        except UnicodeEncodeError:
            raise self.refuse(path, "has a name that is not UTF-8") from None
        if any(unicodedata.category(char) == "Cc" for char in path):
            raise self.refuse(path, "has a control character in its name")
        if sum(lengths) + len(lengths) > _PATH_BYTES or max(lengths, default=0) > _NAME_BYTES:
            raise self.refuse(path, f"has too long a name (at most {_PATH_BYTES} bytes, {_NAME_BYTES} a part)")
        return "/".join(parts)

    def member(self, path: str) -> str:
        """Count one member of any kind, and return its clean path."""
        self._members += 1
        if self._members > self.caps.files:
            raise self.refuse(path, f"is one too many: more than {self.caps.files:,} members")
        return self.clean(path)

    def file(self, path: str, size: int, executable: bool, opener: Callable[[], Reader]) -> None:
        """Take a file; its size is checked before a byte of it need be read."""
        self._bytes += size
        if size > self.caps.per_file:
            raise self.refuse(path, f"has {size:,} bytes; one file may have {self.caps.per_file:,}")
        if self._bytes > self.caps.total:
            raise self.refuse(path, f"takes the tree beyond {self.caps.total:,} bytes")
        self._add(Entry(path, executable, size, None, opener))

    def link(self, path: str, target: str) -> None:
        """Take a symbolic link; where it leads is checked in :meth:`finish`, when all links are known."""
        if target.startswith("/"):
            raise self.refuse(path, f"is a link to an absolute path, {target[:120]!a}")
        if not target or len(target.encode(errors="replace")) > _NAME_BYTES:
            raise self.refuse(path, f"is a link with an empty or too long target (at most {_NAME_BYTES} bytes)")
        if any(unicodedata.category(char) in ("Cc", "Cs") for char in target):
            raise self.refuse(path, "is a link whose target has a control character or is not UTF-8")
        self._add(Entry(path, target=target))

    def _add(self, entry: Entry) -> None:
        if not entry.path:
            raise self.refuse(entry.path, "would replace the tree's own folder")
        if entry.path in self.entries:
            raise self.refuse(entry.path, "is there twice")
        self.entries[entry.path] = entry

    def finish(self) -> list[Entry]:
        """Every entry that matters, sorted; raises where the tree as a whole is unsafe."""
        links = {path: entry.target for path, entry in self.entries.items() if entry.target is not None}
        if len(links) > self.caps.links:
            raise self.refuse(next(iter(links)), f"is one of {len(links):,} links; {self.caps.links:,} are allowed")
        for path in self.entries:
            for end in (index for index, char in enumerate(path) if char == "/"):
                if path[:end] in self.entries:
                    raise self.refuse(path, f"lies below {path[:end]!r}, which is no folder")
        for path in links:
            self._follow(path, links)
        venvs = tuple(p.removesuffix(VENV_MARK) for p in self.entries if p.endswith("/" + VENV_MARK))
        return [
            self.entries[path]
            for path in sorted(self.entries)
            if not skipped(path) and not (venvs and path.startswith(venvs))
        ]

    def _follow(self, path: str, links: dict[str, str]) -> None:
        """Walk a link's target through all further links: no step of the way may leave the tree."""
        here = path.split("/")[:-1]
        pending, hops = deque(links[path].split("/")), 0
        while pending:
            part = pending.popleft()
            if part in ("", "."):
                continue
            if part == "..":
                if not here:
                    raise self.refuse(path, f"is a link that leaves the tree, to {links[path]!a}")
                here.pop()
                continue
            here.append(part)
            if (further := links.get("/".join(here))) is not None:
                hops += 1
                if hops > _HOPS:
                    raise self.refuse(path, f"is a link through more than {_HOPS} links, or in a circle")
                here.pop()
                pending.extendleft(reversed(further.split("/")))


def skipped(path: str) -> bool:
    """Whether an entry is of no interest to anybody: version control, caches, environments, build outputs."""
    parts = path.split("/")
    return (
        not _SKIPPED_NAMES.isdisjoint(parts)
        or path.endswith(_SKIPPED_SUFFIXES)
        or (len(parts) > 1 and parts[0] in _SKIPPED_AT_ROOT)
    )


class _Hashed:
    """Passes a file's content through and hashes it."""

    def __init__(self, source: Reader | IO[bytes]) -> None:
        self.source, self.sha, self.count = source, hashlib.sha256(), 0

    def read(self, size: int = CHUNK, /) -> bytes:
        data = self.source.read(size)
        self.sha.update(data)
        self.count += len(data)
        return data


class _Padded:
    def __init__(self, source: _Hashed) -> None:
        self._source = source

    def read(self, size: int, /) -> bytes:
        return self._source.read(size).ljust(size, b"\0")


class _TreeDigest:
    """sha256 over the sorted entries. Fields end in NUL and entries in a line end, which no path or target holds."""

    def __init__(self) -> None:
        self._sha = hashlib.sha256(_FORMAT)

    def add(self, path: str, executable: bool, content: str | None, target: str | None) -> None:
        kind = "link" if target is not None else "exec" if executable else "file"
        self._sha.update(f"{path}\0{kind}\0{content if target is None else target}\0\n".encode())

    def hexdigest(self) -> str:
        return self._sha.hexdigest()


def pack(entries: Iterable[Entry], out: IO[bytes], what: str, progress: Callable[[int], None] | None = None) -> str:
    """Write the normalised tar and return the tree's digest; each file's content is read once."""
    digest, done = _TreeDigest(), 0
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for entry in entries:
            info = tarfile.TarInfo(entry.path)
            if entry.open is None:
                info.type, info.linkname, info.mode = tarfile.SYMTYPE, entry.target or "", 0o777
                tar.addfile(info)
                digest.add(entry.path, False, None, info.linkname)
                continue
            info.size, info.mode = entry.size, 0o755 if entry.executable else 0o644
            with contextlib.closing(entry.open()) as source:
                content = _Hashed(source)
                # Filled up where the file has become shorter, so that tarfile does not stop half-way.
                tar.addfile(info, _Padded(content))  # type: ignore[arg-type]  # it only reads
                if content.count != entry.size or content.read(1):
                    raise TreeRefused(f"{what}: {entry.path!a} changed while it was being read; try again")
            digest.add(entry.path, entry.executable, content.sha.hexdigest(), None)
            done += entry.size
            if progress:
                progress(done)
    return digest.hexdigest()


def tar_digest(path: Path) -> str | None:
    """The digest of a tar that :func:`pack` wrote; None when it is damaged or holds what pack never writes."""
    digest, last = _TreeDigest(), ""
    try:
        with tarfile.open(path, "r:") as tar:
            for info in tar:
                plain = info.uid == info.gid == info.mtime == 0 and info.sparse is None
                if not (info.type in (tarfile.REGTYPE, tarfile.SYMTYPE) and plain and info.name > last):
                    return None
                last = info.name
                if info.issym():
                    digest.add(info.name, False, None, info.linkname)
                    continue
                source = tar.extractfile(info)
                if source is None or info.mode not in (0o644, 0o755):
                    return None
                content = _Hashed(source)
                while content.read(CHUNK):
                    pass
                digest.add(info.name, info.mode == 0o755, content.sha.hexdigest(), None)
    except (tarfile.TarError, OSError, ValueError, EOFError):
        return None
    return digest.hexdigest()


class Spool:
    """One unnamed temporary file that holds the contents of many, so that no foreign name reaches a disk."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._end = file, 0

    def take(self, source: Reader, size: int) -> Callable[[], Reader]:
        """Copy ``size`` bytes in; what is returned opens them again. EOFError when there are fewer."""
        start, left = self._end, size
        while left:
            data = source.read(min(CHUNK, left))
            if not data:
                raise EOFError("the data ends too early")
            self._file.write(data)
            left -= len(data)
        self._end += size
        return lambda: _Slice(self._file, start, size)


class _Slice:
    def __init__(self, file: BinaryIO, start: int, size: int) -> None:
        file.flush()
        self._fd, self._at, self._left = file.fileno(), start, size

    def read(self, size: int, /) -> bytes:
        data = os.pread(self._fd, min(size, self._left), self._at)
        self._at += len(data)
        self._left -= len(data)
        return data

    def close(self) -> None:
        """The spool outlives its slices."""
