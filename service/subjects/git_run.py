"""Running git so that it runs nothing else: no hooks, filters, helpers or redirects, nobody's configuration, bounded.

On the straight line this stands inside ``service.subjects``, below ``git``.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

_KEPT = (
    "PATH", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR", "GIT_SSL_CAINFO", "GIT_SSL_CAPATH",
    *(name for proxy in ("https_proxy", "http_proxy", "all_proxy", "no_proxy") for name in (proxy, proxy.upper())),
)  # fmt: skip
_FIXED = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_SYSTEM": os.devnull,
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_LFS_SKIP_SMUDGE": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_NO_LAZY_FETCH": "1",
    "HOME": os.devnull,
    "LC_ALL": "C",
}
_CONFIG = (
    f"core.hooksPath={os.devnull}",
    f"core.attributesFile={os.devnull}",
    "core.fsmonitor=false",
    "credential.helper=",
    "http.followRedirects=false",
    "fetch.recurseSubmodules=false",
    "transfer.bundleURI=false",
    "gc.auto=0",
    "maintenance.auto=false",
)


class GitFailed(Exception):  # noqa: N818 - never leaves service.subjects
    """git ended with an error, or was ended at a cap; the text is its own or names the cap."""


class GitTooLarge(GitFailed):
    """What was fetched outgrew its room."""


class Git:
    """Runs git on one bare repository. ``max_bytes`` caps what the repository may grow to."""

    def __init__(self, folder: Path, *, seconds: float, max_bytes: int, protocols: tuple[str, ...]) -> None:
        self.folder, self._seconds, self._max_bytes = folder, seconds, max_bytes
        self._environment = {name: os.environ[name] for name in _KEPT if name in os.environ} | _FIXED
        self._environment["GIT_ALLOW_PROTOCOL"] = ":".join(protocols)

    def run(self, *arguments: str, seconds: float | None = None) -> bytes:
        """What git writes, when it succeeds."""
        with self.stream(*arguments, seconds=seconds) as process:
            return pipe(process.stdout).read()

    @contextlib.contextmanager
    def stream(self, *arguments: str, seconds: float | None = None) -> Iterator[subprocess.Popen[bytes]]:
        """A running git, which must have succeeded by the end; left early, it is ended."""
        options = [part for item in _CONFIG for part in ("-c", item)]
        end, stop = time.monotonic() + (seconds or self._seconds), threading.Event()
        reasons: list[GitFailed] = []
        with tempfile.TemporaryFile() as errors:
            try:
                process = subprocess.Popen(
                    ["git", *options, f"--git-dir={self.folder}", *arguments],
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
                    env=self._environment, start_new_session=True, cwd=self.folder.parent,
                )  # fmt: skip
            except OSError as error:
                raise GitFailed(f"git cannot be run: {error.strerror}") from None
            watch = threading.Thread(target=self._watch, args=(process, end, stop, reasons), daemon=True)
            watch.start()
            try:
                with process:
                    try:
                        yield process
                        pipe(process.stdin).close()
                        process.wait()
                    except BaseException:
                        _kill(process)
                        raise
            except (OSError, EOFError):
                if not reasons:
                    raise
            finally:
                stop.set()
                watch.join()
            if not reasons and arguments[0] == "fetch":
                self._hold_to_size(reasons)  # it may have been quicker than the watch
            if reasons:
                raise reasons[0]
            if process.returncode:
                errors.seek(0)
                text = errors.read(65536).decode(errors="replace").strip()
                raise GitFailed(text or f"git {arguments[0]} ended with {process.returncode}")

    def _watch(
        self, process: subprocess.Popen[bytes], end: float, stop: threading.Event, reasons: list[GitFailed]
    ) -> None:
        """End git where it outlives its time or outgrows its room."""
        while not stop.wait(0.1):
            if time.monotonic() > end:
                reasons.append(GitFailed("it did not finish in time"))
            else:
                self._hold_to_size(reasons)
            if reasons:
                _kill(process)
                return

    def _hold_to_size(self, reasons: list[GitFailed]) -> None:
        if _size(self.folder) > self._max_bytes:
            reasons.append(GitTooLarge(f"the repository is larger than the {self._max_bytes:,} bytes allowed"))


def pipe(end: IO[bytes] | None) -> IO[bytes]:
    """One of the pipes of a running git, which has all three."""
    if end is None:
        raise GitFailed("git was started without its pipes")
    return end


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End git with its own children, such as the transport helper."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _size(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += Path(parent, name).lstat().st_size
    return total
