"""A typed client of the HTTP interface, which the command line uses and anybody may.

On the straight line this is the other side of ``service.api``. A request that stores something carries an
Idempotency-Key of its own and is sent again when the connection breaks: it is one request to the service all the same.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import quote

import requests
from pydantic import TypeAdapter, ValidationError

from service.api.forms import DeviceForm, SubmissionForm
from service.errors import GradmatrixError
from service.store.views import CellRow, DeviceView, HostView, SubmissionView

T = TypeVar("T")
TRIES = 4
PAGE = 500
SUBMISSION, CELL = TypeAdapter(SubmissionView), TypeAdapter(CellRow)
HOST, DEVICE = TypeAdapter(HostView), TypeAdapter(DeviceView)


class ServiceError(GradmatrixError):
    """The service refused, or cannot be reached; ``status`` is HTTP's, 0 where there was no answer."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


@dataclass(frozen=True)
class Event:
    """Something that happened to a submission: ``submission``, ``fetching``, ``cell`` or ``end``."""

    kind: str
    data: Any


class Client:
    """One service, at ``address`` (without /api/v1), with a token or without."""

    def __init__(self, address: str, token: str | None = None, *, timeout_s: float = 30.0) -> None:
        self.address = address.rstrip("/")
        self._base = self.address + "/api/v1"
        self._timeout_s = timeout_s
        self._session = requests.Session()
        if token:
            self._session.headers["Authorization"] = f"Bearer {token}"

    def close(self) -> None:
        """Let go of the connection."""
        self._session.close()

    def submit(self, form: SubmissionForm) -> SubmissionView:
        """Ask for an evaluation."""
        return self._read(SUBMISSION, self._call("POST", "/submissions", json=form.model_dump(mode="json")))

    def submission(self, submission: int) -> SubmissionView:
        """How far it is."""
        return self._read(SUBMISSION, self._call("GET", f"/submissions/{submission}"))

    def cells(self, submission: int) -> list[CellRow]:
        """All of its cells, page by page."""
        rows: list[CellRow] = []
        cursor: str | None = None
        while True:
            params = {"limit": PAGE} | ({"cursor": cursor} if cursor else {})
            page = self._call("GET", f"/submissions/{submission}/cells", params=params).json()
            rows += [self._valid(CELL, item) for item in page["items"]]
            cursor = page["next"]
            if cursor is None:
                return rows

    def cancel(self, submission: int) -> SubmissionView:
        """Cancel it."""
        return self._read(SUBMISSION, self._call("POST", f"/submissions/{submission}/cancel"))

    def approve(self, submission: int) -> SubmissionView:
        """Let one go on that is held."""
        return self._read(SUBMISSION, self._call("POST", f"/submissions/{submission}/approve"))

    def rerun(self, what: str, number: int) -> SubmissionView:
        """Run a submission, a job or a cell again; ``what`` is ``submissions``, ``jobs`` or ``cells``."""
        return self._read(SUBMISSION, self._call("POST", f"/{what}/{number}/rerun"))

    def workers(self) -> list[HostView]:
        """Every host of the fleet, with its devices."""
        return [self._valid(HOST, item) for item in self._call("GET", "/workers").json()]

    def set_device(self, host: str, device: str, form: DeviceForm) -> DeviceView:
        """Take a device out of service, or say that it is well again."""
        path = f"/workers/{quote(host, safe='')}/devices/{quote(device, safe='')}"
        return self._read(DEVICE, self._call("PATCH", path, json=form.model_dump(mode="json")))

    def junit(self, submission: int) -> str:
        """Its report as JUnit XML."""
        return self._call("GET", f"/submissions/{submission}/junit.xml").text

    def events(self, submission: int) -> Iterator[Event]:
        """What happens to it, until its end. A connection that breaks is made again, and then begins with how it is."""
        failed = 0
        while True:
            try:
                with self._call("GET", f"/submissions/{submission}/events", stream=True) as answer:
                    for event in _events(answer):
                        failed = 0
                        yield event
                        if event.kind == "end":
                            return
            except (requests.RequestException, ServiceError) as error:
                if isinstance(error, ServiceError) and 0 < error.status < 500:
                    raise
                failed += 1
                if failed > TRIES:
                    raise ServiceError(0, f"the service is away: {error}") from error
            time.sleep(min(2.0**failed, 10.0))

    def _call(self, method: str, path: str, *, stream: bool = False, **what: Any) -> requests.Response:
        headers = {"Idempotency-Key": uuid.uuid4().hex} if method == "POST" else {}
        for attempt in range(TRIES):
            try:
                answer = self._session.request(
                    method, self._base + path, headers=headers, timeout=self._timeout_s, stream=stream, **what
                )
            except requests.RequestException as error:
                if attempt == TRIES - 1:
                    raise ServiceError(0, f"{self._base} cannot be reached: {_cause(error)}") from error
            else:
                if answer.status_code < 400:
                    return answer
                if answer.status_code != 503 or attempt == TRIES - 1:
                    raise ServiceError(answer.status_code, _detail(answer))
            time.sleep(0.5 * 2**attempt)
        raise AssertionError  # the last attempt returned or raised

    def _read(self, adapter: TypeAdapter[T], answer: requests.Response) -> T:
        return self._valid(adapter, answer.json())

    def _valid(self, adapter: TypeAdapter[T], data: Any) -> T:
        try:
            return adapter.validate_python(data, extra="ignore")
        except ValidationError as error:
            said = f"{self._base} answers in another form than this gradmatrix knows: is it another version?"
            raise ServiceError(0, f"{said}\n{error}") from error


def _detail(answer: requests.Response) -> str:
    try:
        return str(answer.json()["detail"])
    except (ValueError, KeyError, TypeError):
        return f"the service answered {answer.status_code} {answer.reason}; is this the address of a gradmatrix?"


def _cause(error: BaseException) -> str:
    while error.__context__ is not None:
        error = error.__context__
    return str(error) or type(error).__name__


def _events(answer: requests.Response) -> Iterator[Event]:
    kind, data = "", ""
    for raw in answer.iter_lines():  # bytes: only a line's own ends end it
        line = raw.decode()
        name, _, value = line.partition(":")
        if not line and data:
            yield Event(kind, json.loads(data))
            kind, data = "", ""
        elif name == "event":
            kind = value.strip()
        elif name == "data":
            data += value.strip()
