"""Where output goes, and how the command line ends when something is wrong.

stdout carries results, stderr progress and errors. Nothing is ever parsed as markup: much of what is shown was written
by a subject.
"""

from __future__ import annotations

import platform
import sys
import traceback
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperGroup

from service.errors import GradmatrixError, UsageError
from service.words import inert

OK, DISAGREE, INCOMPLETE = 0, 1, 2
"""Exit statuses: all agree or as the baseline; at least one does not; incomplete, misused, or nothing compared."""


def console(*, stderr: bool = False) -> Console:
    """A console on what stdout or stderr is now."""
    return Console(stderr=stderr, markup=False, highlight=False, emoji=False)


def show(out: Console, lines: Iterable[Text]) -> None:
    """Print lines, breaking long ones between words on a terminal; elsewhere each stays one line."""
    for line in lines:
        out.print(line, soft_wrap=not out.is_terminal)


def table(rows: Sequence[Sequence[str]]) -> None:
    """Rows below each other on stdout, the first one as their headings."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for index, row in enumerate(rows):
        line = "  ".join(inert(text).ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        console().print(Text(line, style="" if index else "bold"), soft_wrap=True)


def show_error(message: str) -> None:
    """One error for people on stderr."""
    text = Text.assemble(("gradmatrix: ", "bold red"), inert(message, lines=True))
    console(stderr=True).print(text, soft_wrap=True)


class Group(TyperGroup):
    """Commands whose errors end in one clear message and status 2."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command. An error that a person can act on is shown alone, any other with what to report."""
        try:
            return super().invoke(ctx)
        except GradmatrixError as error:
            show_error(str(error))
        except KeyboardInterrupt:
            show_error("stopped")
        except Exception as error:
            if isinstance(error, typer.Abort | BrokenPipeError) or hasattr(error, "exit_code"):
                raise  # how the option parser itself leaves a command
            _report(error)
        raise typer.Exit(INCOMPLETE)


def _report(error: Exception) -> None:
    """What somebody who files this as a fault of gradmatrix should quote."""
    trace = "".join(traceback.format_exception(error))
    show_error(
        f"this is a fault of gradmatrix itself, not of what it tests: {type(error).__name__}: {error}\n"
        f"To report it, quote the following.\n\n"
        f"gradmatrix {version()}, Python {platform.python_version()}, {platform.platform()}\n"
        f"command: {' '.join(sys.argv[1:])}\n\n{trace}"
    )


def version() -> str:
    """The version of the installed distribution."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    try:
        return installed("gradmatrix")
    except PackageNotFoundError:
        return "(not installed)"


def write_text(target: str, text: str) -> None:
    """Write ``text`` to the file ``target`` whole or not at all; ``-`` is stdout. Raises UsageError."""
    if target == "-":
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    path = Path(target)
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_text(text, "utf-8")
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise UsageError(f"cannot write {target}: {error.strerror}") from None


def check_writable(target: str | None) -> None:
    """Refuse now what could not be written after a long run. Raises UsageError."""
    if target is None or target == "-":
        return
    path = Path(target)
    if path.is_dir():
        raise UsageError(f"cannot write {target}: it is a folder; name a file in it")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"cannot write {target}: there is no folder {path.absolute().parent}")
