from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from service.errors import GradmatrixError, UsageError
from tests.workers.cli.conftest import Gradmatrix
from workers.cli.console import Group, write_text


def failing(error: BaseException) -> typer.Typer:
    app = typer.Typer(cls=Group, pretty_exceptions_enable=False)

    @app.command()
    def fail() -> None:
        raise error

    @app.command()
    def other() -> None:
        """A second command, so that names are needed."""

    return app


@pytest.mark.parametrize("error", [GradmatrixError("the disk is [red]full\x1b[0m"), UsageError("a\nb")])
def test_an_error_for_people_is_one_message_and_status_2(error: GradmatrixError) -> None:
    done = CliRunner().invoke(failing(error), ["fail"])
    assert done.exit_code == 2
    assert done.stdout == ""
    assert done.stderr == f"gradmatrix: {str(error).replace(chr(27), chr(92) + 'x1b')}\n"


def test_ctrl_c_is_not_a_traceback() -> None:
    done = CliRunner().invoke(failing(KeyboardInterrupt()), ["fail"])
    assert (done.exit_code, done.stderr) == (2, "gradmatrix: stopped\n")


def test_a_fault_of_our_own_says_what_to_report() -> None:
    done = CliRunner().invoke(failing(ZeroDivisionError("secret")), ["fail"])
    assert done.exit_code == 2
    assert "a fault of gradmatrix itself" in done.stderr
    assert "Python 3.11" in done.stderr
    assert "ZeroDivisionError: secret" in done.stderr
    assert "test_console.py" in done.stderr


def test_an_exit_status_and_a_misused_option_pass_through() -> None:
    assert CliRunner().invoke(failing(typer.Exit(1)), ["fail"]).exit_code == 1
    done = CliRunner().invoke(failing(typer.Exit(1)), ["fail", "--nonsense"])
    assert done.exit_code == 2
    assert "fault of gradmatrix" not in done.stderr


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "out.json"
    write_text(str(target), "first")
    write_text(str(target), "second")
    assert target.read_text("utf-8") == "second"
    with pytest.raises(UsageError, match=r"cannot write .*missing"):
        write_text(str(tmp_path / "missing" / "out"), "x")
    (tmp_path / "folder").mkdir()
    with pytest.raises(UsageError, match=r"cannot write .*folder"):
        write_text(str(tmp_path / "folder"), "x")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "out.json"]


def test_the_version_needs_no_command(gradmatrix: Gradmatrix) -> None:
    status, out, err = gradmatrix("--version")
    assert (status, out, err) == (0, f"gradmatrix {importlib.metadata.version('gradmatrix')}\n", "")
