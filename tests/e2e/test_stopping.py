"""``gradmatrix serve`` ends cleanly while somebody follows a submission."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import requests

from service import store
from service.config import Settings
from service.db import open_database
from tests.e2e.test_serve import address_in


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_follower_is_let_go_and_nothing_is_called_a_failure(tmp_path: Path, number: signal.Signals) -> None:
    home, log = tmp_path / "home", tmp_path / "log"
    home.mkdir()
    start = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from workers.cli import main; main()"
    )
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-c", start, "serve", "--listen", "127.0.0.1:0"],
            env={**os.environ, "GRADMATRIX_HOME": str(home)}, stdout=file, stderr=file,
        )  # fmt: skip
    try:
        address = address_in(log, process)
        database = open_database(Settings(home=home))
        asked: dict[str, Any] = {"requester": "x", "reason": "manual", "priority": 0, "request": {}}
        with database.session() as session:
            held = store.open_submission(session, **asked, held="it waits").id
        database.dispose()
        following = requests.get(f"{address}/api/v1/submissions/{held}/events", stream=True, timeout=30)
        lines = following.iter_lines()  # kept, for the connection is closed with it
        assert next(lines).startswith(b"event: submission")
        process.send_signal(number)
        assert process.wait(30) == 0, log.read_text()
        following.close()
    finally:
        process.kill()
        process.wait()
    said = log.read_text()
    assert "Traceback" not in said and " error " not in said, said
