"""``gradmatrix page``: a page of Markdown from what is stored here, as a TOML file describes it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from service.compare import sentences
from service.config import load_settings
from service.db import open_database
from service.edges import Known
from service.errors import UsageError
from service.page import parse, render
from service.reports.beside import told, torches_of
from service.store import imports
from workers.cli.console import OK, check_writable, write_text
from workers.cli.named import cells


def page(source: str, output: str) -> int:
    """Write the page that ``source`` describes to ``output``."""
    try:
        text = Path(source).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {source}: {getattr(error, 'strerror', None) or error}") from None
    described = parse(text, source)
    check_writable(output)
    settings = load_settings()
    database = open_database(settings)
    try:
        with database.read() as session:
            rows = []
            for subject in described.subjects:
                mine = [row for row in cells(session, subject) if row.label == subject]
                if not mine:
                    how = f"gradmatrix run {subject} --torch all --keep-runtimes no"
                    raise UsageError(f"{source}: nothing is stored of {subject}; {how} would run it on every torch")
                rows += mine
            known = Known(imports=imports(session, {row.checkout for row in rows}), torches=torches_of(settings))
            write_text(output, render(described, rows, partial(sentences, known=known), partial(told, session)))
    finally:
        database.dispose()
    return OK
