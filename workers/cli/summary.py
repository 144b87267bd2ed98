"""A submission as it is printed: what ran where, the grid, what the words mean, what differs, what to do next. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.text import Text

from service.verdicts import VERDICTS, Verdict
from service.words import human_seconds, inert, plural, verdict_of, verdict_word
from workers.cli.console import DISAGREE, INCOMPLETE, OK
from workers.cli.grid import column_order, grid
from workers.cli.layout import sentence
from workers.cli.words import verdict_style

if TYPE_CHECKING:
    from service.findings import Finding
    from service.store.views import CellRow

WHY = 240
"""How much of what one cell said a sentence is followed by."""
IN_FULL = "gradmatrix show {cell}"
EXAMPLES = 4
"""How many cells are suggested for a closer look."""


@dataclass(frozen=True)
class Heading:
    """What stands above the grid.

    submission  its number
    home        where everything is kept
    facts       per runtime name, what the container said about itself (``hello``)
    seconds     how long this run took, where it was one
    executed    how many cells this run executed, where it was one
    in_full     what shows a cell in full, with its number as ``{cell}``: a command, or an address elsewhere
    to_finish   the command that has answered what is not
    """

    submission: int
    home: str
    facts: Mapping[str, Mapping[str, Any]]
    seconds: float | None = None
    executed: int | None = None
    in_full: str = IN_FULL
    to_finish: str = "gradmatrix run --resume"


def submission_lines(
    heading: Heading, rows: Sequence[CellRow], findings: Sequence[Finding], width: int, *, all_rows: bool = False
) -> list[Text]:
    """Everything about a submission, in lines. ``findings`` are the sentences on what differs."""
    parts = [
        _heading(heading, rows),
        grid(rows, width, all_rows=all_rows),
        _legend(rows),
        finding_lines(findings, width, heading.in_full),
        _next(heading, rows, findings),
    ]
    return [line for part in parts if part for line in (*part, Text())][:-1]


def exit_status(rows: Iterable[CellRow]) -> int:
    """What the answers amount to. A cell without one makes the whole incomplete, whatever the others say.

    A control that failed does so only where nothing disagrees: a disagreement elsewhere stands by itself.
    """
    verdicts = [verdict_of(row) for row in rows]
    if not verdicts or None in verdicts or Verdict.INFRA in verdicts:
        return INCOMPLETE
    known = [verdict for verdict in verdicts if verdict is not None]
    if any(verdict.failing for verdict in known):
        return DISAGREE
    compared = any(verdict.info.group == "agree" or verdict is Verdict.REFUSED for verdict in known)
    return OK if compared and not any(verdict.incomplete for verdict in known) else INCOMPLETE


def _heading(heading: Heading, rows: Sequence[CellRow]) -> list[Text]:
    counts = Counter(verdict_of(row) for row in rows)
    totals = Text()
    for verdict in [*VERDICTS, None]:
        if counts[verdict]:
            totals.append(", " if totals.plain else "")
            word = verdict_word(verdict) if verdict else "without an answer"
            totals.append(f"{counts[verdict]} {word}", style=verdict_style(verdict))
    name = (f"submission s{heading.submission}", "bold")
    first = Text.assemble(name, f": {plural(len(rows), 'cell')}: ", totals)
    took = ""
    if heading.executed is not None and heading.seconds is not None:
        nothing = "none executed" if any(row.verdict is None for row in rows) else "nothing had to be executed"
        what = f"{heading.executed} of them executed now" if heading.executed else nothing
        took = f"{what}, in {human_seconds(heading.seconds)}; "
    lines = [first, Text(f"{took}kept in {inert(heading.home)}")]
    for (torch, runtime), group in sorted(_by_runtime(rows).items(), key=lambda item: column_order(item[0])):
        facts = heading.facts.get(runtime, {})
        said = [f"git {str(facts['git_version'])[:12]}"] if facts.get("git_version") else []
        said += [f"Python {facts['python']}"] if facts.get("python") else []
        said += [f"CUDA build {facts['cuda']}"] if facts.get("cuda") else []
        said += [f"{plural(len(facts['gpus']), 'GPU')}"] if facts.get("gpus") else []
        transports = ", ".join(sorted({row.transport for row in group}))
        lines.append(Text(inert(f"torch {torch}: runtime {runtime} over {transports}; {', '.join(said)}".rstrip("; "))))
    return lines


def _by_runtime(rows: Iterable[CellRow]) -> dict[tuple[str, str], list[CellRow]]:
    found: dict[tuple[str, str], list[CellRow]] = {}
    for row in rows:
        found.setdefault((row.torch, row.runtime), []).append(row)
    return found


def _legend(rows: Sequence[CellRow]) -> list[Text]:
    """What the words in this grid mean; whether the forward was right is told for the headline fault."""
    lines = []
    for verdict in VERDICTS:
        found = [row for row in rows if verdict_of(row) is verdict]
        if not found or verdict is Verdict.AGREE:
            continue
        line = Text.assemble((verdict_word(verdict), verdict_style(verdict)), f": {verdict.info.meaning}")
        right = sum(row.forward_ok is True for row in found)
        if verdict.info.group == "gradient" and right:
            where = "in every such cell" if right == len(found) else f"in {right} of these {plural(len(found), 'cell')}"
            line.append(f" The forward was right {where}.", style="bold")
        lines.append(line)
    return lines


def finding_lines(findings: Sequence[Finding], width: int, in_full: str = IN_FULL) -> list[Text]:
    """What differs, each sentence with one such case, what was wrong there, and what shows it in full."""
    lines = []
    for finding in findings:
        lines += [Text(line) for line in sentence(inert(finding.text), width)]
        if finding.case:  # in one piece, whatever the width, for whoever copies it
            lines.append(Text(f"  e.g. {inert(finding.case)}", style="dim"))
        if finding.why:
            lines += [Text(line, style="dim") for line in sentence(inert(finding.why, limit=WHY), width, "  ")]
        if finding.means:
            lines += [Text(line, style="dim") for line in sentence(inert(f"training: {finding.means}"), width, "  ")]
        of = "" if finding.cells == 1 else f", one of {finding.cells} such cells"
        lines.append(Text.assemble("  in full: ", (in_full.format(cell=finding.cell), "bold"), (of, "dim")))
    return lines


def _next(heading: Heading, rows: Sequence[CellRow], findings: Sequence[Finding]) -> list[Text]:
    """The commands that lead on from here."""
    missing = [row for row in rows if row.verdict is None]
    lines = []
    if missing:
        text = f"{plural(len(missing), 'cell')} without an answer"
        running = any(row.state in ("leased", "running") for row in missing)
        then = "; still running" if running else f"; to finish: {heading.to_finish}"
        lines.append(Text(text + then, style="bold"))
    for row in () if findings else _examples(rows):
        what = inert(f"{row.label}, torch {row.torch}, {row.world_size} ranks, {row.case} {row.mode}")
        command = (heading.in_full.format(cell=row.cell), "bold")
        lines.append(Text.assemble("in full: ", command, (f"   ({what})", "dim")))
    return lines


def _examples(rows: Sequence[CellRow]) -> list[CellRow]:
    """One cell per checkout, torch and way of failing; one that agrees when nothing fails."""
    seen: dict[tuple[str, str, str], CellRow] = {}
    for row in rows:
        verdict = verdict_of(row)
        if verdict and (verdict.failing or verdict.incomplete):
            seen.setdefault((row.checkout, row.torch, verdict), row)
    answered = [row for row in rows if row.verdict is not None]
    return list(seen.values())[:EXAMPLES] or answered[:1]
