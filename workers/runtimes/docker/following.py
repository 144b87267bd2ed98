"""A long answer of the engine's, read line by line and given up when somebody says so.

On the straight line this stands under ``workers.runtimes.docker.images``: a build, a pull and a push each are one
request whose answer goes on for as long as the work does. The engine ends the work when its client goes away.
"""

from __future__ import annotations

import io
import os
import queue
import socket
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, BinaryIO

import docker
import requests

_POLL_S = 0.2

Entry = dict[str, Any]


class Stoppable(io.RawIOBase):
    """A file that is sent until ``stop`` is set: the rest of it then fails the request."""

    def __init__(self, file: BinaryIO, stop: threading.Event) -> None:
        self._file, self._stop = file, stop

    def readable(self) -> bool:
        """It is there to be read."""
        return True

    def fileno(self) -> int:
        """Its size is that of the file."""
        return self._file.fileno()

    def tell(self) -> int:
        """Where reading is."""
        return self._file.tell()

    def read(self, size: int = -1) -> bytes:
        """The next bytes. Raises InterruptedError once it is stopped."""
        if self._stop.is_set():
            raise InterruptedError
        return self._file.read(size)


def follow(
    client: docker.DockerClient,
    call: Callable[[threading.Event], Iterable[Entry]],
    heard: Callable[[Entry], None],
    tick: Callable[[], None],
) -> None:
    """Call ``heard`` with every entry of the answer to ``call``, and ``tick`` often, also while nothing comes.

    ``call`` makes one request with ``client``, in a thread of its own. What ``heard`` or ``tick`` raises ends the
    request, with whatever the engine does for it; what ``call`` raises is raised here.
    """
    entries: queue.Queue[Entry | BaseException | None] = queue.Queue()
    stop, answers = threading.Event(), list[requests.Response]()
    reader: threading.Thread

    def keep(response: requests.Response, *args: Any, **kwargs: Any) -> None:
        if threading.current_thread() is reader:
            answers.append(response)

    def read() -> None:
        try:
            for entry in call(stop):
                entries.put(entry)
            entries.put(None)
        except BaseException as error:  # noqa: BLE001 - carried to the thread that waits
            entries.put(error)

    hooks = client.api.hooks["response"]
    reader = threading.Thread(target=read, name="engine", daemon=True)
    hooks.append(keep)
    try:
        reader.start()
        _hear(entries, heard, tick)
    finally:
        stop.set()
        _hang_up(reader, answers)
        hooks.remove(keep)


def _hear(
    entries: queue.Queue[Entry | BaseException | None], heard: Callable[[Entry], None], tick: Callable[[], None]
) -> None:
    while True:
        tick()
        try:
            entry = entries.get(timeout=_POLL_S)
        except queue.Empty:
            continue
        if entry is None:
            return
        if isinstance(entry, BaseException):
            raise entry
        heard(entry)


def _hang_up(reader: threading.Thread, answers: list[requests.Response]) -> None:
    """Close the line under whoever still reads from it: closing the answer would not wake a thread that waits."""
    while reader.is_alive():
        for answer in answers:
            with suppress(OSError, ValueError, io.UnsupportedOperation):
                line = socket.socket(fileno=os.dup(answer.raw.fileno()))
                with line:
                    line.shutdown(socket.SHUT_RDWR)
        reader.join(_POLL_S)
