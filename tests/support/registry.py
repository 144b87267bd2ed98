"""A registry of images on loopback: as much of its protocol as an engine needs to push and pull, kept in memory."""

from __future__ import annotations

import hashlib
import http.server
import re
import threading
import uuid
from types import TracebackType
from typing import Any, ClassVar, Self
from urllib.parse import parse_qs, urlsplit

_PATH = re.compile(r"^/v2/(?P<name>.+)/(?P<kind>manifests|blobs)/(?P<what>uploads/?[^/]*|[^/]+)$")


class StandInRegistry:
    """Takes whatever is pushed; ``manifests`` are by repository and tag or digest."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        self.uploads: dict[str, bytes] = {}
        self.manifests: dict[tuple[str, str], tuple[str, bytes]] = {}
        handler = type("Handler", (_Handler,), {"registry": self})
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    @property
    def address(self) -> str:
        """HOST:PORT. Engines speak plain HTTP to loopback."""
        return f"127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


class _Handler(http.server.BaseHTTPRequestHandler):
    registry: ClassVar[StandInRegistry]
    protocol_version = "HTTP/1.1"
    timeout = 20

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Keep the tests' output clean."""

    def _answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline().strip() or b"0", 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        found = _PATH.match(urlsplit(self.path).path)
        if found is None:
            self._answer(200, b"{}")
        elif found["kind"] == "blobs" and (content := self.registry.blobs.get(found["what"])) is not None:
            self._answer(200, content, Docker_Content_Digest=found["what"])
        elif found["kind"] == "manifests" and (kept := self.registry.manifests.get((found["name"], found["what"]))):
            self._answer(200, kept[1], Content_Type=kept[0], Docker_Content_Digest=_digest(kept[1]))
        else:
            self._answer(404, b'{"errors": [{"code": "MANIFEST_UNKNOWN", "message": "not here"}]}')

    def do_POST(self) -> None:
        self._body()
        upload = uuid.uuid4().hex
        self.registry.uploads[upload] = b""
        name = self.path.partition("/blobs/")[0]
        self._answer(202, Location=f"{name}/blobs/uploads/{upload}", Docker_Upload_UUID=upload, Range="0-0")

    def do_PATCH(self) -> None:
        upload = self.path.rpartition("/")[2]
        self.registry.uploads[upload] += self._body()
        size = len(self.registry.uploads[upload])
        self._answer(202, Location=self.path, Docker_Upload_UUID=upload, Range=f"0-{size - 1}")

    def do_PUT(self) -> None:
        parts, body = urlsplit(self.path), self._body()
        if "/blobs/uploads/" in parts.path:
            content = self.registry.uploads.pop(parts.path.rpartition("/")[2]) + body
            digest = parse_qs(parts.query)["digest"][0]
            assert digest == _digest(content)
            self.registry.blobs[digest] = content
            self._answer(201, Docker_Content_Digest=digest)
            return
        found = _PATH.match(parts.path)
        assert found
        for what in (found["what"], _digest(body)):
            self.registry.manifests[found["name"], what] = (self.headers["Content-Type"], body)
        self._answer(201, Docker_Content_Digest=_digest(body))
