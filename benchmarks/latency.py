"""How long a fleet lets one wait: ``python -m benchmarks.latency [--count 20]``.

PostgreSQL, Redis, the interface, a reconciler and one worker, each a process of its own, as `docs/service.md` has them.
One after the other, so that everything is free each time, submissions of one cell of a real release are posted and

queued to claimed   from the transaction that plans the job to the one that leases its devices and starts its process
claimed to running  until the job's process has come to it: torch is imported meanwhile
cancel to stopped   from the POST that cancels a running job until its process is gone and its devices are free
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from datetime import datetime
from pathlib import Path

import requests
import sqlalchemy as sa
from rich.console import Console
from rich.table import Table

from service.db import open_database
from service.models import Attempt, Job, SubmissionJob
from tests.e2e.test_fleet import Fleet
from tests.e2e.test_serve import address_in, ended
from tests.support.postgres import Postgres
from tests.support.redis import RedisServer
from tests.support.stored import Home

SUBJECT = "deepspeed==0.18.3"
WAIT_S = 60.0


def shown(values: list[float]) -> str:
    """Median and the value below which 95 % lie."""
    return f"median {statistics.median(values):.2f} s, p95 {statistics.quantiles(values, n=20)[-1]:.2f} s"


def attempt_of(database: sa.Engine, submission: int) -> tuple[datetime, datetime | None, datetime | None]:
    """When the submission's job was queued, and its newest attempt began and ended."""
    found = (
        sa.select(Job.queued_at, Attempt.started_at, Attempt.ended_at)
        .join(SubmissionJob, SubmissionJob.job_id == Job.id)
        .outerjoin(Attempt, Attempt.job_id == Job.id)
        .where(SubmissionJob.submission_id == submission)
        .order_by(Attempt.id.desc())
    )
    with database.connect() as connection:
        row = connection.execute(found).first()
    assert row is not None
    return row[0], row[1], row[2]


def until_running(fleet: Fleet, submission: int) -> float:
    """The moment at which the job's process had come to it, as far as asking often enough can tell."""
    deadline = time.monotonic() + WAIT_S
    while fleet.view(submission)["state"] != "running" or fleet.view(submission)["jobs"][0]["state"] != "running":
        assert time.monotonic() < deadline, fleet.logs()
        time.sleep(0.02)
    return time.time()


def measured(fleet: Fleet, database: sa.Engine, count: int) -> dict[str, list[float]]:
    """Seconds of every wait."""
    waits: dict[str, list[float]] = {"queued to claimed": [], "claimed to running": [], "cancel to stopped": []}
    for number in range(count):
        submission = fleet.post(subjects=[SUBJECT], rerun=True)
        running = until_running(fleet, submission)
        queued, claimed, _ = attempt_of(database, submission)
        assert claimed is not None
        waits["queued to claimed"].append((claimed - queued).total_seconds())
        waits["claimed to running"].append(running - claimed.timestamp())
        if number % 2:
            cancelled = time.time()
            requests.post(
                f"{fleet.address}/api/v1/submissions/{submission}/cancel", headers=fleet.headers, timeout=10
            ).raise_for_status()
            deadline = time.monotonic() + WAIT_S
            while (stopped := attempt_of(database, submission)[2]) is None:
                assert time.monotonic() < deadline, fleet.logs()
                time.sleep(0.02)
            waits["cancel to stopped"].append(stopped.timestamp() - cancelled)
        else:
            ended(fleet.address, submission, fleet.headers)
    return waits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20)
    count = parser.parse_args().count
    postgres, redis = Postgres(), RedisServer()
    try:
        postgres.create("fleet")
        url = postgres.url("fleet").render_as_string(hide_password=False)
        with tempfile.TemporaryDirectory() as folder:
            fleet = Fleet(Path(folder), {"GRADMATRIX_DATABASE_URL": url, "GRADMATRIX_BROKER_URL": redis.url})
            fleet.command("api", "db", "upgrade")
            secret = fleet.command("api", "token", "create", "me", "--scope", "submit")
            fleet.headers = {"Authorization": f"Bearer {secret}"}
            database = open_database(Home(Path(folder), url))
            try:
                log = fleet.start("api", "api", "--listen", "127.0.0.1:0")
                for name in ("beat", "worker"):
                    fleet.start(name, name)
                fleet.address = address_in(log, fleet.processes["api"])
                ended(fleet.address, fleet.post(subjects=[SUBJECT]), fleet.headers)
                waits = measured(fleet, database.engine, count)
            finally:
                for process in fleet.processes.values():
                    process.terminate()
                for process in fleet.processes.values():
                    process.wait(60)
                database.dispose()
    finally:
        redis.stop()
        postgres.stop()
    table = Table("what", "took", "of", box=None)
    for name, values in waits.items():
        table.add_row(name, shown(values), str(len(values)))
    Console().print(table)


if __name__ == "__main__":
    main()
