"""What stored evidence comes to under another policy, and what of that is exactly what a run would have said.

On the straight line this stands beside ``service.judge``, which it asks, between the two halves of
``service.store.judging``. Pure. A cell that fails is run once more alone, and that second pass decides too; which cells
were run again was decided under the policy of that day. So not everything can be judged again from what is kept, and
every answer says on which :class:`Basis` it stands.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, Protocol

from jobs.contract import CaseInfo, ControlInfo
from service.evidence import Evidence
from service.judge import (
    CONTROL_FAILED,
    NOT_REPEATED,
    ControlResult,
    ControlVerdict,
    Judgement,
    asks_again,
    control_faults,
    first_stands,
    judge,
    judge_control,
    merge_passes,
)
from service.policy import Policy
from service.verdicts import Verdict

Rests = Literal["first", "alone", ""]


class Basis(StrEnum):
    """What a later judgement rests on.

    whole     all that a run under this policy would have had
    one pass  one of two passes, for an older program kept only that: what the other said is not known
    once      it fails now and agreed then, so that it was never repeated alone: whether it leaks is not known
    kept      nothing that could be judged again: the answer stays as it is
    """

    WHOLE = "whole"
    ONE_PASS = "one pass"  # noqa: S105 - of a probe
    ONCE = "once"
    KEPT = "kept"


@dataclass(frozen=True)
class Kept:
    """What is kept of a cell's answer; ``first`` is None where an older program stored it.

    verdict, signature, detail   the judgement that came with the answer, be there later ones or not
    evidence      what that verdict rested on
    first, alone  the pass among other cases, and the one in fresh ranks where there was one
    """

    verdict: Verdict
    signature: str
    detail: str
    evidence: Evidence
    first: Evidence | None
    alone: Evidence | None


@dataclass(frozen=True)
class Again:
    """A later judgement; None where the answer has to stay as it is.

    rests  on which of the kept passes; empty where an older program did not say which one it kept
    """

    judgement: Judgement | None
    basis: Basis
    rests: Rests = ""


NEVER_ALONE = f"{NOT_REPEATED}judged again from the one pass that there was)"


def judge_again(kept: Kept, case: CaseInfo, policy: Policy, faults: Sequence[str] | None) -> Again:
    """The judgement on a stored answer. ``faults``: what its controls come to, None where that was not kept."""
    if faults is None and kept.signature == CONTROL_FAILED:
        return Again(None, Basis.KEPT)
    first = kept.evidence if kept.first is None else kept.first
    said = judge(first, case, policy, _faults(first, faults))
    fails = asks_again(said, first)
    if kept.first is None:
        return _older(kept, said, fails=fails)
    if not fails:
        return Again(said, Basis.WHOLE, "first")
    if kept.alone is not None:
        alone = judge(kept.alone, case, policy, _faults(kept.alone, faults))
        return Again(merge_passes(said, alone), Basis.WHOLE, "first" if first_stands(said, alone) else "alone")
    if _failed(kept):  # its container died first, then as now
        return Again(said, Basis.WHOLE, "first")
    return Again(_suffixed(said, NEVER_ALONE), Basis.ONCE, "first")


def _older(kept: Kept, said: Judgement, *, fails: bool) -> Again:
    """From the one document that older programs kept; ``said`` is its judgement."""
    if kept.verdict is Verdict.LEAK:  # that of the pass among others; the one alone agreed, and is not there
        return Again(None, Basis.KEPT) if fails else Again(said, Basis.WHOLE)
    if (at := kept.detail.rfind(NOT_REPEATED)) >= 0:
        return Again(_suffixed(said, kept.detail[at:]) if fails else said, Basis.WHOLE)
    if _failed(kept):
        return Again(said, Basis.ONE_PASS)
    return Again(_suffixed(said, NEVER_ALONE), Basis.ONCE) if fails else Again(said, Basis.WHOLE)


def _faults(evidence: Evidence, faults: Sequence[str] | None) -> Sequence[str]:
    """A job that broke off is blamed on its cell whatever the controls did."""
    return () if faults is None or (evidence.stop is not None and evidence.stop.kind == "crash") else faults


def _failed(kept: Kept) -> bool:
    """Whether the cell was one that is run again."""
    return (kept.verdict.failing or kept.verdict is Verdict.INFRA) and kept.evidence.stop is None


def _suffixed(judgement: Judgement, suffix: str) -> Judgement:
    return dataclasses.replace(judgement, detail=judgement.detail + suffix)


# -- controls --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Due:
    """A control that had to answer, with the case whose oracle it used, both as they were then."""

    control: ControlInfo
    case: CaseInfo


@dataclass(frozen=True)
class Said:
    """What a control answered, and what that was judged to be; ``evidence`` is None where it was not kept."""

    control: str
    mode: str
    world_size: int
    stage: str
    judgement: Judgement
    as_expected: bool
    evidence: Evidence | None


@dataclass(frozen=True)
class ControlChange:
    """A control that behaves otherwise under another policy; ``ok``: whether it does there."""

    control: str
    mode: str
    world_size: int
    stage: str
    before: Verdict
    after: Verdict
    ok: bool


class Controls:
    """The controls of one attempt under one policy.

    known     whether it is known which were due; if not, they are taken to have behaved as they did
    changed   those that behave otherwise now
    unjudged  how many answers could not be judged again, for only that they behaved was kept
    """

    def __init__(self, due: Iterable[Due] | None, said: Iterable[Said], policy: Policy) -> None:
        """``due`` is None where an older program kept neither which controls were due nor what they said."""
        self.known = due is not None
        self._due = {one.control.id: one for one in due or ()}
        self._results: list[ControlResult] = []
        self.changed: list[ControlChange] = []
        self.unjudged = 0
        for one in said:
            now, at = self._again(one, policy), (one.control, one.mode, one.world_size, one.stage)
            self._results.append(ControlResult(*at, now))
            if now.ok != one.as_expected:
                change = ControlChange(*at, one.judgement.verdict, now.judgement.verdict, now.ok)
                self.changed.append(change)
        self._found: dict[tuple[str, str, int], tuple[str, ...]] = {}

    def _again(self, said: Said, policy: Policy) -> ControlVerdict:
        due = self._due.get(said.control)
        if due is None or said.evidence is None:
            self.unjudged += 1
            return ControlVerdict(said.as_expected, said.judgement)
        return judge_control(said.evidence, due.case, due.control, policy)

    def faults(self, family: str, mode: str, world_size: int) -> tuple[str, ...] | None:
        """Why nothing in this family, mode and world size can be believed; None where that was not kept.

        As in a run, controls that fail without the tracer vouch for nothing under it either.
        """
        if not self.known:
            return None
        key = (family, mode, world_size)
        if key not in self._found:
            here = [one.control for one in self._due.values() if one.case.runs_at(world_size)]
            found = (
                control_faults(here, self._results, family, one, world_size) for one in dict.fromkeys(("eager", mode))
            )
            self._found[key] = tuple(text for texts in found for text in texts)
        return self._found[key]


# -- what changes ----------------------------------------------------------------------------------------------------


class Judged(Protocol):
    """What is read of a stored judgement."""

    @property
    def verdict(self) -> str | None: ...  # noqa: D102 - the names are those of service.store.CellRow
    @property
    def forward_ok(self) -> bool | None: ...  # noqa: D102
    @property
    def signature(self) -> str: ...  # noqa: D102


def says_otherwise(before: Judged, after: Judgement) -> bool:
    """Whether a judgement says something else; words and numbers that only follow from the evidence do not count."""
    now = (str(after.verdict), after.forward_ok, after.signature)
    return (before.verdict, before.forward_ok, before.signature) != now
