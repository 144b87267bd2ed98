"""The command line: the embedded way along the straight line, from a subject to a grid, in one process.

:func:`main` is the console script. Everything heavy is imported by the command that needs it, so that a run which has
nothing left to do answers at once.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import typer


@cache
def application() -> typer.Typer:
    """All commands."""
    from workers.cli import operations
    from workers.cli.app import app

    operations.register(app)
    return app


def main() -> None:
    """Run the command line and exit with its status."""
    import io
    import sys

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that lacks a character still gets the others
    application()(prog_name="gradmatrix")
