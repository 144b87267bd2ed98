"""A tiny package index on loopback: a folder of files served as PEP 503 pages, with faults that can be switched on.

Used by the tests of releases (``service.subjects``) and of runtimes (``workers.runtimes``)::

    with StandInIndex(folder) as index:
        index.fail("demo-1.0.tar.gz", "truncated")
        ... index.url ...
"""

from __future__ import annotations

import hashlib
import http.server
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

from packaging.utils import InvalidSdistFilename, InvalidWheelFilename, parse_sdist_filename, parse_wheel_filename

FAULTS = (
    "missing",  # 404
    "error",  # 500
    "drop",  # the connection is closed without an answer
    "stall",  # no answer until the index is closed
    "held",  # half of the answer, and the rest when ``released`` is set
    "drip",  # the answer's head, then a byte now and then until the index is closed
    "truncated",  # the whole length promised, half of it sent
    "endless",  # zeros without a promised length, until the client hangs up
    "wrong-hash",  # files only: the page states another sha256
    "no-hash",  # files only: the page states none
)


def project_of(filename: str) -> str | None:
    """The normalised project name that a distribution's file belongs to; None for any other file."""
    try:
        if filename.endswith(".whl"):
            return str(parse_wheel_filename(filename)[0])
        return str(parse_sdist_filename(filename)[0])
    except (InvalidSdistFilename, InvalidWheelFilename):
        return None


class StandInIndex:
    """Serves every sdist and wheel of ``folder`` (read anew at each request) under ``url``; notes every request."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.requests: list[str] = []
        self.links: dict[str, list[str]] = {}
        """Further lines of HTML for a project's page, as they are."""
        self.closing = threading.Event()
        self.released = threading.Event()
        self._faults: dict[str, tuple[str, int]] = {}
        self._lock = threading.Lock()
        handler = type("Handler", (_Handler,), {"index": self})
        self._server = _Server(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    @property
    def url(self) -> str:
        """The index URL, as ``PIP_INDEX_URL`` would name it."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/simple/"

    def fail(self, name: str, fault: str, times: int = -1) -> None:
        """Switch a fault on for a file name or a project's page (by project name); ``times`` limits how often."""
        assert fault in FAULTS, f"{fault!r} is none of {FAULTS}"
        with self._lock:
            self._faults[name] = (fault, times)

    def heal(self) -> None:
        """Switch every fault off."""
        with self._lock:
            self._faults.clear()

    def fault(self, name: str) -> str | None:
        """The fault in force for ``name``, counted as used once."""
        with self._lock:
            fault, times = self._faults.get(name, (None, 0))
            if times > 0:
                self._faults[name] = (fault or "", times - 1)
            return fault if times else None

    def files(self, project: str | None = None) -> list[Path]:
        """The distributions in the folder, of one project or of all."""
        found = [(project_of(path.name), path) for path in sorted(self.folder.iterdir()) if path.is_file()]
        return [path for owner, path in found if owner and project in (None, owner)]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.closing.set()
        self.released.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = False  # joined in server_close, so that no test leaves one behind

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is what some tests are about."""


class _Handler(http.server.BaseHTTPRequestHandler):
    index: ClassVar[StandInIndex]
    timeout = 20

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Keep the tests' output clean."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        self.index.requests.append(self.path)
        match self.path.split("?")[0].strip("/").split("/"):
            case ["simple"]:
                projects = sorted({project_of(path.name) or "" for path in self.index.files()})
                self._page([f'<a href="/simple/{name}/">{name}</a>' for name in projects])
            case ["simple", project]:
                self._project(project)
            case ["files", name]:
                path = self.index.folder / name
                fault = self.index.fault(name)
                if not path.is_file():
                    self.send_error(404)
                else:
                    self._send(path.read_bytes(), "application/octet-stream", fault)
            case _:
                self.send_error(404)

    def _project(self, project: str) -> None:
        fault = self.index.fault(project)
        files, links = self.index.files(project), list(self.index.links.get(project, ()))
        if not files and not links and fault is None:
            self.send_error(404)
            return
        for path in files:
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            with self.index._lock:
                wanted = self.index._faults.get(path.name, ("", 0))[0]
            fragment = {"wrong-hash": "#sha256=" + "0" * 64, "no-hash": ""}.get(wanted, f"#sha256={digest}")
            links.append(f'<a href="/files/{path.name}{fragment}">{path.name}</a>')
        self._page(links, fault)

    def _page(self, links: list[str], fault: str | None = None) -> None:
        head = '<meta name="pypi:repository-version" content="1.0">'
        text = f"<!DOCTYPE html><html><head>{head}</head><body>{'<br>'.join(links)}</body></html>"
        self._send(text.encode(), "text/html; charset=utf-8", fault)

    def _send(self, body: bytes, content_type: str, fault: str | None) -> None:
        if fault in ("missing", "error"):
            self.send_error(404 if fault == "missing" else 500)
            return
        if fault == "stall":
            self.index.closing.wait(60)
        if fault in ("stall", "drop"):
            self.close_connection = True
            return
        self.send_response(200)
        self.send_header("Content-Type", content_type)
        if fault != "endless":
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        if fault == "endless":
            while not self.index.closing.is_set():
                self.wfile.write(bytes(65536))
        elif fault == "held":
            self.wfile.write(body[: len(body) // 2])
            self.wfile.flush()
            self.index.released.wait(60)
            self.wfile.write(body[len(body) // 2 :])
        elif fault == "drip":
            for byte in body:
                self.wfile.write(bytes([byte]))
                if self.index.closing.wait(0.02):
                    return
        else:
            self.wfile.write(body[: len(body) // 2] if fault == "truncated" else body)


def wait_for_request(index: StandInIndex, part: str, seconds: float = 10) -> None:
    """Return once a request whose path holds ``part`` has arrived."""
    end = time.monotonic() + seconds
    while not any(part in path for path in index.requests):
        assert time.monotonic() < end, f"no request for {part!r} arrived in {seconds} s; got {index.requests}"
        time.sleep(0.01)
