"""The engine that ``docker``-marked tests share, and what they build images on."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from tests.support.docker import Docker
from workers.runtimes.docker.engine import connect

ROOT = Path(__file__).parents[2]
BASE = "GRADMATRIX_BASE_IMAGE"


@pytest.fixture(scope="session")
def engine() -> Iterator[docker.DockerClient]:
    """A client of the engine that is there, or of one of the tests' own; the process's environment names it too."""
    there = Docker()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in there.environment.items():
            if name.startswith("DOCKER"):
                patch.setenv(name, value)
        client = connect()
        try:
            yield client
        finally:
            client.close()
            there.stop()


@pytest.fixture(scope="session")
def base_image(engine: docker.DockerClient) -> str:
    """An image to build on: the one that the environment names, or one of Debian's packages."""
    if BASE in os.environ:
        return os.environ[BASE]
    if not engine.images.list("gradmatrix-base") and shutil.which("debootstrap") is None:
        pytest.skip(f"debootstrap is not installed here, and no {BASE} is named")
    return Docker().run(str(ROOT / "images" / "debian" / "base.sh")).strip().partition("=")[2]
