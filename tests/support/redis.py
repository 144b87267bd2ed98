"""A Redis server of the tests' own: no port, a socket in a folder, and nothing left behind."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

START_S = 30.0


class RedisServer:
    """A server in a folder of its own; :meth:`stop` ends it and removes the folder."""

    def __init__(self) -> None:
        program = shutil.which("redis-server") or shutil.which("valkey-server")
        if program is None:
            pytest.skip("no Redis server is installed here")
        self._program = program
        self._folder = Path(tempfile.mkdtemp(prefix="gm-redis-"))
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        """Its address, as the setting ``broker_url`` has it."""
        return f"redis+socket://{self._folder / 'redis.sock'}?virtual_host=0"

    def client(self) -> redis.Redis:
        """A connection."""
        return redis.Redis(unix_socket_path=str(self._folder / "redis.sock"))

    def start(self) -> None:
        """Start it, and wait until it answers."""
        options = {
            "port": "0",
            "unixsocket": str(self._folder / "redis.sock"),
            "dir": str(self._folder),
            "save": "",
            "appendonly": "yes",
            "maxmemory-policy": "noeviction",
        }
        words = [word for name, value in options.items() for word in (f"--{name}", value)]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen([self._program, *words], stdout=log, stderr=log, start_new_session=True)
        deadline = time.monotonic() + START_S
        while True:
            try:
                self.client().ping()
                return
            except redis.ConnectionError:
                assert time.monotonic() < deadline, (self._folder / "log").read_text()
                time.sleep(0.05)

    def halt(self, how: signal.Signals = signal.SIGTERM) -> None:
        """End the server; its files stay."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(START_S)
            self._process = None

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """A server that is there and says nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """End it, and leave nothing."""
        self.halt(signal.SIGKILL)
        shutil.rmtree(self._folder, ignore_errors=True)
