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


def compute_in_child(wanted: Wanted, emit: Callable[[dict[str, Any]], None]) -> None:
    """Fork a child that computes every tensor of ``wanted``, and hand each to ``emit`` as an event's fields.

    Raises RuntimeError when the child fails; its message is on stderr.
    """
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            die_with_parent()
            os.close(read)
            _compute(wanted, write)
            status = 0
        finally:
            os._exit(status)
    os.close(write)
    with os.fdopen(read, "rb") as lines:
        for line in lines:
            emit(json.loads(line))
    if os.waitpid(pid, 0)[1] != 0:
        raise RuntimeError("the oracle's process failed; its message is on stderr")


def _compute(wanted: Wanted, fd: int) -> None:
    import torch

    torch.set_num_threads(1)  # before anything else: see facts, on thread pools after a fork
    for case, version, world_size in wanted:
        for expected in oracle.expected(case, world_size):
            tensor = tensor_message(expected.role, expected.name, expected.tensor)
            line = {"case": case.id, "version": version, "world_size": world_size, "rank": expected.rank}
            write_all(fd, encode({**line, "tensor": tensor}))
