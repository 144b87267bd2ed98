"""The service in one process: the HTTP interface, the fetcher and a worker, over the embedded database.

On the straight line this is everything from the POST to the stored verdict, for one person: ``gradmatrix serve``.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import uvicorn
from sqlalchemy.exc import SQLAlchemyError

from service import store
from service.api.state import State
from service.broker import Broker, Publisher
from service.config import ConfigError, Settings, listen_address
from service.db import Database
from service.errors import UsageError
from service.main import create_app
from service.reconcile import Reconciler
from workers import events
from workers.app import stopped
from workers.fetch import Fetcher
from workers.gpus import alive, find_inventory
from workers.loop import local_loop
from workers.runtimes import Executor
from workers.runtimes.guard import Guard

SERVED = "served.lock"
"""The file in home whose lock the service over it holds, and which says where it answers."""
GRACE_S = 3
"""How long an open connection, such as one that follows events, may hold up the end."""
log = logging.getLogger(__name__)


def bound(address: str) -> socket.socket:
    """A socket on ``HOST:PORT``. Raises ConfigError where it cannot be had."""
    try:
        host, _, port = listen_address(address).rpartition(":")
    except ValueError as error:
        raise ConfigError(f"--listen {address}: {error}") from None
    host = host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((host, int(port)))
        made.listen(2048)  # from now on who comes is kept waiting, and not refused
    except OSError as error:
        made.close()
        said = f"cannot listen on {address}: {error.strerror or error}"
        raise ConfigError(f"{said}; --listen HOST:0 takes any free port") from error
    return made


def address_of(made: socket.socket) -> str:
    """How a browser on this machine reaches it."""
    host, port = made.getsockname()[:2]
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104
    return f"http://{shown}:{port}"


@contextlib.contextmanager
def alone(home: Path, address: str) -> Iterator[None]:
    """For as long as this lasts the service over the file in ``home`` is here. Raises UsageError where one is already.

    Two would be safe for the database, and of no use: both have this machine's devices, fetch, and put things right.
    """
    with Guard(home / SERVED) as guard:
        if not guard.take():
            raise UsageError(
                f"gradmatrix serve is there already for {home}: {served_at(home)}. Use that one or stop it first, or "
                "give this one a home of its own: GRADMATRIX_HOME"
            )
        os.ftruncate(guard.fd, 0)
        os.pwrite(guard.fd, f"{address}, process {os.getpid()}".encode(), 0)
        yield


def served_at(home: Path) -> str:
    """Where the service over the file in ``home`` answers, and which process it is; nothing where there is none."""
    path = home / SERVED
    if not path.exists():
        return ""
    with Guard(path) as guard:
        return "" if guard.take(shared=True) else path.read_text("utf-8") or "it begins just now"


class _Server(uvicorn.Server):
    """Lets go of those who follow events before it waits for open connections."""

    def __init__(self, config: uvicorn.Config, state: State) -> None:
        super().__init__(config)
        self._state = state

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """SIGINT or SIGTERM came."""
        self._state.stopping.set()
        super().handle_exit(sig, frame)


def serve(state: State, made: socket.socket) -> None:
    """Answer HTTP on the socket until SIGINT or SIGTERM."""
    config = uvicorn.Config(
        create_app(state),
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=GRACE_S,
        lifespan="off",
        proxy_headers=False,  # who asks is told by the connection, never by what is sent over it
    )
    # The server raises the signal that ended it once more when it has ended; what runs beside it has still to end.
    with stopped():
        _Server(config, state).run(sockets=[made])


@contextlib.contextmanager
def reconciling(settings: Settings, database: Database, broker: Publisher) -> Iterator[None]:
    """A reconciler beside whatever runs in here."""
    stop = threading.Event()
    reconciler = Reconciler(database, broker, settings.retention)
    thread = threading.Thread(target=reconciler.run, args=(stop,), name="reconciler")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@contextlib.contextmanager
def working(
    settings: Settings,
    database: Database,
    broker: Broker,
    executor: Executor,
    tell: Publisher | None = None,
    *,
    gpus: bool = False,
) -> Iterator[None]:
    """A worker and a fetcher beside whatever runs in here; at the end what they held is given back.

    ``broker`` wakes them; ``tell`` is told of what was planned, where others work too. ``gpus``: whether the host's
    GPUs are leased where the settings do not say. Raises NvmlBrokenError where they are to be and cannot.
    """
    stop = threading.Event()
    inventory = find_inventory(settings, gpus=gpus)
    with contextlib.suppress(SQLAlchemyError), database.session() as session:
        store.reclaim(session, alive=alive)  # what a killed one held is free at once
    with local_loop(settings, database, inventory, executor, broker, told, lasting=True) as loop:
        fetcher = Fetcher(settings, database, broker, tell)
        threads = [
            threading.Thread(target=_lasting, args=(part.run, stop), name=type(part).__name__)
            for part in (loop, fetcher)
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            stop.set()
            for thread in threads:
                thread.join()


def _lasting(run: Callable[[threading.Event], None], stop: threading.Event) -> None:
    """``run`` until ``stop`` is set: a fault of ours is written down, and does not end the service's work."""
    while not stop.is_set():
        try:
            run(stop)
        except Exception:
            log.exception("%s failed; starting it again", threading.current_thread().name)
            stop.wait(5.0)


def told(event: events.Event) -> None:
    """What a worker does, as lines of the log."""
    match event:
        case events.JobStarted():
            log.info("started: %s on torch %s, %d ranks", event.label, event.torch, event.world_size)
        case events.JobDone():
            log.info("ended: %s in %.1f s", event.outcome, event.seconds)
        case events.RuntimeBuilding():
            log.debug("%s: %s", event.name, event.what)
        case _:
            pass
