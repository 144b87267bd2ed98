"""The digest: the same for the same files, whatever they came in; another for any other."""

from __future__ import annotations

import io
import random
import tarfile
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.subjects import TreeRefused
from service.subjects.archive import read_archive
from service.subjects.local import read_folder
from service.subjects.tree import Caps, Entry, Spool, pack, tar_digest
from tests.support.trees import Tree, digest_of, members, write_archive, write_folder

NAMES = st.sampled_from(["a", "b", "ü", "a.b", "a-b", "A", "a b", "…"])
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)
CONTENTS = st.binary(max_size=40)


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    """Files, executable or not, none below another."""
    found: dict[str, bytes | str] = {}
    taken: set[str] = set()
    for path in draw(st.lists(PATHS, min_size=1, max_size=8, unique=True)):
        if not any(path == other or path.startswith(other + "/") or other.startswith(path + "/") for other in taken):
            taken.add(path)
            found[path + draw(st.sampled_from(["", "*"]))] = draw(CONTENTS)
    return found


def packed(entries: list[Entry]) -> tuple[str, bytes]:
    out = io.BytesIO()
    return pack(entries, out, "it"), out.getvalue()


@settings(max_examples=30, deadline=None)
@given(tree=trees(), seed=st.integers(0, 2**16))
def test_archive_in_any_order_and_folder_give_the_defined_digest_and_one_tar(tree: Tree, seed: int) -> None:
    shuffled = members(tree, "top")
    random.Random(seed).shuffle(shuffled)
    with tempfile.TemporaryDirectory() as work, tempfile.TemporaryFile() as spool:
        with write_archive(Path(work, "a.tar.gz"), shuffled).open("rb") as archive:
            from_archive = packed(read_archive(archive, "it", Caps(), Spool(spool)))
        from_folder = packed(read_folder(write_folder(Path(work, "tree"), tree), "it", Caps()))
        Path(work, "tree.tar").write_bytes(from_folder[1])
        again = tar_digest(Path(work, "tree.tar"))
    assert from_archive == from_folder
    assert from_folder[0] == again == digest_of(tree)


BASE: Tree = {"a/f": b"one", "b*": b"two", "l": "a/f"}


@pytest.mark.parametrize(
    "other",
    [
        {"a/f": b"onE", "b*": b"two", "l": "a/f"},
        {"a/f*": b"one", "b*": b"two", "l": "a/f"},
        {"a/f": b"one", "b": b"two", "l": "a/f"},
        {"a/g": b"one", "b*": b"two", "l": "a/f"},
        {"a/f": b"one", "b*": b"two", "l": "./a/f"},
        {"a/f": b"one", "b*": b"two", "l": b"a/f"},
        {"a/f": b"one", "b*": b"two"},
        {"a/f": b"one", "b*": b"two", "l": "a/f", "empty": b""},
        {"a/f": b"two", "b*": b"one", "l": "a/f"},
    ],
)
def test_any_difference_is_another_digest(other: Tree, tmp_path: Path) -> None:
    base, changed = (
        packed(read_folder(write_folder(tmp_path / name, tree), "it", Caps()))[0]
        for name, tree in (("base", BASE), ("other", other))
    )
    assert base == digest_of(BASE)
    assert changed == digest_of(other)
    assert base != changed


def entry(content: bytes, size: int) -> Entry:
    return Entry("f", False, size, None, lambda: io.BytesIO(content))


@pytest.mark.parametrize("content", [b"", b"12", b"1234"])
def test_a_file_that_changes_while_it_is_read_is_refused(content: bytes) -> None:
    with pytest.raises(TreeRefused, match="changed while it was being read"):
        packed([entry(content, 3)])
    assert packed([entry(b"123", 3)])[0] == digest_of({"f": b"123"})


def rewritten(tar: bytes, **fields: object) -> bytes:
    """The same tar with one member's header changed."""
    out = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(tar)) as old, tarfile.open(fileobj=out, mode="w") as new:
        for info in old:
            content = old.extractfile(info) if info.isreg() else None
            for field, value in fields.items() if info.name == "b" else ():
                setattr(info, field, value)
            new.addfile(info, content)
    return out.getvalue()


@pytest.mark.parametrize(
    "fields", [{"name": "../b"}, {"uid": 5}, {"mtime": 5}, {"mode": 0o644}, {"mode": 0o4755}, {"name": "zz"}]
)
def test_a_cached_tar_that_was_tampered_with_has_no_such_digest(fields: dict[str, object], tmp_path: Path) -> None:
    digest, good = packed(read_folder(write_folder(tmp_path / "tree", BASE), "it", Caps()))
    tar = tmp_path / "x.tar"
    tar.write_bytes(rewritten(good))
    assert tar_digest(tar) == digest
    tar.write_bytes(rewritten(good, **fields))
    assert tar_digest(tar) != digest
    for cut in (0, 100, 512, 2100):
        tar.write_bytes(good[:cut])
        assert tar_digest(tar) != digest
