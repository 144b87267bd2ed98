"""One run of the Dockerfile: what goes in, what its output means, and nothing left of what only the build needed.

On the straight line this stands under ``workers.runtimes.docker.images``. It is the engine's classic builder, which
every engine has. Its network is the host's, so that an index that this host reaches is reached from the build too.
"""

from __future__ import annotations

import re
import tempfile
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

import docker
from docker.errors import APIError, DockerException

from service.catalog import RuntimeSpec
from service.config import images_folder
from service.pip_config import PipConfig, shown
from workers.runtimes import NotEnoughDiskError, RuntimeBuildError, SourceUnavailableError
from workers.runtimes.docker import context, labels
from workers.runtimes.docker.following import Entry, Stoppable, follow

_GONE_S = 30.0
_POLL_S = 0.2
_KEPT_LINES = 12
_DOWNLOADING = re.compile(r"^\s*(?:Downloading|Processing) (?:\S*/)?([A-Za-z0-9_.]+)-\S+(?: \(([\d.]+) ([kMG]?B)\))?")
_UNITS = {"B": 1, "kB": 1_000, "MB": 1_000_000, "GB": 1_000_000_000}
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_STEP = re.compile(r"^(Step \d+/\d+ : |Removing intermediate| ---> )")

_MEANINGS: tuple[tuple[str, type[RuntimeBuildError], str], ...] = (
    (r"do not match the hashes", RuntimeBuildError, "the index gave another file than the one that was locked"),
    (r"no space left", NotEnoughDiskError, "the engine's disk is full"),
    (
        r"newconnectionerror|max retries|name resolution|certificate verify failed|timed out|temporary failure",
        SourceUnavailableError,
        "the package index cannot be reached from the build: see `pip config list` for the index and the certificates",
    ),
    (
        r"no matching distribution|could not find a version",
        SourceUnavailableError,
        "no index that the build reaches and no find-links folder holds that package: see `pip config list`",
    ),
    (r"unable to locate package|failed to fetch", SourceUnavailableError, "Debian's packages cannot be reached"),
)
"""What a build says (a pattern), which error that is, and what it means for the person who waits."""

Tell = Callable[[str, int], None]
"""What is being done, and bytes downloaded so far. What it raises ends the build."""


def build(
    client: docker.DockerClient,
    runtime: RuntimeSpec,
    packages: str,
    pip: PipConfig,
    tell: Tell,
    *,
    base: str,
    label: Mapping[str, str],
    target: str | None = None,
    tag: str | None = None,
) -> str:
    """Add ``packages``, lines of a lock, to the image ``base``: the id of the image that comes out.

    ``label`` is set in the last step. Raises RuntimeBuildError. However it ends, what was installed from is gone then.
    """
    token, run = f"{labels.tag(runtime)}-{uuid.uuid4().hex}", _Run(tell)
    arguments = context.arguments(pip) | {"BASE_IMAGE": base, "PYTHON": runtime.python, "BUILD": token}
    wheels = context.local_wheels(pip, packages)
    with tempfile.TemporaryFile() as file:
        context.write(file, images_folder() / "Dockerfile", packages, context.certificates(pip), wheels)

        def call(stop: threading.Event) -> Iterable[Entry]:
            return client.api.build(
                fileobj=Stoppable(file, stop),  # type: ignore[arg-type]
                custom_context=True,
                decode=True,
                rm=True,
                forcerm=True,
                network_mode="host",
                buildargs=arguments,
                labels=dict(label),
                target=target,
                tag=tag,
            )

        try:
            follow(client, call, run.hear, run.tick)
        except DockerException as error:
            raise RuntimeBuildError(f"runtime {runtime.name}: the engine ended the build: {error}") from None
        finally:
            _clear(client, token)
    if run.error is not None or run.image is None:
        raise _explained(runtime, run, pip)
    return run.image


class _Run:
    """What a build has said so far."""

    def __init__(self, tell: Tell) -> None:
        self.image: str | None = None
        self.error: str | None = None
        self.lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._tell, self._doing, self._bytes = tell, "waiting for the engine", 0

    def tick(self) -> None:
        self._tell(self._doing, self._bytes)

    def hear(self, entry: Entry) -> None:
        self.image = entry.get("aux", {}).get("ID", self.image)
        self.error = entry.get("error", self.error)
        for line in _COLOURS.sub("", str(entry.get("stream", ""))).splitlines():
            self._line(line)

    def _line(self, line: str) -> None:
        if found := _DOWNLOADING.match(line):
            self._doing = f"downloading {found[1]}"
            self._bytes += round(float(found[2] or 0) * _UNITS[found[3] or "B"])
        elif line.startswith("Installing collected"):
            self._doing = "unpacking and compiling"
        elif line.startswith("Step ") and " : COPY" in line:
            self._doing = "writing the layer"
        if line.strip() and not _STEP.match(line):
            self.lines.append(line.rstrip())


def _explained(runtime: RuntimeSpec, run: _Run, pip: PipConfig) -> RuntimeBuildError:
    said = [*run.lines, run.error or "the engine named no image"]
    text = "\n".join(said)
    kind, meaning = next(
        ((kind, words) for pattern, kind, words in _MEANINGS if re.search(pattern, text, re.IGNORECASE)),
        (RuntimeBuildError, "a step of images/Dockerfile failed"),
    )
    indexes = ", ".join(shown(url) for url in pip.index_urls) or "find-links only"
    lines = [f"runtime {runtime.name}: {meaning}", *(f"  {line}" for line in said), f"  (asked: {indexes})"]
    return kind(_without_passwords("\n".join(lines), pip))


def _without_passwords(text: str, pip: PipConfig) -> str:
    """Builders repeat their arguments where a step fails, an index's password among them."""
    for url in (*pip.index_urls, *pip.find_links, pip.proxy):
        if url:
            text = text.replace(url, shown(url))
    return text


def _clear(client: docker.DockerClient, token: str) -> None:
    """Remove the stage that installed, and its container where the build was given up."""
    mine: dict[str, str | list[str] | bool] = {"label": f"{labels.BUILD}={token}"}
    deadline = time.monotonic() + _GONE_S
    while True:
        containers = client.containers.list(all=True, filters=mine, ignore_removed=True)
        for container in containers:
            with suppress(APIError):
                container.remove(force=True)
        images = client.images.list(all=True, filters=mine)
        for image in images:
            with suppress(APIError):  # another one stands on it, and takes it along
                client.images.remove(image.id or "", force=True)
        if not (containers or images) or time.monotonic() > deadline:
            return
        time.sleep(_POLL_S)
