"""The command line: the embedded way along the straight line, from a subject to a grid, in one process.

:func:`main` is the console script. Everything heavy is imported by the command that needs it, so that a run which has
nothing left to do answers at once.
"""

from __future__ import annotations


def main() -> None:
    """Run the command line and exit with its status."""
    import io
    import sys

    from workers.cli import operations
    from workers.cli.app import app

    operations.register(app)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that lacks a character still gets the others
    app(prog_name="gradmatrix")
