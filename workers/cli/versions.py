"""One cell's row over the torch versions: what each says, where its faults begin and end, what an import needs. Pure.

On the straight line this is the end, beside ``workers.cli.evidence``: answers from the store in, lines of text out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, cast

from rich.text import Text

from service.edges import (
    ABSENT,
    BAD,
    NO_IMPORT,
    NOTHING,
    OTHER,
    Known,
    answers_by_row,
    columns_of,
    edges,
    row_key,
    version_order,
)
from service.imports import import_columns, need_text, reasons
from service.spans import Columns, bad, good, listed, spans, untried
from service.verdicts import Verdict
from service.words import inert
from workers.cli.words import cell_text

if TYPE_CHECKING:
    from service.store.views import CellRow


def version_lines(row: CellRow, known: Known) -> list[Text]:
    """The row over torch, its edges, and on which versions the checkout cannot be imported. Empty for a lone answer."""
    answers = answers_by_row([row], known.past)[row_key(row)]
    given = sorted(
        cast("Sequence[CellRow]", tuple(answers.values())), key=lambda one: (version_order(one.torch), one.runtime)
    )
    lines = [_over_torch(row, given)] if len(given) > 1 else []
    lines += [Text(inert(f"edges: {text}")) for text in _edges(row, given, known.torches)]
    facts = [fact for fact in known.imports if fact.checkout == row.checkout]
    if row.verdict == Verdict.UNIMPORTABLE or any(one.verdict == Verdict.UNIMPORTABLE for one in given):
        for signature in reasons(facts):
            columns = import_columns(facts, signature, known.torches)
            on = spans({torch for torch, said in columns if said == BAD}, [torch for torch, _ in columns])
            lines.append(Text(inert(f"import: on torch {on}: {need_text(signature, columns) or signature}")))
    return lines


def _over_torch(row: CellRow, given: Sequence[CellRow]) -> Text:
    """Every version's verdict, this cell's in brackets; the build is named where a version has several."""
    builds = Counter(one.torch for one in given)
    line = Text("over torch: ")
    for number, one in enumerate(given):
        said = Text.assemble(inert(one.torch if builds[one.torch] == 1 else one.runtime), " ", cell_text(one))
        line.append(" · " if number else "")
        line.append_text(Text.assemble(("[", "bold"), said, ("]", "bold")) if one.cell == row.cell else said)
    return line


def _edges(row: CellRow, given: Sequence[CellRow], torches: Sequence[str]) -> Iterator[str]:
    """A sentence per fault of the row, in the words of the findings."""
    found = edges(given, torches)
    for fault in dict.fromkeys((edge.verdict, edge.signature) for edge in found):
        if fault[0] == Verdict.UNIMPORTABLE:
            continue  # told by what the import needs
        columns = columns_of(given, fault, torches)
        said = [f"{Verdict(fault[0]).info.label}: torch {bad(columns)}"]
        said += [f"right {right}"] if (right := good(columns)) else []
        said += _others(columns, {OTHER: "another fault", NO_IMPORT: "not importable"})
        if apart := [name for edge in found if (edge.verdict, edge.signature) == fault for name in edge.right_on]:
            said.append(f"right on {listed(apart)}")
        said += [f"untried on {open_edge}"] if (open_edge := untried(columns)) else []
        said += _others(columns, {ABSENT: "absent", NOTHING: "no answer"})
        yield "; ".join(said)


def _others(columns: Columns, words: Mapping[str, str]) -> Iterator[str]:
    """On which versions it is otherwise, a clause for each of the states that ``words`` names."""
    for state, word in words.items():
        if those := {torch for torch, its in columns if its == state}:
            yield f"{word} on {spans(those, [torch for torch, _ in columns])}"
