"""A fleet whose parts die at seeded points and are started anew, over PostgreSQL and Redis, until enough have died."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import requests

from service import db, store
from service.config import Settings
from service.db import open_database
from tests.campaign import reader
from tests.campaign.deaths import ANYWHERE, EVERY, MANY, POINTS, Death, Kill, kills, note
from tests.campaign.process import CASES, READY, ROOT, SHORT, WORLD_SIZES
from tests.support.postgres import Postgres
from tests.support.processes import processes_in
from tests.support.redis import RedisServer
from tests.support.trees import commit_all, git

PARTS = {"api": "api", "beat": "beat", "worker-1": "worker", "worker-2": "worker"}
TORCH = ("2.4.1", "2.8.0", "2.9.1", "2.11.0")
LIFE_S = 12.0
"""A part whose point never comes is killed wherever it is."""
HUNGRY = 24
"""As soon as fewer cells are unanswered, more are asked for."""
POST_S = 600.0
"""A request may be interrupted by one death after the other."""
ENDS_S = SHORT["LEASE_S"] + 60
"""How long after the last kill everything must be over."""


@dataclass
class Life:
    """A part from its start to its death."""

    process: subprocess.Popen[bytes]
    death: Death | None
    ready: Path
    began: float = math.inf

    def age_s(self) -> float:
        """Since it was ready, which on a busy machine takes a while."""
        if self.began == math.inf and self.ready.exists() and self.ready.read_text() == str(self.process.pid):
            self.began = time.monotonic()
        return time.monotonic() - self.began


@dataclass
class Fleet:
    """The parts, whoever keeps them going, and who asks them for work."""

    folder: Path
    postgres: Postgres
    redis: RedisServer
    conninfo: str
    environment: dict[str, str]
    listening: socket.socket
    headers: dict[str, str]
    pace_s: float = 0.02
    lives: dict[str, Life] = field(default_factory=dict)
    commits: int = 0
    posts: int = 0

    @property
    def journal(self) -> Path:
        return self.folder / "kills"

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.listening.getsockname()[1]}"

    def start(self, name: str, *words: str, death: Death | None = None) -> None:
        home = self.folder / name
        home.mkdir(exist_ok=True)
        command = [sys.executable, "-m", "tests.campaign.process", PARTS[name], "--name", name]
        command += ["--journal", str(self.journal), "--pace", str(self.pace_s), *words]
        if PARTS[name] == "api":
            command += ["--socket", str(self.listening.fileno())]
        if death is not None:
            command += ["--die-at", str(death)]
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                command, env=self.environment | {"GRADMATRIX_HOME": str(home)}, cwd=home, stdout=log, stderr=log,
                pass_fds=[self.listening.fileno()],
            )  # fmt: skip
        self.lives[name] = Life(process, death, home / READY)

    def ended(self) -> list[str]:
        """The parts that are dead. Fails if one ended otherwise than by SIGKILL."""
        dead = [name for name, life in self.lives.items() if life.process.poll() is not None]
        for name in dead:
            assert self.lives[name].process.returncode == -signal.SIGKILL, (name, self.logs())
        return dead

    def kill(self, name: str) -> None:
        """Kill a part wherever it is."""
        life = self.lives[name]
        if life.process.poll() is None:
            note(self.journal, Kill(time.time(), PARTS[name], ANYWHERE))
            life.process.kill()
        life.process.wait()

    def commit(self) -> str:
        """Another commit of the repository, of other content; its SHA."""
        self.commits += 1
        repository = self.folder / "repository"
        (repository / "number").write_text(str(self.commits))
        return commit_all(repository)

    def post(self, sha: str) -> None:
        """Ask for a commit; again, under one key, until the interface has said that it took it."""
        self.posts += 1
        asked: dict[str, Any] = {"subjects": [sha], "torch": TORCH, "world_sizes": WORLD_SIZES, "modes": ["eager"]}
        asked |= {"cases": [case.id for case in CASES], "transports": ["gloo"]}
        headers = self.headers | {"Idempotency-Key": f"post {self.posts}"}
        deadline = time.monotonic() + POST_S
        while True:
            with contextlib.suppress(requests.RequestException):
                answer = requests.post(f"{self.address}/api/v1/submissions", json=asked, headers=headers, timeout=10)
                assert answer.status_code == 202, answer.text
                return
            assert time.monotonic() < deadline, self.logs()
            time.sleep(0.05)

    def query(self, statement: str) -> int:
        with psycopg.connect(self.conninfo) as connection:
            return int(connection.execute(statement).fetchall()[0][0])

    def unanswered(self) -> int:
        """Cells that were asked for and have no answer."""
        return self.query(
            "SELECT count(*) FROM cell WHERE result_id IS NULL AND id IN (SELECT cell_id FROM submission_cell)"
        )

    def unfinished(self) -> int:
        """Submissions that are not over, and hints that are not sent."""
        return self.query(
            "SELECT (SELECT count(*) FROM submission WHERE state IN ('resolving', 'queued', 'running'))"
            " + (SELECT count(*) FROM hint)"
        )

    def logs(self) -> str:
        return "\n".join(f"== {log.name}\n{log.read_text()[-4000:]}" for log in sorted(self.folder.glob("*.log")))

    def stop(self) -> None:
        """End every part by SIGTERM, and hold it to ending well."""
        for life in self.lives.values():
            life.process.send_signal(signal.SIGTERM)
        for name, life in self.lives.items():
            assert life.process.wait(60) == 0, (name, self.logs())


class Campaign:
    """Keeps a fleet's parts dying at ``seed``'s points until enough of it has happened."""

    def __init__(self, fleet: Fleet, seed: int, number: int, cells: int, every: bool = False) -> None:
        """Enough: ``number`` kills at named points over ``cells`` cells; with ``every`` all points are among them."""
        self._fleet, self._rng = fleet, random.Random(seed)
        self._number, self._cells, self._every = number, cells, every
        self._killed: Counter[tuple[str, str]] = Counter()
        self._boots = itertools.count()
        self._told = 0
        self._asker = ThreadPoolExecutor(1)
        self._asking: Future[None] | None = None
        self._sha = ""

    def run(self) -> list[Kill]:
        """The kills, the last one of all parts at once; afterwards everything runs undisturbed."""
        fleet = self._fleet
        for name in PARTS:
            self._start(name)
        with self._asker:
            while not self._enough():
                self._feed()
                for name in PARTS:
                    if fleet.lives[name].age_s() > LIFE_S:
                        fleet.kill(name)
                for name in fleet.ended():
                    self._start(name)
                time.sleep(0.05)
            for name in PARTS:
                fleet.kill(name)
            for name in PARTS:
                fleet.start(name)
        return kills(fleet.journal)

    def _enough(self) -> bool:
        self._killed = Counter((kill.role, kill.point) for kill in kills(self._fleet.journal))
        named = sum(number for (_, point), number in self._killed.items() if point != ANYWHERE)
        asked = self._fleet.query("SELECT count(DISTINCT cell_id) FROM submission_cell")
        if named // 10 > self._told:
            self._told = named // 10
            missing = len(EVERY - self._killed.keys())
            print(f"{named} kills, {asked} cells; {missing} of {len(EVERY)} points still to come", flush=True)  # noqa: T201
        return named >= self._number and asked >= self._cells and not (self._every and EVERY - self._killed.keys())

    def _deal(self, role: str) -> Death:
        """Any point, or one of those that have killed least often."""
        points = POINTS[role]
        if self._rng.random() < 0.5:
            least = min(self._killed[role, point] for point in points)
            points = tuple(point for point in points if self._killed[role, point] == least)
        point = self._rng.choice(points)
        return Death(point, self._rng.randint(1, MANY[role].get(point.split()[-1], 1)))

    def _start(self, name: str) -> None:
        role = PARTS[name]
        words: list[str] = []
        if role == "worker" and self._rng.random() < 0.6:  # as if it had been another machine: only the lease tells
            words += ["--boot", f"boot {next(self._boots)}"]
        if role == "worker" and self._rng.random() < 0.5:
            words += ["--child", str(self._deal("child"))]
        self._fleet.start(name, *words, death=self._deal(role))

    def _feed(self) -> None:
        """Ask for more while little is left; every third time for what somebody else asked for just before."""
        if self._asking is not None:
            if not self._asking.done():
                return
            self._asking.result()
        self._asking = None
        fleet = self._fleet
        if fleet.unanswered() < HUNGRY and not fleet.query("SELECT count(*) FROM submission WHERE state = 'resolving'"):
            self._sha = self._sha if fleet.posts % 3 == 2 else fleet.commit()
            self._asking = self._asker.submit(fleet.post, self._sha)


@contextlib.contextmanager
def campaign_fleet(folder: Path) -> Iterator[Fleet]:
    """A fleet over servers of its own, whose history is recorded; nothing of it is left afterwards."""
    with contextlib.ExitStack() as stack:
        postgres, redis = Postgres(), RedisServer()
        stack.callback(postgres.stop)
        stack.callback(redis.stop)
        postgres.create("campaign")
        url = postgres.url("campaign")
        db.upgrade(url)
        conninfo = url.set(drivername="postgresql").render_as_string(hide_password=False)
        reader.record(conninfo)
        address = url.render_as_string(hide_password=False)
        database = open_database(Settings(home=folder, database_url=address))
        with database.session() as session:
            secret, _ = store.create_token(session, "campaign", "submit")
        database.dispose()
        repository = folder / "repository"
        repository.mkdir()
        (repository / "gradmatrix_adapter.py").write_text("")
        git(repository, "init", "--quiet", "--initial-branch=main")
        settings = {"DATABASE_URL": address, "BROKER_URL": redis.url, "DEFAULT_REPOSITORY": str(repository)}
        settings |= {"CPU_SLOTS": "8"}
        fleet = Fleet(
            folder,
            postgres,
            redis,
            conninfo,
            {
                **os.environ,
                "PYTHONPATH": str(ROOT),
                **{f"GRADMATRIX_{name}": value for name, value in settings.items()},
            },
            stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=128)),
            {"Authorization": f"Bearer {secret}"},
        )
        try:
            yield fleet
            fleet.stop()
        finally:
            for life in fleet.lives.values():
                life.process.kill()
                life.process.wait()
        deadline = time.monotonic() + 30
        while left := processes_in(folder):  # containers of killed workers end when nobody reads them
            assert time.monotonic() < deadline, left
            time.sleep(0.1)
