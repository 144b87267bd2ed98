"""A submission's cells as JUnit XML, for the systems that read test reports. Pure.

One suite per checkout, runtime, transport and world size (a job), one test case per cell. A wrong answer is a
failure; no answer, or one that means nothing, is an error; what the runtime or subject cannot do is skipped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from service.verdicts import Verdict
from service.words import cell_says, inert, verdict_of

if TYPE_CHECKING:
    from service.store.views import CellRow

_SKIPPED = {Verdict.REFUSED, Verdict.INSENSITIVE, Verdict.UNSUPPORTED}


def junit(rows: Iterable[CellRow], problem: str = "") -> str:
    """The report as one XML document. ``problem`` is why there are no rows: a report of nothing is no good news."""
    suites: dict[tuple[str, str, str, str, int], list[CellRow]] = {}
    for row in rows:
        suites.setdefault((row.checkout, row.label, row.runtime, row.transport, row.world_size), []).append(row)
    root = ElementTree.Element("testsuites", name="gradmatrix")
    totals = dict.fromkeys(("tests", "failures", "errors", "skipped"), 0)
    for (_, label, runtime, transport, world), cells in suites.items():
        name = _safe(f"{label} torch {runtime} {transport} {world} ranks")
        suite = ElementTree.SubElement(root, "testsuite", name=name)
        counts = _fill(suite, cells)
        for key, count in counts.items():
            totals[key] += count
            suite.set(key, str(count))
    if problem and not suites:
        suite = ElementTree.SubElement(root, "testsuite", name="gradmatrix", tests="1", errors="1")
        case = ElementTree.SubElement(suite, "testcase", classname="gradmatrix", name="submission")
        ElementTree.SubElement(case, "error", message=_safe(problem))
        totals |= {"tests": 1, "errors": 1}
    for key, count in totals.items():
        root.set(key, str(count))
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _fill(suite: ElementTree.Element, cells: Sequence[CellRow]) -> dict[str, int]:
    counts = {"tests": len(cells), "failures": 0, "errors": 0, "skipped": 0}
    classname = suite.get("name", "").replace(" ", "-").replace(".", "_")
    for row in cells:
        case = ElementTree.SubElement(suite, "testcase", classname=classname, name=_safe(f"{row.case} {row.mode}"))
        tag = _outcome(row)
        if tag is None:
            continue
        counts[_COUNTED[tag]] += 1
        attributes = {"message": _safe(_message(row))}
        if tag != "skipped":
            attributes["type"] = _safe(row.verdict or "no_result")
        child = ElementTree.SubElement(case, tag, attributes)
        child.text = _safe("\n".join(part for part in (row.detail, row.signature, _where(row)) if part))
    return counts


_COUNTED = {"failure": "failures", "error": "errors", "skipped": "skipped"}


def _outcome(row: CellRow) -> str | None:
    """The element that tells a cell's outcome; None for a cell that agrees."""
    verdict = verdict_of(row)
    if verdict is None or verdict.incomplete or verdict.info.group == "no answer":
        return "error"
    if verdict.failing:
        return "failure"
    return "skipped" if verdict in _SKIPPED else None


def _message(row: CellRow) -> str:
    verdict = verdict_of(row)
    if verdict is None:
        return f"no result: {row.state}"
    forward = " (the forward agreed)" if row.forward_ok and verdict.failing else ""
    return f"{cell_says(row)}{forward}: {verdict.info.meaning}"


def _where(row: CellRow) -> str:
    return f"cell {row.cell}, worst tensor {row.worst_tensor}" if row.worst_tensor else f"cell {row.cell}"


def _safe(text: str) -> str:
    """``text`` with what XML cannot hold, and what a terminal would obey, as escapes."""
    return inert(text, lines=True)
