"""One row over the torch versions, as it is printed."""

from __future__ import annotations

from service.edges import Known
from service.imports import Import
from service.store.views import CellRow
from tests.workers.cli.rows import row
from workers.cli.versions import version_lines

CATALOGUE = ("2.2.2", "2.9.1", "2.10.0", "2.11.0", "2.12.1")


def zero(torch: str = "2.11.0", cell: int = 9) -> CellRow:
    return row(cell=cell, torch=torch, verdict="zero_gradient", signature="zero", nonzero_got=0, nonzero_expected=64)


def printed(cell: CellRow, *past: CellRow, imports: tuple[Import, ...] = ()) -> list[str]:
    return [line.plain for line in version_lines(cell, Known(past, imports, CATALOGUE))]


def test_every_version_with_its_verdict_and_where_the_fault_begins_and_ends() -> None:
    past = (row(torch="2.10.0"), row(torch="2.12.1"), row(torch="2.2.2", verdict="agree_untraced"))
    assert printed(zero(), *past) == [
        "over torch: 2.2.2 agree untraced · 2.10.0 agree exact · [2.11.0 zero 0/64] · 2.12.1 agree exact",
        "edges: zero gradient: torch 2.11.0 only; right on 2.2.2 and 2.10.0 and from 2.12.1 on",
    ]


def test_a_cell_that_agrees_shows_its_neighbours_fault() -> None:
    assert printed(row(cell=2, torch="2.12.1"), zero(cell=1), row(cell=3, torch="2.9.1")) == [
        "over torch: 2.9.1 agree exact · 2.11.0 zero 0/64 · [2.12.1 agree exact]",
        "edges: zero gradient: torch 2.11.0; right on 2.9.1 and from 2.12.1 on; untried on 2.10.0",
    ]


def test_a_lone_answer_says_what_was_not_tried_and_one_that_is_right_nothing() -> None:
    untried = "edges: zero gradient: torch 2.11.0; untried on 2.2.2 to 2.10.0 and 2.12.1"
    assert printed(zero()) == [untried]
    assert printed(row()) == []


def test_builds_are_named_where_a_version_has_several() -> None:
    assert printed(zero(), row(cell=3, torch="2.11.0", runtime="2.11.0-cpu"), row(cell=4, torch="2.10.0")) == [
        "over torch: 2.10.0 agree exact · 2.11.0-cpu agree exact · [2.11.0-index zero 0/64]",
        "edges: zero gradient: torch 2.11.0; right on 2.10.0; right on 2.11.0-cpu; untried on 2.12.1",
    ]


def test_what_an_import_needs_with_each_reason() -> None:
    custom_op, other = "needs another torch: torch.library.custom_op", "ValueError: \x1b[2J"
    said = {"2.2.2": custom_op, "2.9.1": other, "2.10.0": "", "2.11.0": ""}
    imports = tuple(Import("c" * 64, torch, f"{torch}-index", "release", why) for torch, why in said.items())
    cell = row(cell=1, torch="2.2.2", verdict="unimportable", signature=custom_op, error=None)
    assert printed(cell, row(cell=2, torch="2.11.0"), imports=imports) == [
        "over torch: [2.2.2 unimportable] · 2.11.0 agree exact",
        "import: on torch 2.2.2: needs a newer torch (2.10.0 is the first in the catalogue that imports it; "
        "missing: torch.library.custom_op)",
        r"import: on torch 2.9.1: ValueError: \x1b[2J",
    ]
    assert printed(zero(), imports=imports)[-1].startswith("edges: ")


def test_several_faults_know_of_each_other() -> None:
    raised = row(cell=3, torch="2.10.0", verdict="raised", signature="KeyError: 'x'")
    gone = row(cell=4, torch="2.2.2", verdict="unimportable", signature="needs package: hjson")
    assert printed(zero(), raised, gone, row(cell=5, torch="2.9.1"), row(cell=6, torch="2.12.1"))[1:3] == [
        "edges: raised: torch 2.10.0 only; right up to 2.9.1 and from 2.12.1 on; another fault on 2.11.0; "
        "not importable on 2.2.2",
        "edges: zero gradient: torch 2.11.0 only; right up to 2.9.1 and from 2.12.1 on; another fault on 2.10.0; "
        "not importable on 2.2.2",
    ]


def test_untried_versions_inside_are_named_and_what_is_absent_or_silent_has_its_clause() -> None:
    past = (row(cell=1, torch="2.2.2", verdict="unsupported", detail="no f"), zero("2.9.1", 2))
    assert printed(zero(), *past, row(cell=3, torch="2.12.1", verdict="infra"))[1:] == [
        "edges: zero gradient: torch 2.9.1 and 2.11.0; untried on 2.10.0; absent on 2.2.2; no answer on 2.12.1"
    ]
    assert printed(zero("2.9.1"), past[0], row(cell=3, torch="2.10.0"))[1:] == [
        "edges: zero gradient: torch 2.9.1 only; right on 2.10.0; absent on 2.2.2"
    ]
