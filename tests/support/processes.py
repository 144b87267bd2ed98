"""Which processes are at work in a folder: nothing may be left of a run."""

from __future__ import annotations

import os
from pathlib import Path


def processes_in(folder: Path) -> list[str]:
    """The numbers of processes whose working directory is below ``folder``, other than this one."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "cwd").readlink().is_relative_to(folder):
                found.append(process.name)
        except OSError:
            continue
    return [pid for pid in found if pid != str(os.getpid())]
