"""``gradmatrix serve`` as its user meets it: a POST of commits becomes a grid over HTTP, and nothing is left behind.

Sources: the zero gradient of the traced dim-0 exchange on torch 2.11 is DeepSpeed's public report #8491; 0.19.8 has it
mended.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from service.config import load_settings
from service.subjects import Unreachable, parse_subject, resolve
from tests.support.processes import processes_in
from tests.support.runtimes import runtime
from tests.support.trees import commit_all, git

pytestmark = pytest.mark.torch
CASE = "exchange/dim0[dtype=float32,loss=square]"
RELEASES = ("deepspeed==0.18.3", "deepspeed==0.19.8")
START_S, END_S = 60, 240


@pytest.fixture
def repository(tmp_path: Path) -> tuple[Path, list[str]]:
    """A repository with a commit per release, its files those of the release's archive."""
    folder, shas = tmp_path / "repository", []
    folder.mkdir()
    git(folder, "init", "--quiet", "--initial-branch=main")
    settings = load_settings()
    for release in RELEASES:
        try:
            checkout = resolve(parse_subject(release, settings), settings)
        except Unreachable as error:
            pytest.skip(str(error))
        git(folder, "rm", "-rfq", "--ignore-unmatch", ".")
        with tarfile.open(checkout.tar) as tar:
            tar.extractall(folder, filter="data")
        shas.append(commit_all(folder, release))
    return folder, shas


@pytest.fixture
def address(tmp_path: Path, repository: tuple[Path, list[str]]) -> Iterator[str]:
    runtime("2.11.0")
    home = tmp_path / "home"
    home.mkdir()
    (home / "runtimes").symlink_to(load_settings().home / "runtimes")
    environment = {**os.environ, "GRADMATRIX_HOME": str(home), "GRADMATRIX_DEFAULT_REPOSITORY": str(repository[0])}
    command = [sys.executable, "-c", "from workers.cli import main; main()", "serve", "--listen", "127.0.0.1:0"]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stderr=log, stdout=log)
    try:
        yield address_in(tmp_path / "log", process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0, (tmp_path / "log").read_text()
    finally:
        process.kill()
        process.wait()
    assert processes_in(home) == []


def address_in(log: Path, process: subprocess.Popen[bytes]) -> str:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        if found := re.search(r"http://127\.0\.0\.1:\d+", log.read_text()):
            return found[0]
        time.sleep(0.1)
    raise AssertionError(log.read_text())


def ended(address: str, submission: int, headers: dict[str, str] | None = None) -> dict[str, Any]:
    deadline = time.monotonic() + END_S
    while True:
        view: dict[str, Any] = requests.get(
            f"{address}/api/v1/submissions/{submission}", headers=headers, timeout=10
        ).json()
        if view["state"] in ("done", "failed", "cancelled"):
            return view
        assert time.monotonic() < deadline, view
        time.sleep(0.2)


def test_posted_commits_become_a_grid(address: str, repository: tuple[Path, list[str]]) -> None:
    becomes_a_grid(address, repository[1])


def becomes_a_grid(address: str, shas: list[str], headers: dict[str, str] | None = None) -> None:
    """A POST of both commits gives the grid that they are known for."""
    asked = {"subjects": shas, "torch": ["2.11.0"], "cases": [CASE], "modes": ["eager", "aot_eager"]}
    asked["transports"] = ["gloo"]
    answer = requests.post(f"{address}/api/v1/submissions", json=asked, headers=headers, timeout=10)
    assert answer.status_code == 202, answer.text
    view = ended(address, answer.json()["id"], headers)
    assert (view["state"], view["cells"], view["done"]) == ("done", view["cells"], view["cells"]), view
    asked_for = {"submission": view["id"]}
    grid = requests.get(f"{address}/api/v1/grid", params=asked_for, headers=headers, timeout=10).json()
    assert grid["runtimes"] == ["2.11.0-index"]
    labels = {row["label"] for row in grid["rows"]}
    assert labels == {f"deepspeed@{sha[:12]}" for sha in shas}
    said = {(row["label"], row["mode"]): row["cells"]["2.11.0-index"]["verdict"] for row in grid["rows"]}
    old, new = (f"deepspeed@{sha[:12]}" for sha in shas)
    assert said == {
        (old, "eager"): "agree",
        (old, "aot_eager"): "zero_gradient",
        (new, "eager"): "agree",
        (new, "aot_eager"): "agree",
    }
    worst = next(row["cells"]["2.11.0-index"]["cell"] for row in grid["rows"] if row["label"] == old)
    repro = requests.get(f"{address}/api/v1/cells/{worst}/repro", headers=headers, timeout=60)
    assert repro.status_code == 200, repro.text
