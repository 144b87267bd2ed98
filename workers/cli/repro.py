"""``gradmatrix repro``: one cell as a Python file of torch and the subject alone, to be shown to its maintainers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from service import repro
from service.config import load_settings
from service.db import open_database
from service.repro.gather import given_of
from workers.cli.console import OK, check_writable, write_text
from workers.cli.named import one_cell

if TYPE_CHECKING:
    pass


def write(text: str, output: str) -> int:
    """Write the script of the cell that ``text`` names to the file ``output``; ``-`` is stdout."""
    check_writable(output)
    settings = load_settings()
    database = open_database(settings)
    try:
        with database.read() as session:
            detail = one_cell(session, text)
            given = given_of(session, settings, detail)
    finally:
        database.dispose()
    write_text(output, repro.script(given))
    return OK
