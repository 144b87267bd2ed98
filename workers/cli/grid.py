"""The grid of verdicts: rows are cases by family, columns torch versions, one block per checkout. Pure.

On the straight line this is the end, beside the dashboard: rows from the store in, lines of text out. What agrees
everywhere is folded into one line per probe; every row with anything else in it is shown in full. A column too many
for the terminal starts a second table below, so that no line is ever wider than it should be.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.version import InvalidVersion, Version
from rich.cells import cell_len
from rich.text import Text

from jobs.contract import MODES
from service.verdicts import Verdict
from workers.cli.words import cell_text, cell_word, inert, number, plural, verdict_of, verdict_style

if TYPE_CHECKING:
    from service.store.views import CellRow

FOLD_ABOVE = 12
"""A block with at most this many rows is always shown row by row."""
GAP = 2
NARROWEST_LABEL = 26
ABSENT = Text("·", style="dim")
_BREAK = re.compile(r" (?!·|ranks?\b)|,(?! )|\[")

Column = tuple[str, str]
"""(torch, runtime name)."""
RowKey = tuple[str, str, int]
"""(case, mode, world size)."""


@dataclass(frozen=True)
class Block:
    """All rows of one checkout on one transport."""

    title: str
    columns: tuple[Column, ...]
    rows: dict[RowKey, dict[Column, CellRow]]


@dataclass(frozen=True)
class Line:
    """One line of a block: a heading when it has no cells."""

    label: Text
    cells: tuple[Text, ...] = ()


def grid(rows: Sequence[CellRow], width: int, *, all_rows: bool = False) -> list[Text]:
    """The whole grid as lines no wider than ``width``, without trailing blanks."""
    lines: list[Text] = []
    for block in blocks(rows):
        if lines:
            lines.append(Text())
        lines += _table(block, width, all_rows)
    return lines


def blocks(rows: Iterable[CellRow]) -> list[Block]:
    """The rows by checkout and transport, in the order in which they first come."""
    found: dict[tuple[str, str, str], dict[RowKey, dict[Column, CellRow]]] = {}
    for row in rows:
        block = found.setdefault((row.checkout, row.label, row.transport), {})
        block.setdefault((row.case, row.mode, row.world_size), {})[row.torch, row.runtime] = row
    transports = {transport for _, _, transport in found}
    result = []
    for (_, label, transport), block in found.items():
        columns = sorted({column for cells in block.values() for column in cells}, key=column_order)
        title = inert(label) if len(transports) == 1 else f"{inert(label)} · {transport}"
        result.append(Block(title, tuple(columns), _ordered(block)))
    return result


def column_order(column: Column) -> tuple[Version, str, str]:
    """The key by which columns are sorted: as versions, not as text."""
    try:
        return Version(column[0]), *column
    except InvalidVersion:
        return Version("0"), *column


def _ordered(block: dict[RowKey, dict[Column, CellRow]]) -> dict[RowKey, dict[Column, CellRow]]:
    """Rows by family, probe and case, each in the order in which it first comes; then by mode and world size."""
    seen: dict[tuple[str, ...], int] = {}

    def place(*name: str) -> int:
        return seen.setdefault(name, len(seen))

    def order(key: RowKey) -> tuple[int, ...]:
        (case, mode, world), family = key, next(iter(block[key].values())).family
        mode_rank = MODES.index(mode) if mode in MODES else len(MODES)
        return place(family), place(family, probe_of(case)), place(family, "", case), mode_rank, world

    ranks = {key: order(key) for key in block}
    return {key: block[key] for key in sorted(block, key=ranks.__getitem__)}


def probe_of(case: str) -> str:
    """The probe's name in a case id (``exchange/dim0[dtype=float32]``: ``dim0``)."""
    return case.partition("/")[2].partition("[")[0] or case


def _headers(columns: Sequence[Column]) -> list[str]:
    """The torch versions; with the runtime's variant where one torch has several runtimes."""
    versions = [torch for torch, _ in columns]
    return [inert(f"torch {torch if versions.count(torch) == 1 else runtime}") for torch, runtime in columns]


def _table(block: Block, width: int, all_rows: bool) -> list[Text]:
    """One block: its heading, and as many tables below each other as the width asks for."""
    folded = {} if all_rows or len(block.rows) <= FOLD_ABOVE else _fold(block)
    one_line = list(_lines(block, folded, nested=False))
    lines = one_line
    if _label_width(one_line) + sum(w + GAP for w in _widths(one_line, block.columns)) > width:
        lines = list(_lines(block, folded, nested=True))
    widths = _widths(lines, block.columns)
    out: list[Text] = []
    for first, last in _bands(widths, width):
        if out:
            out.append(Text())
        out += _band(block, lines, widths, first, last, width)
    return out


def _label_width(lines: Iterable[Line]) -> int:
    return max((cell_len(line.label.plain) for line in lines if line.cells), default=0)


def _widths(lines: Iterable[Line], columns: Sequence[Column]) -> list[int]:
    widths = [cell_len(header) for header in _headers(columns)]
    for line in lines:
        for index, cell in enumerate(line.cells):
            widths[index] = max(widths[index], cell_len(cell.plain))
    return widths


def _bands(widths: Sequence[int], width: int) -> Iterator[tuple[int, int]]:
    """Runs of columns that fit beside the narrowest label, as (first, one after the last)."""
    first, used = 0, NARROWEST_LABEL
    for index, column in enumerate(widths):
        if index > first and used + GAP + column > width:
            yield first, index
            first, used = index, NARROWEST_LABEL
        used += GAP + column
    yield first, len(widths)


def _band(block: Block, lines: list[Line], widths: list[int], first: int, last: int, width: int) -> list[Text]:
    room = width - sum(w + GAP for w in widths[first:last])
    label_width = max(min(max(_label_width(lines), cell_len(block.title)), room), min(NARROWEST_LABEL, width))
    headers = [Text(header, style="bold") for header in _headers(block.columns)]
    title = Line(Text(block.title, style="bold"), tuple(headers))
    out = []
    for line in [title, *lines]:
        wrap_at = label_width if line.cells else width
        pieces = _wrap(line.label, wrap_at)
        out += pieces[:-1]
        out.append(_row(pieces[-1], line.cells[first:last], widths[first:last], label_width))
    return out


def _row(label: Text, cells: Sequence[Text], widths: Sequence[int], label_width: int) -> Text:
    row = label.copy()
    end = label_width
    for cell, width in zip(cells, widths, strict=bool(cells)):
        row.append(" " * (end + GAP - cell_len(row.plain)))
        row.append_text(cell)
        end += GAP + width
    row.rstrip()
    return row


def _wrap(label: Text, width: int) -> list[Text]:
    """``label`` in pieces no wider than ``width``, broken between words where there are any.

    Later pieces are indented by two more than the first.
    """
    if cell_len(label.plain) <= width:
        return [label]
    margin = " " * min(len(label.plain) - len(label.plain.lstrip()) + 2, width // 2)
    pieces, rest = [], label.copy()
    while cell_len(rest.plain) > width:
        head = rest.plain[:width]
        while cell_len(head) > width:
            head = head[:-1]
        floor = len(margin) + 1
        cuts = [found.end() for found in _BREAK.finditer(head) if found.end() > floor]
        cut = cuts[-1] if cuts else max(len(head), 1)
        piece, rest = rest.divide([cut])
        piece.rstrip()
        pieces.append(piece)
        rest = Text(margin, style=label.style).append_text(rest)
    return [*pieces, rest]


def _lines(block: Block, folded: dict[RowKey, int], *, nested: bool) -> Iterator[Line]:
    """The block's lines below its title. ``folded`` numbers the groups of rows that share a line."""
    family = probe = case_before = ""
    groups: dict[int, list[RowKey]] = {}
    for key, group in folded.items():
        groups.setdefault(group, []).append(key)
    for key, cells in block.rows.items():
        case, mode, world = key
        row_family = inert(next(iter(cells.values())).family)
        if row_family != family:
            family, probe = row_family, ""
            yield Line(Text(family, style="underline"))
        if probe_of(case) != probe:
            probe = probe_of(case)
            for keys in groups.values():
                if row_family == inert(_family(block, keys[0])) and probe_of(keys[0][0]) == probe:
                    yield _folded_line(block, keys)
        if key in folded:
            continue
        texts = tuple(cell_text(cells[c]) if c in cells else ABSENT for c in block.columns)
        name = inert(case.partition("/")[2] or case)
        ranks = plural(world, "rank")
        if not nested:
            yield Line(Text(f"  {name} · {inert(mode)} · {ranks}"), texts)
            continue
        if case != case_before:
            case_before = case
            yield Line(Text(f"  {name}"))
        yield Line(Text(f"    {inert(mode)} · {ranks}"), texts)


def _family(block: Block, key: RowKey) -> str:
    return next(iter(block.rows[key].values())).family


def _fold(block: Block) -> dict[RowKey, int]:
    """The rows that may share a line, numbered by the line: all quiet, of one probe, with the same words.

    A column in which every cell is the same answer that is none (the subject cannot be imported there) is as quiet as
    one that agrees: it says one thing, once.
    """
    uniform = {column for column in block.columns if _says_one_thing(block, column)}
    groups: dict[tuple[str, ...], list[RowKey]] = {}
    for key, cells in block.rows.items():
        if all(column in uniform or _quiet(row) for column, row in cells.items()):
            words = [cell_word(cells[c]) if c in cells else "" for c in block.columns]
            groups.setdefault((_family(block, key), probe_of(key[0]), *words), []).append(key)
    numbered = enumerate(keys for keys in groups.values() if len(keys) > 1)
    return {key: group for group, keys in numbered for key in keys}


def _says_one_thing(block: Block, column: Column) -> bool:
    rows = [cells[column] for cells in block.rows.values() if column in cells]
    verdict = verdict_of(rows[0])
    same = len({(row.verdict, row.signature) for row in rows}) == 1
    return same and verdict is not None and verdict.info.group == "no answer"


def _quiet(row: CellRow) -> bool:
    verdict = verdict_of(row)
    return verdict is None or not (verdict.failing or verdict.incomplete)


def _folded_line(block: Block, keys: Sequence[RowKey]) -> Line:
    cases, modes, worlds = (list(dict.fromkeys(part)) for part in zip(*keys, strict=True))
    name = inert(probe_of(str(cases[0])))
    what = plural(len(cases), "case")
    if len(keys) != len(cases) * len(modes) * len(worlds):
        rows = sum(_family(block, key) == _family(block, keys[0]) and probe_of(key[0]) == name for key in block.rows)
        what = plural(rows, "row") if rows == len(keys) else f"{len(keys)} of {plural(rows, 'row')}"
    modes_text = ", ".join(inert(str(mode)) for mode in modes)
    worlds_text = ", ".join(str(world) for world in sorted(worlds, key=int))
    label = Text(f"  {name}: {what} · {modes_text} · {worlds_text} ranks")
    return Line(label, tuple(_folded_cell([block.rows[k].get(column) for k in keys]) for column in block.columns))


def _folded_cell(rows: Sequence[CellRow | None]) -> Text:
    """The one word of several cells, and for those that agree the largest error among them."""
    first = rows[0]
    if first is None:
        return ABSENT
    verdict = verdict_of(first)
    errors = [row.error for row in rows if row is not None and row.error is not None]
    if verdict is not Verdict.AGREE or not errors:
        return cell_text(first)
    worst = max(errors)
    return Text(f"agree {'exact' if worst == 0 else '≤' + number(worst)}", style=verdict_style(verdict))
