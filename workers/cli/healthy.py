"""``gradmatrix healthy``: whether a part of the service does its work, for whoever restarts it where it does not."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from service.claims import LEASE_S
from service.config import load_settings
from service.db import open_database
from service.errors import UsageError, nearest
from workers.cli.console import INCOMPLETE, OK, console

if TYPE_CHECKING:
    from collections.abc import Callable

    from service.config import Settings


def healthy(part: str) -> int:
    """Say whether ``part`` works, and exit 0 if so."""
    if part not in PARTS:
        raise UsageError(f"{part!r} is no part of the service: {nearest(part, PARTS)}")
    trouble = PARTS[part](load_settings())
    console(stderr=bool(trouble)).print(trouble or f"{part}: works", soft_wrap=True)
    return INCOMPLETE if trouble else OK


def _api(settings: Settings) -> str:
    """It answers. Whether its database does is /readyz's to say: a restart would not bring that back."""
    import requests

    address = settings.server or f"http://{settings.listen}"
    try:
        answer = requests.get(f"{address}/healthz", timeout=5)
    except requests.RequestException as error:
        return f"api: {address} does not answer: {error}"
    return "" if answer.ok else f"api: {address} answers {answer.status_code}"


def _beat(settings: Settings) -> str:
    """Somebody reconciles, this one or another. Over an embedded file that is the service itself."""
    from service.reconcile import acts
    from workers.serving import served_at

    if settings.database_url is None:
        there = f"gradmatrix serve is its own reconciler, and none runs over {settings.home}"
        return "" if served_at(settings.home) else f"beat: {there}; the one of a fleet needs database_url"
    database = open_database(settings)
    try:
        return "" if acts(database) else "beat: no reconciler acts"
    finally:
        database.dispose()


def _worker(settings: Settings) -> str:
    """It has looked for work not long ago."""
    from service import store
    from service.store.sql import utcnow

    name = settings.host_name
    database = open_database(settings)
    try:
        with database.read() as session:
            seen = {host.name: host.seen_at for host in store.hosts(session)}
    finally:
        database.dispose()
    if name not in seen:
        return f"worker: host {name} has never looked for work"
    since = utcnow() - seen[name]
    return "" if since < timedelta(seconds=LEASE_S) else f"worker: host {name} looked for work {since} ago"


PARTS: dict[str, Callable[[Settings], str]] = {"api": _api, "beat": _beat, "worker": _worker}
"""Each part with what finds its trouble; nothing where it works."""
