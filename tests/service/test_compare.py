"""What changed, in the agreed words, and what differs, once per fault."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.compare import Comparison, Kind, Row, diff, identical_groups, sentences
from service.errors import UsageError
from service.verdicts import Verdict

OLD, NEW = "deepspeed==0.18.3", "deepspeed==0.19.8"
DIM0 = "exchange/dim0[dtype=float32,loss=square]"


@dataclass(frozen=True)
class Cell:
    """A row as the store gives it, as far as comparing reads it."""

    cell: int = 1
    checkout: str = "a" * 64
    label: str = OLD
    torch: str = "2.11.0"
    runtime: str = "2.11.0-index"
    transport: str = "gloo"
    world_size: int = 2
    case: str = DIM0
    version: int = 1
    mode: str = "eager"
    verdict: str | None = "agree"
    signature: str = ""
    detail: str = ""
    evidence_digest: str | None = None


def at(torch: str, verdict: str | None = "agree", cell: int = 1, label: str = OLD, **changes: Any) -> Cell:
    signature = "" if verdict is None or not Verdict(verdict).failing else f"{verdict}: grad/x"
    values = {"signature": signature} | changes
    made = Cell(cell, label[-6:] * 8, label, torch, f"{torch}-index", verdict=verdict)
    return replace(made, **values)


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


def test_cells_of_one_side_only_appear_and_disappear() -> None:
    comparison = diff([at("2.9.1"), at("2.9.1", mode="inductor")], [at("2.11.0"), at("2.11.0", world_size=4)])
    assert kinds(comparison) == ["appeared", "disappeared", "unchanged"]
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
    there = {(id(change.before), id(change.after)): change.kind.value for change in diff(before, after).changes}
    back = {(id(change.after), id(change.before)): change.kind.value for change in diff(after, before).changes}
    assert there.keys() == back.keys()
    assert all(back[key] in opposite[kind] for key, kind in there.items())


# -- sentences -------------------------------------------------------------------------------------------------------


def texts(rows: list[Row]) -> list[str]:
    return [finding.text for finding in sentences(rows)]


def zero_in_traced_modes(label: str = OLD) -> list[Row]:
    """Agreement everywhere but in the traced modes of torch 2.11.0, 2 ranks."""
    return [
        at(torch, "zero_gradient" if torch == "2.11.0" and mode != "eager" else "agree", number, label, mode=mode)
        for number, (torch, mode) in enumerate(
            [(t, m) for t in ("2.11.0", "2.2.2", "2.9.1") for m in ("eager", "aot_eager", "inductor")], 10
        )
    ]


def test_one_fault_is_one_sentence_with_its_last_good_column() -> None:
    (finding,) = sentences(zero_in_traced_modes())
    assert finding.text == (
        "deepspeed==0.18.3: zero gradient in traced exchange/dim0 (aot_eager, inductor; 2 ranks): "
        "torch 2.11.0 only; right up to 2.9.1"
    )
    assert (finding.axis, finding.cell, finding.cells) == ("torch", 11, 2)
    assert str(finding).endswith("(cell 11)")


def along(*verdicts: tuple[str, str | None]) -> str:
    (text, *rest) = texts([at(torch, verdict, number) for number, (torch, verdict) in enumerate(verdicts)])
    assert rest == []
    return text.partition("ranks): ")[2]


def test_transitions() -> None:
    good, bad = "agree", "mismatch"
    assert along(("2.9.1", good), ("2.10.0", bad), ("2.11.0", bad)) == "torch 2.10.0 to 2.11.0; right up to 2.9.1"
    assert along(("2.9.1", bad), ("2.10.0", good)) == "torch 2.9.1 only; right from 2.10.0 on"
    assert along(("2.2.2", good), ("2.9.1", bad), ("2.10.0", good)) == (
        "torch 2.9.1 only; right up to 2.2.2, right again from 2.10.0 on"
    )
    assert along(("2.2.2", bad), ("2.3.1", good), ("2.4.1", bad), ("2.10.0", bad), ("2.11.0", good)) == (
        "torch 2.2.2; right from 2.3.1 on, then torch 2.4.1 to 2.10.0; right up to 2.3.1, right again from 2.11.0 on"
    )
    assert along(("2.2.2", None), ("2.9.1", good), ("2.10.0", "unsupported"), ("2.11.0", bad)) == (
        "torch 2.11.0 only; right up to 2.9.1; no answer on 2.2.2 and 2.10.0"
    )


def test_columns_are_versions_and_not_words() -> None:
    rows: list[Row] = [at("2.9.1", "agree"), at("2.10.0", "agree"), at("2.11.0.dev20260101", "mismatch")]
    random.Random(1).shuffle(rows)
    assert texts(rows)[0].endswith("torch 2.11.0.dev20260101 only; right up to 2.10.0")


def test_two_faults_are_two_sentences_that_know_of_each_other() -> None:
    said = texts([at("2.2.2", "raised", signature="KeyError"), at("2.9.1"), at("2.11.0", "zero_gradient")])
    assert sorted(text.partition("ranks): ")[2] for text in said) == [
        "torch 2.11.0 only; right up to 2.9.1; another fault on 2.2.2",
        "torch 2.2.2 only; right from 2.9.1 on; another fault on 2.11.0 (KeyError)",
    ]


def test_sentences_between_checkouts_name_both() -> None:
    rows = [*zero_in_traced_modes(), *zero_in_traced_modes(NEW)]
    rows = [replace(row, verdict="agree", signature="") if row.label == NEW else row for row in rows]  # type: ignore[type-var]
    first, second = sentences(rows)
    assert first.axis == "torch"
    assert second.text == (
        "deepspeed==0.18.3 fails where deepspeed==0.19.8 agrees: zero gradient in traced exchange/dim0 "
        "(aot_eager, inductor; 2 ranks) on torch 2.11.0"
    )


def test_an_import_that_fails_is_said_once_for_all_cases() -> None:
    need: dict[str, Any] = {"signature": "needs torch.library.custom_op"}
    cases = [DIM0, "exchange/seq_head[layout=bshd]"]
    rows: list[Row] = []
    for case in cases:
        rows += [at("2.2.2", "unimportable", 1, NEW, case=case, **need), at("2.9.1", "agree", 2, NEW, case=case)]
        rows += [at("2.2.2", "agree", 3, case=case), at("2.9.1", "agree", 4, case=case)]
    assert texts(rows) == [
        "deepspeed==0.19.8: not importable (every case): torch 2.2.2 only; right from 2.9.1 on "
        "(needs torch.library.custom_op)",
        "deepspeed==0.19.8 fails where deepspeed==0.18.3 agrees: not importable (every case) on torch 2.2.2 "
        "(needs torch.library.custom_op)",
    ]


def test_a_fault_everywhere_is_told_as_such_and_agreement_not_at_all() -> None:
    (finding,) = sentences([at("2.9.1", "mismatch", 5), at("2.11.0", "mismatch", 6)])
    assert finding.axis == "throughout"
    assert finding.text.endswith("on torch 2.9.1 and 2.11.0, wherever it was tried")
    assert sentences([at("2.9.1"), at("2.11.0")]) == []
    assert sentences([]) == []


def test_several_checkouts_are_a_line_of_their_own() -> None:
    labels = ("deepspeed==0.17.0", "deepspeed==0.18.3", "deepspeed==0.19.8")
    rows: list[Row] = [at("2.11.0", "agree" if label == NEW else "mismatch", label=label) for label in labels]
    assert texts(rows)[0].endswith(
        "on torch 2.11.0: deepspeed==0.17.0 to deepspeed==0.18.3; right from deepspeed==0.19.8 on"
    )


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from([None, *(verdict.value for verdict in Verdict)]), min_size=2, max_size=6))
def test_every_fault_is_in_some_sentence_and_no_cell_is_wrongly_named(said: list[str | None]) -> None:
    rows: list[Row] = [at(f"2.{minor}.0", verdict, minor) for minor, verdict in enumerate(said)]
    found = sentences(rows)
    failing = {row.cell: row for row in rows if row.verdict is not None and Verdict(row.verdict).failing}
    assert all(finding.cell in failing for finding in found)
    assert {failing[finding.cell].verdict for finding in found} == {row.verdict for row in failing.values()}
