"""Ctrl-C on the command itself: children gone within five seconds, finished cells kept, exit status 2."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from service import store
from service.config import Settings, load_settings
from service.db import Database, open_database
from tests.support.runtimes import runtime
from tests.support.subjects import write_subject

pytestmark = pytest.mark.torch


def test_ctrl_c_ends_everything_at_once_and_says_how_to_go_on(tmp_path: Path) -> None:
    built = runtime("2.11.0-index")
    home = tmp_path / "home"
    home.mkdir()
    (home / "runtimes").symlink_to(load_settings().home / "runtimes")
    call = "if x.dtype == torch.float64: time.sleep(999)"
    tree = write_subject(tmp_path / "odd", call=call)
    command = [sys.executable, "-c", "from workers.cli import main; main()", "run", str(tree), "--torch", built.torch]
    command += ["--mode", "eager", "--case", "exchange/dim0[dtype=float*,loss=square]"]
    environment = {**os.environ, "GRADMATRIX_HOME": str(home), "NO_COLOR": "1"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        assert process.stdout is not None
        seen = b""
        while b"controls in" not in seen:
            line = process.stdout.readline()
            assert line, seen.decode()
            seen += line
        database = open_database(Settings(home=home))
        while not answered(database):
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=5)
    assert process.returncode == 2
    assert b"run --resume" in rest
    assert b": stopped by you; 1 agree in " in rest
    assert b"ended early" not in rest
    assert answered(database) == ["agree"]
    left = [path.parent.name for path in Path("/proc").glob("[0-9]*/cwd") if _below(path, tmp_path)]
    assert not left


def answered(database: Database) -> list[str]:
    """The verdicts that the store has by now."""
    with database.read() as session:
        return [row.verdict for row in store.cells_of(session, 1) if row.verdict]


def _below(link: Path, folder: Path) -> bool:
    try:
        return link.readlink().is_relative_to(folder)
    except OSError:
        return False
