"""``gradmatrix judge``: the stored history under another policy, and what that would change.

On the straight line this goes back over it: ``service.store`` reads answers, ``service.rejudging`` judges them, and
with ``--apply`` the store appends what it said. Reading and writing go by a few hundred cells at a time, so that a
worker is never kept waiting; what is interrupted is taken up by saying the same again.
"""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from jobs.contract import CaseInfo, ControlInfo
from service import store
from service.config import load_settings
from service.db import open_database
from service.errors import UsageError
from service.evidence import Evidence
from service.judge import Judgement
from service.policy import Policy, differences, read_policy
from service.rejudging import Again, Basis, ControlChange, Controls, Due, Kept, Said, judge_again, says_otherwise
from service.store.accept import judged
from service.verdicts import Verdict
from service.words import plural
from workers.cli.console import DISAGREE, OK, check_writable, console, show, write_text
from workers.cli.rejudged import outcome_json, outcome_lines

if TYPE_CHECKING:
    from rich.console import Console

    from service.db import Database
    from service.store.views import Answer, CellRow, KeptControl

CHUNK = 200
EVERY_S = 5.0
"""How often a log that nobody watches says how far it is."""


@dataclass(frozen=True)
class Change:
    """A cell that would say something else: as it is, as it would be, and on what that rests."""

    before: CellRow
    after: CellRow
    basis: Basis


@dataclass
class Outcome:
    """What a policy makes of the history.

    before    the policies under which the answers stand, and how many under each
    reworded  how many say the same in other words or numbers
    guessed   how many were judged although it was not kept what their controls said
    controls  controls that behave otherwise, and in how many attempts
    applied   how many answers have the new judgement now; None where none was to be stored
    """

    policy: Policy
    source: str
    known: dict[str, Policy]
    judged: int = 0
    before: Counter[str] = field(default_factory=Counter)
    bases: Counter[Basis] = field(default_factory=Counter)
    changes: list[Change] = field(default_factory=list)
    reworded: int = 0
    guessed: int = 0
    controls: Counter[ControlChange] = field(default_factory=Counter)
    applied: int | None = None

    @property
    def differs(self) -> dict[str, list[str]]:
        """Per version under which answers stand, what the policy has otherwise."""
        return {
            version: differences(self.known[version], self.policy)
            for version in sorted(self.before)
            if version in self.known and version != self.policy.version
        }


def judge(source: str, *, apply: bool, target: str | None, all_rows: bool) -> int:
    """Judge everything stored under the policy in the file ``source``; 1 if anything would change."""
    check_writable(target)
    policy = read_policy(Path(source))
    database = open_database(load_settings())
    try:
        with database.read() as session:
            known, total = store.policies(session), store.count_answers(session)
        _check_version(source, policy, known)
        if not total:
            raise UsageError("there is nothing to judge again: nothing was run here yet")
        outcome = Outcome(policy, source, known)
        if apply:
            outcome.applied = 0
            with database.session() as session:
                store.keep_policy(session, policy)
        with _progress(console(stderr=True), total) as progress:
            _judge_all(database, outcome, progress)
    finally:
        database.dispose()
    out = console(stderr=target == "-")
    show(out, outcome_lines(outcome, out.width, all_rows=all_rows))
    if target:
        write_text(target, json.dumps(outcome_json(outcome), indent=1, allow_nan=False) + "\n")
    return DISAGREE if outcome.changes else OK


def _check_version(source: str, policy: Policy, known: dict[str, Policy]) -> None:
    """A version means one policy for ever, or no verdict could be told by its version."""
    same = known.get(policy.version)
    if same is not None and same != policy:
        said = "; ".join(differences(same, policy))
        raise UsageError(
            f"{source} calls itself version {policy.version!r}, which is another policy ({said}): give it a version of "
            f"its own, none of {', '.join(sorted(known))}"
        )


def _judge_all(database: Database, outcome: Outcome, progress: Progress) -> None:
    after, controls = 0, {}
    while True:
        with database.read() as session:
            answers = store.answers(session, after, CHUNK)
            for attempt in dict.fromkeys(answer.attempt for answer in answers):
                if attempt not in controls:
                    controls[attempt] = _controls(store.controls_of(session, attempt), outcome.policy)
                    outcome.controls.update(controls[attempt].changed)
        if not answers:
            return
        after = answers[-1].row.cell
        found = [(answer, _again(answer, controls[answer.attempt], outcome)) for answer in answers]
        if outcome.applied is not None:
            given = [(a.result, again.judgement, again.rests) for a, again in found if again.judgement is not None]
            with database.session() as session:
                outcome.applied += len(store.append_judgements(session, given))
        progress.advance(len(answers))


def _again(answer: Answer, controls: Controls, outcome: Outcome) -> Again:
    """Judge one answer, and count what comes of it."""
    row, policy = answer.row, outcome.policy
    faults = controls.faults(row.family, row.mode, row.world_size)
    again = judge_again(_kept(answer), CaseInfo.from_json(answer.info), policy, faults)
    outcome.judged += 1
    outcome.before[row.policy_version or "?"] += 1
    outcome.bases[again.basis] += 1
    outcome.guessed += again.judgement is not None and (not controls.known or controls.unjudged > 0)
    if again.judgement is not None:
        now = judged(again.judgement)
        if says_otherwise(row, again.judgement):
            outcome.changes.append(Change(row, dataclasses.replace(row, **now), again.basis))
        else:
            same = all(getattr(row, name) == value for name, value in now.items() if name != "policy_version")
            outcome.reworded += not same
    return again


def _kept(answer: Answer) -> Kept:
    verdict, signature, detail = answer.then
    passes = (None if one is None else Evidence.from_json(one) for one in (answer.first, answer.alone))
    return Kept(Verdict(verdict), signature, detail, Evidence.from_json(answer.evidence), *passes)


def _controls(kept: store.KeptControls, policy: Policy) -> Controls:
    due = None
    if kept.due is not None:
        due = [Due(ControlInfo.from_json(one["control"]), CaseInfo.from_json(one["case"])) for one in kept.due]
    return Controls(due, map(_said, kept.answers), policy)


def _said(one: KeptControl) -> Said:
    nothing: dict[str, Any] = dict.fromkeys(("worst_tensor", "error", "alpha", "nonzero_got", "nonzero_expected"))
    judgement = Judgement(Verdict(one.verdict), None, "", one.detail, policy_version=one.policy_version, **nothing)
    evidence = None if one.evidence is None else Evidence.from_json(one.evidence)
    return Said(one.control, one.mode, one.world_size, one.stage, judgement, one.as_expected, evidence)


# -- progress --------------------------------------------------------------------------------------------------------


class Progress(Protocol):
    """Where it is said how far the judging is."""

    def advance(self, cells: int) -> None:
        """So many more are done."""


@contextmanager
def _progress(out: Console, total: int) -> Iterator[Progress]:
    """A bar on a terminal; elsewhere a line now and then."""
    if not out.is_terminal or os.environ.get("CI") or os.environ.get("NO_COLOR"):
        yield _Plain(out, total)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    with Bars(TextColumn("judging"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=out) as bars:
        yield _Bar(bars, bars.add_task("judging", total=total))


@dataclass(frozen=True)
class _Bar:
    bars: Any
    task: Any

    def advance(self, cells: int) -> None:
        """Move the bar."""
        self.bars.advance(self.task, cells)


class _Plain:
    def __init__(self, out: Console, total: int) -> None:
        self._out, self._total, self._done, self._said = out, total, 0, time.monotonic()

    def advance(self, cells: int) -> None:
        """Say so, if it is time."""
        self._done += cells
        if time.monotonic() - self._said >= EVERY_S:
            self._said = time.monotonic()
            self._out.print(f"judged {self._done} of {plural(self._total, 'cell')}", soft_wrap=True)
