"""The stream of an attempt: what a right one yields, and that every wrong one ends in a violation."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from jobs.contract import Limits
from service.evidence import Evidence, TensorEvidence
from tests.workers.matter import (
    CASE,
    CONTROL,
    HELLO,
    SUBJECT,
    TRACE,
    a_case,
    a_collector,
    a_spec,
    an_error,
    cell_events,
    event,
    feed,
    line,
    opening,
    rank_said,
    raw,
    tensor,
    truth_of,
    x_of,
    zeroed,
)
from workers.collect import (
    Ask,
    Bye,
    CaseDone,
    Collector,
    ControlDone,
    Hello,
    Log,
    PhaseDone,
    SubjectLoaded,
    Violation,
)
from workers.collect.truth import NOISE_PREFIX

AT = {"job": 7, "cell": 70, "pass": 1}


def opened(limits: Limits | None = None) -> Collector:
    collector = a_collector(limits)
    feed(collector, opening())
    return collector


def done(collector: Collector, events: list[dict[str, Any]]) -> CaseDone:
    notice = feed(collector, events)[-1]
    assert isinstance(notice, CaseDone)
    return notice


def only(evidence: Evidence, key: str, rank: int) -> TensorEvidence:
    (found,) = [one for one in evidence.tensors if one.key == key and one.rank == rank]
    return found


# -- what a right stream yields --------------------------------------------------------------------------------------


def test_a_whole_stream() -> None:
    collector = a_collector()
    first = feed(collector, opening())
    assert [type(notice) for notice in first] == [Hello, PhaseDone, ControlDone, PhaseDone, SubjectLoaded]
    assert isinstance(first[0], Hello)
    assert first[0].facts["torch"] == "2.11.0"
    assert isinstance(first[2], ControlDone)
    assert (first[2].control, first[2].stage) == (CONTROL.id, "before")
    assert all(one.identical for one in first[2].evidence.tensors)

    right = done(collector, cell_events())
    assert (right.job, right.cell, right.again, right.seconds) == (7, 70, False, math.pi)
    assert len(right.evidence.tensors) == 6
    assert all(one.identical for one in right.evidence.tensors)
    assert right.evidence.trace is None
    assert right.evidence.repeat_equal is True

    wrong = done(collector, cell_events(71, tensors=zeroed(), trace=TRACE))
    assert wrong.evidence.trace is not None
    assert wrong.evidence.trace.collectives == ("all_to_all",)
    for rank in range(2):
        assert only(wrong.evidence, "output/y", rank).identical
        assert (only(wrong.evidence, "grad/x", rank).nonzero_got, only(wrong.evidence, "grad/x", rank).numel) == (0, 8)
    last = feed(collector, [event("ask", job=7), *cell_events(71, 2), event("bye", ok=True, reason=None)])
    assert last[0] == Ask(7)
    assert isinstance(last[1], CaseDone)
    assert last[1].again
    assert last[2] == Bye(True, None)


def test_blobs_are_the_exact_bytes_of_both_sides() -> None:
    blobs = {(blob.kind, blob.name): blob for blob in done(opened(), cell_events(tensors=zeroed())).blobs}
    assert len(blobs) == 12
    assert blobs["got", "grad/x/rank1"].data == bytes(32)
    right = blobs["expected", "grad/x/rank1"]
    assert np.array_equal(np.frombuffer(right.data, "<f4").reshape(right.shape or ()), 2 * x_of(1))


def test_a_traced_cell_without_facts_traced_nothing() -> None:
    evidence = done(opened(), cell_events(71)).evidence
    assert evidence.trace is not None
    assert not evidence.trace.collective_in_graph


def test_a_gradient_of_none_and_one_never_sent_are_both_missing() -> None:
    tensors = [truth_of(0), truth_of(1)]
    tensors[0]["grad", "x"] = None
    del tensors[1]["grad", "x"]
    evidence = done(opened(), cell_events(tensors=tensors)).evidence
    told = [only(evidence, "grad/x", rank) for rank in range(2)]
    assert [(one.missing, one.reported, one.expected_missing) for one in told] == [
        (True, True, False),
        (True, False, False),
    ]
    assert told[1].nonzero_expected == 8


def test_what_a_troubled_rank_did_not_send_is_not_held_against_it() -> None:
    error = an_error("KeyError", "'0'", ("toy/layer.py", 3, "forward", "subject"))
    sent = [{("output", "y"): truth_of(0)["output", "y"]}, {}]
    ranks = [rank_said(0, "raised", error=error), rank_said(1, "lost", changed=["default dtype"])]
    evidence = done(opened(), cell_events(ranks=ranks, tensors=sent)).evidence
    assert [one.key for one in evidence.tensors] == ["output/y"]
    assert evidence.ranks[0].error is not None
    assert evidence.ranks[0].error.frames[0].line == 3
    assert evidence.ranks[1].changed == ("default dtype",)


def test_a_case_without_an_oracle_is_invalid_whatever_the_ranks_say() -> None:
    for silent in range(3):  # 0: not on rank 0; 1: not on rank 1; 2: nowhere
        collector = a_collector()
        feed(collector, [HELLO])
        for rank in range(2):
            if rank != silent and silent != 2:
                feed(collector, [said for said in opening() if said["t"] == "oracle" and said["rank"] == rank])
        feed(collector, [SUBJECT])
        tensors = [truth_of(0), truth_of(1)]
        if silent < 2:
            tensors[silent] = {}
        stop = done(collector, cell_events(tensors=tensors)).evidence.stop
        assert stop is not None
        assert (stop.kind, "oracle said nothing" in stop.reason) == ("invalid", True)


def test_a_refusal_needs_no_oracle_and_any_result_is_kept() -> None:
    tensors = [{("output", "y"): raw([1.0, 0.0])}, {}]
    evidence = done(opened(), cell_events(72, tensors=tensors)).evidence
    (only_one,) = evidence.tensors
    assert (only_one.nonzero_got, only_one.expected_missing, only_one.expected_shape) == (1, False, None)
    assert evidence.stop is None


def test_the_noise_floor_is_the_oracles_and_nobody_elses() -> None:
    collector = a_collector()
    dense = raw(2 * x_of(0) + 2.0**-12)
    beside = event(
        "oracle", case=CASE.id, version=1, world_size=2, rank=0, tensor=tensor("grad", f"{NOISE_PREFIX}x", dense)
    )
    feed(collector, [*opening()[:-3], beside, *opening()[-3:]])
    evidence = done(collector, cell_events()).evidence
    assert evidence.noise["grad/x"].max_abs == 2.0**-12
    with pytest.raises(Violation, match="unexpected tensor"):
        feed(
            collector, [event("tensor", **AT | {"cell": 71}, rank=0, tensor=tensor("grad", f"{NOISE_PREFIX}x", dense))]
        )


def test_the_central_difference_is_taken_from_all_ranks() -> None:
    collector = a_collector()
    feed(collector, opening()[:-2])
    for rank in range(2):
        feed(collector, [event("oracle", case=CASE.id, version=1, world_size=2, rank=rank,
                               tensor=tensor("fd", "x", raw(np.ones((2, 4)), "float64")))])  # fmt: skip
    feed(collector, opening()[-2:])
    # Σ 2x over 1/16 … 8/16 is 4.5 on rank 0 and its negative on rank 1.
    sent = [{**truth_of(rank), ("fd", "loss"): raw(4.5 if rank == 0 else -4.5, "float64")} for rank in range(2)]
    told = done(collector, cell_events(tensors=sent)).evidence.fd
    assert told is not None
    assert (told.difference, told.got, told.expected, told.size) == (0.0, 0.0, 0.0, 9.0)
    feed(collector, [event("ask", job=7)])
    assert done(collector, cell_events(70, 2, tensors=[sent[0], truth_of(1)])).evidence.fd is None
    two = [{**sent[0], ("fd", "again"): raw(1.0, "float64")}, sent[1]]
    with pytest.raises(Violation, match="two central differences"):
        feed(collector, cell_events(71, tensors=two, trace=TRACE))


def test_an_import_that_fails_answers_every_cell() -> None:
    collector = a_collector()
    error = an_error("ImportError", "no", ("toy/__init__.py", 1, "<module>", "subject"))
    said = feed(collector, [*opening()[:-1], SUBJECT | {"status": "unimportable", "error": error}])
    cells = [notice for notice in said if isinstance(notice, CaseDone)]
    assert [notice.cell for notice in cells] == [70, 71, 72]
    assert all(notice.evidence.stop and notice.evidence.stop.kind == "unimportable" for notice in cells)
    with pytest.raises(Violation, match="complete"):
        feed(collector, cell_events())


def test_torchs_own_cells_are_done_before_there_is_a_subject() -> None:
    own = a_case(family="torch-itself")
    spec = a_spec()

    def started() -> Collector:
        collector = Collector(spec, [own, a_case(id="exchange/dim0[blocks=extra]", expect="refusal")], [])
        feed(collector, [said for said in opening()[:-2] if said["t"] != "control"])
        return collector

    assert all(one.identical for one in done(started(), cell_events()).evidence.tensors)
    late = started()
    feed(late, [SUBJECT])
    with pytest.raises(Violation, match="after subject code"):
        feed(late, cell_events())


def test_a_job_of_torchs_own_cells_may_ask_without_a_subject_and_no_other_job_may() -> None:
    own = {"family": "torch-itself"}
    refusal = {"id": "exchange/dim0[blocks=extra]", "expect": "refusal"}
    again = [said | {"pass": 2} for said in cell_events()]
    collector = Collector(a_spec(), [a_case(**own), a_case(**refusal, **own)], [])
    feed(collector, [said for said in opening()[:-2] if said["t"] != "control"])
    feed(collector, cell_events())
    assert feed(collector, [event("ask", job=7)]) == [Ask(7)]
    assert done(collector, again).again
    mixed = Collector(a_spec(), [a_case(**own), a_case(**refusal)], [])
    feed(mixed, [said for said in opening()[:-2] if said["t"] != "control"])
    feed(mixed, cell_events())
    with pytest.raises(Violation, match="second pass of cell 70 that nobody asked for"):
        feed(mixed, again)
    mixed = Collector(a_spec(), [a_case(**own), a_case(**refusal)], [])
    feed(mixed, [said for said in opening()[:-2] if said["t"] != "control"])
    with pytest.raises(Violation, match="asks before the subject was imported"):
        feed(mixed, [event("ask", job=7)])


def test_close_answers_what_is_left_once() -> None:
    collector = opened()
    feed(collector, cell_events())
    left = collector.close("crash", "the process ended", job=7)
    assert [(one.cell, one.evidence.stop and one.evidence.stop.kind) for one in left] == [(71, "crash"), (72, "crash")]
    assert collector.close("crash", "the process ended") == []


# -- text ------------------------------------------------------------------------------------------------------------


def a_log(text: str, **changes: Any) -> dict[str, Any]:
    return event("log", **{"rank": 0, "stream": "stdout", "text": text, "job": 7, "cell": 70} | changes)


def test_logs_go_with_their_cell_and_are_cut_at_the_cap() -> None:
    collector = opened(Limits(log_bytes=20))
    (first,) = feed(collector, [a_log("0123456789")])
    assert first == Log("0123456789", "stdout", 0, 7, 70)
    (second,) = feed(collector, [a_log("0123456789abc")])
    assert isinstance(second, Log)
    assert second.text.startswith("0123456789 [the cap on log is reached")
    assert feed(collector, [a_log("more")]) == []
    blobs = done(collector, cell_events()).blobs
    (log,) = [blob for blob in blobs if blob.kind == "log"]
    assert log.data.startswith(b"0123456789\n0123456789 [the cap")


def test_a_rank_that_died_says_its_own_last_words_and_others_do_not() -> None:
    collector = opened()
    said = ("error: mine", "error: another rank's", "Traceback of nobody")
    feed(collector, [a_log(text, rank=rank) for rank, text in zip((0, 1, None), said, strict=True)])
    ranks = [{**rank_said(0, "crash"), "reason": "killed by SIGABRT"}, rank_said(1, "lost")]
    evidence = done(collector, cell_events(ranks=ranks, tensors=[{}, {}])).evidence
    assert [one.reason for one in evidence.ranks] == ["killed by SIGABRT; last words: error: mine", None]
    # Nothing was said: nothing is made up.
    silent = [{**rank_said(0, "crash"), "reason": "killed by SIGKILL"}, rank_said(1, "lost")]
    evidence = done(opened(), cell_events(ranks=silent, tensors=[{}, {}])).evidence
    assert evidence.ranks[0].reason == "killed by SIGKILL"


def test_stacks_are_kept_per_rank_and_cut_at_the_cap() -> None:
    collector = opened(Limits(log_bytes=30))
    feed(collector, [event("stacks", **AT, rank=r, text=f"stack {r} " * 2) for r in range(2)])
    ranks = [rank_said(r, "hang") for r in range(2)]
    blobs = done(collector, cell_events(ranks=ranks, tensors=[{}, {}])).blobs
    stacks = {blob.name: blob.data for blob in blobs if blob.kind == "stacks"}
    assert stacks["stacks/rank0"] == b"stack 0 stack 0 "
    assert stacks["stacks/rank1"].startswith(b"stack 1 stack  [the cap on stacks")
    with pytest.raises(Violation, match="twice"):
        feed(collector, [event("stacks", **AT | {"cell": 71}, rank=0, text=""),
                         event("stacks", **AT | {"cell": 71}, rank=0, text="")])  # fmt: skip


def test_text_cannot_carry_what_a_terminal_or_database_would_choke_on() -> None:
    (log,) = feed(opened(), [a_log("a\x00b\x1b[31m\ud800c\x9bd\ttab")])
    assert isinstance(log, Log)
    assert log.text == "a\ufffdb\ufffd[31m\ufffdc\ufffdd\ttab"


# -- violations ------------------------------------------------------------------------------------------------------

TENSOR = event("tensor", **AT, rank=0, tensor=tensor("grad", "x", raw(2 * x_of(0))))
CASE_EVENT = cell_events()[-1]
ORACLE = opening()[2]
CONTROL_EVENT = next(said for said in opening() if said["t"] == "control")


def changed(said: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """An event with its tensor's fields replaced."""
    return {**said, "tensor": {**said["tensor"], **changes}}


WRONG_AFTER_OPENING: dict[str, tuple[list[dict[str, Any]], str]] = {
    "an oracle once the subject ran": ([ORACLE], "after subject code may have run"),
    "a control once the subject ran": ([CONTROL_EVENT], "after subject code may have run"),
    "a second subject": ([SUBJECT], "second subject"),
    "a second hello": ([HELLO], "second hello"),
    "an unknown job": ([{**TENSOR, "job": 8}], "no cell 70 of job 8"),
    "an unknown cell": ([{**TENSOR, "cell": 99}], "no cell 99"),
    "an unknown rank": ([{**TENSOR, "rank": 2}], "rank 2 of 2"),
    "a third pass": ([{**TENSOR, "pass": 3}], "whole number from 1 to 2"),
    "a pass nobody asked for": ([*cell_events(), *cell_events(70, 2)], "nobody asked for"),
    "a second case": ([*cell_events(), CASE_EVENT], "spoken of again"),
    "a tensor after its case": ([*cell_events(), TENSOR], "spoken of again"),
    "a tensor twice": ([TENSOR, TENSOR], "twice"),
    "a tensor that the oracle has not": ([changed(TENSOR, name="z")], "unexpected tensor grad/z"),
    "a difference nobody asked for": (
        [event("tensor", **AT, rank=0, tensor=tensor("fd", "x", raw(1.0, "float64")))], "not asked for"),
    "an unknown dtype": ([changed(TENSOR, dtype="complex64")], "is not one of float64"),
    "an unknown role": ([changed(TENSOR, role="verdict")], "is not one of output"),
    "a shape of another size": ([changed(TENSOR, shape=[2, 5])], "as its shape and dtype say"),
    "a negative shape": ([changed(TENSOR, shape=[-2, -4])], "whole number"),
    "a shape of truths": ([changed(TENSOR, shape=[True, 8])], "whole number"),
    "data that is not base64": ([changed(TENSOR, data="!" * 44)], "not base64"),
    "data without a dtype": ([changed(TENSOR, dtype=None)], "needs base64 text"),
    "a name with a space": ([changed(TENSOR, name="a b")], "is not a name"),
    "a missing rank": ([{**CASE_EVENT, "ranks": [rank_said(0)]}], "there are 2 ranks"),
    "a rank twice": ([{**CASE_EVENT, "ranks": [rank_said(0), rank_said(0)]}], "there are 2 ranks"),
    "an unknown status": ([{**CASE_EVENT, "ranks": [rank_said(0), rank_said(1, "agree")]}], "is not one of ok"),
    "a field too many": ([{**TENSOR, "verdict": "agree"}], "unknown fields: 'verdict'"),
    "a field too few": ([{k: v for k, v in TENSOR.items() if k != "rank"}], "lacks rank"),
    "an unknown event": ([event("verdict")], "no event is called 'verdict'"),
    "another schema": ([{**TENSOR, "v": 2}], "schema 1"),
    "a schema of truth": ([{**TENSOR, "v": True}], "schema 1"),
    "an ask for another job": ([event("ask", job=8)], "job 8"),
    "asking twice": ([event("ask", job=7), event("ask", job=7)], "asks twice"),
    "a log of another cell": ([event("log", rank=0, stream="stdout", text="", job=7, cell=1)], "has not"),
    "a word after bye": ([event("bye", ok=True, reason=None), HELLO], "after bye"),
    "endless seconds": ([{**CASE_EVENT, "seconds": 1e300}], "number of seconds"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG_AFTER_OPENING)
def test_a_violation_ends_the_attempt_as_the_jobs_fault(name: str) -> None:
    events, reason = WRONG_AFTER_OPENING[name]
    collector = opened()
    with pytest.raises(Violation, match=reason) as caught:
        feed(collector, events)
    assert caught.value.blame == "crash"
    # Nothing that follows is read, however right.
    with pytest.raises(Violation, match=reason):
        feed(collector, cell_events(71, trace=TRACE))


WRONG_BEFORE: dict[str, tuple[list[dict[str, Any]], str]] = {
    "an oracle before hello": ([ORACLE], "before hello"),
    "another version": ([HELLO, {**ORACLE, "version": 2}], "of version 2"),
    "an unknown case": ([HELLO, {**ORACLE, "case": "exchange/none"}], "no case"),
    "an unknown world": ([HELLO, {**ORACLE, "world_size": 4}], "rank 0 of 4"),
    "an oracle twice": ([HELLO, ORACLE, ORACLE], "twice"),
    "an unknown control": ([HELLO, {**CONTROL_EVENT, "control": "exchange/none"}], "no control"),
    "a control in no mode of its own": ([HELLO, {**CONTROL_EVENT, "mode": "inductor"}], "in mode inductor"),
    "a control after, before": ([HELLO, {**CONTROL_EVENT, "stage": "after"}], "before the subject was imported"),
    "a control twice": ([HELLO, CONTROL_EVENT, CONTROL_EVENT], "answered twice"),
    "a cell before the subject": ([HELLO, TENSOR], "before the subject was imported"),
    "a subject before hello": ([SUBJECT], "before hello"),
}


@pytest.mark.parametrize("name", WRONG_BEFORE)
def test_a_violation_before_the_subject_is_ours(name: str) -> None:
    events, reason = WRONG_BEFORE[name]
    with pytest.raises(Violation, match=reason) as caught:
        feed(a_collector(), events)
    assert caught.value.blame == "infra"


def test_trust_ends_with_the_phase_and_not_with_the_import() -> None:
    collector = a_collector()
    feed(collector, opening()[:-1])
    with pytest.raises(Violation, match="after subject code may have run"):
        feed(collector, [ORACLE])


def test_a_control_after_the_import_is_measured_once() -> None:
    collector = opened()
    after = {**CONTROL_EVENT, "stage": "after"}
    (notice,) = feed(collector, [after])
    assert isinstance(notice, ControlDone)
    assert notice.stage == "after"
    with pytest.raises(Violation, match="answered twice"):
        feed(collector, [after])


RAW_LINES: dict[str, tuple[bytes, str]] = {
    "no JSON": (b"Traceback (most recent call last):\n", "not JSON"),
    "no text": (b"\xff\xfe\n", "not JSON"),
    "no object": (b"[1]\n", "schema 1"),
    "a constant": (b'{"v":1,"t":"phase","name":"x","seconds":NaN}\n', "NaN is not JSON"),
    "an overflow": (b'{"v":1,"t":"phase","name":"x","seconds":1e999}\n', "number of seconds"),
    "a field twice": (b'{"v":1,"t":"ask","job":8,"job":7}\n', "names a field twice"),
    "a deep nest": (b"[" * 200_000 + b"]" * 200_000 + b"\n", "not JSON"),
    "endless digits": (b'{"v":1,"t":"ask","job":' + b"9" * 10_000 + b"}\n", "not JSON"),
    "a huge integer": (b'{"v":1,"t":"ask","job":' + b"9" * 400 + b"}\n", "whole number"),
    "deep facts": (line({**HELLO, "flags": {"a": {"b": {"c": {"d": 1}}}}}), "plain JSON"),
    "an endless float in facts": (line(HELLO).replace(b'"float32"', b"1e999"), "plain JSON"),
}


@pytest.mark.parametrize("name", RAW_LINES)
def test_bytes_that_are_no_event(name: str) -> None:
    data, reason = RAW_LINES[name]
    with pytest.raises(Violation, match=reason):
        a_collector().feed(data)


def test_a_line_a_tensor_and_a_job_have_their_caps() -> None:
    with pytest.raises(Violation, match="it may have 100"):
        a_collector(Limits(line_bytes=100)).feed(line(HELLO))
    with pytest.raises(Violation, match="a tensor may have 16"):
        feed(a_collector(Limits(tensor_bytes=16)), opening())
    # A rank sends 96 bytes, the oracle and the control 192 each: 384 hold those, and two cells of 192.
    feed(opened(Limits(job_bytes=384)), [*cell_events(), *cell_events(71, trace=TRACE)])
    tight = opened(Limits(job_bytes=384))
    feed(tight, [*cell_events(), *cell_events(71, trace=TRACE)])
    with pytest.raises(Violation, match="may have 384 bytes together"):
        feed(tight, [event("ask", job=7), *cell_events(70, 2)])


def test_a_shape_cannot_promise_more_than_there_is_memory_for() -> None:
    collector = opened()
    with pytest.raises(Violation, match="a tensor may have"):
        feed(collector, [changed(TENSOR, shape=[2**40] * 16, data="")])


def test_an_attempt_of_cases_that_nobody_knows_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="version 1, which is not in the catalogue"):
        Collector(a_spec(), [a_case(version=2)], [])
    assert json.loads(line(HELLO))["v"] == 1
