"""The grid of verdicts: rows are cases by family, columns torch versions, one block per checkout. Pure.

On the straight line this is the end, beside the dashboard: rows from the store in, lines of text out. Rows of one
probe that say the same in every column share a line; every other row is shown in full. ``workers.cli.layout`` makes
the lines fit the terminal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.version import InvalidVersion, Version
from rich.text import Text

from jobs.contract import MODES
from service.words import cell_kind, inert, plural, verdict_of
from workers.cli.layout import Line, fits, table
from workers.cli.words import cell_text, cells_text

if TYPE_CHECKING:
    from service.store.views import CellRow

FOLD_ABOVE = 12
"""A block with at most this many rows is always shown row by row."""
QUIET_FROM, LOUD_FROM = 2, 4
"""How many rows share a line at least, where all is well and where it is not."""
MANY = 4
"""From more columns than this on, every character above them counts."""
ABSENT = Text("·", style="dim")

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

    def family(self, key: RowKey) -> str:
        """The family of a row's case."""
        return next(iter(self.rows[key].values())).family


@dataclass(frozen=True)
class _Fold:
    """Rows of one probe that share a line; loud where somebody must look at them."""

    keys: tuple[RowKey, ...]
    loud: bool


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


def _headers(columns: Sequence[Column]) -> tuple[Text, ...]:
    """The torch versions; with the runtime's variant where one torch has several runtimes."""
    versions = [torch for torch, _ in columns]
    names = [torch if versions.count(torch) == 1 else runtime for torch, runtime in columns]
    of_what = "" if len(columns) > MANY else "torch "
    return tuple(Text(inert(f"{of_what}{name}"), style="bold") for name in names)


def _table(block: Block, width: int, all_rows: bool) -> list[Text]:
    """One block. Case ids stand on lines of their own where they leave no room for the cells."""
    folds = [] if all_rows or len(block.rows) <= FOLD_ABOVE else _folds(block)
    over = " over torch" if len(block.columns) > MANY else ""
    title = Line(Text(f"{block.title}{over}", style="bold"), _headers(block.columns))
    nested = [list(_lines(block, folds, nested=nested)) for nested in (False, True)]
    for lines in nested:
        for capped in (False, True):
            if fits(title, lines, width, capped=capped):
                return table(title, lines, width, capped=capped)
    return table(title, nested[1], width, capped=True)


def _lines(block: Block, folds: Sequence[_Fold], *, nested: bool) -> Iterator[Line]:
    """The block's lines below its title: per probe first the folds, then every other row."""
    folded = {key for fold in folds for key in fold.keys}
    family = probe = case_before = ""
    for key, cells in block.rows.items():
        case, mode, world = key
        if block.family(key) != family:
            family, probe = block.family(key), ""
            yield Line(Text(inert(family), style="underline"))
        if probe_of(case) != probe:
            probe = probe_of(case)
            for fold in folds:
                if (block.family(fold.keys[0]), probe_of(fold.keys[0][0])) == (family, probe):
                    yield from _folded(block, fold)
        if key in folded:
            continue
        texts = tuple(cell_text(cells[c]) if c in cells else ABSENT for c in block.columns)
        name, ranks = _name(case), plural(world, "rank")
        if not nested:
            yield Line(Text(f"  {name} · {inert(mode)} · {ranks}"), texts)
            continue
        if case != case_before:
            case_before = case
            yield Line(Text(f"  {name}"))
        yield Line(Text(f"    {inert(mode)} · {ranks}"), texts)


def _name(case: str) -> str:
    """A case's id without its family, which stands above it."""
    return inert(case.partition("/")[2] or case)


# -- folding ---------------------------------------------------------------------------------------------------------


def _folds(block: Block) -> list[_Fold]:
    """The rows that share a line: of one probe, with the same words in every column; where all is well first."""
    groups: dict[tuple[str, ...], list[RowKey]] = {}
    for key, cells in block.rows.items():
        words = [cell_kind(cells[c]) if c in cells else "" for c in block.columns]
        groups.setdefault((block.family(key), probe_of(key[0]), *words), []).append(key)
    uniform = {column for column in block.columns if _says_one_thing(block, column)}
    found = []
    for keys in groups.values():
        loud = not all(column in uniform or _quiet(row) for column, row in block.rows[keys[0]].items())
        if len(keys) >= (LOUD_FROM if loud else QUIET_FROM):
            found.append(_Fold(tuple(keys), loud))
    return sorted(found, key=lambda fold: fold.loud)


def _says_one_thing(block: Block, column: Column) -> bool:
    """Whether every cell is the same answer that is none (no import there): one that is said once, and is no news."""
    rows = [cells[column] for cells in block.rows.values() if column in cells]
    verdict = verdict_of(rows[0])
    same = len({(row.verdict, row.signature) for row in rows}) == 1
    return same and verdict is not None and verdict.info.group == "no answer"


def _quiet(row: CellRow) -> bool:
    verdict = verdict_of(row)
    return verdict is None or not (verdict.failing or verdict.incomplete)


def _folded(block: Block, fold: _Fold) -> Iterator[Line]:
    """One line for all rows of ``fold`` and, where somebody must look at them, what they share and one of them."""
    cases, modes, worlds = (list(dict.fromkeys(part)) for part in zip(*fold.keys, strict=True))
    family, probe = block.family(fold.keys[0]), probe_of(str(cases[0]))
    alike = [key for key in block.rows if block.family(key) == family and probe_of(key[0]) == probe]
    what = plural(len(cases), "case")
    if len(fold.keys) != len(cases) * len(modes) * len(worlds):
        count = len(fold.keys)
        what = plural(count, "row") if count == len(alike) else f"{count} of {plural(len(alike), 'row')}"
    modes_text = ", ".join(inert(str(mode)) for mode in modes)
    worlds_text = ", ".join(str(world) for world in sorted(worlds, key=int))
    label = Text(f"  {inert(probe)}: {what} · {modes_text} · {worlds_text} ranks")
    cells = [[block.rows[k][c] for k in fold.keys if c in block.rows[k]] for c in block.columns]
    yield Line(label, tuple(cells_text(rows) if rows else ABSENT for rows in cells))
    if fold.loud:
        shared = _shared([str(case) for case in cases], [case for case, _, _ in alike])
        case, mode, _ = fold.keys[0]
        yield Line(Text(f"    {shared}e.g. {_name(case)} {inert(mode)}", style="dim"))


def _shared(cases: Sequence[str], alike: Sequence[str]) -> str:
    """The parameters that all of ``cases`` have, and not just as every case ``alike`` has them."""
    common, everywhere = (set.intersection(*map(_parameters, some)) for some in (cases, alike))
    named = [inert(item) for item in cases[0].partition("[")[2].rstrip("]").split(",") if item in common - everywhere]
    return f"all {','.join(named)}; " if len(cases) > 1 and named else ""


def _parameters(case: str) -> set[str]:
    return set(case.partition("[")[2].rstrip("]").split(","))
