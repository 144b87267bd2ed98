from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.workers.runtimes.conftest import bench, only_index  # noqa: F401 - fixtures
from workers.cli import application

Gradmatrix = Callable[..., tuple[int, str, str]]
"""Runs the command line with these words; exit status, stdout, stderr."""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty state folder that the command line uses."""
    folder = tmp_path / "home"
    monkeypatch.setenv("GRADMATRIX_HOME", str(folder))
    monkeypatch.delenv("GRADMATRIX_CONFIG", raising=False)
    monkeypatch.setenv("COLUMNS", "100")
    return folder


@pytest.fixture
def gradmatrix(home: Path) -> Gradmatrix:
    """The command line, in this process."""

    def call(*words: str, stdin: str | None = None) -> tuple[int, str, str]:
        done = CliRunner().invoke(application(), list(words), input=stdin, prog_name="gradmatrix")
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return done.exit_code, done.stdout, done.stderr

    return call
