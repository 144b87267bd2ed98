"""``gradmatrix export`` and ``import``: results as JSON lines, from one state folder to another."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from service import store
from service.config import load_settings
from service.db import open_database
from service.errors import UsageError
from service.words import inert, plural
from workers.cli.console import OK, check_writable, console
from workers.cli.stored import named_submission

ALL = 10**6
"""A limit for a query that should have none."""
MOST_LINE = 2**28
"""Bytes in one line of an import; the store's own caps are far below."""


def export(idents: Sequence[str], output: str) -> int:
    """Write the named submissions, or all of them, to ``output``."""
    check_writable(output)
    database = open_database(load_settings())
    count: Counter[str] = Counter()
    try:
        with database.read() as session:
            chosen = [named_submission(session, text).id for text in idents] or None
            if chosen is None and not store.submissions(session, 1):
                raise UsageError("there is nothing to export: nothing was run here yet")
            with _written(output) as file:
                for record in store.export_all(session, chosen):
                    file.write(json.dumps(record, separators=(",", ":"), sort_keys=True, allow_nan=False) + "\n")
                    count[record["record"]] += 1
    finally:
        database.dispose()
    console(stderr=True).print(f"{_said(count)} written", soft_wrap=True)
    return OK


@contextmanager
def _written(output: str) -> Iterator[IO[str]]:
    """The file to write to; it appears under its name only when it is whole."""
    if output == "-":
        yield sys.stdout
        sys.stdout.flush()
        return
    path = Path(output)
    part = path.with_name(f".{path.name}.part")
    try:
        with part.open("w", encoding="utf-8") as file:
            yield file
        part.replace(path)
    except OSError as error:
        raise UsageError(f"cannot write {output}: {error.strerror}") from None
    finally:
        part.unlink(missing_ok=True)


def import_(source: str) -> int:
    """Take in what ``source`` holds; all of it or nothing."""
    database = open_database(load_settings())
    try:
        with _opened(source) as file, database.session() as session:
            before = {view.key for view in store.submissions(session, ALL)}
            named: dict[str, None] = {}
            records = _noting(store.load_lines(_lines(file, source)), named)
            done = store.import_records(session, records)
            views = {view.key: view for view in store.submissions(session, ALL)}
    finally:
        database.dispose()
    known = f", {_said(done.known)} known already" if done.known else ""
    console().print(f"{_said(done.added)} added{known}", soft_wrap=True)
    for view in sorted((views[key] for key in named), key=lambda view: view.id):
        already = ", known already" if view.key in before else ""
        subjects = " ".join(map(str, view.request.get("subjects", ())))
        when = f"{view.created_at.astimezone():%Y-%m-%d %H:%M}"
        console().print(inert(f"submission of {when}  {subjects} -> s{view.id}{already}"), soft_wrap=True)
    return OK


def _noting(records: Iterable[Any], named: dict[str, None]) -> Iterator[Any]:
    """``records``, with the keys of the submissions among them noted in ``named``; numbers are each folder's own."""
    for record in records:
        yield record
        if isinstance(record, dict) and record.get("record") == "submission":
            named[record["key"]] = None  # checked by now


@contextmanager
def _opened(source: str) -> Iterator[IO[bytes]]:
    if source == "-":
        yield sys.stdin.buffer
        return
    try:
        with Path(source).open("rb") as file:
            yield file
    except OSError as error:
        raise UsageError(f"cannot read {source}: {error.strerror}") from None


def _lines(file: IO[bytes], source: str) -> Iterator[bytes]:
    """The lines of ``file``, none so long that it could not have been written by an export."""
    number = 0
    while line := file.readline(MOST_LINE + 1):
        number += 1
        if len(line) > MOST_LINE:
            raise UsageError(f"{source}, line {number}: longer than {MOST_LINE} bytes; nothing was imported")
        if number == 1 and line.strip() in (b"[", b"[]"):
            raise UsageError(
                f"{source} is no export: it looks like a list of cells that --json wrote, which lacks what they rest "
                "on; gradmatrix export writes what import reads"
            )
        yield line


def _said(count: Counter[str]) -> str:
    """Counts for people; the rest is what these rest on."""
    main = [plural(count[kind], kind) for kind in ("submission", "result") if count[kind]]
    rest = count.total() - sum(count[kind] for kind in ("submission", "result"))
    return ", ".join([*main, plural(rest, "further record")] if rest else main) or "nothing"
