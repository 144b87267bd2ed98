"""Putting right what nobody is left to put right: the reconciler.

On the straight line this stands beside everything: each act is one transaction over the store, and any of them may be
done twice. One reconciler acts at a time (:func:`acting`); the others wait for it to be gone.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from service import store
from service.broker import Publisher, announce
from service.claims import BEAT_S
from service.db import Database
from service.retention import Retention
from service.store.sql import utcnow

LOCK = 0x67726D72
RETENTION_EVERY = timedelta(hours=1)
"""How often what is too old is looked for."""
KEYS_KEPT = timedelta(days=7)
"""How long an Idempotency-Key is remembered."""
log = logging.getLogger(__name__)


class Reconciler:
    """Acts every beat, as long as it is the one that may."""

    def __init__(self, database: Database, broker: Publisher, retention: Retention) -> None:
        self._database, self._broker, self._retention = database, broker, retention
        self._retained: datetime | None = None

    def run(self, stop: threading.Event) -> None:
        """Act until ``stop`` is set. A database that is away is waited for."""
        while not stop.is_set():
            try:
                with acting(self._database) as mine:
                    while mine() and not stop.wait(BEAT_S):
                        self.once()
            except SQLAlchemyError as error:
                log.warning("the database cannot be reached; trying again: %s", error)
            except Exception:
                log.exception("the reconciler failed; trying again")
            stop.wait(BEAT_S)

    def once(self) -> dict[str, int]:
        """Everything once; what was put right, by name."""
        done = {
            "requeued": self._in_transaction(lambda session: len(store.reclaim(session))),
            "keys_forgotten": self._in_transaction(lambda session: store.forget_keys(session, utcnow() - KEYS_KEPT)),
            "unsettled": self._in_transaction(store.settle_all),
        }
        announce(self._database, self._broker)
        done |= self._retain(utcnow())
        for name, number in done.items():
            if number:
                log.info("reconciler: %d %s", number, name.replace("_", " "))
                self._in_transaction(partial(_counted, name=name, number=number))
        return done

    def _retain(self, now: datetime) -> dict[str, int]:
        """Once in a while: remove what is too old, a batch in each transaction, or say only what is."""
        if self._retained is not None and now - self._retained < RETENTION_EVERY:
            return {}
        if self._retention.apply:
            removed = apply_retention(self._database, self._retention, now)
            self._retained = now
            return {f"{what}_removed": number for what, number in removed.items()}
        with self._database.read() as session:
            found = store.expired(session, self._retention, now)
        for what, each in found.items():
            if each.number:
                said = "%d %s are older than they are kept, %d bytes: retention.apply is off"
                log.info(said, each.number, what, each.size)
        self._retained = now
        return {}

    def _in_transaction(self, act: Callable[[Session], int]) -> int:
        with self._database.session() as session:
            return act(session)


def apply_retention(database: Database, policy: Retention, now: datetime) -> dict[str, int]:
    """Remove everything that is too old, a batch in each transaction; of each sort, how many it were."""
    done: Counter[str] = Counter()
    while True:
        with database.session() as session:
            removed = store.remove_expired(session, policy, now)
        done.update(removed)
        if not any(removed.values()):
            return dict(done)


def _counted(session: Session, *, name: str, number: int) -> int:
    store.count_act(session, name, number)
    return number


def acts(database: Database) -> bool:
    """Whether any reconciler acts now on a fleet's database."""
    held = sa.text(
        "SELECT count(*) FROM pg_locks JOIN pg_database ON pg_database.oid = pg_locks.database "
        "WHERE datname = current_database() AND locktype = 'advisory' "
        "AND objsubid = 1 AND classid = 0 AND objid = :lock"
    )
    with database.read() as session:
        return bool(session.scalar(held, {"lock": LOCK}))


@contextmanager
def acting(database: Database) -> Iterator[Callable[[], bool]]:
    """Whether this is the one reconciler that acts, asked for as long as this lasts.

    On PostgreSQL it is who holds an advisory lock of a connection of its own, which ends with the process; an embedded
    database has one service only.
    """
    if database.engine.dialect.name != "postgresql":
        yield lambda: True
        return
    with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        mine = bool(connection.scalar(sa.select(sa.func.pg_try_advisory_lock(LOCK))))
        try:
            # A connection that broke took the lock with it: asking over it says so.
            yield lambda: mine and bool(connection.scalar(sa.select(sa.true())))
        finally:
            if mine:
                connection.execute(sa.select(sa.func.pg_advisory_unlock(LOCK)))
