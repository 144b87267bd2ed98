"""Versions in words: neighbours together, and nothing that was not tried."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.edges import ABSENT, BAD, GOOD, NO_IMPORT, NOTHING, OTHER, UNTRIED
from service.spans import bad, good, listed, spans, untried, untried_within

LETTERS = {"x": BAD, ".": GOOD, "o": OTHER, "i": NO_IMPORT, "?": NOTHING, "-": UNTRIED, "a": ABSENT}


def columns(said: str) -> list[tuple[str, str]]:
    return [(f"v{number}", LETTERS[letter]) for number, letter in enumerate(said)]


@pytest.mark.parametrize(
    ("said", "has_it", "right", "open_edge"),
    [
        (".....x....", "v5 only", "up to v4 and from v6 on", ""),
        (".x", "v1 only", "up to v0", ""),
        ("x.", "v0 only", "from v1 on", ""),
        ("xx", "v0 to v1", "", ""),
        ("xxx..", "v0 to v2", "from v3 on", ""),
        # good, bad, good, bad
        ("x.....xxx.", "v0 and v6 to v8", "on v1 to v5 and from v9 on", ""),
        (".x.x", "v1 and v3", "up to v0 and on v2", ""),
        ("x.x", "v0 and v2", "on v1", ""),
        ("x..x", "v0 and v3", "on v1 and v2", ""),
        # an untried version is neither right nor bad, and is named where an edge is open
        (".-.-x-", "v4", "on v0 and v2", "v3 and v5"),
        ("-.x", "v2 only", "on v1", ""),
        (".--x", "v3", "up to v0", "v1 and v2"),
        ("----.-x-----", "v6", "on v4", "v5 and v7 to v11"),
        ("x-x", "v0 and v2", "", "v1"),
        (".x--x.", "v1 and v4", "up to v0 and from v5 on", "v2 and v3"),
        ("x?x-", "v0 and v2", "", "v3"),
        ("x.-", "v0 only", "on v1", ""),
        # what has a clause of its own parts nothing; what is no answer parts neighbours of no span of right ones
        ("?.x", "v2 only", "up to v1", ""),
        ("o.x", "v2 only", "up to v1", ""),
        ("x.i", "v0 only", "from v1 on", ""),
        (".?..x", "v4 only", "up to v3", ""),
        (".o.x", "v3 only", "on v0 and v2", ""),
        # beside what has no answer nothing is the only one; what is absent cannot have it
        (".?x.", "v2", "up to v0 and from v3 on", ""),
        (".x?", "v1", "up to v0", ""),
        (".ax.", "v2 only", "up to v0 and from v3 on", ""),
        ("aaxa", "v2 only", "", ""),
        ("a.a.xa.", "v4 only", "up to v3 and from v6 on", ""),
    ],
)
def test_what_the_columns_say(said: str, has_it: str, right: str, open_edge: str) -> None:
    assert (bad(columns(said)), good(columns(said)), untried(columns(said))) == (has_it, right, open_edge)


def test_only_of_several_cells_is_only_so_in_each() -> None:
    together, one, other = columns("..x."), columns("..x."), columns(".?x.")
    assert (bad(together, [one, one]), bad(together, [one, other])) == ("v2 only", "v2")


def test_what_was_not_tried_within_and_beside() -> None:
    assert (untried(columns("-x-xx-")), untried_within(columns("-x-xx-"))) == ("v0, v2 and v5", "v2")
    assert untried_within(columns("-x?x.-x")) == ""


def test_neighbours_are_spans_from_three_on() -> None:
    names = ["2.9.1", "2.10.0", "2.11.0", "2.12.1", "2.13.0"]
    assert spans(names, names) == "2.9.1 to 2.13.0"
    assert spans(names[:2], names) == "2.9.1 and 2.10.0"
    assert spans([names[0], *names[2:]], names) == "2.9.1 and 2.11.0 to 2.13.0"
    assert spans([], names) == listed([]) == "nothing"


@given(st.text("x.oi?-a", min_size=1, max_size=14).filter(lambda said: "x" in said))
def test_no_version_is_claimed_that_is_not_so(said: str) -> None:
    """Every claim is read back as the versions that it covers."""
    table = columns(said)

    def covered(text: str) -> set[int]:
        found: set[int] = set()
        for first, to, last in re.findall(r"v(\d+)( to v(\d+))?", text):
            found |= set(range(int(first), int(last) + 1)) if to else {int(first)}
        if up_to := re.search(r"up to v(\d+)", text):
            found |= set(range(int(up_to[1]) + 1))
        if onward := re.search(r"from v(\d+) on", text):
            found |= set(range(int(onward[1]), len(said)))
        return found

    assert covered(bad(table)) == {n for n, letter in enumerate(said) if letter == "x"}
    right = covered(good(table))
    assert {n for n, letter in enumerate(said) if letter == "."} <= right
    assert not {said[n] for n in right} & {"x", "-"}
    assert {said[n] for n in covered(untried(table))} <= {"-"}
    only = said.count("x") == 1 and not re.search(r"[?-][aoi?-]*x|x[aoi?-]*[?-]", said)
    assert ("only" in bad(table)) == only
