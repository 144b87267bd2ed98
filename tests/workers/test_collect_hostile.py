"""Whatever arrives, the collector answers with notices or a violation, and no mutation turns a fault into agreement."""

from __future__ import annotations

import json
import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from service.judge import judge
from service.policy import load_policy
from service.verdicts import Verdict
from tests.workers.matter import (
    CASE,
    TRACE,
    a_collector,
    an_error,
    cell_events,
    event,
    feed,
    line,
    opening,
    rank_said,
    truth_of,
    zeroed,
)
from workers.collect import CaseDone, Notice, Violation

MANY = settings(max_examples=150, deadline=None)
AGREE = (Verdict.AGREE, Verdict.AGREE_UNTRACED)

JUNK: list[Any] = [
    None, True, False, 0, -1, 1, 2, 70, 71, 2**63, 1e308, "", "ok", "raised", "agree", "grad", "x", "\x00", [], {},
    [[]], {"again": 1}, "AAAA", "float64", "before", "after", "oracle", "control", "subject", "case", "bye",
]  # fmt: skip


def failing() -> list[dict[str, Any]]:
    """A stream after the subject's import, all of whose cells fail: zero gradients, and no refusal."""
    error = an_error("KeyError", "'0'", ("toy/layer.py", 3, "forward", "subject"))
    partly = [rank_said(0, "raised", error=error), rank_said(1)]
    return [
        *cell_events(70, tensors=zeroed()),
        event("log", rank=0, stream="stdout", text="hello", job=7, cell=71),
        *cell_events(71, tensors=zeroed(), trace=TRACE),
        *cell_events(72, ranks=partly, tensors=[{}, {}]),
        event("ask", job=7),
        *cell_events(70, 2, tensors=zeroed()),
        event("bye", ok=True, reason=None),
    ]


def verdicts(notices: list[Notice]) -> list[Verdict]:
    case = {70: CASE, 71: CASE}
    found = [notice for notice in notices if isinstance(notice, CaseDone) and notice.cell in case]
    return [judge(notice.evidence, case[notice.cell], load_policy()).verdict for notice in found]


def survive(lines: list[bytes]) -> list[Notice]:
    """What came out before a violation, if there was one; anything else that is raised fails the test."""
    collector = a_collector()
    notices = feed(collector, opening())
    try:
        for one in lines:
            notices += collector.feed(one)
    except Violation as violation:
        assert violation.reason
        assert violation.blame == "crash"
    notices += collector.close("crash", "the stream ended")
    return notices


def places(said: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of everything inside a JSON value."""
    items = said.items() if isinstance(said, dict) else enumerate(said) if isinstance(said, list) else ()
    return [found for key, inner in items for found in ((*path, key), *places(inner, (*path, key)))]


def altered(events: list[dict[str, Any]], rng: random.Random) -> list[dict[str, Any]]:
    """One or a few of: drop, repeat, swap, replace a value, remove or add a field, exchange values of two events."""
    events = json.loads(json.dumps(events))
    for _ in range(rng.randint(1, 3)):
        kind, at = rng.randrange(6), rng.randrange(len(events))
        if kind == 0 and len(events) > 1:
            del events[at]
        elif kind == 1:
            events.insert(rng.randrange(len(events)), json.loads(json.dumps(events[at])))
        elif kind == 2:
            other = rng.randrange(len(events))
            events[at], events[other] = events[other], events[at]
        else:
            path = rng.choice(places(events[at]) or [()])
            inner: Any = events[at]
            for key in path[:-1]:
                inner = inner[key]
            if kind == 3 and path:
                inner[path[-1]] = rng.choice(JUNK)
            elif kind == 4 and path:
                del inner[path[-1]]
            elif isinstance(inner, dict):
                inner[rng.choice(["v", "t", "verdict", "rank", "tensor"])] = rng.choice(JUNK)
    return events


def test_the_stream_fails_as_it_is() -> None:
    found = verdicts(survive([line(said) for said in failing()]))
    assert found == [Verdict.ZERO_GRADIENT] * 3


@MANY
@given(st.randoms(use_true_random=False))
def test_no_alteration_of_events_crashes_or_makes_a_fault_agree(rng: random.Random) -> None:
    notices = survive([line(said) for said in altered(failing(), rng)])
    assert not set(verdicts(notices)) & set(AGREE)


@MANY
@given(st.randoms(use_true_random=False))
def test_no_alteration_of_bytes_crashes_or_makes_a_fault_agree(rng: random.Random) -> None:
    data = bytearray(b"".join(line(said) for said in failing()))
    for _ in range(rng.randint(1, 20)):
        at = rng.randrange(len(data))
        if rng.random() < 0.5:
            data[at] = rng.randrange(256)
        elif rng.random() < 0.5:
            del data[at]
        else:
            data[at:at] = rng.randbytes(rng.randint(1, 4))
    notices = survive(bytes(data).splitlines(keepends=True))
    assert not set(verdicts(notices)) & set(AGREE)


@MANY
@given(st.binary(max_size=200))
def test_no_bytes_at_all_crash_it(data: bytes) -> None:
    survive(data.splitlines(keepends=True) or [b""])


@settings(max_examples=40, deadline=None)
@given(st.sets(st.sampled_from(range(6)), min_size=1))
def test_whatever_is_left_out_is_never_agreement(absent: set[int]) -> None:
    events = [said for index, said in enumerate(cell_events()) if index not in absent]
    found = verdicts(survive([line(said) for said in events]))
    assert found[0] in (Verdict.NO_GRADIENT, Verdict.FORWARD_MISMATCH, Verdict.MISMATCH)
    assert not found[0].settled


@settings(max_examples=20, deadline=None)
@given(st.randoms(use_true_random=False))
def test_the_order_in_which_ranks_speak_does_not_matter(rng: random.Random) -> None:
    *tensors, last = cell_events(70, tensors=[truth_of(0), zeroed()[1]])
    digests = set()
    for _ in range(2):
        rng.shuffle(tensors)
        notices = survive([line(said) for said in (*tensors, last)])
        digests |= {one.evidence.digest() for one in notices if isinstance(one, CaseDone) and one.cell == 70}
    assert len(digests) == 1
