"""A Docker engine for tests: the one that is there, or one of their own, which leaves nothing behind."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

START_S = 60.0
ENGINE = {"DOCKER_HOST", "DOCKER_CONTEXT"}


class Docker:
    """Runs ``docker`` and ``docker-compose`` against one engine; :meth:`stop` ends an engine of its own."""

    def __init__(self) -> None:
        self.compose = _compose()
        self._folder: Path | None = None
        self._engine: subprocess.Popen[bytes] | None = None
        self.environment = dict(os.environ)
        if not self._answers():
            self._start()

    def run(self, *words: str, **environment: str) -> str:
        """Standard output of a command that has to succeed."""
        done = subprocess.run(
            words, env={**self.environment, **environment}, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
        return done.stdout

    def _answers(self) -> bool:
        if shutil.which("docker") is None:
            pytest.skip("the docker client is not installed here")
        return (
            subprocess.run(["docker", "info"], env=self.environment, capture_output=True, check=False).returncode == 0
        )

    def _start(self) -> None:
        if shutil.which("dockerd") is None or os.geteuid() != 0:
            pytest.skip("no Docker engine answers, and none can be started here: dockerd as root could be")
        # Outside pytest's folders: a socket's path must be short.
        self._folder = folder = Path(tempfile.mkdtemp(prefix="gm-docker-"))
        self.environment = {key: value for key, value in self.environment.items() if key not in ENGINE}
        self.environment["DOCKER_HOST"] = f"unix://{folder}/docker.sock"
        options = {"data-root": "data", "exec-root": "exec", "pidfile": "pid"}
        words = [f"--{name}={folder / value}" for name, value in options.items()]
        with (folder / "log").open("wb") as log:
            self._engine = subprocess.Popen(
                ["dockerd", f"--host={self.environment['DOCKER_HOST']}", *words], stdout=log, stderr=log
            )
        deadline = time.monotonic() + START_S
        while not self._answers():
            if self._engine.poll() is not None or time.monotonic() > deadline:
                said = (folder / "log").read_text(errors="replace")[-2000:]
                self.stop()
                pytest.skip(f"no Docker engine answers, and one could not be started here: {said}")
            time.sleep(0.2)

    def stop(self) -> None:
        """End it, with everything that it made."""
        if self._engine is not None:
            self._engine.terminate()
            self._engine.wait(60)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


def _compose() -> list[str]:
    """Compose, as a plugin or as a program of its own."""
    plugin = ["docker", "compose"]
    if (
        shutil.which("docker")
        and subprocess.run([*plugin, "version"], capture_output=True, check=False).returncode == 0
    ):
        return plugin
    if shutil.which("docker-compose") is None:
        pytest.skip("neither docker compose nor docker-compose is installed here")
    return ["docker-compose"]
