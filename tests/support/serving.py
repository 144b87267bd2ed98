"""An application served for real in this process, on a free port."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

import uvicorn

from service.api.state import State
from service.main import create_app
from workers.serving import address_of, bound


@contextlib.contextmanager
def served(state: State) -> Iterator[str]:
    """Its address."""
    made = bound("127.0.0.1:0")
    config = uvicorn.Config(create_app(state), log_config=None, lifespan="off", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [made]})
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield address_of(made)
    finally:
        server.should_exit = True
        thread.join()
        made.close()
