"""Asks a program that runs inside a built runtime, and reads the JSON of its last line."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from service.config import load_settings
from tests.support.runtimes import runtime
from workers.runtimes.venv import VenvExecutor

ROOT = Path(__file__).parents[2]


def answer_of(program: str, torch: str, *arguments: str, timeout: float) -> Any:
    """What ``program``, a path in this repository or an absolute one, says on the runtime called ``torch``."""
    python = VenvExecutor(load_settings()).python(runtime(torch))
    done = subprocess.run(
        [python, "-W", "ignore", ROOT / program, *arguments],
        env={"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1", "PATH": ""},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
