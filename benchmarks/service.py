"""What the service takes for what it does all day, on a PostgreSQL server of its own, measured here and now.

    python -m benchmarks.service [post] [plan] [accept] [claim]

post    500 submissions over HTTP, one after the other, as the interface answers them (nothing is fetched)
plan    2,500 cells of one checkout: the axes to cells, and their rows in one transaction
accept  answers of 4,000 cells, as many in a transaction as a worker puts into one at most, beside a bare INSERT of the
        same rows: all in one executemany, and one transaction for each
claim   50 workers on 400 jobs, beside 50 connections that take the same jobs by a bare UPDATE
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import requests
import sqlalchemy as sa
from rich.console import Console
from rich.table import Table
from sqlalchemy.orm import Session

from service import db, store
from service.api.state import State
from service.broker import LocalBroker
from service.config import Settings
from service.db import Database, open_database
from service.matrix import plan
from service.models import Evidence, Job, Result
from service.store import ClaimedJob
from service.store.sql import utcnow
from tests.support.postgres import Postgres
from tests.support.serving import served
from tests.support.stored import Home, World, case, checkout, evidence, host, judgement, runtime
from workers.choose import choose
from workers.writer import AT_MOST as TOGETHER

POSTS, CELLS, ANSWERS, WORKERS, JOBS = 500, 2500, 4000, 50, 400
Row = tuple[str, str]


def percentile(values: list[float], share: float) -> float:
    """The value below which ``share`` of them lie."""
    return statistics.quantiles(values, n=100)[round(share * 100) - 1]


def ms(seconds: float) -> str:
    return f"{1000 * seconds:.1f} ms"


def post(database: Database, folder: Path) -> list[Row]:
    settings = Settings(home=folder, database_url=database.engine.url.render_as_string(hide_password=False))
    with database.session() as session:
        secret, _ = store.create_token(session, "benchmark", "submit")
    taken = []
    with served(State(settings, database, LocalBroker(), embedded=False)) as address, requests.Session() as caller:
        caller.headers["Authorization"] = f"Bearer {secret}"
        for number in range(POSTS):
            asked = {"subjects": [f"{number:040x}"], "torch": ["2.11.0"], "world_sizes": [2, 4]}
            began = time.perf_counter()
            answer = caller.post(f"{address}/api/v1/submissions", json=asked, timeout=30)
            taken.append(time.perf_counter() - began)
            assert answer.status_code == 202, answer.text
    return [(f"POST, {POSTS} submissions", f"median {ms(percentile(taken, 0.5))}, p95 {ms(percentile(taken, 0.95))}")]


def planned(world: World, cells: int) -> tuple[float, float]:
    """Seconds for the axes to cells, and for their rows."""
    checkouts, runtimes = [checkout(f"deepspeed=={cells}")], [runtime(f"2.{n}.0") for n in range(2, 12)]
    cases = [case(f"c{n}") for n in range(-(-cells // 20))]
    began = time.perf_counter()
    found = plan(checkouts, runtimes, ["gloo"], [2], cases, ["eager", "aot_eager"])
    middle = time.perf_counter()
    assert found.cells >= cells
    with world.db.session() as session:
        asked: dict[str, Any] = {"requester": "me", "reason": "manual", "priority": 0, "request": {}}
        store.submit(session, checkouts=checkouts, runtimes=runtimes, plan=found, **asked)
    return middle - began, time.perf_counter() - middle


def plan_cells(database: Database, _: Path) -> list[Row]:
    pure, stored = planned(World(database), CELLS)
    return [(f"planning {CELLS} cells", f"{pure:.2f} s; storing them {stored:.2f} s")]


def accept(database: Database, _: Path) -> list[Row]:
    world = World(database)
    planned(world, ANSWERS)
    held: list[ClaimedJob] = []
    while claim := world.claim(machine=host(2, name=f"h{len(held)}")):
        held += list(claim.jobs)
    given = [
        (job, [store.CellAnswer(s.cell, judgement(), evidence(s.cell)) for s in job.cells[start : start + TOGETHER]])
        for job in held
        for start in range(0, len(job.cells), TOGETHER)
    ]
    count = sum(len(answers) for _, answers in given)
    began = time.perf_counter()
    for job, answers in given:
        with database.session() as session:
            store.accept(session, job.job, job.fence, job.attempt, answers)
    ours = count / (time.perf_counter() - began)
    with database.read() as session:
        rows = {table: _rows(session, table) for table in (Evidence, Result)}
    together = count / _bare(database, rows, count)
    apart = count / _bare(database, rows, 1)
    return [
        (f"accepting {count} answers", f"{ours:.0f}/s"),
        (
            "bare INSERT of the same rows, one executemany",
            f"{together:.0f}/s: accepting is {ours / together:.2f} of it",
        ),
        ("bare INSERT, a transaction per answer", f"{apart:.0f}/s: accepting is {ours / apart:.2f} of it"),
    ]


def _rows(session: Session, table: Any) -> list[dict[str, Any]]:
    found = session.execute(sa.select(table.__table__).order_by(*table.__table__.primary_key.columns))
    return [dict(row._mapping) for row in found]


def _bare(database: Database, rows: dict[Any, list[dict[str, Any]]], size: int) -> float:
    """Seconds to insert ``rows`` into empty copies of their tables, ``size`` to a transaction."""
    tables = {}
    with database.engine.begin() as connection:
        for table in rows:
            name = table.__tablename__
            connection.execute(sa.text(f"CREATE TABLE IF NOT EXISTS bare_{name} (LIKE {name} INCLUDING ALL)"))
            connection.execute(sa.text(f"TRUNCATE bare_{name}"))
            tables[table] = sa.Table(f"bare_{name}", sa.MetaData(), autoload_with=connection)
    number = len(rows[Result])
    began = time.perf_counter()
    for start in range(0, number, size):
        with database.engine.begin() as connection:
            for table, every in rows.items():
                connection.execute(sa.insert(tables[table]), every[start : start + size])
    return time.perf_counter() - began


def claim(database: Database, _: Path) -> list[Row]:
    world = World(database)
    for number in range(JOBS):
        world.submit([f"j{number}"], checkouts=[checkout(f"deepspeed==0.{number}")])
    jobs = _jobs(database)

    def ours(worker: int) -> int:
        taken = 0
        while True:
            with database.session() as session:
                machine = host(2, name=f"w{worker}")
                found = store.claim(session, machine, choose, utcnow())
            if found is None:
                return taken
            taken += len(found.jobs)
            with database.session() as session:  # its devices are free again: the claim is what is measured
                for job in found.jobs:
                    store.release(session, job.job, job.fence)
                    session.execute(sa.update(Job).where(Job.id == job.job).values(state="done"))

    def bare(_: int) -> int:
        taken = 0
        statement = sa.text(
            "UPDATE job SET fence = fence + 1, state = 'leased' WHERE id = (SELECT id FROM job WHERE state = 'queued' "
            "ORDER BY priority DESC, queued_at, id LIMIT 1 FOR UPDATE SKIP LOCKED) AND state = 'queued' RETURNING id"
        )
        while True:
            with database.engine.begin() as connection:
                if connection.execute(statement).first() is None:
                    return taken
            taken += 1

    first = _by_all(ours)
    with database.engine.begin() as connection:
        connection.execute(sa.update(Job).where(Job.id.in_(jobs)).values(state="queued"))
    second = _by_all(bare)
    return [
        (f"{WORKERS} workers claim {first[0]} jobs and give them back", f"{first[0] / first[1]:.0f}/s"),
        ("the same by a bare UPDATE", f"{second[0] / second[1]:.0f}/s"),
    ]


def _jobs(database: Database) -> list[int]:
    with database.read() as session:
        return list(session.scalars(sa.select(Job.id)))


def _by_all(work: Callable[[int], int]) -> tuple[int, float]:
    began = time.perf_counter()
    with ThreadPoolExecutor(WORKERS) as pool:
        taken = sum(pool.map(work, range(WORKERS)))
    return taken, time.perf_counter() - began


PARTS: dict[str, Callable[[Database, Path], list[Row]]] = {
    "post": post,
    "plan": plan_cells,
    "accept": accept,
    "claim": claim,
}


@contextlib.contextmanager
def database_of(server: Postgres, name: str, folder: Path) -> Iterator[Database]:
    """An empty one."""
    server.create(name)
    db.upgrade(server.url(name))
    made = open_database(Home(folder, server.url(name).render_as_string(hide_password=False)))
    try:
        yield made
    finally:
        made.dispose()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], metavar="PART")
    parts = parser.parse_args().parts or list(PARTS)
    table = Table("what", "took", box=None)
    server = Postgres()
    try:
        for name in parts:
            with tempfile.TemporaryDirectory() as folder, database_of(server, name, Path(folder)) as database:
                for row in PARTS[name](database, Path(folder)):
                    table.add_row(*row)
    finally:
        server.stop()
    Console().print(table)


if __name__ == "__main__":
    main()
