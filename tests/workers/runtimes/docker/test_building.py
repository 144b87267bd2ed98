"""What a build's output means, an engine that is not there, and an answer that is given up."""

from __future__ import annotations

import hashlib
import http.server
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import requests

from service import catalog
from service.catalog import RuntimeSpec
from service.config import Settings
from service.errors import UsageError
from service.pip_config import PipConfig
from workers.runtimes import NotEnoughDiskError, RuntimeBuildError, SourceUnavailableError
from workers.runtimes.docker import building, labels, stock
from workers.runtimes.docker.building import _explained, _Run
from workers.runtimes.docker.engine import EngineError, connect, unreachable
from workers.runtimes.docker.following import Entry, follow

SPEC: RuntimeSpec = catalog.load(Settings(home=Path("/nonexistent/home"))).select(["2.11.0"])[0]


@pytest.mark.parametrize(
    ("said", "kind", "meaning"),
    [
        (
            "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES",
            RuntimeBuildError,
            "another file than the one that was locked",
        ),
        ("ERROR: No matching distribution found for torch===2.11.0", SourceUnavailableError, "holds that package"),
        ("Max retries exceeded: [SSL: CERTIFICATE_VERIFY_FAILED]", SourceUnavailableError, "cannot be reached"),
        ("OSError: [Errno 28] No space left on device", NotEnoughDiskError, "the engine's disk is full"),
        ("E: Unable to locate package g++", SourceUnavailableError, "Debian's packages cannot be reached"),
        ("Segmentation fault", RuntimeBuildError, "a step of images/Dockerfile failed"),
    ],
)
def test_what_a_failed_build_said_becomes_one_error(said: str, kind: type[Exception], meaning: str) -> None:
    run = _Run(lambda doing, done: None)
    run.hear({"stream": f"Step 3/9 : RUN pip\n\x1b[91m{said}\x1b[0m\n"})
    run.hear({"error": "The command '/bin/sh -c pip' returned a non-zero code: 1"})
    error = _explained(SPEC, run, PipConfig())
    assert type(error) is kind
    assert meaning in str(error)
    assert f"\n  {said}\n" in str(error), "without colours, and without the builder's own lines"
    assert "Step 3/9" not in str(error)


def test_an_error_shows_no_password() -> None:
    url, link, proxy = (
        "https://me:hunter2@packages.test/simple",
        "https://me:hunter3@l.test/",
        "http://me:hunter4@p.test",
    )
    run = _Run(lambda doing, done: None)
    run.hear({"stream": f"|5 INDEX_URL={url} FIND_LINKS={link} HTTP_PROXY={proxy} /bin/sh\n", "error": "failed"})
    text = str(_explained(SPEC, run, PipConfig(index_url=url, find_links=(link,), proxy=proxy)))
    assert "https://****@packages.test/simple" in text
    assert "hunter" not in text


def test_progress_counts_what_is_downloaded() -> None:
    told: list[tuple[str, int]] = []
    run = _Run(lambda doing, done: told.append((doing, done)))
    for line in (
        "Step 2/9 : FROM base AS install",
        "  Downloading torch-2.11.0-cp311-cp311-manylinux_2_28_x86_64.whl (530.6 MB)",
        "  Downloading https://packages.test/x/nvidia_nccl_cu13-2.28-py3-none-any.whl (900 kB)",
        "Processing /site/wheels/torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl",
        "Installing collected packages: torch",
        "Step 7/9 : COPY --from=install /added/ /",
    ):
        run.hear({"stream": f"{line}\n"})
        run.tick()
    assert [doing for doing, _ in told] == [
        "waiting for the engine",
        "downloading torch",
        "downloading nvidia_nccl_cu13",
        "downloading torch",
        "unpacking and compiling",
        "writing the layer",
    ]
    assert [done for _, done in told] == [0, 530_600_000, 531_500_000, 531_500_000, 531_500_000, 531_500_000]


def test_an_engine_that_is_not_there_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:1")
    with pytest.raises(EngineError, match="no container engine answers: start Docker"):
        connect()
    assert "add it to the group docker" in unreachable(PermissionError(13, "Permission denied"))


class _Endless(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    gone = threading.Event()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Keep the tests' output clean."""

    def do_GET(self) -> None:
        """Two lines and then nothing, until the client is gone."""
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.write(b"4\r\none\n\r\n4\r\ntwo\n\r\n")
        self.wfile.flush()
        self.rfile.read(1)
        type(self).gone.set()


@pytest.fixture
def endless() -> Iterator[str]:
    _Endless.gone.clear()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Endless) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()
        thread.join()


def test_whoever_gives_up_hangs_up(endless: str) -> None:
    """The engine ends a build when its client is gone; closing the answer alone would not wake the reader."""
    session, heard = requests.Session(), list[Entry]()
    session.trust_env = False
    client: Any = SimpleNamespace(api=session)

    def call(stop: threading.Event) -> Iterable[Entry]:
        for line in session.get(endless, stream=True, timeout=60).iter_lines(chunk_size=1):
            yield {"stream": line.decode()}

    def tick() -> None:
        if len(heard) == 2:
            raise InterruptedError

    with session, pytest.raises(InterruptedError):
        follow(client, call, heard.append, tick)
    assert [entry["stream"] for entry in heard] == ["one", "two"]
    assert _Endless.gone.wait(20)
    assert not [thread for thread in threading.enumerate() if thread.name == "engine"]
    assert session.hooks["response"] == []


def test_what_the_call_raises_is_raised_where_it_is_followed() -> None:
    client: Any = SimpleNamespace(api=requests.Session())

    def call(stop: threading.Event) -> Iterable[Entry]:
        yield {"stream": "one"}
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        follow(client, call, lambda entry: None, lambda: None)


def test_an_image_counts_by_digest_and_recipe() -> None:
    said = labels.of(SPEC, base="sha256:1", git="feedbeef")
    assert said == {
        "org.gradmatrix.runtime": "2.11.0-index",
        "org.gradmatrix.digest": SPEC.digest,
        "org.gradmatrix.lock": hashlib.sha256(SPEC.lock.read_bytes()).hexdigest(),
        "org.gradmatrix.torch": "2.11.0",
        "org.gradmatrix.torch.git": "feedbeef",
        "org.gradmatrix.base": "sha256:1",
        "org.gradmatrix.recipe": labels.RECIPE,
    }
    assert labels.fits(said, SPEC)
    assert not labels.fits({**said, labels.MADE_BY: "0"}, SPEC)
    assert not labels.fits({**said, labels.DIGEST: "0"}, SPEC)
    assert not labels.fits(None, SPEC)
    assert labels.tag(SPEC) == "2.11.0-index-066129b26a91"


def test_the_torch_of_another_base_or_lock_is_another() -> None:
    names = {labels.layer(base, packages) for base in ("a", "b") for packages in ("c", "d")}
    assert len(names) == 4


def made(name: str, *, current: bool = True) -> stock.Made:
    return stock.Made(f"{name}-0123", name, "0123", "sha256:1", (), "", "", current, 5, None, (), "")


def test_images_are_chosen_by_name_or_because_nothing_describes_them() -> None:
    new, old = made("2.11.0-index"), made("2.2.2-index", current=False)
    assert stock.choose((new, old), ["2.11.0-index"]) == (new,)
    assert stock.choose((new, old), ["2.2.2-index-0123"]) == (old,)
    assert stock.choose((new, old), [], unused=True) == (old,)
    with pytest.raises(UsageError, match=r"no image of runtime 2\.11\.0: did you mean 2\.11\.0-index"):
        stock.choose((new, old), ["2.11.0"])


def test_one_build_at_a_time_and_through_the_hosts_network() -> None:
    """An index on this host's loopback is one that a build has to reach."""
    asked: dict[str, Any] = {}

    def build(**arguments: Any) -> Iterable[Entry]:
        asked.update(arguments)
        yield {"aux": {"ID": "sha256:2"}}

    none = SimpleNamespace(list=lambda **arguments: [])
    session = requests.Session()
    session.build = build  # type: ignore[attr-defined]
    client: Any = SimpleNamespace(api=session, containers=none, images=none)
    found = building.build(
        client, SPEC, "torch===2.11.0\n", PipConfig(), lambda doing, done: None, base="b", label={"a": "1"}, target="t"
    )
    assert found == "sha256:2"
    assert asked["buildargs"].pop("BUILD").startswith("2.11.0-index-066129b26a91-")
    assert {**asked, "fileobj": None} == {
        "fileobj": None,
        "custom_context": True,
        "decode": True,
        "rm": True,
        "forcerm": True,
        "network_mode": "host",
        "buildargs": {"BASE_IMAGE": "b", "PYTHON": "3.11"},
        "labels": {"a": "1"},
        "target": "t",
        "tag": None,
    }
