"""Every verdict that there is follows from some evidence, and its diagnosis says what is wrong and what that means."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from jobs.contract import CaseInfo
from service.diagnosis import Diagnosis, diagnose
from service.evidence import ErrorInfo, Evidence, Frame, GraphBreak, Noise, RankOutcome, TraceEvidence
from service.judge import Judgement, judge, merge_passes
from service.policy import load_policy
from service.verdicts import Verdict
from tests.service.answers import Cell
from tests.workers.matter import Named, a_case, evidence_of, raw

POLICY = load_policy()
CASE = a_case()
DENSE = a_case(id="attention/x[dtype=float32]", family="attention", exact=False)
REFUSAL = a_case(expect="refusal")
X = np.arange(1.0, 17.0).reshape(2, 8) / 16
Y = np.arange(3.0, 19.0).reshape(2, 8) / 16
ERROR = ErrorInfo("ValueError", "5 tokens do not divide by 2 ranks", (Frame("toy/a.py", 3, "check", "subject"),))


def measured(case: CaseInfo = CASE, right: Any = Y, **more: Any) -> Evidence:
    """Two ranks that hold y = x and a gradient of y; ``grad``, ``out``, ``kept`` are what they got instead."""
    truth: Named = {("output", "y"): raw(X), ("grad", "x"): raw(right), ("input", "x"): raw(X)}
    got = dict(truth)
    for role, key in (("grad", "grad"), ("output", "out"), ("input", "kept")):
        if key in more:
            value = more.pop(key)
            got[role, "y" if role == "output" else "x"] = None if value is None else raw(value)
    return evidence_of([got] * 2, [truth] * 2, case, **more)


def ended(*status: str, error: ErrorInfo | None = None, reason: str | None = None) -> Evidence:
    failing = ("raised", "crash", "hang")
    ranks = [RankOutcome(n, one, "run", error if one in failing else None, reason) for n, one in enumerate(status)]
    return evidence_of([{} for _ in status], [], CASE, ranks)


def shown(evidence: Evidence, case: CaseInfo = CASE, faults: tuple[str, ...] = ()) -> Judgement:
    return judge(evidence, case, POLICY, faults)


FLAT = np.full((2, 8), 1e-18)
NOISE = {"grad/x": Noise(rel_l2=1.0, max_abs=1e-6, worst_block=None)}
HALF = np.concatenate([Y[:, :4], 0 * Y[:, 4:]], 1)
WAVES = np.cos(np.arange(16.0) ** 2).reshape(2, 8)
PARTED = [RankOutcome(0, "ok", repeat_equal=True), RankOutcome(1, "ok", repeat_equal=False)]
UNTRACED = TraceEvidence(graphs=2, breaks=(GraphBreak("autograd.Function", ""),))

PRODUCED: dict[Verdict, Callable[[], tuple[Judgement, Evidence]]] = {}


def producer(verdict: Verdict, evidence: Callable[[], Evidence], case: CaseInfo = CASE, **more: Any) -> None:
    def produce() -> tuple[Judgement, Evidence]:
        made = evidence()
        return shown(made, case, **more), made

    PRODUCED[verdict] = produce


producer(Verdict.AGREE, measured)
producer(Verdict.AGREE_UNTRACED, lambda: measured(trace=UNTRACED))
producer(Verdict.ZERO_GRADIENT, lambda: measured(grad=0 * Y))
producer(Verdict.PARTIAL_ZERO, lambda: measured(grad=HALF))
producer(Verdict.NO_GRADIENT, lambda: measured(grad=None))
producer(Verdict.SCALED, lambda: measured(grad=4 * Y))
producer(Verdict.PERMUTED, lambda: measured(grad=np.flip(Y)))
producer(Verdict.MISMATCH, lambda: measured(grad=WAVES))
producer(Verdict.NONDETERMINISTIC, lambda: measured(ranks=PARTED))
producer(Verdict.WRONG_SHAPE, lambda: measured(out=X.reshape(4, 4)))
producer(Verdict.FORWARD_MISMATCH, lambda: measured(out=X + 1))
producer(Verdict.MUTATED, lambda: measured(kept=X + 1))
producer(Verdict.RAISED, lambda: ended("raised", "raised", error=ERROR))
producer(Verdict.PARTIAL_RAISE, lambda: ended("ok", "raised", error=ERROR))
producer(Verdict.UNIMPORTABLE, lambda: Evidence.stopped("unimportable", "no", ERROR))
producer(Verdict.HANG, lambda: ended("ok", "hang"))
producer(Verdict.CRASH, lambda: ended("ok", "crash"))
producer(Verdict.REFUSED, lambda: ended("raised", "raised", error=ERROR), REFUSAL)
producer(Verdict.INSENSITIVE, lambda: measured(DENSE, FLAT, grad=2 * FLAT, noise=NOISE), DENSE)
producer(Verdict.UNSUPPORTED, lambda: ended("unsupported", "unsupported", reason="no such function"))
producer(Verdict.INVALID, measured, faults=("a control failed",))
producer(Verdict.INFRA, lambda: ended("raised", "raised", error=ErrorInfo("MemoryError", "")))
PRODUCED[Verdict.LEAK] = lambda: (
    merge_passes(shown(measured(grad=0 * Y)), shown(measured())), measured(grad=0 * Y),
)  # fmt: skip


def test_there_is_evidence_for_every_verdict() -> None:
    assert set(PRODUCED) == set(Verdict)


@pytest.mark.parametrize("verdict", Verdict)
def test_the_evidence_gives_it(verdict: Verdict) -> None:
    said, evidence = PRODUCED[verdict]()
    assert said.verdict is verdict
    assert said.detail
    assert Evidence.from_json(evidence.to_json()).digest() == evidence.digest()
    # The same fault has the same signature, and what is no fault has none.
    assert bool(said.signature) == (verdict.failing or verdict.incomplete)


WORDS: dict[Verdict, tuple[str, str]] = {
    Verdict.ZERO_GRADIENT: ("x receives no gradient (0 of 16 elements", "will not be trained"),
    Verdict.PARTIAL_ZERO: ("a part of the gradient of x is zero (8 of 16 elements", "a part of what x comes from"),
    Verdict.NO_GRADIENT: ("x receives no gradient (.grad is None where 16 elements", "the optimiser skips"),
    Verdict.SCALED: ("the gradient of x is 4 times what it should be", "is 4 times too large unless"),
    Verdict.PERMUTED: ("the right values in the wrong places", "go to the wrong elements"),
    Verdict.MISMATCH: ("the gradient of x is wrong (off by", "updates of what x comes from are off by"),
    Verdict.NONDETERMINISTIC: ("different bits on rank 1", "no step can be repeated"),
    Verdict.WRONG_SHAPE: ("output y has shape [4, 4]", "another shape or type"),
    Verdict.FORWARD_MISMATCH: ("output y is wrong by", "the output is off by"),
    Verdict.MUTATED: ("input x was changed by the call", "recomputes from it"),
    Verdict.LEAK: ("after other cases in the same process", "right in a test of its own"),
    Verdict.RAISED: ("5 tokens do not divide", "training stops here"),
    Verdict.PARTIAL_RAISE: ("on rank 1 of 2 only", "the others wait"),
    Verdict.UNIMPORTABLE: ("the import fails in toy.a, line 3", "nothing of it runs"),
    Verdict.HANG: ("rank 1 did not return", "stands still"),
    Verdict.CRASH: ("rank 1 died", "the process is gone"),
}


def diagnosed(verdict: Verdict) -> Diagnosis | None:
    said, evidence = PRODUCED[verdict]()
    case = {Verdict.INSENSITIVE: DENSE, Verdict.REFUSED: REFUSAL}.get(verdict, CASE)
    row = dataclasses.replace(
        Cell(), verdict=str(said.verdict), signature=said.signature, detail=said.detail, forward_ok=said.forward_ok
    )
    return diagnose(row, evidence, case, POLICY)


@pytest.mark.parametrize("verdict", [verdict for verdict in Verdict if verdict.failing])
def test_a_red_cell_says_what_is_wrong_and_what_it_means(verdict: Verdict) -> None:
    found, (what, training) = diagnosed(verdict), WORDS[verdict]
    assert found is not None
    assert what in found.what
    assert training in found.training
    silent = verdict.info.group == "gradient"
    assert ("the loss will look healthy" in found.training) == silent


@pytest.mark.parametrize("verdict", [verdict for verdict in Verdict if not verdict.failing])
def test_what_is_no_fault_has_no_diagnosis(verdict: Verdict) -> None:
    assert diagnosed(verdict) is None
