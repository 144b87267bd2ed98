"""Where a fault begins and ends, against what the definitions of the words give by hand and by enumeration."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs import launcher
from service.edges import (
    ABSENT,
    BAD,
    GOOD,
    NO_COMPILER,
    NOTHING,
    OTHER,
    UNTRIED,
    Edge,
    Known,
    Stretch,
    edges,
    edges_by_row,
    in_order,
    merged,
    row_key,
    stretches,
)
from tests.service.answers import Cell, at

TORCHES = ("2.2.2", "2.3.1", "2.4.1", "2.5.1", "2.6.0", "2.7.1", "2.8.0", "2.9.1", "2.10.0", "2.11.0")
LETTERS = {"x": BAD, ".": GOOD, "o": OTHER, "?": NOTHING, "-": UNTRIED, "a": ABSENT}
Told = tuple[str | None, str, str, str | None, tuple[str, ...], tuple[str, ...], tuple[str, ...]]


def row(*said: tuple[str, str | None]) -> list[Cell]:
    return [at(torch, verdict, number) for number, (torch, verdict) in enumerate(said)]


def found(said: str) -> list[Told]:
    """The stretches of a row whose versions are called 0, 1, 2 …"""
    columns = [(str(number), LETTERS[letter]) for number, letter in enumerate(said)]
    return [(s.last_good, s.first_bad, s.last_bad, s.fixed_in, s.before, s.within, s.after) for s in stretches(columns)]


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("", []),
        ("...", []),
        ("?-o", []),
        ("x", [(None, "0", "0", None, (), (), ())]),
        ("..x.", [("1", "2", "2", "3", (), (), ())]),
        ("..xx", [("1", "2", "3", None, (), (), ())]),
        ("xx.", [(None, "0", "1", "2", (), (), ())]),
        # good, bad, good, bad, good
        (".x.x.", [("0", "1", "1", "2", (), (), ()), ("2", "3", "3", "4", (), (), ())]),
        # what says nothing breaks no stretch, and is named within it ...
        ("x?x", [(None, "0", "2", None, (), ("1",), ())]),
        ("xo-x.", [(None, "0", "3", "4", (), ("1", "2"), ())]),
        (".x--x.", [("0", "1", "4", "5", (), ("2", "3"), ())]),
        ("x-x?x-", [(None, "0", "4", None, (), ("1", "3"), ("5",))]),
        ("x-x.x", [(None, "0", "2", "3", (), ("1",), ()), ("3", "4", "4", None, (), (), ())]),
        # ... and leaves the edge open, on either side
        (".?x-.", [("0", "2", "2", "4", ("1",), (), ("3",))]),
        ("-?x", [(None, "2", "2", None, ("0", "1"), (), ())]),
        ("x-?", [(None, "0", "0", None, (), (), ("1", "2"))]),
        (".-.x", [("2", "3", "3", None, (), (), ())]),
        ("x-.?x", [(None, "0", "0", "2", (), (), ("1",)), ("2", "4", "4", None, ("3",), (), ())]),
        (".ox", [("0", "2", "2", None, ("1",), (), ())]),
        # what is absent bounds nothing and leaves nothing open
        ("aax", [(None, "2", "2", None, (), (), ())]),
        (".a-xaxa", [("0", "3", "5", None, ("2",), (), ())]),
    ],
)
def test_stretches(said: str, expected: list[Told]) -> None:
    assert found(said) == expected


@given(st.text("x.o?-a", max_size=12))
def test_stretches_are_what_the_words_mean(said: str) -> None:
    """Last good is the nearest good version below, and so on: by looking at every version, not by walking once."""
    told = stretches([(str(n), LETTERS[letter]) for n, letter in enumerate(said)])
    bad = [n for n, letter in enumerate(said) if letter == "x"]
    assert all(sum(int(s.first_bad) <= n <= int(s.last_bad) for s in told) == 1 for n in bad)
    for one in told:
        first, last = int(one.first_bad), int(one.last_bad)
        assert (said[first], said[last]) == ("x", "x")
        assert "." not in said[first : last + 1]
        good = max((n for n in range(first) if said[n] == "."), default=-1)
        mended = min((n for n in range(last, len(said)) if said[n] == "."), default=len(said))
        assert one.last_good == (str(good) if good >= 0 else None)
        assert one.fixed_in == (str(mended) if mended < len(said) else None)
        parts = range(good + 1, first), range(first, last), range(last + 1, mended)
        expected = (tuple(str(n) for n in part if said[n] in "o?-") for part in parts)
        assert (one.before, one.within, one.after) == tuple(expected)
        assert not {"x"} & set(said[good + 1 : first] + said[last + 1 : mended])


def test_the_known_fault_of_one_version() -> None:
    verdicts = ["zero_gradient" if torch == "2.11.0" else "agree" for torch in (*TORCHES, "2.12.1")]
    rows = row(*zip((*TORCHES, "2.12.1"), verdicts, strict=True))
    assert edges(rows[::-1]) == [
        Edge("zero_gradient", "zero_gradient: grad/x", "2.10.0", "2.11.0", "2.11.0", "2.12.1", (), (), (), ())
    ]


def test_versions_that_nobody_tried_are_named_where_they_leave_an_edge_open() -> None:
    (edge,) = edges(row(("2.9.1", "agree"), ("2.11.0", "zero_gradient")), (*TORCHES, "2.12.1"))
    assert (edge.last_good, edge.untried_before) == ("2.9.1", ("2.10.0",))
    assert (edge.fixed_in, edge.untried_after) == (None, ("2.12.1",))


def test_versions_that_nobody_tried_are_named_inside_a_stretch() -> None:
    given = row(("2.2.2", "agree"), ("2.3.1", "mismatch"), ("2.6.0", "mismatch"), ("2.7.1", "agree"))
    (edge,) = edges(given, TORCHES[:6])
    assert (edge.first_bad, edge.untried_within, edge.last_bad) == ("2.3.1", ("2.4.1", "2.5.1"), "2.6.0")
    assert edge.untried_before == edge.untried_after == ()


def test_a_function_that_a_version_lacks_was_tried_and_what_the_machine_lacks_was_not() -> None:
    lacks = [at("2.2.2", "unsupported", detail="torch 2.2.2 has no f"), at("2.3.1", "mismatch")]
    (edge,) = edges(lacks)
    assert (edge.last_good, edge.untried_before) == (None, ())
    (edge,) = edges([replace(lacks[0], detail=NO_COMPILER), lacks[1]])
    assert (edge.last_good, edge.untried_before) == (None, ("2.2.2",))
    assert launcher.NO_COMPILER == NO_COMPILER
    assert merged([ABSENT, NOTHING]) == NOTHING
    assert merged([ABSENT, GOOD]) == GOOD


@pytest.mark.parametrize("verdict", ["invalid", "infra", "insensitive", "unimportable", None])
def test_what_says_nothing_widens_the_edge(verdict: str | None) -> None:
    given = row(("2.9.1", "agree"), ("2.10.0", verdict), ("2.11.0", "mismatch"))
    (edge,) = [edge for edge in edges(given) if edge.verdict == "mismatch"]
    assert (edge.last_good, edge.first_bad, edge.untried_before) == ("2.9.1", "2.11.0", ("2.10.0",))


@pytest.mark.parametrize("verdict", ["agree", "agree_untraced", "refused"])
def test_what_is_well_bounds_it(verdict: str) -> None:
    (edge,) = edges(row(("2.9.1", "agree"), ("2.10.0", verdict), ("2.11.0", "mismatch")))
    assert (edge.last_good, edge.untried_before) == ("2.10.0", ())


def test_two_faults_of_one_row_are_two_stretches() -> None:
    same_verdict = at("2.10.0", "raised", signature="ValueError")
    given = [at("2.9.1"), at("2.11.0", "raised", signature="KeyError"), same_verdict, at("2.12.1")]
    first, second = edges(given)
    assert first == Edge("raised", "ValueError", "2.9.1", "2.10.0", "2.10.0", "2.12.1", (), (), ("2.11.0",), ())
    assert second == Edge("raised", "KeyError", "2.9.1", "2.11.0", "2.11.0", "2.12.1", ("2.10.0",), (), (), ())


def test_for_a_failed_import_whatever_shows_an_import_is_good() -> None:
    given = row(("2.2.2", "unimportable"), ("2.3.1", "unsupported"), ("2.4.1", "zero_gradient"))
    (edge,) = [edge for edge in edges(given) if edge.verdict == "unimportable"]
    assert (edge.fixed_in, edge.untried_after) == ("2.4.1", ("2.3.1",))


def test_of_several_builds_one_bad_one_makes_the_version_bad_and_the_right_one_is_named() -> None:
    def build(torch: str, variant: str, verdict: str | None) -> Cell:
        return replace(at(torch, verdict), runtime=f"{torch}-{variant}")

    given = [
        *(build("2.10.0", "cpu", None), build("2.10.0", "index", "agree")),
        *(build("2.11.0", "cpu", "agree"), build("2.11.0", "index", "mismatch")),
        *(build("2.12.1", "cpu", "raised"), build("2.12.1", "index", "agree")),
        build("2.13.0", "cpu", "agree"),
    ]
    (edge,) = [edge for edge in edges(given) if edge.verdict == "mismatch"]
    assert (edge.last_good, edge.first_bad, edge.last_bad) == ("2.10.0", "2.11.0", "2.11.0")
    assert (edge.fixed_in, edge.untried_after, edge.right_on) == ("2.13.0", ("2.12.1",), ("2.11.0-cpu",))
    assert merged([GOOD, BAD, NOTHING]) == BAD
    assert merged([NOTHING, GOOD]) == GOOD
    assert merged([]) == UNTRIED


def test_nightlies_stand_before_the_release_that_they_lead_to() -> None:
    assert in_order(["2.12.0", "odd", "2.12.0.dev20260301", "2.9.1", "2.12.0rc1", "2.10.0", "2.9.1"]) == [
        *("2.9.1", "2.10.0", "2.12.0.dev20260301", "2.12.0rc1", "2.12.0", "odd")
    ]
    (edge,) = edges(row(("2.12.0", "agree"), ("2.12.0.dev20260301", "mismatch"), ("2.9.1", "agree")))
    assert (edge.last_good, edge.fixed_in) == ("2.9.1", "2.12.0")


def test_rows_are_kept_apart_and_ones_own_answer_counts() -> None:
    own = [at("2.11.0", "mismatch"), at("2.11.0", "mismatch", mode="inductor")]
    past = [
        at("2.11.0", "agree"),  # the same runtime: the submission's own answer is the newer one
        at("2.9.1", "agree"),
        replace(at("2.10.0", "agree"), version=2),  # another question
        replace(at("2.10.0", "agree"), transport="nccl-dispatch"),
        replace(at("2.10.0", "agree"), world_size=4),
        replace(at("2.10.0", "agree"), checkout="other"),
    ]
    told = edges_by_row(own, Known(past))
    assert [edge.last_good for edge in told[row_key(own[0])]] == ["2.9.1"]
    assert [edge.last_good for edge in told[row_key(own[1])]] == [None]
    assert len(told) == 2


def test_a_stretch_is_plain_data() -> None:
    assert stretches([("a", BAD)]) == [Stretch("a", "a", None, None, (), (), ())]


def test_an_error_that_versions_word_otherwise_is_one_stretch() -> None:
    said = {"2.8.0": "RuntimeError: torch.cat(): no list", "2.9.1": "ValueError: torch.cat(): no list"}
    answers = [at("2.7.1"), *(at(torch, "raised", signature=name) for torch, name in said.items()), at("2.10.0")]
    (edge,) = edges(answers)
    assert (edge.last_good, edge.first_bad, edge.last_bad, edge.fixed_in) == ("2.7.1", "2.8.0", "2.9.1", "2.10.0")
