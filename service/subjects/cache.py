"""Checkouts on disk: one tar per digest, and small notes of what is known, so that known things need no network.

On the straight line this stands at the end of ``service.subjects``; ``workers`` hand the tar to a job as it is.

::

    checkouts/<digest>.tar           a normalised tree
    checkouts/known/<key>.json       a release or a commit -> its checkout
    checkouts/partial/               work in progress, on the same file system, so that a rename is atomic

Two processes may do the same at once: every file appears whole by one rename, and both write the same.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from service.subjects.errors import SubjectError, UnknownSubject
from service.subjects.parse import Kind
from service.subjects.tree import Entry, pack, tar_digest

ADAPTER_FILE = "gradmatrix_adapter.py"
_MARKS = ((ADAPTER_FILE, "checkout"), ("deepspeed/__init__.py", "deepspeed"))
"""What a tree holds, and which adapter drives it; its own goes first."""

_STALE_S = 24 * 3600.0


@dataclass(frozen=True)
class Checkout:
    """A subject at one exact content.

    subject  the adapter that drives it: ``deepspeed``, or ``checkout`` for the one that it brings along; ``torch``, of
             a tree without files, where only torch itself is asked about
    label    for people: ``deepspeed==0.18.3``, ``deepspeed@1f2e3d4c5b6a``, ``path:NAME``
    ref      the version, the full SHA, or nothing
    digest   sha256 over its sorted files; equal for equal files, wherever they came from
    tar      the normalised tar of its files, and its size in bytes
    meta     where it came from: sha256 of the archive, repository …
    """

    subject: str
    kind: Kind
    label: str
    ref: str
    digest: str
    tar: Path
    size: int
    meta: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Packed:
    """A tree in the cache, whatever it is called."""

    subject: str
    digest: str
    tar: Path
    size: int


def verify(checkout: Checkout) -> bool:
    """Whether the cached tar holds what its digest says; where not, it is discarded, and resolve rebuilds it."""
    with contextlib.suppress(OSError):
        if checkout.tar.stat().st_size == checkout.size and tar_digest(checkout.tar) == checkout.digest:
            return True
    checkout.tar.unlink(missing_ok=True)
    return False


class Cache:
    """The checkouts below one home folder."""

    def __init__(self, home: Path) -> None:
        self.folder = home / "checkouts"
        self._partial, self._known = self.folder / "partial", self.folder / "known"

    @contextlib.contextmanager
    def scratch(self) -> Iterator[BinaryIO]:
        """An unnamed temporary file beside the cache; gone with the process that holds it."""
        with self._writing(), tempfile.TemporaryFile(dir=self._partial) as file:
            yield file

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            for folder in (self._partial, self._known):
                folder.mkdir(parents=True, exist_ok=True)
            for left in self._partial.iterdir():  # by a process that was killed
                with contextlib.suppress(FileNotFoundError):
                    if left.stat().st_mtime < time.time() - _STALE_S:
                        left.unlink()
            yield
        except InterruptedError:  # by whoever is told how far it is, and no fault of the disk
            raise
        except OSError as error:
            raise SubjectError(f"the cache in {self.folder} cannot be used: {error.strerror or error}") from None

    def put(
        self,
        entries: Sequence[Entry],
        what: str,
        progress: Callable[[int], None] | None = None,
        subject: str | None = None,
    ) -> Packed:
        """Pack a tree under its digest. What drives it is told by its files, unless ``subject`` is given."""
        paths = {entry.path for entry in entries}
        subject = subject or next((adapter for mark, adapter in _MARKS if mark in paths), None)
        if subject is None:
            wanted = " nor ".join(mark for mark, _ in _MARKS)
            raise UnknownSubject(f"{what}: there is nothing to test in it: it holds neither {wanted}")
        with self._writing(), tempfile.NamedTemporaryFile(dir=self._partial, suffix=".tar", delete=False) as file:
            partial = Path(file.name)
            try:
                digest = pack(entries, file, what, progress)
                file.flush()
                os.fsync(file.fileno())
                tar = self.folder / f"{digest}.tar"
                partial.rename(tar)
            finally:
                partial.unlink(missing_ok=True)
            return Packed(subject, digest, tar, tar.stat().st_size)

    def adopt(self, digest: str, pieces: Iterable[bytes]) -> Path:
        """Take in a tar that was packed elsewhere. Raises SubjectError unless it holds what its digest says."""
        with self._writing(), tempfile.NamedTemporaryFile(dir=self._partial, suffix=".tar", delete=False) as file:
            partial = Path(file.name)
            try:
                for piece in pieces:
                    file.write(piece)
                file.flush()
                if tar_digest(partial) != digest:
                    raise SubjectError(f"what is kept of checkout {digest[:12]} is not what its digest says")
                return partial.rename(self.folder / f"{digest}.tar")
            finally:
                partial.unlink(missing_ok=True)

    def known(self, *key: str) -> Checkout | None:
        """The checkout that was remembered under ``key``, when its tar is whole; a damaged one is discarded."""
        try:
            data = json.loads(self._note(key).read_text("utf-8"))
            if data.pop("key") != list(key):
                return None
            checkout = Checkout(tar=self.folder / f"{data['digest']}.tar", **data)
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return checkout if verify(checkout) else None

    def remember(self, checkout: Checkout, *key: str) -> None:
        """Note that ``key`` is this checkout."""
        data = dataclasses.asdict(checkout) | {"key": list(key)}
        del data["tar"]
        with self._writing():
            with tempfile.NamedTemporaryFile("w", dir=self._partial, encoding="utf-8", delete=False) as file:
                json.dump(data, file, indent=1, sort_keys=True)
            Path(file.name).replace(self._note(key))

    def _note(self, key: Sequence[str]) -> Path:
        return self._known / (hashlib.sha256("\0".join(key).encode()).hexdigest()[:32] + ".json")
