"""The client against a real server: what it sends is understood, and what goes wrong on the way is one request."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from service import store
from service.api.forms import SubmissionForm
from service.api.state import State
from service.client import TRIES, Client, ServiceError
from service.verdicts import Verdict
from tests.service.api.conftest import Api, api, database, migrated  # noqa: F401 - fixtures
from tests.support.serving import served

FORM = SubmissionForm(subjects=["deepspeed==0.18.3"], torch=["2.11.0"], families=["exchange"])


@pytest.fixture
def client(api: Api) -> Iterator[Client]:  # noqa: F811
    with served(State(api.settings, api.world.db, api.broker, embedded=False)) as address:
        made = Client(address, api.secrets["submit"])
        yield made
        made.close()


def test_ask_look_and_cancel(client: Client) -> None:
    view = client.submit(FORM)
    assert (view.state, view.requester) == ("resolving", "the submit one")
    assert client.submission(view.id) == view
    assert client.cancel(view.id).state == "cancelled"


def test_cells_of_all_pages_as_the_store_has_them(client: Client, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.setattr("service.client.PAGE", 2)
    number = api.world.submit(list("abcde")).id
    api.world.run(Verdict.SCALED)
    assert client.cells(number) == api.world.rows(number)
    assert "5" in client.junit(number)


def test_events_until_the_end(client: Client, api: Api) -> None:  # noqa: F811
    number = api.world.submit(["a"]).id
    timer = threading.Timer(0.3, api.world.run)
    timer.start()
    told = [(event.kind, event.data.get("verdict")) for event in client.events(number)]
    timer.join()
    assert ("cell", "agree") in told
    assert told[-1][0] == "end"


def test_again(client: Client, api: Api) -> None:  # noqa: F811
    api.world.submit(["a"])
    (cell,) = api.world.run()
    assert client.rerun("cells", cell).cells == 1


@pytest.mark.parametrize(
    ("act", "status", "said"),
    [
        (lambda client: client.submission(99), 404, "there is no submission 99"),
        (lambda client: list(client.events(99)), 404, "there is no submission 99"),
        (lambda client: client.submit(FORM.model_copy(update={"torch": ["9"]})), 422, "torch 9 is not in the cat"),
    ],
)
def test_a_refusal_is_the_services_own_words(client: Client, act: Any, status: int, said: str) -> None:
    with pytest.raises(ServiceError, match=said) as refused:
        act(client)
    assert refused.value.status == status


def test_a_wrong_token_and_a_service_that_is_away(client: Client) -> None:
    stranger = Client(client._base.removesuffix("/api/v1"), "gm_wrong")
    with pytest.raises(ServiceError, match="the token is not known") as refused:
        stranger.submission(1)
    assert refused.value.status == 401
    away = Client("http://127.0.0.1:9", timeout_s=1)
    with pytest.raises(ServiceError, match=r"http://127\.0\.0\.1:9/api/v1 cannot be reached: .*refused") as lost:
        away._call("GET", "/submissions")
    assert lost.value.status == 0


class Flaky(http.server.BaseHTTPRequestHandler):
    """Answers the last of :data:`TRIES` tries, and notes the keys that it was sent."""

    keys: list[str | None] = []  # noqa: RUF012

    def do_POST(self) -> None:
        self.keys.append(self.headers["Idempotency-Key"])
        if len(self.keys) < TRIES:
            self.send_response(503)
            self.end_headers()
            return
        self.send_response(202)
        self.end_headers()
        self.wfile.write(b'{"other": "form"}')

    def log_message(self, *_: object) -> None:
        pass


def test_what_is_sent_again_is_sent_under_the_same_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)
    server = http.server.HTTPServer(("127.0.0.1", 0), Flaky)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        with pytest.raises(ServiceError, match="is it another version"):
            Client(f"http://127.0.0.1:{server.server_port}").submit(FORM)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert len(Flaky.keys) == TRIES
    assert len(set(Flaky.keys)) == 1
    assert Flaky.keys[0]


def test_what_the_client_knows_is_what_the_service_says(client: Client, api: Api, tmp_path: Path) -> None:  # noqa: F811
    """Every field of the views arrives as the store gave it, moments and tuples included."""
    number = api.world.submit(["a"]).id
    api.world.run(Verdict.ZERO_GRADIENT)
    with api.world.db.read() as session:
        assert client.submission(number) == store.submission(session, number)
