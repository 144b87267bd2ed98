"""What goes to a job's stdin and comes from its stdout, as bytes.

On the straight line this stands between whoever started a process of ``workers.runtimes`` (an attempt, a self-test) and
``workers.collect``, which is fed the lines.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from workers.runtimes import Process


def send(process: Process, data: bytes) -> None:
    """Write the spec and the tar; the other end may be gone, which the reader of its stdout will see."""
    with suppress(BrokenPipeError, ValueError, OSError):
        process.stdin.write(data)
        process.stdin.flush()


def lines(process: Process, limit: int) -> Iterator[bytes]:
    """The lines of its stdout. One that is over the limit is passed on cut, which the collector refuses."""
    while line := process.stdout.readline(limit + 1):
        yield line
