"""A commit of an allow-listed repository as a tree.

On the straight line this stands beside ``archive`` and ``local``. The tree is read as objects (``ls-tree`` and
``cat-file``), never checked out and never archived by git: so no filter, hook, attribute (export-subst,
export-ignore), submodule or large-file pointer is acted upon, and the files are exactly those of the commit.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from service.errors import nearest
from service.subjects.errors import SubjectError, UnknownSubject, Unreachable
from service.subjects.git_run import Git, GitFailed, GitTooLarge, pipe
from service.subjects.tree import CHUNK, Caps, Entry, Spool, TreeBuilder

FULL_SHA = re.compile("[0-9a-f]{40}")
SHA = re.compile("[0-9a-f]{7,40}")
REF = re.compile(r"(?!.*\.\.)[A-Za-z0-9_][A-Za-z0-9_./+-]*")
MIRROR_BYTES = 4 * 2**30


class Mirror:
    """A bare copy of one repository, shared by all processes; everything else happens within :meth:`locked`.

    It holds single commits as long as those are asked for by a full SHA or a name, and the whole history from when a
    short SHA had to be looked up.
    """

    def __init__(
        self,
        home: Path,
        remote: str,
        *,
        connect_s: float,
        fetch_s: float,
        max_bytes: int = MIRROR_BYTES,
        protocols: tuple[str, ...] = ("https", "file"),
    ) -> None:
        self.remote = f"file://{urllib.parse.quote(remote)}" if remote.startswith("/") else remote
        self._folder = home / "mirrors" / (hashlib.sha256(self.remote.encode()).hexdigest()[:24] + ".git")
        self._connect_s = connect_s
        self._git = Git(self._folder, seconds=fetch_s, max_bytes=max_bytes, protocols=protocols)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the mirror alone, among all processes; make it when there is none."""
        self._folder.parent.mkdir(parents=True, exist_ok=True)
        with self._folder.with_suffix(".lock").open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._sweep()
            if not (self._folder / "HEAD").is_file():
                shutil.rmtree(self._folder, ignore_errors=True)
                try:
                    self._git.run("init", "--quiet", "--bare", "--template=", str(self._folder))
                except GitFailed as error:
                    raise SubjectError(f"cannot make a mirror of {self.remote}: {error}") from None
            yield

    def _sweep(self) -> None:
        """Remove what a git that was killed has left half-written; nobody else is at it."""
        for pattern in ("*.lock", "refs/**/*.lock", "objects/pack/tmp_*", "objects/pack/*.lock"):
            for left in self._folder.glob(pattern):
                left.unlink(missing_ok=True)

    # which commit

    def resolve(self, ref: str) -> str:
        """The full SHA of a branch, a tag or a SHA; a SHA that is here already needs no network."""
        if not REF.fullmatch(ref):
            raise UnknownSubject(f"{self.remote}: {ref!r} is no name of a branch or tag, and no SHA")
        if SHA.fullmatch(ref) and (known := self._known(ref)):
            return known
        names = self._names()
        # git's own order of meanings; a full SHA is never a name's, whatever a branch is called
        meant = () if FULL_SHA.fullmatch(ref) else (ref, f"refs/{ref}", f"refs/tags/{ref}", f"refs/heads/{ref}")
        full = next((name for name in meant if name in names), None)
        if full is None and not SHA.fullmatch(ref):
            short = [name.split("/", 2)[2] for name in names if name.startswith(("refs/heads/", "refs/tags/"))]
            raise UnknownSubject(f"{self.remote} has no branch or tag {ref!r}; {nearest(ref, short)}")
        wanted = ref if full is None else names.get(full + "^{}", names[full])
        return self._known(wanted) or self._fetch(wanted)

    def _names(self) -> dict[str, str]:
        """Every name of the remote with its SHA; asked first, in little time, since git itself waits for minutes."""
        try:
            listed = self._git.run("ls-remote", self.remote, seconds=2 * self._connect_s).decode(errors="replace")
        except GitFailed as error:
            raise self._unreachable(error) from None
        lines = (line.split("\t", 1) for line in listed.splitlines() if "\t" in line)
        return {name: sha for sha, name in lines}

    def _known(self, name: str) -> str | None:
        with contextlib.suppress(GitFailed):
            return self._git.run("rev-parse", "--verify", "--quiet", name + "^{commit}").decode().strip()
        return None

    def _fetch(self, sha: str) -> str:
        complete = self._folder / "complete"
        try:
            if FULL_SHA.fullmatch(sha):
                depth = () if complete.exists() else ("--depth=1",)
                if self._fetched(*depth, self.remote, f"+{sha}:refs/wanted/{sha}") and (known := self._known(sha)):
                    return known
            # Short, or not handed out by its SHA, as not every server does: then it must come with the history.
            depth = ("--unshallow",) if (self._folder / "shallow").exists() else ()
            self._run_fetch(*depth, self.remote, "+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*")
        except GitTooLarge as error:
            shutil.rmtree(self._folder)
            raise SubjectError(f"{self.remote}: {error}; nothing was kept") from None
        except GitFailed as error:
            raise self._unreachable(error) from None
        complete.touch()
        if known := self._known(sha):
            return known
        if FULL_SHA.fullmatch(sha):
            gone = "a branch or pull request that was pushed over may have taken it along"
            raise UnknownSubject(f"{self.remote} has no commit {sha}, or no longer hands it out: {gone}")
        raise UnknownSubject(f"{self.remote}: no commit, or more than one, begins with {sha}; give the full SHA")

    def _fetched(self, *arguments: str) -> bool:
        try:
            self._run_fetch(*arguments)
        except GitTooLarge:
            raise
        except GitFailed:
            return False
        return True

    def _run_fetch(self, *arguments: str) -> None:
        try:
            self._git.run("fetch", "--quiet", "--no-tags", "--force", *arguments)
        finally:
            self._sweep()

    def _unreachable(self, error: GitFailed) -> Unreachable:
        lines = [line for line in str(error).splitlines() if line.startswith(("fatal:", "error:"))]
        return Unreachable(
            f"cannot fetch from {self.remote}: {next(iter(lines), str(error)).strip()}; check the network, proxies and "
            "certificates, and that the repository needs no login and has not moved (redirects are not followed)"
        )

    # its files

    def entries(self, sha: str, what: str, caps: Caps, spool: Spool) -> list[Entry]:
        """The files and links of a commit that is here; submodules are left out."""
        builder = TreeBuilder(what, caps)
        try:
            blobs = self._blobs(sha, builder)
            with self._git.stream("cat-file", "--batch") as git:
                for mode, blob, size, path in blobs:
                    content = _Blob(git, blob, size)
                    if mode == "120000":
                        builder.link(path, os.fsdecode(content.read(size)))
                    else:
                        builder.file(path, size, mode == "100755", spool.take(content, size))
                    content.close()
        except (GitFailed, EOFError, OSError) as error:
            raise SubjectError(f"{what}: git cannot read the commit: {error}") from None
        if not blobs:
            raise UnknownSubject(f"{what}: the commit holds no files")
        return builder.finish()

    def _blobs(self, sha: str, builder: TreeBuilder) -> list[tuple[str, str, int, str]]:
        """Mode, blob, size and path of each file, held to the caps before any content is read."""
        blobs, total = [], 0
        with self._git.stream("ls-tree", "-r", "-z", "-l", "--full-tree", sha) as git:
            for line in _records(pipe(git.stdout)):
                head, _, name = line.partition(b"\t")
                mode, kind, blob, size = head.decode().split()
                path = builder.member(os.fsdecode(name))
                if kind != "blob":
                    continue
                total += int(size)
                if int(size) > (CHUNK if mode == "120000" else builder.caps.per_file):
                    raise builder.refuse(path, f"has {int(size):,} bytes; one file may have {builder.caps.per_file:,}")
                if total > builder.caps.total:
                    raise builder.refuse(path, f"takes the tree beyond {builder.caps.total:,} bytes")
                blobs.append((mode, blob, int(size), path))
        return blobs


class _Blob:
    """One object out of ``git cat-file --batch``."""

    def __init__(self, git: subprocess.Popen[bytes], blob: str, size: int) -> None:
        self._out = pipe(git.stdout)
        asked = pipe(git.stdin)
        asked.write(blob.encode() + b"\n")
        asked.flush()
        answer = self._out.readline()
        if answer.split() != [blob.encode(), b"blob", str(size).encode()]:
            raise EOFError(f"object {blob} is missing or damaged")

    def read(self, size: int, /) -> bytes:
        return self._out.read(size)

    def close(self) -> None:
        if self._out.read(1) != b"\n":
            raise EOFError("its answer is out of step")


def _records(source: IO[bytes]) -> Iterator[bytes]:
    """NUL-terminated records, none of which may be endless."""
    rest = b""
    while data := source.read1(CHUNK):  # type: ignore[attr-defined]  # a buffered pipe
        *whole, rest = (rest + data).split(b"\0")
        if len(rest) > CHUNK:
            raise EOFError("a path without an end")
        yield from whole
