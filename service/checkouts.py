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
from service.subjects import Cache


def ensure_checkout(settings: Settings, database: Database, digest: str) -> Path:
    """The tar of a checkout on this host, from the database where another host fetched it.

    Raises StoreError where it is kept nowhere, and SubjectError where it is kept damaged.
    """
    cache = Cache(settings.home)
    tar = cache.folder / f"{digest}.tar"
    if tar.exists() or not settings.database_url:
        return tar
    return cache.adopt(digest, pieces(database, digest))


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
