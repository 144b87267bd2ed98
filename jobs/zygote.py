"""A process that imports once and forks the ranks: one for the controls, one for the subject.

The launcher forks it with one end of a socket pair. Over that it says, as JSON lines, what it imported and which
ranks started and ended, and receives orders to start a group together with the descriptors of its ranks. The one
that holds the subject runs a stranger's code from its import on: the launcher believes nothing from it but its tensors.
"""

from __future__ import annotations

import gc
import json
import os
import select
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobs import facts, faults, housekeeping
from jobs.channel import die_with_parent
from jobs.ranks import RankSetup
from jobs.ranks import main as rank_main
from jobs.stream import encode
from jobs.subject import load_adapter
from jobs.subject.base import Subject

MESSAGE_LIMIT = 1 << 20
POLL_S = 0.02
FDS_PER_RANK = 3


@dataclass(frozen=True)
class ZygoteSetup:
    """What a zygote is told.

    subject     the adapter's name, or "" for the zygote of the controls
    log         stands in for stdout and stderr
    rank_bytes  what it and each of its ranks may take of the memory; 0: no limit
    """

    subject: str
    checkout: str
    log: int
    rank_bytes: int = 0


def serve(setup: ZygoteSetup, channel: socket.socket) -> None:
    """Import the subject if there is one, report, then start groups until the launcher closes the channel."""
    die_with_parent()
    os.dup2(setup.log, 1)
    os.dup2(setup.log, 2)
    subject, report = _import_subject(setup) if setup.subject else (None, None)
    # What was imported is no garbage: ranks look for garbage after every case, and would look through all of it.
    gc.collect()
    gc.freeze()
    channel.sendall(encode({"z": "loaded", "report": report}))
    method = report["method"] if report else "fork"
    if report is None or report["status"] == "ok":
        _Children(channel, subject, method).serve()
    else:
        channel.recv(1)  # nothing to run: stay until the launcher has read the report


def _import_subject(setup: ZygoteSetup) -> tuple[Subject | None, dict[str, Any]]:
    threads, before, began = facts.os_threads(), housekeeping.Surroundings(), time.monotonic()
    housekeeping.limit_memory(setup.rank_bytes)
    report: dict[str, Any] = {"status": "ok", "adapter": setup.subject, "version": None, "error": None}
    subject = None
    try:
        subject = load_adapter(setup.subject, setup.checkout)
        subject.prepare_import(setup.checkout)
        sys.path.insert(0, setup.checkout)
        subject.load(setup.checkout)
        report["version"] = subject.version()
    except BaseException as error:  # noqa: BLE001 - an import may raise anything, SystemExit included
        error = housekeeping.explained(error)
        report.update(status="unimportable", error=faults.describe(error, setup.checkout))
        housekeeping.renew_limit()
    report["changed"] = before.changes()
    report["started"] = facts.started(threads) if report["status"] == "ok" else dict.fromkeys(STARTED, False)
    report["method"] = "spawn" if any(report["started"].values()) else "fork"
    report["seconds"] = round(time.monotonic() - began, 3)
    return subject, report


STARTED = ("threads", "autograd", "cuda")


class _Children:
    """Starts ranks when told to and says when one of them ends."""

    def __init__(self, channel: socket.socket, subject: Subject | None, method: str) -> None:
        self._channel = channel
        self._subject = subject
        self._method = method
        self._alive: set[int] = set()

    def serve(self) -> None:
        while True:
            ready, _, _ = select.select([self._channel], [], [], POLL_S if self._alive else None)
            if ready:
                message, fds, _, _ = socket.recv_fds(self._channel, MESSAGE_LIMIT, 64)
                if not message:
                    return
                self._start(json.loads(message), list(fds))
            self._reap()

    def _start(self, order: dict[str, Any], fds: list[int]) -> None:
        pids = []
        for number, data in enumerate(order["ranks"]):
            own = fds[number * FDS_PER_RANK : (number + 1) * FDS_PER_RANK]
            start = self._spawn if self._method == "spawn" else self._fork
            pids.append(start(RankSetup.from_json(data), own, fds))
        for fd in fds:
            os.close(fd)
        self._alive.update(pids)
        self._channel.sendall(encode({"z": "started", "pids": pids}))

    def _fork(self, setup: RankSetup, own: list[int], fds: list[int]) -> int:
        pid = os.fork()
        if pid:
            return pid
        status = 1
        try:
            self._channel.close()
            for fd in fds:
                if fd not in own:
                    os.close(fd)
            events, commands, log = own
            rank_main(setup, events, commands, log, self._subject)
            status = 0
        finally:
            os._exit(status)

    def _spawn(self, setup: RankSetup, own: list[int], fds: list[int]) -> int:
        events, commands, log = own
        data = {"setup": setup.to_json(), "events": events, "commands": commands, "log": log}
        command = [sys.executable, "-s", "-m", "jobs", "--rank", json.dumps(data)]
        # The working directory is the one that holds jobs/; the subject may have changed it.
        home = Path(__file__).resolve().parent.parent
        return subprocess.Popen(command, pass_fds=own, cwd=home).pid

    def _reap(self) -> None:
        for pid in list(self._alive):
            try:
                gone, status = os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                gone, status = pid, 0
            if gone:
                self._alive.discard(pid)
                self._channel.sendall(encode({"z": "exit", "pid": pid, "status": status}))
