"""Stored evidence under another policy: what a run under it would have said, and where that cannot be known."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from jobs.contract import ControlInfo
from service.evidence import Evidence, Noise
from service.judge import NOT_REPEATED, Judgement, asks_again, judge, judge_control, merge_passes
from service.policy import load_policy
from service.rejudging import Again, Basis, Controls, Due, Kept, Said, judge_again, says_otherwise
from service.verdicts import Verdict
from tests.workers.matter import Named, a_case, evidence_of, raw

STRICT = load_policy()
LOOSE = dataclasses.replace(STRICT, version="loose", tolerance=dataclasses.replace(STRICT.tolerance, c=100.0, k=100.0))
CASE = a_case(id="attention/x[dtype=float32]", family="attention", exact=False)
X = np.arange(1.0, 17.0).reshape(2, 8) / 16


def seen(error: float) -> Evidence:
    """16 elements, off by ``error`` of themselves. Strict allows 4 · 2⁻²³ · √16, which is 1.9e-6; loose 4.8e-5."""

    def rank(off: float) -> Named:
        return {("output", "y"): raw(X), ("grad", "x"): raw(X * (1 + off))}

    return evidence_of([rank(error)] * 2, [rank(0.0)] * 2, CASE)


FINE, BETWEEN, BAD = seen(0.0), seen(1e-5), seen(1e-2)


def ran(first: Evidence, alone: Evidence | None, policy: Any, *, older: bool = False) -> Kept:
    """What a run under ``policy`` would have kept; an older program kept only what the verdict rests on."""
    said = judge(first, CASE, policy)
    kept = first
    if asks_again(said, first) and alone is not None:
        second = judge(alone, CASE, policy)
        merged = merge_passes(said, second)
        kept, said = (alone if merged is second else first), merged
    else:
        alone = None
    passes = (None, None) if older else (first, alone)
    return Kept(said.verdict, said.signature, said.detail, kept, *passes)


def again(kept: Kept, policy: Any, faults: tuple[str, ...] | None = ()) -> Again:
    return judge_again(kept, CASE, policy, faults)


def judged(said: Again) -> Judgement:
    assert said.judgement is not None
    return said.judgement


PASSES = [(first, alone) for first in (FINE, BETWEEN, BAD) for alone in (FINE, BETWEEN, BAD)]


@pytest.mark.parametrize(("first", "alone"), PASSES)
def test_with_both_passes_a_looser_policy_says_exactly_what_its_own_run_would_have(
    first: Evidence, alone: Evidence
) -> None:
    said = again(ran(first, alone, STRICT), LOOSE)
    expected = ran(first, alone, LOOSE)
    assert said.basis is Basis.WHOLE
    assert (judged(said).verdict, judged(said).signature, judged(said).detail) == (
        expected.verdict, expected.signature, expected.detail,
    )  # fmt: skip
    rests = expected.first if said.rests == "first" else alone
    assert rests is expected.evidence
    assert judged(said).policy_version == "loose"


@pytest.mark.parametrize(("first", "alone"), PASSES)
def test_a_stricter_policy_says_what_its_own_run_would_have_or_that_nobody_repeated_it(
    first: Evidence, alone: Evidence
) -> None:
    kept = ran(first, alone, LOOSE)
    said, expected = again(kept, STRICT), ran(first, alone, STRICT)
    if said.basis is Basis.WHOLE:
        assert judged(said).verdict is expected.verdict
        return
    # Only what agreed then, and so was never repeated.
    assert said.basis is Basis.ONCE
    assert kept.alone is None
    assert not kept.verdict.failing
    assert judged(said).verdict.failing
    assert judged(said).detail.count(NOT_REPEATED) == 1


def test_a_container_that_died_before_the_pass_alone_died_then_as_now() -> None:
    kept = ran(BAD, None, STRICT)
    assert again(kept, STRICT) == Again(judge(BAD, CASE, STRICT), Basis.WHOLE, "first")


def test_what_older_programs_kept_is_told_apart() -> None:
    # Failed twice, and one of the two was kept.
    both = ran(BAD, BAD, STRICT, older=True)
    assert (again(both, STRICT).basis, again(both, STRICT).rests) == (Basis.ONE_PASS, "")
    mixed = again(ran(BETWEEN, BETWEEN, STRICT, older=True), LOOSE)
    assert (judged(mixed).verdict, mixed.basis) == (Verdict.AGREE, Basis.ONE_PASS)
    # A leak: the pass among others was kept, the one alone was not.
    leak = ran(BETWEEN, FINE, STRICT, older=True)
    assert leak.verdict is Verdict.LEAK
    assert again(leak, STRICT) == Again(None, Basis.KEPT)
    fine = again(leak, LOOSE)
    assert (judged(fine).verdict, fine.basis) == (Verdict.AGREE, Basis.WHOLE)
    # Agreed then, so that this was the only pass.
    once = again(ran(BETWEEN, FINE, LOOSE, older=True), STRICT)
    assert (judged(once).verdict, once.basis) == (Verdict.SCALED, Basis.ONCE)


def test_what_could_not_be_repeated_alone_is_still_said_to_be_so() -> None:
    infra = Evidence.stopped("infra", "no room")
    for older in (True, False):
        kept = ran(BAD, infra, STRICT, older=older)
        assert kept.verdict is Verdict.SCALED
        said = again(kept, LOOSE)
        assert said.basis is Basis.WHOLE
        assert judged(said).detail.endswith("(not repeated alone: no room)")
        fine = again(ran(BETWEEN, infra, STRICT, older=older), LOOSE)
        assert NOT_REPEATED not in judged(fine).detail


def test_controls_that_fail_make_it_invalid_and_a_broken_off_job_is_blamed_all_the_same() -> None:
    kept = ran(FINE, None, STRICT)
    assert judged(again(kept, STRICT, ("control a failed",))).verdict is Verdict.INVALID
    stop = ran(Evidence.stopped("crash", "it broke off"), None, STRICT)
    said = again(stop, STRICT, ("control a failed",))
    assert (judged(said).verdict, judged(said).detail, said.basis) == (Verdict.CRASH, "it broke off", Basis.WHOLE)
    invalid = Kept(Verdict.INVALID, "control failed", "control a failed", FINE, FINE, None)
    assert again(invalid, STRICT, None) == Again(None, Basis.KEPT)
    assert judged(again(invalid, STRICT, ())).verdict is Verdict.AGREE


REFERENCE = ControlInfo("attention/reference", "attention", CASE.id, ("eager", "aot_eager"), ("agree",))
MUTANT = ControlInfo("attention/scaled", "attention", CASE.id, ("eager",), ("scaled",))


def answered(control: ControlInfo, evidence: Evidence, mode: str = "eager", *, kept: bool = True) -> Said:
    told = judge_control(evidence, CASE, control, STRICT)
    return Said(control.id, mode, 2, "before", told.judgement, told.ok, evidence if kept else None)


DUE = (Due(REFERENCE, CASE), Due(MUTANT, CASE))


def test_controls_are_judged_again_and_those_that_behave_otherwise_are_named() -> None:
    said = [answered(REFERENCE, FINE), answered(MUTANT, BETWEEN)]
    strict, loose = (Controls(DUE, said, policy) for policy in (STRICT, LOOSE))
    assert (strict.faults("attention", "eager", 2), strict.changed) == ((), [])
    (fault,) = loose.faults("attention", "eager", 2) or ("", "")
    assert "attention/scaled should be scaled and was agree" in fault
    (change,) = loose.changed
    assert (change.control, change.before, change.after, change.ok) == (MUTANT.id, Verdict.SCALED, Verdict.AGREE, False)
    # A traced cell needs both: the controls without the tracer, and those under it, one of which was silent.
    assert loose.faults("attention", "aot_eager", 2) == (fault, f"control {REFERENCE.id} gave no answer")
    assert loose.faults("tiled", "eager", 2) == ()


def test_a_control_whose_evidence_was_not_kept_behaves_as_it_did() -> None:
    said = [answered(REFERENCE, FINE), answered(MUTANT, BETWEEN, kept=False)]
    controls = Controls(DUE, said, LOOSE)
    assert (controls.faults("attention", "eager", 2), controls.unjudged) == ((), 1)
    assert Controls(None, said, LOOSE).faults("attention", "eager", 2) is None


def test_a_control_is_due_only_where_its_case_exists() -> None:
    small = dataclasses.replace(CASE, sp=2)
    controls = Controls([Due(REFERENCE, small)], [], STRICT)
    assert controls.faults("attention", "eager", 2) == ()
    assert controls.faults("attention", "eager", 4) == (f"control {REFERENCE.id} gave no answer",)


def test_the_noise_that_was_measured_is_judged_again_too() -> None:
    noise = {"grad/x": Noise(rel_l2=1e-3, max_abs=1e-3, worst_block=1e-3)}
    rank: Named = {("grad", "x"): raw(X * (1 + 5e-3)), ("output", "y"): raw(X)}
    right: Named = {("grad", "x"): raw(X), ("output", "y"): raw(X)}
    evidence = evidence_of([rank] * 2, [right] * 2, CASE, noise=noise)
    kept = ran(evidence, evidence, STRICT)
    assert (kept.verdict, judged(again(kept, LOOSE)).verdict) == (Verdict.SCALED, Verdict.AGREE)


def test_other_words_alone_are_no_change() -> None:
    said = judge(BAD, CASE, STRICT)
    assert not says_otherwise(said, dataclasses.replace(said, detail="in other words", error=0.5, policy_version="2"))
    others: list[tuple[str, Any]] = [("verdict", Verdict.MISMATCH), ("forward_ok", None), ("signature", "x")]
    for name, value in others:
        assert says_otherwise(said, dataclasses.replace(said, **{name: value}))
