"""Small trees, and the forms that they come in: a folder, a source archive, a git repository."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path

Tree = Mapping[str, bytes | str]
"""Content by path; ``str`` is a link's target, and a path that ends in ``*`` is executable."""

SAMPLE: Tree = {
    "deepspeed/__init__.py": b"version = '1.0'\n",
    "deepspeed/ops/empty.py": b"",
    "deepspeed/größe.txt": "größe\n".encode(),
    "deepspeed/ops/link.py": "../__init__.py",
    "bin/ds*": b"#!/bin/sh\n",
    "setup.py": b"raise SystemExit('a build step was run')\n",
}


def digest_of(tree: Tree) -> str:
    """The digest as it is defined, computed apart from the code under test."""
    lines = []
    for name, content in tree.items():
        path = name.removesuffix("*")
        if isinstance(content, str):
            lines.append((path, "link", content))
        else:
            lines.append((path, "exec" if name.endswith("*") else "file", hashlib.sha256(content).hexdigest()))
    text = "gradmatrix tree 1\n" + "".join("\0".join(line) + "\0\n" for line in sorted(lines))
    return hashlib.sha256(text.encode()).hexdigest()


def write_folder(root: Path, tree: Tree) -> Path:
    for name, content in tree.items():
        path = root / name.removesuffix("*")
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, str):
            path.symlink_to(content)
        else:
            path.write_bytes(content)
            path.chmod(0o755 if name.endswith("*") else 0o644)
    return root


def members(tree: Tree, top: str) -> list[tuple[tarfile.TarInfo, bytes]]:
    found = []
    for name, content in tree.items():
        info = tarfile.TarInfo(f"{top}/{name.removesuffix('*')}")
        info.mtime, info.uid, info.uname = 1_700_000_000, 1000, "somebody"
        info.mode = 0o775 if name.endswith("*") else 0o664
        if isinstance(content, str):
            info.type, info.linkname, content = tarfile.SYMTYPE, content, b""
        info.size = len(content)
        found.append((info, content))
    return found


def write_archive(path: Path, found: Iterable[tuple[tarfile.TarInfo, bytes]]) -> Path:
    with tarfile.open(path, "w:gz", compresslevel=1) as tar:
        for info, content in found:
            tar.addfile(info, io.BytesIO(content))
    return path


def write_sdist(folder: Path, name: str, version: str, tree: Tree = SAMPLE) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return write_archive(folder / f"{name}-{version}.tar.gz", members(tree, f"{name}-{version}"))


def git(repository: Path, *arguments: str) -> str:
    """Run git there as nobody in particular, untouched by whatever this machine configures."""
    environment = {
        "PATH": os.environ["PATH"], "HOME": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b.invalid", "GIT_AUTHOR_DATE": "2024-01-01T00:00:00Z",
        "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b.invalid", "GIT_COMMITTER_DATE": "2024-01-01T00:00:00Z",
    }  # fmt: skip
    command = ["git", "-c", "protocol.file.allow=always", "-C", str(repository), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def commit_all(repository: Path, message: str = "m") -> str:
    git(repository, "add", "--all", "--force")
    git(repository, "commit", "--quiet", "--no-verify", "--allow-empty", "-m", message)
    return git(repository, "rev-parse", "HEAD")


def make_repository(root: Path, tree: Tree = SAMPLE) -> str:
    """A repository with one commit on ``main``; returns its SHA."""
    root.mkdir(parents=True, exist_ok=True)
    git(root, "init", "--quiet", "--initial-branch=main")
    write_folder(root, tree)
    return commit_all(root)
