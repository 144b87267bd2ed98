"""``python -m tests.campaign.process ROLE``: a part of a fleet as it is, but for short leases and a planned death.

Nothing of the product is changed in its files: what is hooked in here are the calls at its seams. The container is a
small process of ours (:mod:`tests.campaign.container`), since what is inside it is not what is tried here.
"""

from __future__ import annotations

import argparse
import functools
import json
import logging
import os
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

import service.cases
import workers.gpus.holder
from service import store
from service.api.state import State
from service.broker import CeleryBroker, LocalBroker, publisher
from service.cases import CaseCatalogue
from service.catalog import RuntimeSpec
from service.config import Settings, load_settings
from service.db import Database, open_database
from tests.campaign.container import PACE, SCRIPT, WRONG
from tests.campaign.deaths import ACTS, DIE_AT, JOURNAL, Death, Reaper
from tests.workers.matter import CASE, CONTROL, HELLO, SUBJECT, a_case, cell_events, opening, zeroed
from workers import collect, serving
from workers.app import listen, stopped
from workers.attempt import Attempt
from workers.runtimes import Process, Progress
from workers.runtimes.process import JobProcess

READY = "ready"
"""The file in its home in which a part that has started says which process it is."""
ROOT = Path(__file__).resolve().parents[2]
SHORT = {
    "LEASE_S": 3.0,
    "BEAT_S": 0.3,
    "KILL_S": 2.25,
    "ELSEWHERE_S": 0.5,
    "AGAIN_S": 0.5,
    "IDLE_S": 5,  # above the two seconds and more that a broker which is away takes to say so
    # one that kills hundreds of times would be taken for a job that kills its workers
    "MAX_FAILURES": 10_000,
    "MAX_TRIES": 10_000,
}
"""What the campaign has to wait for, and how often it may fail: in proportion as it is in the product."""
WORLD_SIZES = (2, 4)
NAMES = ("0", "1", "2", WRONG)
CASES = tuple(a_case(id=f"exchange/dim0[dtype=float32,n={name}]", params={"n": name}) for name in NAMES)
CATALOGUE = CaseCatalogue((CASE, *CASES), (CONTROL,))


def shorten() -> None:
    """Put the short times and the few cases wherever they were imported to."""
    listed = service.cases.catalogue
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in ("service", "workers"):
            for constant in SHORT.keys() & vars(module).keys():
                setattr(module, constant, SHORT[constant])
            if vars(module).get("catalogue") is listed:
                module.catalogue = lambda: CATALOGUE  # type: ignore[attr-defined]


def hook(reaper: Reaper) -> None:
    """Have ``reaper`` told of every point that is passed."""
    for act in ACTS:
        setattr(store, act, _named(act, getattr(store, act), reaper))

    def committing(when: str, session: Session) -> None:
        reaper.passes(f"{when} commit of {session.info.get('act')}")

    sa.event.listen(Session, "before_commit", functools.partial(committing, "before"))
    sa.event.listen(Session, "after_commit", functools.partial(committing, "after"))
    _around(CeleryBroker, "publish", reaper, "publish")
    _around(Scripted, "start", reaper, "container")
    handle = Attempt._handle

    def handled(attempt: Attempt, notice: collect.Notice, process: Process) -> None:
        handle(attempt, notice, process)
        if isinstance(notice, collect.Bye):
            reaper.passes("after bye")

    Attempt._handle = handled  # type: ignore[method-assign,assignment]


def _named(act: str, call: Callable[..., Any], reaper: Reaper) -> Callable[..., Any]:
    @functools.wraps(call)
    def named(session: Session, *words: Any, **more: Any) -> Any:
        session.info["act"] = act
        reaper.passes(f"before {act}")
        return call(session, *words, **more)

    return named


def _around(owner: type, method: str, reaper: Reaper, what: str) -> None:
    call = getattr(owner, method)

    @functools.wraps(call)
    def around(*words: Any, **more: Any) -> Any:
        reaper.passes(f"before {what}")
        answer = call(*words, **more)
        reaper.passes(f"after {what}")
        return answer

    setattr(owner, method, around)


class Scripted:
    """An executor whose containers are small processes that answer from a script; the first of them may die."""

    name = "scripted"
    trusted_only = True

    def __init__(self, home: Path, journal: Path, child: Death | None, pace_s: float) -> None:
        self._script, self._child = home / "script.json", child
        self._extra = {SCRIPT: str(self._script), PACE: str(pace_s), JOURNAL: str(journal), "PYTHONPATH": str(ROOT)}
        said: dict[str, Any] = {"hello": HELLO, "subject": SUBJECT}
        for world in WORLD_SIZES:
            first = opening(world)
            wrong = [{**zeroed()[rank % 2]} for rank in range(world)]
            said[str(world)] = {
                "oracle": [event for event in first if event["t"] == "oracle"],
                "control": next(event for event in first if event["t"] == "control"),
                "right": cell_events(world=world),
                "wrong": cell_events(tensors=wrong, world=world),
            }
        self._script.write_text(json.dumps(said))

    def ensure(self, runtime: RuntimeSpec, progress: Progress) -> bool:
        """Nothing has to be built."""
        return False

    def start(self, runtime: RuntimeSpec, *, workdir: Path, wall_s: float, devices: Sequence[str] = ()) -> JobProcess:
        """A container; of this process the first one dies, if one is to."""
        child, self._child = self._child, None
        extra = self._extra | ({DIE_AT: str(child)} if child else {})
        command = [sys.executable, "-S", "-m", "tests.campaign.container"]
        return JobProcess(command, workdir=workdir, wall_s=wall_s, extra=extra)


def api(settings: Settings, database: Database, arguments: argparse.Namespace) -> None:
    """The interface, on a socket that outlives it."""
    serving.serve(
        State(settings, database, publisher(settings), embedded=False), socket.socket(fileno=arguments.socket)
    )


def beat(settings: Settings, database: Database, arguments: argparse.Namespace) -> None:
    """The reconciler."""
    with stopped() as stop, serving.reconciling(settings, database, publisher(settings)):
        stop.wait()


def worker(settings: Settings, database: Database, arguments: argparse.Namespace) -> None:
    """A worker on a host of its own name; with ``--boot`` nobody else can tell whether its process is still there."""
    socket.gethostname = lambda: arguments.name
    if arguments.boot:
        workers.gpus.holder._machine = lambda: arguments.boot
    child = Death.parse(arguments.child) if arguments.child else None
    executor = Scripted(settings.home, arguments.journal, child, arguments.pace)
    broker = LocalBroker()
    with serving.working(settings, database, broker, executor, publisher(settings)):
        listen(settings, broker)


ROLES: dict[str, Callable[[Settings, Database, argparse.Namespace], None]] = {
    "api": api,
    "beat": beat,
    "worker": worker,
}


def main() -> None:
    """Be one part until a signal, or the planned death, comes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("role", choices=ROLES)
    parser.add_argument("--name", required=True)
    parser.add_argument("--journal", type=Path, required=True)
    parser.add_argument("--die-at", default=os.environ.get(DIE_AT, ""))
    parser.add_argument("--child", default="")
    parser.add_argument("--boot", default="")
    parser.add_argument("--pace", type=float, default=0.0)
    parser.add_argument("--socket", type=int, default=-1)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(asctime)s %(message)s")
    shorten()
    hook(Reaper(arguments.role, Death.parse(arguments.die_at) if arguments.die_at else None, arguments.journal))
    settings = load_settings()
    database = open_database(settings)
    (settings.home / READY).write_text(str(os.getpid()))
    try:
        ROLES[arguments.role](settings, database, arguments)
    finally:
        database.dispose()


if __name__ == "__main__":
    main()
