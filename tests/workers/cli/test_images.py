"""The runtimes' commands as they are for images, as far as no engine is needed, and what both executors share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.workers.cli.conftest import Gradmatrix
from tests.workers.runtimes.conftest import Bench


@pytest.fixture
def no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:1")


@pytest.mark.usefixtures("no_engine")
@pytest.mark.parametrize(
    "words", [("list",), ("build", "2.11.0"), ("build", "--all"), ("check",), ("remove", "--all")], ids=" ".join
)
def test_without_an_engine_every_command_says_so(gradmatrix: Gradmatrix, words: tuple[str, ...]) -> None:
    status, out, err = gradmatrix("runtimes", *words, "--executor", "docker")
    assert (status, out) == (2, "")
    assert "no container engine answers: start Docker" in err


@pytest.mark.usefixtures("no_engine")
def test_the_executor_is_the_configured_one_unless_it_is_named(
    gradmatrix: Gradmatrix, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert gradmatrix("runtimes", "list")[0] == 0
    monkeypatch.setenv("GRADMATRIX_EXECUTOR", "docker")
    assert "no container engine answers" in gradmatrix("runtimes", "list")[2]
    assert gradmatrix("runtimes", "list", "--executor", "venv")[0] == 0


@pytest.mark.parametrize(
    ("executor", "registry"), [("venv", "registry.test/runtimes"), ("docker", ""), ("venv", "")], ids=str
)
def test_pushing_takes_images_and_a_registry(
    gradmatrix: Gradmatrix, monkeypatch: pytest.MonkeyPatch, executor: str, registry: str
) -> None:
    if registry:
        monkeypatch.setenv("GRADMATRIX_REGISTRY", registry)
    status, _, err = gradmatrix("runtimes", "build", "2.11.0", "--push", "--executor", executor)
    assert status == 2
    assert "--push is for images: with --executor docker, and registry set (GRADMATRIX_REGISTRY=HOST/NAME)" in err


@pytest.mark.parametrize("name", ["https://registry.test/x", "registry.test", "Registry.test/x", "registry.test/x:tag"])
def test_a_registry_is_a_repository_and_no_address(
    gradmatrix: Gradmatrix, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("GRADMATRIX_REGISTRY", name)
    status, _, err = gradmatrix("runtimes", "list")
    assert status == 2
    assert "GRADMATRIX_REGISTRY" in err


def test_all_are_built_although_one_fails_and_the_rest_the_next_time(
    gradmatrix: Gradmatrix,
    bench: Bench,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GRADMATRIX_CATALOG", str(bench.settings.catalog))
    monkeypatch.setenv("GRADMATRIX_DISK_SPARE_BYTES", "0")
    monkeypatch.setenv("GRADMATRIX_PARALLEL_BUILDS", "1")
    bench.index.fail(bench.wheels["torch-9.9.9"].name, "missing")
    status, _, err = gradmatrix("runtimes", "build", "--all")
    assert status == 2
    assert "8.8.8-index: built" in err
    assert "1 of 2 runtimes could not be built: 9.9.9-index" in err
    bench.index.heal()
    status, _, err = gradmatrix("runtimes", "build", "--all")
    assert status == 0
    assert "8.8.8-index: is built already" in err
    assert "9.9.9-index: built" in err


def test_a_base_image_takes_debootstrap(
    gradmatrix: Gradmatrix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    status, _, err = gradmatrix("runtimes", "base")
    assert status == 2
    assert "making a base image takes debootstrap and docker and tar: apt-get install debootstrap docker.io" in err
