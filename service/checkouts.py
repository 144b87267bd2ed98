"""The files of a checkout on this host, whichever host fetched them.

On the straight line this stands between ``service.subjects``, which fetched them once, and whoever needs them later: a
worker that runs them, and the interface, which reads from them what a repro script calls.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from service import store
from service.config import Settings
from service.db import Database
from service.subjects import Cache, Checkout, Progress, SubjectRequest, repository_key
from service.subjects.git import FULL_SHA


def ensure_checkout(settings: Settings, database: Database, digest: str) -> Path:
    """The tar of a checkout on this host, from the database where another host fetched it.

    Raises StoreError where it is kept nowhere, and SubjectError where it is kept damaged.
    """
    cache = Cache(settings.home)
    tar = cache.folder / f"{digest}.tar"
    if tar.exists() or not settings.database_url:
        return tar
    return cache.adopt(digest, pieces(database, digest))


def known_commit(
    settings: Settings, database: Database, request: SubjectRequest, progress: Progress
) -> Checkout | None:
    """A commit, named by its full SHA, that another host fetched: nothing of its repository is asked again.

    None for anything else, and where its tar is not kept. Raises SubjectError where it is kept damaged.
    """
    if not settings.database_url or request.kind != "commit" or not FULL_SHA.fullmatch(request.ref):
        return None
    repository = repository_key(request.repository)
    with database.read() as session:
        kept = store.kept_commit(session, repository, request.ref)
    cache = Cache(settings.home)
    if kept is None or cache.known("commit", repository, request.ref):
        return None
    progress(f"taking {kept.label} from the database", 0, kept.size)
    tar = cache.adopt(kept.digest, pieces(database, kept.digest))
    found = Checkout(kept.subject, "commit", kept.label, request.ref, kept.digest, tar, kept.size, kept.meta)
    cache.remember(found, "commit", repository, request.ref)
    return found


def pieces(database: Database, digest: str) -> Iterator[bytes]:
    """What the database keeps of it, piece by piece."""
    position = 0
    while True:
        with database.read() as session:
            data = store.checkout_part(session, digest, position)
        if data is None:
            return
        yield data
        position += 1
