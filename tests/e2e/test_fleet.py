"""A fleet for real: PostgreSQL, Redis, the interface, a reconciler and two workers, each a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import requests

from service.claims import LEASE_S
from service.config import load_settings
from tests.e2e.test_serve import address_in, ended, repository  # noqa: F401 - a fixture
from tests.support.postgres import Postgres
from tests.support.processes import processes_in
from tests.support.redis import RedisServer
from tests.support.runtimes import runtime

pytestmark = [pytest.mark.torch, pytest.mark.services, pytest.mark.timeout(600)]
CASES = ["exchange/dim0[dtype=float32,loss=square]", "exchange/dim0[dtype=float32,loss=weighted]"]


@dataclass
class Fleet:
    """The processes of a fleet, each with a home of its own, as on a host of its own."""

    folder: Path
    settings: dict[str, str]
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    address: str = ""
    headers: dict[str, str] = field(default_factory=dict)

    def environment(self, name: str) -> dict[str, str]:
        home = self.folder / name
        home.mkdir(exist_ok=True)
        if not (home / "runtimes").exists():
            (home / "runtimes").symlink_to(load_settings().home / "runtimes")
        return {**os.environ, "GRADMATRIX_HOME": str(home), **self.settings}

    def command(self, name: str, *words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", "from workers.cli import main; main()", *words],
            env=self.environment(name), capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def start(self, name: str, *words: str) -> Path:
        log = self.folder / f"{name}.log"
        with log.open("ab") as file:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-c", "from workers.cli import main; main()", *words],
                env=self.environment(name), stdout=file, stderr=file,
            )  # fmt: skip
        return log

    def post(self, **asked: Any) -> int:
        asked = {"torch": ["2.11.0"], "modes": ["eager"], "transports": ["gloo"], "cases": CASES, **asked}
        answer = requests.post(f"{self.address}/api/v1/submissions", json=asked, headers=self.headers, timeout=10)
        assert answer.status_code == 202, answer.text
        number: int = answer.json()["id"]
        return number

    def view(self, submission: int) -> dict[str, Any]:
        found: dict[str, Any] = requests.get(
            f"{self.address}/api/v1/submissions/{submission}", headers=self.headers, timeout=10
        ).json()
        return found

    def lines(self) -> list[dict[str, Any]]:
        """Every line that was logged as JSON, by whichever process."""
        text = "".join(log.read_text() for log in self.folder.glob("*.log"))
        return [json.loads(line) for line in text.splitlines() if line.startswith("{")]

    def logs(self) -> str:
        return "\n".join(f"== {log.name}\n{log.read_text()[-3000:]}" for log in sorted(self.folder.glob("*.log")))


@pytest.fixture
def fleet(tmp_path: Path, repository: tuple[Path, list[str]]) -> Iterator[Fleet]:  # noqa: F811
    runtime("2.11.0")
    with contextlib.ExitStack() as stack:
        postgres, redis = Postgres(), RedisServer()
        stack.callback(postgres.stop)
        stack.callback(redis.stop)
        postgres.create("fleet")
        made = Fleet(
            tmp_path / "fleet",
            {
                "GRADMATRIX_DATABASE_URL": postgres.url("fleet").render_as_string(hide_password=False),
                "GRADMATRIX_BROKER_URL": redis.url,
                "GRADMATRIX_DEFAULT_REPOSITORY": str(repository[0]),
                "GRADMATRIX_LOG": "json",
            },
        )
        made.folder.mkdir()
        made.command("api", "db", "upgrade")
        made.headers = {"Authorization": f"Bearer {made.command('api', 'token', 'create', 'me', '--scope', 'submit')}"}
        try:
            log = made.start("api", "api", "--listen", "127.0.0.1:0")
            for name in ("beat", "worker-1", "worker-2"):
                made.start(name, name.partition("-")[0])
            made.address = address_in(log, made.processes["api"])
            yield made
            for process in made.processes.values():
                process.send_signal(signal.SIGTERM)
            for name, process in made.processes.items():
                assert process.wait(60) in (0, -signal.SIGKILL), (name, made.logs())
        finally:
            for process in made.processes.values():
                process.kill()
                process.wait()
        assert processes_in(made.folder) == []


def test_posted_commits_are_fetched_once_run_anywhere_and_answered(
    fleet: Fleet,
    repository: tuple[Path, list[str]],  # noqa: F811
) -> None:
    number = fleet.post(subjects=repository[1])
    view = ended(fleet.address, number, fleet.headers)
    assert (view["state"], view["done"], view["counts"]) == ("done", 4, {"agree": 4}), fleet.logs()
    assert requests.get(f"{fleet.address}/api/v1/submissions", timeout=10).status_code == 401
    mirrors = list(fleet.folder.glob("*/mirrors/*.git"))
    assert len(mirrors) == 1, "the other host took the files from the database"
    grid = requests.get(
        f"{fleet.address}/api/v1/grid", params={"submission": number}, headers=fleet.headers, timeout=10
    )
    for row in grid.json()["rows"]:
        cell = row["cells"]["2.11.0-index"]["cell"]
        script = requests.get(f"{fleet.address}/api/v1/cells/{cell}/repro", headers=fleet.headers, timeout=60)
        assert script.status_code == 200, "the interface's host has its files from the database: " + script.text
    (worker, *_) = requests.get(f"{fleet.address}/api/v1/workers", headers=fleet.headers, timeout=10).json()
    assert worker["alive"] is True
    started = [line for line in fleet.lines() if line["message"].startswith("started: ")]
    with_ids = [line for line in started if line.get("submissions") == [number]]
    assert len({(line["job"], line["attempt"]) for line in with_ids}) == 2, started


def test_a_killed_worker_is_followed_by_another_and_nothing_is_lost(
    fleet: Fleet,
    repository: tuple[Path, list[str]],  # noqa: F811
) -> None:
    number = fleet.post(subjects=repository[1], world_sizes=[2, 4], modes=["eager", "aot_eager"])
    deadline = time.monotonic() + 120
    while fleet.view(number)["state"] != "running":
        assert time.monotonic() < deadline, fleet.logs()
        time.sleep(0.1)
    killed = time.monotonic()
    fleet.processes["worker-1"].kill()
    fleet.processes["worker-2"].kill()
    fleet.start("worker-3", "worker")
    view = ended(fleet.address, number, fleet.headers)
    assert (view["state"], view["done"]) == ("done", view["cells"]), fleet.logs()
    assert time.monotonic() - killed < LEASE_S + 240
