"""From evidence to a verdict, under one version of the tolerance policy.

On the straight line this stands between ``service.store`` (which keeps evidence and judgement side by side) and
``service.compare``. Pure: the same evidence gives the same verdict today and in a year, and another policy may judge it
again. The order is that of blame: could it be asked, did it answer, is the shape right, then the forward, then manners,
and only then the gradients, worst fault first.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from jobs.contract import CaseInfo, ControlInfo
from service import gradients
from service.evidence import Evidence, RankOutcome, Stop, TensorEvidence
from service.gradients import Finding
from service.policy import Policy
from service.room import Room
from service.signature import is_consequence, machine_trouble, name_error, name_import_error, normalise
from service.verdicts import Verdict
from service.wording import OUTSIDE, error_of, on_ranks

DIVERGED = (Verdict.HANG, Verdict.CRASH, Verdict.PARTIAL_RAISE)
"""Ranks have parted: a collective may have met the wrong one of its partner, so no output means anything."""

REFUSAL_PHASES = ("build", "compile", "run", "forward", "backward")
"""Where an error can be a refusal: not while the group is set up, and not only the second time."""


@dataclass(frozen=True)
class Judgement:
    """What a cell's evidence comes to.

    forward_ok     whether the forward agreed; None where there was none to compare, or none that means anything
    signature      the same for the same fault in every version; empty where there is no fault
    detail         one sentence with the numbers
    worst_tensor   ``grad/x on rank 1``
    error, alpha, nonzero_got, nonzero_expected   that tensor's numbers, on that rank
    """

    verdict: Verdict
    forward_ok: bool | None
    signature: str
    detail: str
    worst_tensor: str | None
    error: float | None
    alpha: float | None
    nonzero_got: int | None
    nonzero_expected: int | None
    policy_version: str


@dataclass(frozen=True)
class ControlVerdict:
    """Whether a control behaved, and what it was judged to be."""

    ok: bool
    judgement: Judgement


@dataclass(frozen=True)
class ControlResult:
    """A control that was judged, and where; see :func:`control_faults`."""

    control: str
    mode: str
    world_size: int
    stage: str
    verdict: ControlVerdict


def judge(evidence: Evidence, case: CaseInfo, policy: Policy, faults: Sequence[str] = ()) -> Judgement:
    """The verdict on one cell. ``faults``: what :func:`control_faults` said of its family, mode and world size."""
    forward = _forward(evidence, case, policy)
    forward_ok = None if forward is None else forward == ()
    stopped = _stopped(evidence.stop) if evidence.stop is not None else None
    finding = stopped or _unanswered(evidence, case, policy)
    # What could not be imported or asked here, or met a broken machine, is so whatever our controls did.
    if finding is None or finding.verdict not in (Verdict.INFRA, Verdict.UNIMPORTABLE, Verdict.UNSUPPORTED):
        finding = Finding(Verdict.INVALID, CONTROL_FAILED, "; ".join(faults)) if faults else finding
    finding = finding or _answered(evidence, case, policy, forward or ())
    if finding.verdict in DIVERGED and forward is not None:
        finding = dataclasses.replace(finding, detail=f"{finding.detail}; the forward was not judged")
        forward_ok = None
    if case.expect == "refusal" and finding.verdict.failing and finding.verdict is not Verdict.UNIMPORTABLE:
        finding = dataclasses.replace(finding, detail=OUTSIDE + finding.detail)
    return _judgement(finding, evidence, policy, forward_ok)


CONTROL_FAILED = "control failed"
"""The signature of what nobody can believe."""


def asks_again(judgement: Judgement, evidence: Evidence) -> bool:
    """Whether a cell is run once more alone in fresh ranks: where it failed, and was asked at all."""
    return (judgement.verdict.failing or judgement.verdict is Verdict.INFRA) and evidence.stop is None


NOT_REPEATED = " (not repeated alone: "

NO_SECOND_OPINION = (Verdict.INFRA, Verdict.INVALID, Verdict.UNSUPPORTED)


def first_stands(first: Judgement, alone: Judgement) -> bool:
    """Whether the evidence to keep is that of the first pass: the one alone agrees, or could not answer at all."""
    right_alone = alone.verdict.settled or alone.verdict is Verdict.INSENSITIVE
    return first.verdict.failing and (right_alone or alone.verdict in NO_SECOND_OPINION)


def merge_passes(first: Judgement, alone: Judgement) -> Judgement:
    """One verdict from a failing pass among other cases and one alone in fresh ranks. What is right alone leaks.

    What failed among others and could not be repeated alone, for the machine's sake, still failed.
    """
    if not first_stands(first, alone):
        return alone
    if alone.verdict in NO_SECOND_OPINION:
        return dataclasses.replace(first, detail=f"{first.detail}{NOT_REPEATED}{alone.detail})")
    outside = OUTSIDE if first.detail.startswith(OUTSIDE) else ""
    told = first.detail.removeprefix(outside)
    return dataclasses.replace(
        first,
        verdict=Verdict.LEAK,
        signature=f"leak: {first.signature}",
        detail=f"{outside}after other cases in the same process: {told}; alone in fresh ranks: {alone.detail}",
    )


def judge_control(evidence: Evidence, case: CaseInfo, control: ControlInfo, policy: Policy) -> ControlVerdict:
    """Whether a control's verdict is one of those that are right for it."""
    judgement = judge(evidence, case, policy)
    return ControlVerdict(judgement.verdict.value in control.expected, judgement)


def control_faults(
    controls: Iterable[ControlInfo], results: Iterable[ControlResult], family: str, mode: str, world_size: int
) -> tuple[str, ...]:
    """Why nothing that this family, mode and world size say can be believed; empty where every control behaved.

    A control that never answered before the import is a fault too. One that fails only after it means that the subject
    changed torch.
    """
    here = [r for r in results if r.mode == mode and r.world_size == world_size]
    said: list[str] = []
    for control in controls:
        if control.family != family or mode not in control.modes:
            continue
        mine = {result.stage: result.verdict for result in here if result.control == control.id}
        before, after = mine.get("before"), mine.get("after")
        wanted = " or ".join(control.expected)
        if before is None:
            said.append(f"control {control.id} gave no answer")
        elif not before.ok:
            what = before.judgement
            said.append(f"control {control.id} should be {wanted} and was {what.verdict}: {what.detail}")
        elif after is not None and not after.ok:
            what = after.judgement
            said.append(
                f"control {control.id} was {before.judgement.verdict} before the subject was imported and is "
                f"{what.verdict} after: the subject changed torch ({what.detail})"
            )
    return tuple(said)


# -- it did not answer ---------------------------------------------------------------------------------------------


def _stopped(stop: Stop) -> Finding:
    if (why := machine_trouble(stop.error)) is not None:
        return Finding(Verdict.INFRA, why, f"{why} ({name_error(stop.error).sentence})")
    if stop.kind == "unimportable":
        named = name_import_error(stop.error)
        return Finding(Verdict.UNIMPORTABLE, named.signature, named.sentence)
    if stop.error is None:
        return Finding(Verdict(stop.kind), f"{stop.kind}: {normalise(stop.reason)}", stop.reason)
    named = name_error(stop.error)
    return Finding(Verdict(stop.kind), named.signature, f"{stop.reason}: {named.sentence}")


def _unanswered(evidence: Evidence, case: CaseInfo, policy: Policy) -> Finding | None:
    """The verdict where not every rank is well; None where every rank is."""
    ranks = [dataclasses.replace(r, status="lost") if _echo(r, evidence.ranks) else r for r in evidence.ranks]
    by = {status: [r for r in ranks if r.status == status] for status in dict.fromkeys(r.status for r in ranks)}
    if not ranks:
        return Finding(Verdict.INVALID, "no ranks", "no rank reported anything")
    for outcome in ranks:
        if outcome.status == "raised" and (why := machine_trouble(outcome.error)) is not None:
            sentence = name_error(outcome.error).sentence
            return Finding(Verdict.INFRA, why, f"rank {outcome.rank}: {why} ({sentence})")
    if "crash" in by:
        return Finding(Verdict.CRASH, f"crash in {_phase(by['crash'])}", _told("died", by["crash"]))
    if "raised" in by:
        return _raised(by["raised"], len(ranks), case, policy, evidence)
    if "hang" in by:
        detail = _told("did not return within the deadline", by["hang"])
        return Finding(Verdict.HANG, f"hang in {_phase(by['hang'])}", detail)
    if "unsupported" in by:
        return _unsupported(by["unsupported"], len(ranks), len(by.get("ok", ())))
    if "lost" in by:
        why = by["lost"][0].reason or "ranks were retired although none of them failed"
        return Finding(Verdict.INFRA, "ranks lost", why)
    return None


def _echo(outcome: RankOutcome, ranks: Sequence[RankOutcome]) -> bool:
    """Whether a rank's error only says that another rank, which did fail, went away."""
    others = [other for other in ranks if other.status in ("raised", "crash") and not is_consequence(other.error)]
    return outcome.status == "raised" and is_consequence(outcome.error) and bool(others)


def _raised(raised: list[RankOutcome], count: int, case: CaseInfo, policy: Policy, evidence: Evidence) -> Finding:
    named = name_error(raised[0].error)
    where = on_ranks([r.rank for r in raised], count)
    if len(raised) < count:
        detail = f"{named.sentence}, {where} of {count} only"
        return Finding(Verdict.PARTIAL_RAISE, named.signature, detail)
    if case.expect == "refusal":
        unclear = [r for r in raised if r.error is None or r.error.type in policy.refusal.unclear]
        late = [r for r in raised if r.phase not in REFUSAL_PHASES]
        silent = [t for t in evidence.of("output") if not t.missing]
        if not (unclear or late or silent):
            return Finding(Verdict.REFUSED, "", f"refused {where}, as it should: {named.sentence}")
        why = "the forward had answered" if silent else f"only in {late[0].phase}" if late else "not a clear refusal"
        return Finding(Verdict.RAISED, named.signature, f"{named.sentence}, {where}; a refusal was due ({why})")
    shape = gradients.wrong_shape(Room(evidence, case, policy))
    if shape is not None and shape.tensor is not None and shape.tensor.role == "output":
        # Whatever is done with a result of another shape may raise; it is the shape that is wrong.
        return dataclasses.replace(shape, detail=f"{shape.detail}; then {named.sentence}, {where}")
    return Finding(Verdict.RAISED, named.signature, f"{named.sentence}, {where}{_before(evidence, case, policy)}")


def _before(evidence: Evidence, case: CaseInfo, policy: Policy) -> str:
    """What the forward had answered before the error, for the end of a sentence."""
    wrong = _forward(evidence, case, policy)
    if wrong is None:
        return ""
    room = Room(evidence, case, policy)
    finding = gradients.wrong_shape(room) or gradients.wrong_forward(room, wrong)
    return f", after a wrong forward: {finding.detail}" if finding else ", after a right forward"


def _unsupported(unsupported: list[RankOutcome], count: int, answered: int) -> Finding:
    reason = unsupported[0].reason or "no reason was given"
    if answered:
        where = on_ranks([r.rank for r in unsupported], count)
        return Finding(Verdict.PARTIAL_RAISE, "unsupported on some ranks", f"unsupported {where} only: {reason}")
    return Finding(Verdict.UNSUPPORTED, "", reason)


def _phase(ranks: list[RankOutcome]) -> str:
    return ranks[0].phase or "no known phase"


def _told(what: str, ranks: list[RankOutcome]) -> str:
    numbers = " and ".join(str(r.rank) for r in ranks)
    reason = f" ({ranks[0].reason})" if ranks[0].reason else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {numbers} {what}, in {_phase(ranks)}{reason}"


# -- it answered ---------------------------------------------------------------------------------------------------


def _forward(evidence: Evidence, case: CaseInfo, policy: Policy) -> tuple[TensorEvidence, ...] | None:
    """The outputs that are wrong; None where there is none to compare."""
    outputs = evidence.of("output")
    if not outputs or case.expect == "refusal":
        return None
    room = Room(evidence, case, policy)
    return tuple(t for t in outputs if room.is_wrong(t))


def _answered(evidence: Evidence, case: CaseInfo, policy: Policy, forward: Sequence[TensorEvidence]) -> Finding:
    """The verdict where every rank is well: the first of the questions, in the order of blame, that finds a fault."""
    if case.expect == "refusal":
        ranks = len(evidence.ranks)
        detail = f"every one of {ranks} ranks answered silently, and a refusal was due"
        return Finding(Verdict.MISMATCH, "silent answer where a refusal is due", detail)
    room = Room(evidence, case, policy)
    finding = (
        gradients.wrong_shape(room)
        or gradients.wrong_forward(room, forward)
        or gradients.mutated(room)
        or gradients.wrong_gradient(room)
        or gradients.unreported(room)
    )
    if finding is not None:
        again = "; and two identical passes gave different bits" if evidence.repeat_equal is False else ""
        return dataclasses.replace(finding, detail=finding.detail + again)
    if evidence.repeat_equal is False:
        unsteady = on_ranks([r.rank for r in evidence.ranks if r.repeat_equal is False], len(evidence.ranks))
        detail = f"two identical passes gave different bits {unsteady}"
        return Finding(Verdict.NONDETERMINISTIC, "two passes differ", detail)
    return gradients.right(room)


def _judgement(finding: Finding, evidence: Evidence, policy: Policy, forward_ok: bool | None) -> Judgement:
    tensor = finding.tensor
    changes = [*evidence.state_changes, *dict.fromkeys(change for r in evidence.ranks for change in r.changed)]
    told = finding.detail + (f" [it also changed: {'; '.join(changes)}]" if changes else "")
    return Judgement(
        verdict=finding.verdict,
        forward_ok=forward_ok,
        signature=finding.signature,
        detail=told,
        worst_tensor=None if tensor is None else f"{tensor.key} on rank {tensor.rank}",
        error=None if tensor is None else error_of(tensor),
        alpha=None if tensor is None else tensor.alpha,
        nonzero_got=None if tensor is None else tensor.nonzero_got,
        nonzero_expected=None if tensor is None else tensor.nonzero_expected,
        policy_version=policy.version,
    )
