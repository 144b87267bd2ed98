"""``python -m jobs``: run an attempt, or say which cases there are. Started from the folder that holds ``jobs/``.

::

    python -m jobs --list            every case and control as JSON; needs no torch
    python -m jobs --handed CASE N   what each of N ranks hands in, as JSON; needs no torch
    python -m jobs SPEC              run the attempt described by the file SPEC; events on stdout, answers on stdin
    python -m jobs --rank JSON       one rank, where ranks must be spawned
"""

from __future__ import annotations

import json
import sys

from jobs.contract import SCHEMA


def main(arguments: list[str]) -> int:
    """Run what ``arguments`` ask for and return the exit status."""
    if arguments == ["--list"]:
        from jobs import probes

        cases = [case.to_json() for case in probes.catalogue()]
        controls = [control.to_json() for control in probes.controls()]
        sys.stdout.write(json.dumps({"schema": SCHEMA, "cases": cases, "controls": controls}) + "\n")
        return 0
    if len(arguments) == 3 and arguments[0] == "--handed":
        from jobs.probes.handed import handed

        sys.stdout.write(json.dumps({"schema": SCHEMA, "ranks": handed(arguments[1], int(arguments[2]))}) + "\n")
        return 0
    if len(arguments) == 2 and arguments[0] == "--rank":
        from jobs.ranks import spawned

        spawned()
        return 0
    if len(arguments) == 1 and not arguments[0].startswith("-"):
        from jobs.launcher import launch

        return launch(arguments[0])
    sys.stderr.write(f"{__doc__}\n")
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
