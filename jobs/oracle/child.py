"""The process that computes what is right. It is over before any subject code is imported."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from typing import Any

from jobs import oracle
from jobs.channel import die_with_parent
from jobs.contract import CaseInfo
from jobs.stream import encode, tensor_message, write_all

Wanted = Sequence[tuple[CaseInfo, int, int]]
"""Case, version and world size."""


class OracleChild:
    """A fork that computes every tensor of ``wanted`` while this process does something else."""

    def __init__(self, wanted: Wanted) -> None:
        # Into a file that is in memory alone: a pipe would be full before anyone reads it.
        self._said = os.memfd_create("oracle")
        self._pid = os.fork()
        if self._pid == 0:
            status = 1
            try:
                die_with_parent()
                _compute(wanted, self._said)
                status = 0
            finally:
                os._exit(status)

    def hand_over(self, emit: Callable[[dict[str, Any]], None]) -> None:
        """Wait for the child, and hand each tensor to ``emit`` as an event's fields.

        Raises RuntimeError when the child fails; its message is on stderr.
        """
        failed = os.waitpid(self._pid, 0)[1] != 0
        os.lseek(self._said, 0, os.SEEK_SET)
        with os.fdopen(self._said, "rb") as lines:
            for line in lines if not failed else ():
                emit(json.loads(line))
        if failed:
            raise RuntimeError("the oracle's process failed; its message is on stderr")


def _compute(wanted: Wanted, fd: int) -> None:
    import torch

    torch.set_num_threads(1)  # before anything else: see facts, on thread pools after a fork
    for case, version, world_size in wanted:
        for expected in oracle.expected(case, world_size):
            tensor = tensor_message(expected.role, expected.name, expected.tensor)
            line = {"case": case.id, "version": version, "world_size": world_size, "rank": expected.rank}
            write_all(fd, encode({**line, "tensor": tensor}))
