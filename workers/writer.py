"""Hands what comes to whoever stores it: what comes while that one is busy goes in one piece.

On the straight line this stands between ``workers.attempt``, which reads a job's events, and ``service.store``. With a
transaction for every answer a fleet would wait for its database, and who reads the events for each commit.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

LINGER_S = 0.2
"""How long the first one waits for company."""
AT_MOST = 64
"""How many wait, and go in one piece: whoever brings more waits too."""


class Writer(Generic[T]):
    """Stores in the order in which it is given, on a thread of its own, as long as it is entered."""

    def __init__(self, store: Callable[[list[T]], None], failed: Callable[[Exception], None]) -> None:
        """``failed`` is told, on that thread, of what ``store`` raised; what it was given then is not tried again."""
        self._store, self._failed = store, failed
        self._items: list[T] = []
        self._busy = self._hurry = self._closed = False
        self._failure: Exception | None = None
        self._change = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="writer")

    def __enter__(self) -> Writer[T]:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Store what waits, and end."""
        with self._change:
            self._closed = True
            self._change.notify_all()
        self._thread.join()

    def put(self, item: T) -> None:
        """Have ``item`` stored. Raises, once, what storing an earlier one raised."""
        with self._change:
            self._change.wait_for(lambda: len(self._items) < AT_MOST)
            self._raise()
            self._items.append(item)
            self._change.notify_all()

    def flush(self) -> None:
        """Wait until all that was given is stored. Raises as :meth:`put` does."""
        with self._change:
            self._hurry = True
            self._change.notify_all()
            self._change.wait_for(lambda: not (self._items or self._busy))
            self._hurry = False
            self._raise()

    def _raise(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _run(self) -> None:
        while items := self._gather():
            failure = None
            try:
                self._store(items)
            except Exception as error:  # noqa: BLE001 - raised where the items came from
                failure = error
                self._failed(error)
            with self._change:
                self._busy = False
                self._failure = self._failure or failure
                self._change.notify_all()

    def _gather(self) -> list[T]:
        """What is to be stored next; nothing at the end."""
        with self._change:
            self._change.wait_for(lambda: self._items or self._closed)
            self._change.wait_for(lambda: self._hurry or self._closed or len(self._items) >= AT_MOST, LINGER_S)
            items, self._items = self._items, []
            self._busy = bool(items)
            self._change.notify_all()
            return items
