"""``gradmatrix cases --coverage SUBJECT``: what of a subject holds a collective or is public, and what reaches it."""

from __future__ import annotations

import json as json_module
import tarfile
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

from rich.text import Text

from jobs.contract import TORCH
from service.cases import catalogue
from service.config import load_settings
from service.coverage import SCHEMA, Map, Row, load_map
from service.coverage import coverage as cover
from service.errors import UsageError
from service.subjects import Cache, parse_subject
from service.words import inert, plural
from workers.cli.console import OK, check_writable, console, show, write_text
from workers.cli.progress import watcher
from workers.cli.run import resolved

MAX_SOURCE = 4 * 2**20
"""Bytes of one file: what is longer was written by no person."""

BY_HAND = (
    "names and collectives are read from the checkout; which probe reaches a name is not measured: that is a table "
    "written by hand, service/coverage.toml, and a name that is not in it is not covered"
)


def coverage(subject: str, *, json: str | None = None) -> int:
    """List it; nothing of the subject is imported or run."""
    check_writable(json)
    settings = load_settings()
    request = parse_subject(subject, settings)
    if request.kind == TORCH:
        raise UsageError("torch has no checkout to read: name a release, a commit or a path")
    table = load_map()
    with watcher(console(stderr=True)) as watch:
        checkout = resolved(request, settings, watch)
    sources = sources_of(Cache(settings.home).folder / f"{checkout.digest}.tar", table)
    rows = cover(sources, (case.id for case in catalogue().cases), table)
    if json is not None:
        data = {"schema": SCHEMA, "checkout": checkout.label, "digest": checkout.digest,
                "rows": [row.to_json() for row in rows]}  # fmt: skip
        write_text(json, json_module.dumps(data, indent=1) + "\n")
    if json != "-":
        show(console(), lines(checkout.label, rows))
    return OK


def sources_of(archive: Path, table: Map) -> dict[str, str]:
    """The package's Python files in a packed checkout, by path."""
    found: dict[str, str] = {}
    with tarfile.open(archive, mode="r:") as tar:
        for member in tar:
            if member.isfile() and member.size <= MAX_SOURCE and table.counts(member.name):
                body = tar.extractfile(member)
                found[member.name] = body.read().decode("utf-8", "replace") if body else ""
    return found


def lines(label: str, rows: Sequence[Row]) -> list[Text]:
    """The table for people: by module, what is there, and what reaches it."""
    out = [Text(f"{inert(label)}: what holds a collective, and the public names of the modules under test", "bold")]
    width = max((len(row.name) for row in rows), default=0)
    for module, group in groupby(rows, lambda row: row.module):
        out += [Text(""), Text(inert(module), style="bold")]
        out += [_line(row, width) for row in group]
    return [*out, Text(""), *(Text(text) for text in sums(rows)), Text(BY_HAND, style="dim")]


def _line(row: Row, width: int) -> Text:
    what = row.kind + (f" ({', '.join(row.collectives)})" if row.collectives else "")
    line = Text(f"  {inert(row.name):<{width}}  ")
    if row.probes:
        line.append(", ".join(row.probes), style="green")
    else:
        line.append("not covered", style="yellow")
        line.append(f": {row.reason}" if row.reason else "")
    line.append(f"  {inert(what)}", style="dim")
    return line


def sums(rows: Sequence[Row]) -> Iterator[str]:
    """How many there are of each kind, and how many are reached."""
    holding = [row for row in rows if row.kind != "name"]
    named = [row for row in rows if row.public]
    kinds = plural(len(holding), "function or operator", "functions and operators")
    yield f"{kinds} with a collective: {_reached(holding)}"
    yield f"{plural(len(named), 'public name')} of the modules under test: {_reached(named)}"


def _reached(rows: Sequence[Row]) -> str:
    covered = sum(bool(row.probes) for row in rows)
    return f"{covered} covered, {len(rows) - covered} not"
