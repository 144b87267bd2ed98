"""Working trees: what is read, what is of no interest, and what is refused."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from service.config import Settings
from service.subjects import Checkout, SubjectError, UnknownSubject, parse_subject, resolve
from tests.service.subjects.conftest import left_over
from tests.support.trees import SAMPLE, Tree, digest_of, make_repository, write_folder

NOISE: Tree = {
    "deepspeed/__pycache__/x.cpython-311.pyc": b"",
    "deepspeed/old.pyc": b"",
    ".venv/bin/python*": b"",
    ".venv/bin/python3": "/usr/bin/python3",
    "env/pyvenv.cfg": b"",
    "env/bin/python": "/usr/bin/python3",
    "env/lib/deepspeed/__init__.py": b"",
    "build/lib/deepspeed/__init__.py": b"",
    "dist/deepspeed-1.0.tar.gz": b"",
    ".mypy_cache/x.json": b"",
}


def get(path: Path, settings: Settings) -> Checkout:
    return resolve(parse_subject(str(path), settings), settings)


def test_the_files_as_they_lie_there_committed_or_not(settings: Settings, tmp_path: Path) -> None:
    root = tmp_path / "tree"
    make_repository(root)
    assert get(root, settings).digest == digest_of(SAMPLE)
    write_folder(root, NOISE)
    assert get(root, settings).digest == digest_of(SAMPLE), "none of that is of interest"
    change = {"deepspeed/new.py": b"uncommitted", "deepspeed/build/kept.py": b"only the root's build folder is noise"}
    write_folder(root, change)
    changed = get(root, settings)
    assert changed.digest == digest_of({**SAMPLE, **change})
    assert (changed.kind, changed.label, changed.ref, changed.meta) == ("path", "path:tree", "", {})


def fifo(root: Path) -> None:
    os.mkfifo(root / "odd")


def unix_socket(root: Path) -> None:
    here = Path.cwd()
    os.chdir(root)  # a socket's path may have some 100 bytes only
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind("odd")
    finally:
        os.chdir(here)


def link_to(target: str) -> Callable[[Path], None]:
    return lambda root: (root / "odd").symlink_to(target)


def big(root: Path) -> None:
    (root / "odd").write_bytes(bytes(2**18 + 1))


def bad_name(root: Path) -> None:
    Path(os.fsdecode(os.fsencode(root) + b"/odd\xff")).touch()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (fifo, "a pipe"),
        (unix_socket, "a socket"),
        (link_to("/etc/passwd"), "absolute path"),
        (link_to("../outside"), "leaves the tree"),
        (link_to("odd"), "in a circle"),
        (big, "262,145 bytes; one file may have 262,144"),
        (bad_name, "not UTF-8"),
    ],
)
def test_the_same_checks_hold_as_for_archives(
    settings: Settings, tmp_path: Path, make: Callable[[Path], None], words: str
) -> None:
    root = write_folder(tmp_path / "tree", SAMPLE)
    make(root)
    with pytest.raises(SubjectError, match=f"path:tree: refused, nothing was kept: 'odd.*{words}"):
        get(root, settings)
    assert left_over(settings.home) == []


def test_a_folder_without_a_subject_is_refused(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UnknownSubject, match="holds no files"):
        get(tmp_path / "empty", settings)
    with pytest.raises(UnknownSubject, match="nothing to test"):
        get(write_folder(tmp_path / "other", {"x.py": b""}), settings)
    assert left_over(settings.home) == []


def test_a_cache_that_cannot_be_written_says_so(settings: Settings, tmp_path: Path) -> None:
    settings.home.mkdir()
    (settings.home / "checkouts").write_text("in the way")
    with pytest.raises(SubjectError, match=r"the cache in .*checkouts cannot be used"):
        get(write_folder(tmp_path / "tree", SAMPLE), settings)
