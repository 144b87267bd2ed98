"""``gradmatrix serve``, ``token`` and ``db``: the service and what its keeper does to it."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from rich.table import Table

from service import logs
from service.config import load_settings
from service.db import open_database
from service.errors import UsageError
from workers.cli.console import OK, console

if TYPE_CHECKING:
    from service.config import Settings
    from service.store import TokenView


def serve(listen: str | None) -> int:
    """The service for one person, until it is stopped."""
    from service.api.state import State
    from service.broker import LocalBroker
    from workers import serving
    from workers.runtimes.venv import VenvExecutor

    settings = load_settings()
    if settings.database_url or settings.broker_url:
        raise UsageError(
            "gradmatrix serve is for one person, with everything in one process; where database_url or broker_url is "
            "set, run gradmatrix api, worker and beat"
        )
    database = open_database(settings)
    logs.set_up(settings.log)
    out = console(stderr=True)
    try:
        made = serving.bound(listen or settings.listen)
        address = serving.address_of(made)
        broker = LocalBroker()
        state = State(settings, database, broker, embedded=True)
        with (
            closing(made),
            serving.alone(settings.home, address),
            serving.working(settings, database, broker, VenvExecutor(settings)),
            serving.reconciling(settings, database, broker),
        ):
            told = f"gradmatrix serves {address} (the interface: {address}/docs); results in {settings.home}"
            out.print(told, soft_wrap=True)
            trusted = "code runs as you, in virtual environments: give it only what you trust"
            out.print(f"{trusted}; what only a webhook asked for is not run", soft_wrap=True)
            serving.serve(state, made)
            out.print("stopping: what is not done stays queued")
    finally:
        database.dispose()
    return OK


def _fleet() -> Settings:
    """The settings of a part of a fleet, which has one database for all of them."""
    settings = load_settings()
    if settings.database_url is None:
        raise UsageError(
            "the parts of a fleet share a PostgreSQL database: set database_url, or GRADMATRIX_DATABASE_URL; for one "
            "person gradmatrix serve is all of them in one process"
        )
    return settings


def api(listen: str | None) -> int:
    """The interface alone, of a fleet."""
    from service.api.state import State
    from service.broker import publisher
    from workers import serving

    settings = _fleet()
    database = open_database(settings)
    logs.set_up(settings.log)
    try:
        made = serving.bound(listen or settings.listen)
        address = serving.address_of(made)
        console(stderr=True).print(f"gradmatrix api on {address}", soft_wrap=True)
        serving.serve(State(settings, database, publisher(settings), embedded=False), made)
    finally:
        database.dispose()
    return OK


def worker() -> int:
    """A worker of a fleet: it claims jobs, fetches, and runs until it is stopped."""
    from service.broker import LocalBroker, publisher
    from workers import serving
    from workers.app import listen
    from workers.runtimes.venv import VenvExecutor

    settings = _fleet()
    database = open_database(settings)
    logs.set_up(settings.log)
    broker = LocalBroker()
    try:
        with serving.working(settings, database, broker, VenvExecutor(settings), publisher(settings), gpus=True):
            console(stderr=True).print("gradmatrix worker: looking for work", soft_wrap=True)
            listen(settings, broker)
    finally:
        database.dispose()
    return OK


def beat() -> int:
    """The reconciler of a fleet; of several one acts, and another one takes over when it is gone."""
    from service.broker import publisher
    from workers import serving
    from workers.app import stopped

    settings = _fleet()
    database = open_database(settings)
    logs.set_up(settings.log)
    try:
        with stopped() as stop, serving.reconciling(settings, database, publisher(settings)):
            console(stderr=True).print("gradmatrix beat: putting right what nobody else does", soft_wrap=True)
            stop.wait()
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


def retention(apply: bool) -> int:
    """Show what is kept for longer than it has to be, or remove it."""
    from service import store
    from service.reconcile import apply_retention
    from service.store.sql import utcnow
    from service.words import human_bytes

    settings = load_settings()
    database = open_database(settings)
    try:
        with database.read() as session:
            found = store.expired(session, settings.retention, utcnow())
        removed = apply_retention(database, settings.retention, utcnow()) if apply else {}
    finally:
        database.dispose()
    table = Table("", "kept for", "too old", "bytes", *(["removed"] if apply else []), box=None, pad_edge=False)
    for what, each in found.items():
        days = getattr(settings.retention, f"{what}_days")
        size = human_bytes(each.size) if each.size else ""
        table.add_row(what, f"{days:g} days" if days else "ever", str(each.number), size, str(removed.get(what, "")))
    out = console()
    out.print(table)
    if not apply:
        acts = "removes it within the hour" if settings.retention.apply else "leaves it: retention.apply is off"
        out.print(f"nothing was removed; the reconciler {acts}, and gradmatrix retention --apply removes it now")
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
