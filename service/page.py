"""A page of results in Markdown: which cells stand in which table is data, what they say comes from the store.

On the straight line this is an end, beside the dashboard: rows from ``service.store`` in, text out. Pure. A page is
described by a TOML file: tables of chosen rows over torch versions, the distinct faults in sentences, and remarks.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from jobs.contract import MODES, TRACED_MODES
from service.cases import fits
from service.distinct import distinct
from service.edges import in_order, version_order
from service.errors import UsageError, nearest
from service.signature import without_addresses
from service.spans import listed, spans
from service.verdicts import VERDICTS, Verdict

if TYPE_CHECKING:
    from service.compare import Finding
    from service.diagnosis import Diagnosis
    from service.store.views import CellRow

NEVER = "·"
"""In a table: never run."""
UNTRACED = "\N{DEGREE SIGN}"
WORDS = {
    Verdict.AGREE: "ok",
    Verdict.AGREE_UNTRACED: f"ok{UNTRACED}",
    Verdict.ZERO_GRADIENT: "zero",
    Verdict.NO_GRADIENT: "none",
    Verdict.MISMATCH: "wrong",
    Verdict.RAISED: "raises",
    Verdict.PARTIAL_RAISE: "raises on some ranks",
    Verdict.UNSUPPORTED: "absent",
    Verdict.UNIMPORTABLE: "no import",
}
"""What stands in a table for a verdict; the others stand there by their own short word."""
LEGEND = {
    "ok": "forward and gradient agree with the truth, to the bit where numbers are only moved",
    f"ok{UNTRACED}": "right, but the collective was in no traced graph: the mode proved nothing",
    "zero": "every element of the gradient is zero; the forward is right",
    "none": "there is no gradient at all (`None`), and no error",
    "absent": "this torch or this release has no such function, or it cannot be called here",
    "no import": "the subject cannot be imported on this torch",
    NEVER: "not run",
}


QUIET = {
    Verdict.AGREE_UNTRACED: "right, but in no traced graph, in",
    Verdict.UNSUPPORTED: "nothing to call in",
}


_VERSION = re.compile(r"\btorch \d\S*")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


Mode = Literal["eager", "aot_eager", "inductor"]


class Line(_Strict):
    """One line of a table: the cells of one case, or in a table of counts of all that fit it as a glob.

    What is not said is the table's.
    """

    name: str
    case: str
    subject: str = ""
    transport: str = ""
    world_size: int = 0
    modes: tuple[Mode, ...] = ()


class Table(_Strict):
    """Lines over torch versions.

    show  a word per verdict; how many elements of the gradient are not zero; or how many cells of many have which word
    """

    title: str
    text: str = ""
    subject: str = "torch"
    transport: str = "gloo"
    world_size: int = 2
    modes: tuple[Mode, ...] = MODES  # type: ignore[assignment]
    show: Literal["word", "nonzero", "counts"] = "word"
    lines: tuple[Line, ...]


class Faults(_Strict):
    """The sentences about every distinct fault of some subjects.

    by  ``release``: as a run tells them, each release's beside the others; ``fault``: each once, with all that have it
    """

    title: str
    text: str = ""
    subjects: tuple[str, ...]
    by: Literal["release", "fault"] = "release"


class Remark(_Strict):
    """What a person found out and the numbers do not tell."""

    title: str
    text: str


class Page(_Strict):
    """A page as its file describes it."""

    title: str
    text: str = ""
    tables: tuple[Table, ...]
    faults: tuple[Faults, ...] = ()
    remarks: tuple[Remark, ...] = ()

    @property
    def subjects(self) -> tuple[str, ...]:
        """Every subject whose rows the page needs."""
        of_lines = (line.subject or table.subject for table in self.tables for line in table.lines)
        return tuple(dict.fromkeys([*of_lines, *(subject for part in self.faults for subject in part.subjects)]))


def parse(text: str, name: str) -> Page:
    """The page that a TOML text describes. Raises UsageError, naming file and entry."""
    try:
        page = Page.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{name} is not TOML: {error}") from None
    except ValidationError as error:
        # A misspelt key is one too many and one too few: the first of these is what to say.
        first = min(error.errors(), key=lambda entry: entry["type"] != "extra_forbidden")
        what = "is not known" if first["type"] == "extra_forbidden" else first["msg"]
        raise UsageError(f"{name}: {'.'.join(map(str, first['loc']))}: {what}") from None
    return page


def render(
    page: Page,
    rows: Sequence[CellRow],
    findings: Callable[[Sequence[CellRow]], Sequence[Finding]],
    diagnoses: Callable[[Sequence[CellRow]], Mapping[int, Diagnosis]] = lambda rows: {},
) -> str:
    """The page as Markdown; ``diagnoses``: of the failing ones of some rows. Raises UsageError where a line names what
    the rows do not hold.
    """
    stored = [row for row in rows if row.verdict is not None]
    columns, answered = columns_of(stored), _newest(stored)
    parts = [f"# {page.title}", page.text.strip(), _measured(answered, len({row.torch for row in stored}))]
    for table in page.tables:
        parts += [f"## {table.title}", table.text.strip(), _table(table, answered, columns)]
    parts += [_legend(parts)]
    for part in page.faults:
        mine = [row for row in answered if row.label in part.subjects]
        once = part.by == "fault"
        said = distinct(mine, diagnoses(mine)) if once else [*map(_finding, findings(mine)), *_proving_nothing(mine)]
        parts += [f"## {part.title}", part.text.strip(), "\n".join(f"- {_shown(one)}" for one in said)]
    for remark in page.remarks:
        parts += [f"## {remark.title}", remark.text.strip()]
    return "\n\n".join(part for part in parts if part) + "\n"


KINDS = ("agree", "fail", "cannot be imported", "have nothing to say")


def _kind(verdict: Verdict) -> str:
    """Which of :data:`KINDS` an answer counts as. What cannot be imported fails in every case, for one reason."""
    if verdict is Verdict.UNIMPORTABLE:
        return KINDS[2]
    info = VERDICTS[verdict]
    return KINDS[1] if info.failing else KINDS[0] if info.group == "agree" else KINDS[3]


def _measured(rows: Sequence[CellRow], versions: int) -> str:
    """What the page stands on."""
    kinds = Counter(_kind(Verdict(row.verdict or "")) for row in rows)
    counts = ", ".join(f"{kinds[kind]} {kind}" for kind in KINDS if kinds[kind] or kind != KINDS[2])
    return f"From {len(rows)} cells on {versions} torch versions: {counts}."


def _newest(rows: Iterable[CellRow]) -> list[CellRow]:
    """Of a runtime whose content has changed, its newest cells, which have the highest numbers; and of a case whose
    version has, those of its newest version alone: versions are never compared."""
    found: dict[tuple[object, ...], CellRow] = {}
    newest: dict[str, int] = {}
    for row in sorted(rows, key=lambda row: row.cell):
        newest[row.case] = max(newest.get(row.case, 0), row.version)
        found[row.label, row.runtime, row.transport, row.world_size, row.case, row.version, row.mode] = row
    return [row for row in found.values() if row.version == newest[row.case]]


def columns_of(rows: Iterable[CellRow]) -> dict[str, str]:
    """Runtime and what stands above its column: the torch version, or the runtime where one version has several."""
    names: dict[str, str] = {row.runtime: row.torch for row in rows}
    versions = list(names.values())
    ordered = sorted(names, key=lambda runtime: (version_order(names[runtime]), runtime))
    return {runtime: names[runtime] if versions.count(names[runtime]) == 1 else runtime for runtime in ordered}


def _table(table: Table, rows: Sequence[CellRow], columns: Mapping[str, str]) -> str:
    lines = [["", *columns.values()], ["---"] * (len(columns) + 1)]
    for line in table.lines:
        cells = _cells(table, line, rows)
        if table.show == "counts":
            lines.append([line.name, *(_counts(cells.get(runtime, [])) for runtime in columns)])
            continue
        modes = {row.mode for mine in cells.values() for row in mine}
        lines.append([line.name, *(_cell(table, cells.get(runtime, []), modes) for runtime in columns)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cells(table: Table, line: Line, rows: Sequence[CellRow]) -> dict[str, list[CellRow]]:
    """The cells of a line by runtime, in the order of modes."""
    subject, transport = line.subject or table.subject, line.transport or table.transport
    world_size, modes = line.world_size or table.world_size, line.modes or table.modes
    of_case = [row for row in rows if row.case == line.case or _counted(table, line, row.case)]
    if not of_case:
        raise UsageError(
            f"{line.name}: no cell of the case {line.case}: {nearest(line.case, {row.case for row in rows})}"
        )
    found: dict[str, list[CellRow]] = {}
    for row in sorted(of_case, key=lambda row: MODES.index(row.mode)):
        where = (row.label, row.transport, row.world_size)
        if where == (subject, transport, world_size) and row.mode in modes:
            found.setdefault(row.runtime, []).append(row)
    return found


def _counted(table: Table, line: Line, case: str) -> bool:
    return table.show == "counts" and fits(line.case, case)


def _counts(cells: Sequence[CellRow]) -> str:
    """``38 ok, 2 **zero**``: the right ones first, then what there is most of."""
    said = Counter(map(_word, cells))
    if not said or set(said) == {WORDS[Verdict.UNIMPORTABLE]}:
        return next(iter(said), NEVER)
    order = sorted(said, key=lambda word: (word != WORDS[Verdict.AGREE], -said[word], word))
    return ", ".join(f"{said[word]} {word}" for word in order)


def _cell(table: Table, cells: Sequence[CellRow], modes: Collection[str]) -> str:
    """``ok``, or ``eager ok, traced **zero**`` where the modes differ; a mode that never ran is one that differs."""
    said = {row.mode: _word(row) if table.show == "word" else _nonzero(row) for row in cells}
    said = {mode: said.get(mode, NEVER) for mode in MODES if mode in modes}
    if len(set(said.values())) < 2:
        return next(iter(said.values()), NEVER)
    return ", ".join(f"{_modes(modes)} {word}" for word, modes in _by_word(said))


def _by_word(said: Mapping[str, str]) -> Iterator[tuple[str, list[str]]]:
    for word, pairs in groupby(said.items(), key=lambda pair: pair[1]):
        yield word, [mode for mode, _ in pairs]


def _modes(modes: Sequence[str]) -> str:
    return "traced" if tuple(modes) == TRACED_MODES else ", ".join(modes)


def _word(row: CellRow) -> str:
    verdict = Verdict(row.verdict or "")
    word = WORDS.get(verdict, verdict.info.label)
    return f"**{word}**" if verdict.failing and verdict is not Verdict.UNIMPORTABLE else word


def _nonzero(row: CellRow) -> str:
    if row.nonzero_got is None or row.nonzero_expected is None:
        return _word(row)
    share, verdict = f"{row.nonzero_got}/{row.nonzero_expected}", Verdict(row.verdict or "")
    return f"**{share}**" if verdict.failing else share + UNTRACED * (verdict is Verdict.AGREE_UNTRACED)


def _legend(parts: Sequence[str]) -> str:
    """What the words mean that occur in the tables."""
    tables = "\n".join(part for part in parts if part.startswith("|"))
    known = {WORDS.get(verdict, info.label): info.meaning for verdict, info in VERDICTS.items()}
    known |= {word: f"{text}." for word, text in LEGEND.items()}
    words = [word for word in known if any(f"{word}{end}" in tables for end in (" |", "*", ","))]
    if UNTRACED in tables and (untraced := WORDS[Verdict.AGREE_UNTRACED]) not in words:
        words.append(untraced)
    return "\n".join(f"- {word}: {known[word]}" for word in words)


def _finding(finding: Finding) -> str:
    if not finding.case:
        return f"{finding.text}{f' ({finding.why})' if finding.why else ''}"
    return f"{finding.text}. For instance {finding.example}"


def _proving_nothing(rows: Sequence[CellRow]) -> list[str]:
    """A sentence for each thing that is no fault and no proof either: untraced, or not there."""
    order = in_order(row.torch for row in rows)
    where: dict[tuple[str, str, str, str], dict[tuple[str, int, str], set[str]]] = {}
    for row in rows:
        if row.verdict in QUIET:
            # The version is what the sentence is about, and stands there already.
            reason = _VERSION.sub("torch", row.detail) if row.verdict == Verdict.UNSUPPORTED else ""
            kind = (row.label, row.verdict, row.case.partition("[")[0], reason)
            where.setdefault(kind, {}).setdefault((row.mode, row.world_size, row.case), set()).add(row.torch)
    said = []
    for (label, verdict, probe, reason), sites in where.items():
        for torches in dict.fromkeys(map(frozenset, sites.values())):
            mine = [site for site, its in sites.items() if its == torches]
            cases = {case for _, _, case in mine}
            modes = ", ".join(mode for mode in MODES if any(mode == one for one, _, _ in mine))
            ranks = listed(sorted({ranks for _, ranks, _ in mine}))
            what = f"{probe} ({f'{len(cases)} cases; ' if len(cases) > 1 else ''}{modes}; {ranks} ranks)"
            why = f"; {reason}" if reason else ""
            said.append(f"{label}: {QUIET[Verdict(verdict)]} {what}: torch {spans(torches, order)}{why}")
    return said


def _shown(text: str) -> str:
    """Text as Markdown: what came from a subject or from torch is shown as it is."""
    return "".join(f"\\{char}" if char in "\\`*_[]<>|" else char for char in without_addresses(text))
