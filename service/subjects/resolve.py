"""From a request to a checkout: what is known is answered from the cache, the rest is fetched, checked and packed.

On the straight line this stands between ``service.api`` or the command line and ``service.matrix``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

from packaging.utils import canonicalize_version

from jobs.contract import TORCH
from service.config import Settings
from service.pip_config import pip_configuration
from service.subjects.archive import read_archive
from service.subjects.cache import Cache, Checkout, Packed
from service.subjects.errors import UnknownSubject, Unreachable
from service.subjects.git import FULL_SHA, Mirror
from service.subjects.local import read_folder
from service.subjects.parse import Kind, Progress, SubjectRequest, elsewhere, repository_key
from service.subjects.tree import Caps, Entry, Spool


def resolve(request: SubjectRequest, settings: Settings, progress: Progress | None = None) -> Checkout:
    """The checkout that was asked for. A known release or full SHA is answered without any network."""
    return _BY_KIND[request.kind](request, settings, progress or (lambda what, done, total: None))


def caps(settings: Settings) -> Caps:
    """The caps on a checkout, as configured."""
    return Caps(settings.archive_bytes, settings.archive_file_bytes, settings.archive_files)


def _release(request: SubjectRequest, settings: Settings, progress: Progress) -> Checkout:
    cache, what, key = (
        Cache(settings.home),
        request.text,
        ("release", request.name, canonicalize_version(request.version)),
    )
    if known := cache.known(*key):
        return known
    from service.subjects.release import IndexClient  # its libraries take longer to import than a known release to find

    client = IndexClient(pip_configuration(), connect_s=settings.connect_s, fetch_s=settings.fetch_s)
    with contextlib.closing(client), cache.scratch() as archive, cache.scratch() as contents:
        release = client.find(request.name, request.version)
        client.download(release, archive, settings.archive_bytes, progress)
        archive.seek(0)
        packed = _pack(cache, read_archive(archive, what, caps(settings), Spool(contents)), what, progress)
    meta = {"archive": release.filename, "archive_sha256": release.sha256}
    checkout = _checkout(packed, "release", f"{request.name}=={release.version}", release.version, meta)
    cache.remember(checkout, *key)
    return checkout


def _commit(request: SubjectRequest, settings: Settings, progress: Progress) -> Checkout:
    cache, repository = Cache(settings.home), repository_key(request.repository)
    if FULL_SHA.fullmatch(request.ref) and (known := cache.known("commit", repository, request.ref)):
        return known
    mirror = Mirror(settings.home, request.repository, connect_s=settings.connect_s, fetch_s=settings.fetch_s)
    with mirror.locked(), cache.scratch() as contents:
        progress(f"fetching {request.ref} from {request.repository}", 0, None)
        try:
            sha = mirror.resolve(request.ref)
        except (UnknownSubject, Unreachable) as error:
            if not (others := elsewhere(request, settings)):
                raise
            hint = "a bare SHA is looked up in the default repository alone; in another one it is named "
            raise type(error)(f"{error}\n{hint}{' or '.join(others)}") from None
        if known := cache.known("commit", repository, sha):
            return known
        what = f"{request.repository}@{sha[:12]}"
        packed = _pack(cache, mirror.entries(sha, what, caps(settings), Spool(contents)), what, progress)
    name = packed.subject if packed.subject != "checkout" else repository.rstrip("/").rpartition("/")[2]
    checkout = _checkout(packed, "commit", f"{name}@{sha[:12]}", sha, {"repository": request.repository})
    cache.remember(checkout, "commit", repository, sha)
    return checkout


def _path(request: SubjectRequest, settings: Settings, progress: Progress) -> Checkout:
    what = f"path:{request.path.name}"
    packed = _pack(Cache(settings.home), read_folder(request.path, what, caps(settings)), what, progress)
    return _checkout(packed, "path", what, "", {})


def _torch(request: SubjectRequest, settings: Settings, progress: Progress) -> Checkout:
    return _checkout(Cache(settings.home).put([], TORCH, subject=TORCH), "torch", TORCH, "", {})


def _pack(cache: Cache, entries: Sequence[Entry], what: str, progress: Progress) -> Packed:
    total = sum(entry.size for entry in entries)
    return cache.put(entries, what, lambda done: progress(f"packing {what}", done, total))


def _checkout(packed: Packed, kind: Kind, label: str, ref: str, meta: dict[str, str]) -> Checkout:
    return Checkout(packed.subject, kind, label, ref, packed.digest, packed.tar, packed.size, meta)


_BY_KIND: dict[Kind, Callable[[SubjectRequest, Settings, Progress], Checkout]] = {
    "release": _release,
    "commit": _commit,
    "path": _path,
    "torch": _torch,
}
