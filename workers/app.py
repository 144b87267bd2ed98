"""The Celery side of a worker: a message that there is work wakes the loop in this process.

On the straight line this stands between ``service.broker``, which sends, and ``workers.loop``, which looks. Where Redis
is away Celery goes on trying, and the loop looks by itself every few seconds.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from celery.signals import setup_logging

from service.broker import TASK, Publisher, celery_app
from service.config import Settings


def listen(settings: Settings, woken: Publisher) -> None:
    """Publish every hint of the fleet to ``woken``, until SIGINT or SIGTERM."""
    if settings.broker_url is None:
        with stopped() as stop:
            stop.wait()
        return
    app = celery_app(settings.broker_url)
    setup_logging.connect(_keep_logging, weak=False)

    @app.task(name=TASK, ignore_result=True)  # type: ignore[untyped-decorator]
    def hint() -> None:
        woken.publish()

    worker = app.Worker(
        hostname=f"gradmatrix-{os.getpid()}@{socket.gethostname()}",
        pool="solo",
        concurrency=1,
        quiet=True,
        loglevel="WARNING",
        without_gossip=True,
        without_mingle=True,
        without_heartbeat=True,
        prefetch_multiplier=100,
    )
    with suppress(SystemExit):  # how it ends after a signal
        worker.start()


def _keep_logging(**_: object) -> None:
    """Where somebody hears its signal, Celery sets up no logging: the lines stay as ``service.logs`` has them."""


@contextmanager
def stopped() -> Iterator[threading.Event]:
    """An event that SIGINT and SIGTERM set."""
    stop = threading.Event()
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
