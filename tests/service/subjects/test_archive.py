"""Hostile archives, one of each kind, made by hand; and what an honest one may hold."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from service.config import Settings
from service.subjects import TreeRefused, parse_subject, resolve
from service.subjects.archive import read_archive
from service.subjects.tree import Caps, Entry, Spool
from tests.service.subjects.conftest import left_over
from tests.support.index import StandInIndex
from tests.support.trees import write_archive

CAPS = Caps(total=4000, per_file=2000, files=12, links=3)
Members = list[tuple[tarfile.TarInfo, bytes]]


def file(name: str, content: bytes = b"x", **fields: object) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for field, value in fields.items():
        setattr(info, field, value)
    return info, content


def special(name: str, kind: bytes, target: str = "", **fields: object) -> tuple[tarfile.TarInfo, bytes]:
    return file(name, b"", type=kind, linkname=target, **fields)


def link(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    return special(name, tarfile.SYMTYPE, target)


def read(path: Path, tmp_path: Path, caps: Caps = CAPS) -> dict[str, Entry]:
    with path.open("rb") as archive, (tmp_path / "spool").open("w+b") as spool:
        return {entry.path: entry for entry in read_archive(archive, "it", caps, Spool(spool))}


HOSTILE: dict[str, tuple[Members, str]] = {
    "absolute path": ([file("/etc/passwd")], "absolute path"),
    "climbing path": ([file("top/a/../../b")], "climbs out"),
    "control character": ([file("top/a\x1b[2J")], "control character"),
    "line end": ([file("top/a\nb")], "control character"),
    "NUL": ([file("top/a", pax_headers={"path": "top/a\0b"})], "control character"),
    "not UTF-8": ([file("top/a\udcff")], "not UTF-8"),
    "long part": ([file("top/" + "n" * 256)], "too long a name"),
    "long path": ([file("top/" + "n/" * 600 + "f")], "too long a name"),
    "twice": ([file("top/a"), file("top/a", b"y")], "is there twice"),
    "twice, spelt otherwise": ([file("top/a"), file("top/.//a", b"y")], "is there twice"),
    "link to an absolute path": ([link("top/a", "/etc/passwd")], "absolute path"),
    "link out": ([link("top/d/a", "../../x")], "leaves the tree"),
    "link back into its own top folder": ([link("top/a", "../top/b")], "leaves the tree"),
    "link out through a link": (
        # Read as text, "a/b/s/.." is "a/b"; walked, s leads to the root, and its parent is outside.
        [file("top/a/b/f"), link("top/a/b/s", "../.."), link("top/t", "a/b/s/../x")],
        "leaves the tree",
    ),
    "links in a circle": ([link("top/a", "b"), link("top/b", "a")], "in a circle"),
    "link with a control character": ([link("top/a", "b\x07")], "control character"),
    "link without a target": ([link("top/a", "")], "empty or too long"),
    "file below a link": ([link("top/d", "e"), file("top/d/f")], "no folder"),
    "file below a file": ([file("top/d"), file("top/d/f")], "no folder"),
    "too many links": ([link(f"top/{i}", "x") for i in range(4)], "4 links; 3 are allowed"),
    "top folder is a link": ([link("top", "elsewhere")], "beside the archive's one top folder"),
    "character device": ([special("top/null", tarfile.CHRTYPE, devmajor=1, devminor=3)], "a device"),
    "block device": ([special("top/sda", tarfile.BLKTYPE, devmajor=8)], "a device"),
    "pipe": ([special("top/pipe", tarfile.FIFOTYPE)], "a pipe"),
    "hard link out": ([special("top/a", tarfile.LNKTYPE, "../x")], "climbs out"),
    "hard link beside the top folder": ([file("top/b"), special("top/a", tarfile.LNKTYPE, "b")], "one top folder"),
    "hard link to nothing": ([special("top/a", tarfile.LNKTYPE, "top/none")], "hard link to no earlier file"),
    "hard link to a link": ([link("top/b", "c"), special("top/a", tarfile.LNKTYPE, "top/b")], "no earlier file"),
    "hard links that multiply": (
        [file("top/b", bytes(1500)), *(special(f"top/{i}", tarfile.LNKTYPE, "top/b") for i in range(2))],
        "beyond 4,000 bytes",
    ),
    "two top folders": ([file("top/a"), file("other/b")], "outside the archive's one top folder, 'top'"),
    "no top folder": ([file("a")], "not in it"),
    "large file": ([file("top/a", bytes(2001))], "2,001 bytes; one file may have 2,000"),
    "large in all": ([file(f"top/{i}", bytes(1500)) for i in range(3)], "beyond 4,000 bytes"),
    "many files": ([file(f"top/{i}") for i in range(13)], "more than 12 members"),
    "many folders": ([special(f"top/{i}", tarfile.DIRTYPE) for i in range(13)], "more than 12 members"),
    "nothing": ([special("top", tarfile.DIRTYPE)], "holds no files"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_archive_is_refused(kind: str, tmp_path: Path) -> None:
    found, words = HOSTILE[kind]
    archive = write_archive(tmp_path / "a.tar.gz", found)
    with pytest.raises(TreeRefused, match=words) as raised:
        read(archive, tmp_path)
    assert str(raised.value).startswith("it: ")
    assert str(raised.value).isprintable(), "a name cannot write to the terminal"


def header(size: int, kind: bytes = tarfile.REGTYPE, name: str = "top/a") -> bytes:
    """The header block of a member that promises ``size`` bytes."""
    info = file(name, type=kind)[0]
    info.size = size
    return info.tobuf(tarfile.GNU_FORMAT)


ZEROS, PAGE = 100 * 10**9, bytes(2**20)
END = bytes(1024)
BOMBS: dict[str, tuple[list[bytes], str]] = {
    "a file of 100 GB": ([header(ZEROS), *[PAGE] * 3], "100,000,000,000 bytes; one file may have"),
    "a long name of 100 GB": ([header(ZEROS, tarfile.GNUTYPE_LONGNAME), *[PAGE] * 3], "belong to no file"),
    "an extended header of 100 GB": ([header(ZEROS, tarfile.XHDTYPE), *[PAGE] * 3], "belong to no file"),
    "a folder of 100 GB": ([header(ZEROS, tarfile.DIRTYPE), *[PAGE] * 3], "belong to no file"),
    "100 GB after the end": ([header(1), b"x".ljust(512, b"\0"), END, *[PAGE] * 3], "belong to no file"),
    "100,000 long names, each for the next": (
        [(header(2, tarfile.GNUTYPE_LONGNAME) + b"n".ljust(512, b"\0")) * 100_000],
        "damaged|belong to no file",
    ),
}


@pytest.mark.parametrize("kind", BOMBS)
def test_a_bomb_is_stopped_before_it_is_unpacked(kind: str, tmp_path: Path) -> None:
    pages, words = BOMBS[kind]
    archive = tmp_path / "bomb.tar.gz"
    with gzip.open(archive, "wb", compresslevel=1) as out:
        for page in pages:
            out.write(page)
    # Whoever reads on after the third page finds damage instead of the cap.
    archive.write_bytes(archive.read_bytes()[:-8] + b"no more pages")
    with pytest.raises(TreeRefused, match=words):
        read(archive, tmp_path)
    assert (tmp_path / "spool").stat().st_size <= CAPS.total


def test_a_sparse_file_is_refused(tmp_path: Path) -> None:
    info, content = file("top/a", b"x" * 512, type=tarfile.GNUTYPE_SPARSE)
    block = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    block[386:410] = b"00000000000\x0000000001000\0"  # one piece: at 0, 512 bytes
    block[483:495] = b"00000177777\0"
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    with gzip.open(tmp_path / "a.tar.gz", "wb") as out:
        out.write(bytes(block) + content + END)
    with pytest.raises(TreeRefused, match="sparse"):
        read(tmp_path / "a.tar.gz", tmp_path)


def cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def bad_checksum(data: bytes) -> bytes:
    return data[:-8] + bytes([data[-8] ^ 1]) + data[-7:]


def broken_header(data: bytes) -> bytes:
    plain = bytearray(gzip.decompress(data))
    plain[2048 + 148] ^= 1  # the last member's own checksum
    return gzip.compress(bytes(plain))


def more_after_the_end(data: bytes) -> bytes:
    return gzip.compress(gzip.decompress(data) + b"more")


def no_end_mark(data: bytes) -> bytes:
    return gzip.compress(gzip.decompress(data)[: 3 * 1024])


@pytest.mark.parametrize(
    "damage",
    [cut, bad_checksum, broken_header, more_after_the_end, no_end_mark, lambda data: b"<html>", lambda data: b""],
)
def test_a_damaged_archive_is_refused_and_never_taken_in_part(damage: Callable[[bytes], bytes], tmp_path: Path) -> None:
    archive = write_archive(tmp_path / "a.tar.gz", [file("top/a", b"a" * 300), file("top/b"), file("top/c")])
    archive.write_bytes(damage(archive.read_bytes()))
    with pytest.raises(TreeRefused, match="damaged"):
        read(archive, tmp_path)


def test_what_an_honest_archive_may_hold(tmp_path: Path) -> None:
    honest = [
        special("./top/", tarfile.DIRTYPE, mode=0o777),
        file("./top/d/run", b"run", mode=0o6755),
        file("top/d/größe", b"plain", mode=0o2644),
        special("top/hard", tarfile.LNKTYPE, "top/d/run"),
        link("top/d/up", "../d/./run"),
        link("top/e", "d"),
        link("top/nowhere", "d/none"),
        file("top/d/old.pyc"),
        file("top/.git/config"),
        file("top/build/lib/x.py"),
    ]
    archive = write_archive(tmp_path / "a.tar.gz", honest)
    with archive.open("rb") as source, (tmp_path / "spool").open("w+b") as spool:
        entries = read_archive(source, "it", CAPS, Spool(spool))
        got = [(e.path, e.executable, e.target, e.open().read(99) if e.open else None) for e in entries]
    assert got == [
        ("d/größe", False, None, b"plain"),
        ("d/run", True, None, b"run"),
        ("d/up", False, "../d/./run", None),
        ("e", False, "d", None),
        ("hard", True, None, b"run"),
        ("nowhere", False, "d/none", None),
    ]


def test_a_refused_release_leaves_nothing_behind(index: StandInIndex, settings: Settings) -> None:
    name = "deepspeed-1.0"
    found = [file(f"{name}/deepspeed/__init__.py"), file(f"{name}/big", bytes(settings.archive_file_bytes + 1))]
    write_archive(index.folder / f"{name}.tar.gz", found)
    with pytest.raises(TreeRefused, match=r"deepspeed==1\.0: refused, nothing was kept: 'big' has 262,145 bytes"):
        resolve(parse_subject("deepspeed==1.0", settings), settings)
    assert left_over(settings.home) == []


def test_the_packed_tar_holds_nothing_of_the_machine_it_came_from(index: StandInIndex, settings: Settings) -> None:
    name = "deepspeed-1.0"
    write_archive(
        index.folder / f"{name}.tar.gz",
        [file(f"{name}/deepspeed/__init__.py", mode=0o4777, mtime=1_700_000_000, uid=7, gid=7, uname="me", gname="us")],
    )
    checkout = resolve(parse_subject("deepspeed==1.0", settings), settings)
    with tarfile.open(fileobj=io.BytesIO(checkout.tar.read_bytes())) as tar:
        (info,) = tar.getmembers()
    assert (info.mode, info.mtime, info.uid, info.gid, info.uname, info.gname) == (0o755, 0, 0, 0, "", "")
