"""``gradmatrix cases``: what can be exercised, and the controls that stand guard over it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from rich.text import Text

from jobs.contract import SUITES, WORLD_SIZES, CaseInfo, ControlInfo
from service.cases import SCHEMA, catalogue
from service.errors import UsageError
from service.words import inert, plural
from workers.cli.console import OK, check_writable, console, show, write_text


def check_options(
    *, globs: Sequence[str] | None, selftest: bool, coverage: str | None, tested: Mapping[str, object]
) -> None:
    """Refuse what does not go together, rather than leave some of it unheard. Raises UsageError."""
    if selftest and coverage is not None:
        raise UsageError("--selftest and --coverage are two questions: ask one at a time")
    if globs and (selftest or coverage is not None):
        raise UsageError(f"a GLOB lists cases, and does not go with {'--selftest' if selftest else '--coverage'}")
    given = [name for name, value in tested.items() if value is not None]
    if given and not selftest:
        raise UsageError(f"{', '.join(given)} belongs to --selftest")


def cases(globs: Sequence[str], *, json_file: str | None = None) -> int:
    """List the cases that fit any glob, or all of them with the controls."""
    check_writable(json_file)
    known = catalogue()
    chosen = known.select(globs, suite=SUITES[-1])
    families = {case.family for case in chosen}
    controls = [control for control in known.controls if control.family in families]
    out = console()
    if json_file is not None:
        data = {
            "schema": SCHEMA,
            "cases": [case.to_json() for case in chosen],
            "controls": [control.to_json() for control in controls],
        }
        write_text(json_file, json.dumps(data, indent=1) + "\n")
        return OK
    usual = {case.id for case in known.select(suite=SUITES[0])}
    for case in chosen:
        show(out, case_lines(case, usual=case.id in usual))
    if not globs:
        for control in controls:
            show(out, control_lines(control))
    out.print(f"{plural(len(chosen), 'case')}" + ("" if globs else f", {plural(len(controls), 'control')}"))
    return OK


def case_lines(case: CaseInfo, *, usual: bool) -> list[Text]:
    """A case for people: its id, and what it is; ``usual``: it is in the default suite."""
    worlds = ", ".join(str(size) for size in WORLD_SIZES if case.runs_at(size))
    facts = [", ".join(case.modes), f"{worlds} ranks", f"version {case.version}"]
    if case.sp:
        facts.insert(1, f"groups of {case.sp} in")
        facts[1:3] = [" ".join(facts[1:3])]
    if case.suite != SUITES[0]:
        facts.append("in the default suite eagerly, for pairs of values" if usual else f"suite {case.suite}")
    if others := [transport for transport in case.transports if transport not in CaseInfo.transports]:
        facts.append(f"over {', '.join(others)} too")
    if case.expect == "refusal":
        facts.append("outside the contract: must be refused")
    if case.scale != 1:
        facts.append(f"the convention scales the gradient by {case.scale:g}")
    lines = [Text(inert(case.id), style="bold")]
    lines += [Text(f"    {inert(text)}") for text in (case.summary, case.api) if text]
    return [*lines, Text(f"    {inert(' · '.join(facts))}", style="dim")]


def control_lines(control: ControlInfo) -> list[Text]:
    """A control: which verdicts are right for it."""
    must = "must agree" if control.expected[0] == "agree" else f"must be caught as {' or '.join(control.expected)}"
    first = Text.assemble((f"control {inert(control.id)}", "bold"), f" {inert(must)}")
    return [first, Text(f"    {inert(control.summary)}")] if control.summary else [first]
