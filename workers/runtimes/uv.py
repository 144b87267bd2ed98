"""uv, the program that resolves, downloads and installs: how it is called, and what its failures mean.

On the straight line this stands under ``workers.runtimes.venv`` and ``workers.runtimes.locking``. uv knows nothing of
pip's configuration, so that is handed to it; whatever of uv's own configuration the user has is left out, because a
runtime must not depend on it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from uv import find_uv_bin

from service.config import Settings
from service.pip_config import PipConfig, pip_configuration, shown
from workers.runtimes import NotEnoughDiskError, RuntimeBuildError, SourceUnavailableError
from workers.runtimes.guard import Guard

_POLL_S = 0.1
_TICK_S = 0.2
_RETRIES = 2
_SLOW_READ_S = 180.0
"""How long a file may keep one waiting: an index's mirror may fetch it first."""
_LOCK_S = 24 * 3600
"""How long one uv waits for another that downloads what both need: as long as that takes."""
_KEPT_LINES = 12

_MEANINGS: tuple[tuple[str, type[RuntimeBuildError], str], ...] = (
    (r"hash mismatch", RuntimeBuildError, "the index gave another file than the one that was locked: not installed"),
    (
        r"failed to fetch|error sending request|dns error|timed out|request failed",
        SourceUnavailableError,
        "the package index cannot be reached: see `pip config list` for the index and the network's settings",
    ),
    (
        r"no solution found|not found in the package registry|no version of",
        SourceUnavailableError,
        "no configured index or find-links folder holds that package: see `pip config list`",
    ),
    (r"no space left", NotEnoughDiskError, "the disk is full"),
)
"""What uv says (a pattern), which error that is, and what it means for the person who waits."""


class Uv:
    """Calls of uv with this project's cache and pip's configuration."""

    def __init__(self, settings: Settings, pip: PipConfig | None = None) -> None:
        self.cache = settings.home / "cache" / "uv"
        self._connect_s = settings.connect_s
        self._pip = pip_configuration() if pip is None else pip

    def index_arguments(self) -> list[str]:
        """Pip's indexes in uv's words. All count alike, as for pip: locked hashes decide, not the order."""
        pip = self._pip
        links = [link for link in pip.find_links if "://" in link or Path(link).expanduser().exists()]
        return [
            "--index-strategy=unsafe-best-match",
            *([f"--default-index={pip.index_url}"] if pip.index_url else []),
            *(f"--extra-index-url={url}" for url in pip.extra_index_urls),
            *(f"--find-links={link}" for link in links),
            *(["--no-index"] if pip.no_index else []),
        ]

    def environment(self, read_s: float) -> Mapping[str, str]:
        """This process's environment without what would change uv's ways, and with our own settings."""
        env = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("UV_", "PYTHON", "VIRTUAL_ENV", "CONDA_"))
        }
        env |= {
            "UV_CACHE_DIR": str(self.cache),
            "UV_NO_CONFIG": "1",
            "UV_NO_PROGRESS": "1",
            "UV_PYTHON_DOWNLOADS": "never",
            "UV_HTTP_CONNECT_TIMEOUT": str(max(1, round(self._connect_s / (_RETRIES + 1)))),
            "UV_HTTP_TIMEOUT": str(max(1, round(read_s))),
            "UV_HTTP_RETRIES": str(_RETRIES),
            "UV_LOCK_TIMEOUT": str(_LOCK_S),
            "NO_COLOR": "1",
        }
        if self._pip.cert:
            env["SSL_CERT_DIR" if Path(self._pip.cert).is_dir() else "SSL_CERT_FILE"] = self._pip.cert
        if self._pip.proxy:
            env |= {"HTTP_PROXY": self._pip.proxy, "HTTPS_PROXY": self._pip.proxy, "ALL_PROXY": self._pip.proxy}
        return env

    def run(
        self,
        what: str,
        arguments: Sequence[str],
        *,
        quick: bool = False,
        hold: Sequence[int] = (),
        tick: Callable[[int], None] = lambda written: None,
    ) -> str:
        """Run uv and return what it said. Raises RuntimeBuildError with the lines that matter.

        ``quick`` is for steps that load only indexes' pages, where silence means that nobody is there. ``hold`` are
        file descriptors that uv keeps open until it ends, whatever becomes of us. ``tick`` is called often with
        the bytes that uv has written; what it raises ends uv.
        """
        read_s = self._connect_s / (_RETRIES + 1) if quick else _SLOW_READ_S
        with tempfile.TemporaryFile() as output:
            process = subprocess.Popen(
                [find_uv_bin(), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self.environment(read_s),
                pass_fds=tuple(hold),
            )
            try:
                status = _wait(process, tick)
            except BaseException:
                _end(process)
                raise
            output.seek(0)
            text = output.read().decode("utf-8", "replace")
        if status != 0:
            raise self._explain(what, status, text)
        return text

    def idle(self) -> bool:
        """Whether no uv works in the cache now: each holds the cache's lock while it does."""
        with self._lock() as lock:
            return lock.take()

    def tidy(self) -> None:
        """Remove what a uv that was ended left half unpacked in the cache, unless another one works there.

        What belongs to whom cannot be told, so of several that are ended the last one's caller tidies for all.
        """
        with self._lock() as lock:
            if lock.take():
                for folder in self.cache.glob(".tmp*"):
                    shutil.rmtree(folder, ignore_errors=True)

    def _lock(self) -> Guard:
        return Guard(self.cache / ".lock")

    def _explain(self, what: str, status: int, text: str) -> RuntimeBuildError:
        lines = [line.rstrip() for line in text.splitlines() if line.strip()]
        starts = [number for number, line in enumerate(lines) if line.startswith("error:")]
        said = lines[starts[0] :][:_KEPT_LINES] if starts else lines[-_KEPT_LINES:]
        kind, meaning = next(
            ((kind, words) for pattern, kind, words in _MEANINGS if re.search(pattern, text, re.IGNORECASE)),
            (RuntimeBuildError, f"uv ended with status {status}"),
        )
        indexes = ", ".join(shown(url) for url in self._pip.index_urls) or "find-links only"
        return kind("\n".join([f"{what} failed: {meaning}", *(f"  {line}" for line in said), f"  (asked: {indexes})"]))


def _wait(process: subprocess.Popen[bytes], tick: Callable[[int], None]) -> int:
    waited = _TICK_S
    while True:
        try:
            return process.wait(_POLL_S)
        except subprocess.TimeoutExpired:
            waited += _POLL_S
        if waited >= _TICK_S:
            waited = 0.0
            tick(_written(process.pid))


def _written(pid: int) -> int:
    """Bytes that a process has written, in all its threads; 0 where the kernel does not tell."""
    try:
        lines = Path(f"/proc/{pid}/io").read_text("ascii").splitlines()
    except OSError:
        return 0
    return sum(int(line.partition(":")[2]) for line in lines if line.startswith("wchar:"))


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(3)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
