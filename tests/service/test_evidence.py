"""Evidence: there and back, and a digest that depends on what was measured and on nothing else."""

from __future__ import annotations

import dataclasses
import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.evidence import (
    Blob,
    Difference,
    ErrorInfo,
    Evidence,
    Frame,
    GraphBreak,
    Noise,
    RankOutcome,
    TraceEvidence,
)
from tests.workers.matter import a_collector, cell_events, evidence_of, feed, opening, rank_said, raw, truth_of
from workers.collect import CaseDone


def whole() -> Evidence:
    """Evidence with every field in use."""
    error = ErrorInfo("KeyError", "'0'", (Frame("toy/layer.py", 3, "forward", "subject"),))
    ranks = [RankOutcome(0, "ok", "run", repeat_equal=True, changed=("x",)), RankOutcome(1, "raised", "run", error)]
    wrong = [{**truth_of(rank), ("grad", "x"): raw([[1.0, 0, 3, 4], [5, 6, 7, 8]])} for rank in range(2)]
    made = evidence_of(wrong, [truth_of(0), truth_of(1)], ranks=ranks, noise={"grad/x": Noise(1e-7, 1e-6, None)})
    trace = TraceEvidence(2, (GraphBreak("why", "where"),), 1, True, ("c10d",), "ok")
    return dataclasses.replace(made, trace=trace, fd=Difference(1.0, 2.0, 3.0, 4.0), state_changes=("dtype",))


def test_there_and_back_through_json() -> None:
    for evidence in (whole(), Evidence.stopped("unimportable", "no", ErrorInfo("ImportError", "x")), Evidence()):
        again = Evidence.from_json(json.loads(evidence.canonical()))
        assert again.to_json() == evidence.to_json()
        assert Evidence.from_json(again.to_json()) == again
        assert again.digest() == evidence.digest()


def test_another_schema_is_refused() -> None:
    with pytest.raises(ValueError, match="schema 2"):
        Evidence.from_json({**whole().to_json(), "schema": 2})


@settings(max_examples=20, deadline=None)
@given(st.randoms(use_true_random=False))
def test_the_digest_does_not_depend_on_order(rng: random.Random) -> None:
    evidence = whole()
    ranks, tensors = list(evidence.ranks), list(evidence.tensors)
    rng.shuffle(ranks)
    rng.shuffle(tensors)
    shuffled = dataclasses.replace(evidence, ranks=tuple(ranks), tensors=tuple(tensors))
    assert shuffled.digest() == evidence.digest()


def test_the_digest_depends_on_every_number() -> None:
    evidence = whole()
    other = [dataclasses.replace(evidence.tensors[0], max_abs=0.125), *evidence.tensors[1:]]
    assert dataclasses.replace(evidence, tensors=tuple(other)).digest() != evidence.digest()
    assert dataclasses.replace(evidence, fd=None).digest() != evidence.digest()


def test_time_is_not_in_it() -> None:
    quick, slow = a_collector(), a_collector()
    feed(quick, opening())
    feed(slow, opening())
    ranks = [rank_said(0, seconds=9.0), rank_said(1, seconds=7.0)]
    first, second = feed(quick, cell_events())[-1], feed(slow, cell_events(ranks=reversed(ranks)))[-1]
    assert isinstance(first, CaseDone)
    assert isinstance(second, CaseDone)
    assert first.evidence.digest() == second.evidence.digest()


def test_repeat_equal_is_of_the_ranks_that_tried() -> None:
    def of(*said: bool | None) -> bool | None:
        return Evidence(tuple(RankOutcome(r, "ok", repeat_equal=one) for r, one in enumerate(said))).repeat_equal

    assert of(None, None) is None
    assert of(True, None) is True
    assert of(True, False) is False


def test_a_blob_is_named_by_its_bytes() -> None:
    blob = Blob("got", "grad/x/rank0", b"abc", 0, "uint8", (3,))
    assert blob.digest == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert blob.meta == {"name": "grad/x/rank0", "dtype": "uint8", "shape": [3]}
