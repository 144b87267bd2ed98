"""A source archive as a tree, by our own checks: nothing in it is trusted, and nothing of it is executed.

On the straight line this stands between ``service.subjects.release``, which downloaded it, and ``tree``. Every
decompressed byte is metered, headers as well as contents, so that an archive stops at the cap whatever it promises.
"""

from __future__ import annotations

import gzip
import tarfile
import zlib
from typing import IO, BinaryIO, Self, cast

from service.subjects.errors import TreeRefused
from service.subjects.tree import CHUNK, Caps, Entry, Reader, Spool, TreeBuilder

_HEADERS = 2**20
"""Decompressed bytes that may lie between two members' contents; extended headers are held in memory whole."""

_DAMAGE = (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError, ValueError, RecursionError, OverflowError)


class _Meter:
    """Counts what the decompressor gives, and stops it once the allowance is used up."""

    def __init__(self, source: Reader, what: str) -> None:
        self.source, self.what, self.allowance = source, what, _HEADERS

    def read(self, size: int, /) -> bytes:
        data = self.source.read(size)
        self.allowance -= len(data)
        if self.allowance < 0:
            raise TreeRefused(f"{self.what}: refused, nothing was kept: more than {_HEADERS:,} bytes belong to no file")
        return data


def read_archive(file: BinaryIO, what: str, caps: Caps, spool: Spool) -> list[Entry]:
    """The entries of a .tar.gz below its single top folder; their contents go to the spool."""
    builder = TreeBuilder(what, caps)
    try:
        with gzip.open(file) as raw:
            _members(_Top(builder), _Meter(raw, what), spool)
    except _DAMAGE as error:
        raise TreeRefused(f"{what}: the archive is damaged or no .tar.gz: {error}") from None
    entries = builder.finish()
    if not entries:
        raise TreeRefused(f"{what}: the archive holds no files")
    return entries


class _Top:
    """Takes the one folder off that everything in a source archive lies in."""

    def __init__(self, builder: TreeBuilder) -> None:
        self.builder = builder
        self._name: str | None = None

    def inside(self, info: tarfile.TarInfo) -> str:
        """A member's path below the top folder."""
        return self.below(self.builder.member(info.name), info.name, info.isdir())

    def below(self, path: str, shown: str, is_folder: bool = False) -> str:
        first, _, rest = path.partition("/")
        if self._name is None:
            self._name = first or None
        if first != (self._name or ""):
            raise self.builder.refuse(shown, f"lies outside the archive's one top folder, {self._name!r}")
        if not rest and not is_folder:
            raise self.builder.refuse(shown, "lies beside the archive's one top folder, not in it")
        return rest


class _StrictInfo(tarfile.TarInfo):
    """The library takes a damaged header, or none, for the end of the archive; here only the end mark is the end."""

    @classmethod
    def fromtarfile(cls, tarfile_: tarfile.TarFile, /) -> Self:
        try:
            return super().fromtarfile(tarfile_)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]  # the end mark
            raise
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(str(error)) from None


class _StrictTar(tarfile.TarFile):
    tarinfo = _StrictInfo


def _members(top: _Top, meter: _Meter, spool: Spool) -> None:
    builder = top.builder
    stream = cast(IO[bytes], meter)  # all that a stream is asked for is read()
    with _StrictTar.open(fileobj=stream, mode="r|", bufsize=CHUNK, errors="surrogateescape") as tar:
        while True:
            meter.allowance = _HEADERS
            info: tarfile.TarInfo | None = tar.next()
            if info is None:
                return _rest_is_empty(cast(Reader, tar.fileobj), meter)
            path = top.inside(info)
            if info.isdir():
                continue
            if info.sparse is not None:
                raise builder.refuse(info.name, "is a sparse file")
            if info.isreg():
                # Refused by its promised size first: the meter then holds it to the promise.
                builder.file(path, info.size, bool(info.mode & 0o100), _nothing)
                meter.allowance = _HEADERS + info.size
                source = tar.extractfile(info)
                if source is None:
                    raise builder.refuse(info.name, "has no content")
                content = spool.take(source, info.size)
                builder.entries[path] = Entry(path, bool(info.mode & 0o100), info.size, None, content)
            elif info.issym():
                builder.link(path, info.linkname)
            elif info.islnk():
                original = builder.entries.get(top.below(builder.clean(info.linkname), info.linkname))
                if original is None or original.open is None:
                    raise builder.refuse(info.name, f"is a hard link to no earlier file, {info.linkname!a}")
                builder.file(path, original.size, original.executable, original.open)
            else:
                raise builder.refuse(info.name, "is neither file, folder nor link (a device, a pipe or unknown)")


def _nothing() -> Reader:
    raise AssertionError("replaced as soon as the content is in the spool")


def _rest_is_empty(rest: Reader, meter: _Meter) -> None:
    """Read to the end of the compressed stream, which checks its own checksum; only padding may follow."""
    meter.allowance = _HEADERS
    while data := rest.read(CHUNK):
        if data.strip(b"\0"):
            raise TreeRefused(f"{meter.what}: the archive is damaged: it goes on after its end")
