"""What changed between two answers, in the agreed words."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.compare import Comparison, Kind, Row, diff, identical_groups
from service.errors import UsageError
from service.verdicts import Verdict
from tests.service.answers import NEW, Cell, at

# -- diff ------------------------------------------------------------------------------------------------------------


def kinds(comparison: Comparison) -> list[str]:
    return [change.kind.value for change in comparison.changes]


@pytest.mark.parametrize(
    ("before", "after", "kind", "reason"),
    [
        ("agree", "zero_gradient", Kind.REGRESSION, "agree became zero_gradient"),
        ("refused", "hang", Kind.REGRESSION, "refused became hang"),
        ("raised", "agree", Kind.FIXED, "raised became agree"),
        ("unsupported", "raised", Kind.NEW_FAILURE, "unsupported became raised"),
        (None, "mismatch", Kind.NEW_FAILURE, "no result became mismatch"),
        ("scaled", "scaled", Kind.STILL_FAILING, ""),
        ("scaled", "hang", Kind.STILL_FAILING, "scaled became hang"),
        ("invalid", "agree", Kind.NEW_PASS, "invalid became agree"),
        ("agree", "unsupported", Kind.DISAPPEARED, "answers no more: unsupported"),
        ("mismatch", None, Kind.DISAPPEARED, "answers no more: no result"),
        ("agree", "agree", Kind.UNCHANGED, ""),
        ("agree", "agree_untraced", Kind.UNCHANGED, "agree became agree_untraced"),
        ("insensitive", "infra", Kind.UNCHANGED, "insensitive became infra"),
    ],
)
def test_every_word(before: str | None, after: str | None, kind: Kind, reason: str) -> None:
    comparison = diff([at("2.9.1", before)], [at("2.11.0", after)])
    (change,) = comparison.changes
    assert (comparison.axis, change.kind, change.reason) == ("runtime", kind, reason)


def test_another_signature_is_failing_in_another_way() -> None:
    one, two = at("2.9.1", "raised", signature="KeyError"), at("2.11.0", "raised", signature="ValueError")
    (change,) = diff([one], [two]).changes
    assert (change.kind, change.reason) == (Kind.STILL_FAILING, "in another way")


def test_cells_that_only_one_side_was_asked_to_run_are_no_change() -> None:
    before = [at("2.9.1"), at("2.9.1", mode="inductor")]
    after = [at("2.11.0"), at("2.11.0", world_size=4)]
    comparison = diff(before, after)
    assert kinds(comparison) == ["unchanged"]
    assert (comparison.only_before, comparison.only_after) == ((before[1],), (after[1],))
    assert comparison.compared == 1


def test_case_versions_are_never_compared() -> None:
    comparison = diff([at("2.9.1", "agree", version=1)], [at("2.11.0", "mismatch", version=2)])
    assert kinds(comparison) == ["appeared", "disappeared"]
    assert comparison.compared == 0
    assert comparison.of(Kind.APPEARED)[0].reason == (
        "the case is of version 2, and was asked in version 1 before: never compared"
    )


def test_bit_identical_evidence_is_noted() -> None:
    same: dict[str, Any] = {"evidence_digest": "d1"}
    other: dict[str, Any] = {"evidence_digest": "d2"}
    assert diff([at("2.9.1", **same)], [at("2.11.0", **same)]).changes[0].identical
    assert not diff([at("2.9.1", **same)], [at("2.11.0", **other)]).changes[0].identical
    assert not diff([at("2.9.1")], [at("2.11.0")]).changes[0].identical
    rows: list[Row] = [at("2.9.1", **same), at("2.11.0", **same), at("2.13.0", **other)]
    assert identical_groups(rows) == [(rows[0], rows[1])]


def test_the_gravest_comes_first_and_the_axis_is_found() -> None:
    before = [at("2.9.1", "agree"), at("2.9.1", "raised", mode="inductor")]
    after = [at("2.9.1", "agree", label=NEW, mode="inductor"), at("2.9.1", "mismatch", label=NEW)]
    comparison = diff(before, after)
    assert (comparison.axis, kinds(comparison)) == ("checkout", ["regression", "fixed"])
    assert diff(before, before).axis == "nothing"


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ([], [at("2.9.1")], "the first side has no cells"),
        ([at("2.9.1")], [], "the second side has no cells"),
        ([at("2.9.1")], [at("2.11.0", label=NEW)], "only one axis may"),
        ([at("2.9.1"), at("2.10.0")], [at("2.11.0")], "name one runtime on each side"),
        ([at("2.9.1")], [at("2.9.1", label=NEW), at("2.9.1", label="toy==1")], "name one checkout on each side"),
    ],
)
def test_more_than_one_axis_is_refused(before: list[Row], after: list[Row], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        diff(before, after)


ROWS = st.lists(
    st.builds(
        Cell,
        cell=st.integers(1, 99),
        world_size=st.sampled_from([2, 4]),
        mode=st.sampled_from(["eager", "aot_eager"]),
        verdict=st.sampled_from([None, *(verdict.value for verdict in Verdict)]),
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=80, deadline=None)
@given(ROWS, ROWS)
def test_there_and_back_is_the_opposite(before: list[Row], after: list[Row]) -> None:
    opposite = {
        "regression": {"fixed"}, "fixed": {"regression"}, "still failing": {"still failing"},
        "new failure": {"disappeared"}, "new pass": {"disappeared"}, "appeared": {"disappeared"},
        "disappeared": {"appeared", "new failure", "new pass"}, "unchanged": {"unchanged"},
    }  # fmt: skip
    compared = diff(before, after)
    opposed = diff(after, before)
    assert (compared.only_before, compared.only_after) == (opposed.only_after, opposed.only_before)
    there = {(id(change.before), id(change.after)): change.kind.value for change in compared.changes}
    back = {(id(change.after), id(change.before)): change.kind.value for change in opposed.changes}
    assert there.keys() == back.keys()
    assert all(back[key] in opposite[kind] for key, kind in there.items())
