"""Where containers have their folders, and what is left of those whose worker was killed.

On the straight line this stands beside ``workers.attempt``, which makes a folder for each container and removes it.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from service.config import Settings


def scratch_of(settings: Settings) -> Path:
    """The folder that they are made in."""
    return settings.home / "work"


def sweep_scratch(settings: Settings) -> int:
    """Remove the folders of containers that were killed with their worker; how many. None can be as old and live."""
    before = time.time() - 2 * settings.deadlines.attempt_s
    old = [path for path in scratch_of(settings).glob("*") if path.is_dir() and path.stat().st_mtime < before]
    for path in old:
        shutil.rmtree(path, ignore_errors=True)
    return len(old)
