"""``gradmatrix serve``, ``token`` and ``db``: the service and what its keeper does to it."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

from rich.table import Table

from service.config import load_settings
from service.db import open_database
from workers.cli.console import OK, console

if TYPE_CHECKING:
    from service.store import TokenView


def serve(listen: str | None) -> int:
    """The service for one person, until it is stopped."""
    from workers import serving
    from workers.runtimes.venv import VenvExecutor

    settings = load_settings()
    database = open_database(settings)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(message)s")
    logging.getLogger("alembic").setLevel(logging.WARNING)
    out = console(stderr=True)
    try:
        made = serving.bound(listen or settings.listen)
        state = serving.embedded(settings, database)
        with serving.working(settings, database, state.broker, VenvExecutor(settings)):
            address = serving.address_of(made)
            told = f"gradmatrix serves {address} (the interface: {address}/docs); results in {settings.home}"
            out.print(told, soft_wrap=True)
            out.print("code runs as you, in virtual environments: give it only what you trust", soft_wrap=True)
            serving.serve(state, made)
            out.print("stopping: what is not done stays queued")
    finally:
        database.dispose()
    return OK


def token_create(name: str, scope: str) -> int:
    """Print a new token's secret, once."""
    from service import store

    database = open_database(load_settings())
    try:
        with database.session() as session:
            secret, view = store.create_token(session, name, scope)
    finally:
        database.dispose()
    console(stderr=True).print(f"token {view.id}, {view.name!r}, scope {view.scope}; it is shown only now:")
    console().print(secret)
    return OK


def token_list() -> int:
    """Every token, without its secret."""
    from service import store

    database = open_database(load_settings())
    try:
        with database.read() as session:
            found = store.tokens(session)
    finally:
        database.dispose()
    out = console()
    if not found:
        out.print("no tokens: gradmatrix token create NAME --scope read|submit|admin makes one")
        return OK
    table = Table("", "name", "scope", "begins", "made", "last used", "", box=None, pad_edge=False)
    for one in found:
        table.add_row(*_columns(one))
    out.print(table)
    return OK


def _columns(one: TokenView) -> tuple[str, ...]:
    used = f"{one.used_at:%Y-%m-%d %H:%M}" if one.used_at else "never"
    state = "revoked" if one.revoked_at else ""
    return str(one.id), one.name, one.scope, one.prefix, f"{one.created_at:%Y-%m-%d}", used, state


def token_revoke(token: int) -> int:
    """From now on it opens nothing."""
    from service import store

    database = open_database(load_settings())
    try:
        with database.session() as session:
            view = store.revoke_token(session, token)
    finally:
        database.dispose()
    console().print(f"token {view.id}, {view.name!r}, opens nothing any more")
    return OK


def db_upgrade() -> int:
    """Bring the configured database's schema up to date."""
    import sqlalchemy as sa

    from service import db

    settings = load_settings()
    if settings.database_url:
        db.upgrade(sa.make_url(settings.database_url))
    open_database(settings).dispose()  # an embedded one is brought up to date whenever it is opened
    console().print(f"the schema is {db.head()}, as this program needs it")
    return OK
