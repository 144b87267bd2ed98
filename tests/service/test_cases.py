"""The catalogue of cases: asked for in a process of its own, read as input that may be wrong."""

from __future__ import annotations

import dataclasses
import json
import sys

import pytest

from service import cases
from service.errors import UsageError
from tests.support.stored import case

KNOWN = cases.CaseCatalogue(
    (case("dim0"), case("dim1"), case("seq", modes=("eager",)), case("token", family="loss")), controls=()
)


def listing(**changes: object) -> bytes:
    data = {"schema": 1, "cases": [info.to_json() for info in KNOWN.cases], "controls": []}
    return json.dumps({**data, **changes}).encode()


def test_the_installed_cases_are_listed_without_torch() -> None:
    found = cases.catalogue()
    assert {info.family for info in found.cases} >= {"exchange"}
    assert {control.family for control in found.controls} >= {"exchange"}
    assert "torch" not in sys.modules
    known = {info.id: info for info in found.cases}
    assert all(set(control.modes) <= set(known[control.case].modes) for control in found.controls)


def test_a_listing_survives_the_way_there_and_back() -> None:
    assert cases.parse(listing()) == KNOWN


@pytest.mark.parametrize(
    ("globs", "families", "names"),
    [
        ([], [], ["dim0", "dim1", "seq", "token"]),
        (["exchange/dim?"], [], ["dim0", "dim1"]),
        (["loss/*", "exchange/dim1[dtype=float32]"], [], ["dim1", "token"]),
        (["*[dtype=float32]"], ["loss"], ["token"]),
        (["dim0", "token[dtype=float32]"], [], ["dim0", "token"]),
        ([], ["loss", "exchange"], ["dim0", "dim1", "seq", "token"]),
    ],
)
def test_selection(globs: list[str], families: list[str], names: list[str]) -> None:
    assert [info.params["n"] for info in KNOWN.select(globs, families)] == names


def test_a_suite_holds_the_one_before_it_and_a_named_case_is_found_in_any() -> None:
    first = KNOWN.cases[0]
    more = (dataclasses.replace(first, id=f"{first.id}2", suite="full"), dataclasses.replace(first, id=f"{first.id}3"))
    pair = dataclasses.replace(first, id=f"{first.id}4", suite="full", params={**first.params, "loss": "another"})
    some = cases.CaseCatalogue((first, *more, pair), controls=())
    large = some.cases[1]
    assert some.select() == some.select(suite="default") == (first, more[1], pair)
    assert some.select(suite="full") == some.cases
    assert some.select([large.id]) == (large,)
    with pytest.raises(UsageError, match=r"no case of suite default fits .*; suite full has 1 that do"):
        some.select([large.id], suite="default")


@pytest.mark.parametrize(
    ("globs", "families", "message"),
    [
        (["exchange/dim2"], [], "no case fits 'exchange/dim2': did you mean exchange/dim"),
        (["exchange/dim0[dtype=float23]"], [], r"did you mean exchange/dim0\[dtype=float32\]"),
        (["exchange/dim0", "x"], [], "no case fits 'x': known: exchange/dim0"),
        ([], ["exchang"], "family 'exchang' is not known: did you mean exchange"),
        ([], ["attention"], "family 'attention' has no cases yet"),
    ],
)
def test_what_fits_nothing_is_named(globs: list[str], families: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        KNOWN.select(globs, families)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (b"", "cannot be read"),
        (b"[]", "not of schema 1"),
        (listing(schema=2), "not of schema 1"),
        (listing(cases=[{}]), "missing fields"),
        (listing(cases=[KNOWN.cases[0].to_json()] * 2), r"names some twice: exchange/dim0\[dtype=float32\]"),
        (json.dumps({"schema": 1, "cases": []}).encode(), "controls"),
    ],
)
def test_a_bad_listing_is_refused(bad: bytes, message: str) -> None:
    with pytest.raises(cases.CatalogueError, match=message):
        cases.parse(bad)
