"""Reading one address, bounded in time and size, with a second try where a failure may pass.

On the straight line this stands inside ``service.subjects``, below ``release``: http, https and file addresses alike.
"""

from __future__ import annotations

import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Protocol, TypeVar

import requests
import urllib3

from service.pip_config import PipConfig
from service.subjects.errors import Unreachable

T = TypeVar("T")

_TRIES = 2
_CHUNK = 2**16
_REMEDY = "check the network, proxies and certificates, and the index that pip is configured for (pip config list)"
_PASSING = (requests.RequestException, urllib3.exceptions.HTTPError)
_WORDS: tuple[tuple[type[Exception], str], ...] = (
    (requests.exceptions.SSLError, "its certificate is not accepted"),
    (requests.exceptions.ProxyError, "the proxy refuses or cannot be reached"),
    (requests.Timeout, "no answer in time"),
    (urllib3.exceptions.TimeoutError, "the answer stopped half-way"),
    (urllib3.exceptions.IncompleteRead, "the answer ended too early"),
    (urllib3.exceptions.ProtocolError, "the connection was closed half-way"),
    (requests.ConnectionError, "the connection fails"),
)


class Source(Protocol):
    """Gives bytes as they arrive."""

    def read1(self, size: int, /) -> bytes:
        """At least one further byte and at most ``size``; none at the end."""


class Body:
    """An answer as it arrives: its address after redirects, its type, its promised length, and its bytes."""

    def __init__(self, url: str, kind: str, total: int | None, source: Source, cap: int, end: float) -> None:
        self.url, self.kind, self.total = url, kind, total
        self._source, self._cap, self._end = source, cap, end

    def __iter__(self) -> Iterator[bytes]:
        done = 0
        # read1 gives what has arrived: a server that sends a byte now and then must not outlast the deadline.
        while data := self._source.read1(_CHUNK):
            done += len(data)
            if done > self._cap:
                raise Unreachable(f"the answer is larger than the {self._cap:,} bytes allowed")
            if time.monotonic() > self._end:
                raise Unreachable(f"the answer was not whole in time, {done:,} bytes had come")
            yield data


class Transfer:
    """One session. ``connect_s`` bounds each wait for the other side."""

    def __init__(self, config: PipConfig, *, connect_s: float) -> None:
        self._connect_s = connect_s
        self.session = requests.Session()
        if config.cert:
            self.session.verify = config.cert
        if config.proxy:
            self.session.proxies = {"http": config.proxy, "https": config.proxy}

    def fetch(
        self,
        url: str,
        what: str,
        consume: Callable[[Body], T],
        *,
        seconds: float,
        cap: int,
        headers: Mapping[str, str],
    ) -> T | None:
        """What ``consume`` makes of the answer; None when there is nothing at ``url``. It may be called twice."""
        end = time.monotonic() + seconds
        for left in reversed(range(_TRIES)):
            try:
                if url.startswith("file:"):
                    return _read_file(url, consume, cap, end)
                return self._read(url, consume, cap, end, headers)
            except Unreachable as error:
                raise Unreachable(f"{what}: {error}; {_REMEDY}") from None
            except _PASSING as error:
                if not left or time.monotonic() > end or not _may_pass(error):
                    raise Unreachable(f"{what} cannot be reached: {_reason(error)}; {_REMEDY}") from None
        raise AssertionError("the last try returns or raises")

    def _read(
        self, url: str, consume: Callable[[Body], T], cap: int, end: float, headers: Mapping[str, str]
    ) -> T | None:
        wait = min(self._connect_s, max(0.1, end - time.monotonic()))
        with self.session.get(url, stream=True, timeout=(wait, wait), headers=dict(headers)) as answer:
            if answer.status_code in (404, 410):
                return None
            answer.raise_for_status()
            length = answer.headers.get("Content-Length", "")
            total = int(length) if length.isdecimal() else None
            answer.raw.decode_content = True
            return consume(Body(answer.url, answer.headers.get("Content-Type", ""), total, answer.raw, cap, end))


def _read_file(url: str, consume: Callable[[Body], T], cap: int, end: float) -> T | None:
    path = Path(urllib.request.url2pathname(urllib.parse.urlsplit(url).path))
    try:
        with path.open("rb") as source:
            return consume(Body(url, "text/html", path.stat().st_size, source, cap, end))
    except (FileNotFoundError, NotADirectoryError):
        return None


def _may_pass(error: Exception) -> bool:
    """Whether a second try is worth it: not where the other side has understood and refused."""
    answer = getattr(error, "response", None)
    return not isinstance(error, requests.exceptions.SSLError) and (answer is None or answer.status_code >= 500)


def _reason(error: Exception) -> str:
    """A reason in words; the library's own text would show addresses with the passwords in them."""
    answer = getattr(error, "response", None)
    if answer is not None:
        return f"it answers {answer.status_code} {answer.reason}"
    return next((words for kind, words in _WORDS if isinstance(error, kind)), type(error).__name__)
