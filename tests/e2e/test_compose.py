"""docker-compose.yml for real: its images are built, its parts get healthy, and a POST of commits becomes a grid."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from service.config import load_settings
from tests.e2e.test_serve import becomes_a_grid, repository  # noqa: F401 - a fixture
from tests.support.docker import Docker
from tests.support.runtimes import runtime

pytestmark = [pytest.mark.docker, pytest.mark.services, pytest.mark.torch, pytest.mark.timeout(1200)]
ROOT = Path(__file__).parents[2]
PARTS = ("postgres", "redis", "api", "beat", "worker")
HEALTHY_S = 180


@dataclass
class Stack:
    """The services of docker-compose.yml under a name of their own."""

    docker: Docker
    project: str
    files: list[Path]
    variables: dict[str, str]
    address: str = ""
    headers: dict[str, str] = field(default_factory=dict)

    def compose(self, *words: str) -> str:
        files = [word for file in self.files for word in ("--file", str(file))]
        return self.docker.run(*self.docker.compose, "--project-name", self.project, *files, *words, **self.variables)

    def health(self) -> dict[str, str]:
        """Of each part, what Docker says of it."""
        found = {}
        for part in PARTS:
            container = self.compose("ps", "--quiet", part).strip()
            if container:
                (said,) = json.loads(self.docker.run("docker", "inspect", container))
                found[part] = said["State"].get("Health", {}).get("Status", said["State"]["Status"])
        return found

    def wait_for_health(self) -> None:
        deadline = time.monotonic() + HEALTHY_S
        while (health := self.health()) != dict.fromkeys(PARTS, "healthy"):
            assert time.monotonic() < deadline, (health, self.compose("logs", "--tail", "50"))
            time.sleep(1)


@pytest.fixture(scope="module")
def docker() -> Iterator[Docker]:
    made = Docker()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def images(docker: Docker) -> dict[str, str]:
    """The images that the site has: those that the environment names, or Debian's packages."""
    named = {name: value for name, value in os.environ.items() if name.startswith("GRADMATRIX_") and "IMAGE" in name}
    if named:
        return named
    if shutil.which("debootstrap") is None:
        pytest.skip("debootstrap is not installed here, and no GRADMATRIX_BASE_IMAGE is named")
    said = docker.run(str(ROOT / "images" / "debian" / "build.sh"))
    return dict(line.split("=", 1) for line in said.split())


@pytest.fixture
def stack(
    docker: Docker,
    images: dict[str, str],
    tmp_path: Path,
    repository: tuple[Path, list[str]],  # noqa: F811
) -> Iterator[Stack]:
    """The stack, whose worker is given this machine's runtimes and the repository to read."""
    runtime("2.11.0")
    runtimes = load_settings().home / "runtimes"
    python = Path(sys.base_prefix)
    read = [f"{path}:{path}:ro" for path in (python, runtimes, repository[0])]
    worker = {
        "user": "0:0",  # whoever built the runtimes may have kept them from others
        "volumes": read,
        "entrypoint": ["sh", "-c", f"mkdir -p runtimes && ln -sfn {runtimes}/* runtimes/ && exec gradmatrix worker"],
    }
    override = tmp_path / "override.json"
    override.write_text(json.dumps({"services": {"worker": worker}}))
    made = Stack(
        docker,
        f"gradmatrix-test-{os.getpid()}",
        [ROOT / "docker-compose.yml", override],
        {
            **images,
            "GRADMATRIX_IMAGE": f"gradmatrix-test-{os.getpid()}",
            "GRADMATRIX_PUBLISH": "127.0.0.1:0",
            "GRADMATRIX_DEFAULT_REPOSITORY": str(repository[0]),
        },
    )
    try:
        made.compose("up", "--detach", "--build")
        made.wait_for_health()
        made.address = f"http://{made.compose('port', 'api', '8470').strip()}"
        secret = made.compose("exec", "-T", "api", "gradmatrix", "token", "create", "me", "--scope", "submit").strip()
        made.headers = {"Authorization": f"Bearer {secret}"}
        yield made
    finally:
        made.compose("down", "--volumes", "--timeout", "60")
        docker.run("docker", "image", "rm", "--force", made.variables["GRADMATRIX_IMAGE"])


def test_posted_commits_become_a_grid(stack: Stack, repository: tuple[Path, list[str]]) -> None:  # noqa: F811
    try:
        becomes_a_grid(stack.address, repository[1], stack.headers)
    except AssertionError as error:
        error.add_note(stack.compose("logs", "worker"))
        raise
    assert set(stack.health().values()) == {"healthy"}
