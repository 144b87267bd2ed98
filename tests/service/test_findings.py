"""What differs, once per fault, and nothing in a sentence that the rows do not bear out."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.compare import Finding, Row, sentences
from service.edges import Known
from service.imports import Import
from service.verdicts import Verdict
from tests.service.answers import DIM0, NEW, OLD, Cell, at

OLDER, ODD = "deepspeed==0.9.5", "path:odd"
CUSTOM_OP = "needs another torch: torch.library.custom_op"
HEADS = "exchange/seq_head[layout=bshd]"


def texts(rows: Sequence[Row]) -> list[str]:
    return [finding.text for finding in sentences(rows)]


def zero_in_traced_modes(label: str = OLD) -> list[Row]:
    """Agreement everywhere but in the traced modes of torch 2.11.0, 2 ranks."""
    return [
        at(torch, "zero_gradient" if torch == "2.11.0" and mode != "eager" else "agree", number, label, mode=mode)
        for number, (torch, mode) in enumerate(
            [(t, m) for t in ("2.11.0", "2.2.2", "2.9.1") for m in ("eager", "aot_eager", "inductor")], 10
        )
    ]


def good(rows: Iterable[Any], label: str) -> list[Row]:
    return [replace(row, label=label, checkout=label * 3, verdict="agree", signature="") for row in rows]


# -- along torch -----------------------------------------------------------------------------------------------------


def test_one_fault_is_one_sentence_with_its_last_good_column() -> None:
    (finding,) = sentences(zero_in_traced_modes())
    assert finding.text == (
        "deepspeed==0.18.3: zero gradient in traced exchange/dim0 (aot_eager, inductor; 2 ranks): "
        "torch 2.11.0 only; right up to 2.9.1"
    )
    assert (finding.axis, finding.cell, finding.cells) == ("torch", 11, 2)
    assert str(finding).endswith("(cell 11)")


def test_what_a_graph_break_saved_is_right_and_said_to_be_untraced() -> None:
    rows = [at("2.2.2", "agree_untraced", 1), at("2.9.1", "agree", 2), at("2.11.0", "zero_gradient", 3)]
    assert texts(rows)[0].endswith("torch 2.11.0 only; right up to 2.9.1; there untraced on 2.2.2")
    other = [replace(rows[0], verdict="agree"), *rows[1:], at("2.2.2", "agree_untraced", 4, NEW)]
    assert "untraced" not in texts([*other, at("2.11.0", "agree", 5, NEW)])[0]
    imports = [rows[0], at("2.11.0", "unimportable", 6, signature=CUSTOM_OP)]
    assert "untraced" not in texts(imports)[0]


def along(*verdicts: tuple[str, str | None]) -> str:
    (text, *rest) = texts([at(torch, verdict, number) for number, (torch, verdict) in enumerate(verdicts)])
    assert rest == []
    return text.partition("ranks): ")[2]


def test_transitions() -> None:
    good, bad = "agree", "mismatch"
    assert along(("2.9.1", good), ("2.10.0", bad), ("2.11.0", bad)) == "torch 2.10.0 to 2.11.0; right up to 2.9.1"
    assert along(("2.9.1", bad), ("2.10.0", good)) == "torch 2.9.1 only; right from 2.10.0 on"
    assert along(("2.2.2", good), ("2.9.1", bad), ("2.10.0", good)) == (
        "torch 2.9.1 only; right up to 2.2.2 and from 2.10.0 on"
    )
    assert along(("2.2.2", bad), ("2.3.1", good), ("2.4.1", bad), ("2.10.0", bad), ("2.11.0", good)) == (
        "torch 2.2.2 and 2.4.1 to 2.10.0; right on 2.3.1 and from 2.11.0 on"
    )
    assert along(("2.2.2", None), ("2.9.1", good), ("2.10.0", "unsupported"), ("2.11.0", bad)) == (
        "torch 2.11.0 only; right up to 2.9.1; absent on 2.10.0; no answer on 2.2.2"
    )
    assert along(("2.2.2", good), ("2.3.1", "infra"), ("2.4.1", bad), ("2.5.1", good)) == (
        "torch 2.4.1; right up to 2.2.2 and from 2.5.1 on; no answer on 2.3.1"
    )
    assert along(("2.2.2", "unsupported"), ("2.3.1", bad)) == "on torch 2.3.1, wherever it was tried; absent on 2.2.2"


def test_columns_are_versions_and_not_words() -> None:
    rows: list[Row] = [at("2.9.1", "agree"), at("2.10.0", "agree"), at("2.11.0.dev20260101", "mismatch")]
    random.Random(1).shuffle(rows)
    assert texts(rows)[0].endswith("torch 2.11.0.dev20260101 only; right up to 2.10.0")


def test_two_faults_are_two_sentences_that_know_of_each_other() -> None:
    found = sentences([at("2.2.2", "raised", signature="KeyError"), at("2.9.1"), at("2.11.0", "zero_gradient")])
    assert sorted((finding.text.partition("ranks): ")[2], finding.why) for finding in found) == [
        ("torch 2.11.0 only; right up to 2.9.1; another fault on 2.2.2", ""),
        ("torch 2.2.2 only; right from 2.9.1 on; another fault on 2.11.0", "KeyError"),
    ]
    assert {str(finding)[-19:] for finding in found} >= {" (KeyError) (cell 1)"[-19:]}


@pytest.mark.parametrize(
    ("detail", "said"), [("torch 2.2.2 has no f", "absent"), ("no C++ compiler", "no answer")], ids=["torch", "machine"]
)
def test_modes_that_differ_only_in_what_was_not_answered_share_a_sentence(detail: str, said: str) -> None:
    none: dict[str, Any] = {"verdict": "unsupported", "detail": detail}
    rows = [
        row if (row.torch, row.mode) != ("2.2.2", "inductor") else replace(row, **none)  # type: ignore[type-var]
        for row in zero_in_traced_modes()
    ]
    assert texts(rows) == [
        "deepspeed==0.18.3: zero gradient in traced exchange/dim0 (aot_eager, inductor; 2 ranks): "
        f"torch 2.11.0 only; right up to 2.9.1; {said} in some cells on 2.2.2"
    ]


def test_only_is_not_said_where_one_of_the_cells_has_no_answer_beside() -> None:
    rows: list[Row] = [
        replace(row, verdict="infra") if (row.torch, row.mode) == ("2.9.1", "inductor") else row  # type: ignore[type-var]
        for row in zero_in_traced_modes()
    ]
    (text,) = texts(rows)
    assert text.endswith("torch 2.11.0; right up to 2.9.1; no answer in some cells on 2.9.1")


def test_a_finding_shows_its_smallest_case_and_the_tensor_that_is_worst_there() -> None:
    detail = "gradient of x is zero on every rank: 0 of 8 elements; also wrong: y (scaled gradient)"
    rows = [
        at("2.11.0", "zero_gradient", 1, case=f"{DIM0[:-1]},batch=2]", detail="gradient of z is zero"),
        at("2.11.0", "zero_gradient", 2, mode="inductor", detail="gradient of z is zero"),
        at("2.11.0", "zero_gradient", 3, world_size=4, detail="gradient of z is zero"),
        at("2.11.0", "zero_gradient", 4, detail=detail),
    ]
    (finding,) = sentences(rows)
    assert (finding.cell, finding.cells) == (4, 4)
    assert finding.example == (
        f"{DIM0}, eager, 2 ranks, {OLD} on torch 2.11.0: gradient of x is zero on every rank: 0 of 8 elements"
    )
    (lacking,) = sentences([at("2.2.2", "unimportable", 5, signature=CUSTOM_OP, detail="the import fails")])
    assert (lacking.case, lacking.example) == ("", "the import fails")


@pytest.mark.parametrize("verdict", [verdict for verdict in Verdict if verdict.failing])
def test_every_way_of_failing_says_what_it_means_for_training(verdict: Verdict) -> None:
    (finding,) = sentences([at("2.11.0", verdict)])
    assert finding.means


def test_a_checkout_that_agrees_in_no_traced_graph_is_said_to() -> None:
    def cells(*verdicts: str, label: str, start: int) -> list[Row]:
        return [
            at("2.11.0", verdict, start + n, label, mode="aot_eager", case=f"exchange/dim0[n={n}]")
            for n, verdict in enumerate(verdicts)
        ]

    bad = cells(*["zero_gradient"] * 3, label=OLD, start=1)
    quiet = cells(*["agree_untraced"] * 3, label=OLDER, start=11)
    assert f"{OLDER} agrees, untraced" in texts([*bad, *quiet])[0]
    some = cells("agree_untraced", "agree", "agree_untraced", label=OLDER, start=11)
    assert f"{OLDER} agrees, untraced in 2 of 3" in texts([*bad, *some])[0]
    one = cells("agree_untraced", "agree", "raised", label=OLDER, start=11)
    assert f"{OLDER} agrees in 2 of 3 cells, untraced in 1 of 2, another fault in 1" in " ".join(texts([*bad, *one]))
    traced = texts([*bad, *good(quiet, OLDER)])[0]
    assert f"{OLDER} agrees" in traced
    assert "untraced" not in traced
    fixed = cells(*["agree_untraced"] * 3, label=NEW, start=21)
    assert f"fixed in {NEW}, untraced" in texts([*bad, *fixed])[0]


def test_an_error_that_two_versions_of_torch_word_otherwise_is_one_fault() -> None:
    rows = [
        at("2.9.1", "raised", 1, signature="ValueError: torch.cat(): expected a list"),
        at("2.8.0", "raised", 2, signature="RuntimeError: torch.cat(): expected a list"),
    ]
    (text,) = texts(rows)
    assert "another fault" not in text
    assert "torch 2.8.0 and 2.9.1" in text


# -- beyond the submission -------------------------------------------------------------------------------------------

FOURTEEN = (
    *("2.2.2", "2.3.1", "2.4.1", "2.5.1", "2.6.0", "2.7.1", "2.8.0"),
    *("2.9.1", "2.10.0", "2.11.0", "2.12.1", "2.13.0", "2.14.1", "2.15.0"),
)
HEAD = "deepspeed==0.18.3: zero gradient in exchange/dim0 (eager; 2 ranks): "
TRACED: dict[str, Any] = {"case": "torch-itself/dim0[implementation=a]", "mode": "aot_eager", "label": "torch"}


def stored(said: str, **changes: Any) -> list[Row]:
    """A row over the catalogue, a letter a version: right, bad, raised, no answer, absent; a dash: not tried."""
    verdicts = {".": "agree", "x": "zero_gradient", "o": "raised", "?": "infra", "a": "unsupported"}
    pairs = [(torch, verdicts[letter]) for torch, letter in zip(FOURTEEN, said, strict=True) if letter != "-"]
    return [at(torch, verdict, number, **changes) for number, (torch, verdict) in enumerate(pairs, 100)]


def beyond(own: list[Row], past: Sequence[Row], imports: Sequence[Import] = ()) -> list[str]:
    return [finding.text for finding in sentences(own, Known(past, imports, FOURTEEN))]


def test_a_run_on_one_version_knows_its_neighbours_from_earlier_runs() -> None:
    own: list[Row] = [at("2.11.0", "zero_gradient", 7, **TRACED)]
    head = "torch: zero gradient in traced torch-itself/dim0 (aot_eager; 2 ranks): "
    assert beyond(own, stored(".........x....", **TRACED)) == [
        f"{head}torch 2.11.0 only; right up to 2.10.0 and from 2.12.1 on"
    ]
    assert beyond(own, []) == [f"{head}on torch 2.11.0"]
    assert beyond(own, stored("x.....xxx-----", **TRACED)) == [
        f"{head}torch 2.2.2 and 2.8.0 to 2.11.0; right on 2.3.1 to 2.7.1; untried on 2.12.1 to 2.15.0"
    ]
    assert beyond(own, stored("o??....-------", **TRACED)) == [
        f"{head}torch 2.11.0; right up to 2.8.0; another fault on 2.2.2; "
        "untried on 2.9.1, 2.10.0 and 2.12.1 to 2.15.0; no answer on 2.3.1 and 2.4.1"
    ]
    assert beyond(own, stored("aa.......x....", **TRACED)) == [
        f"{head}torch 2.11.0 only; right up to 2.10.0 and from 2.12.1 on; absent on 2.2.2 and 2.3.1"
    ]


def test_untried_versions_between_bad_ones_are_named() -> None:
    own: list[Row] = [at("2.11.0", "zero_gradient", 7)]
    assert beyond(own, stored("......x--x....")) == [
        f"{HEAD}torch 2.8.0 and 2.11.0; right up to 2.7.1 and from 2.12.1 on; untried on 2.9.1 and 2.10.0"
    ]
    assert beyond(own, stored("-----x--------")) == [
        f"{HEAD}on torch 2.7.1 and 2.11.0, wherever it was tried; untried on 2.8.0 to 2.10.0"
    ]


def test_several_transitions_over_the_whole_catalogue() -> None:
    own: list[Row] = [at("2.10.0", "zero_gradient", 7)]
    assert beyond(own, stored("x.....xxx.....")) == [
        f"{HEAD}torch 2.2.2 and 2.8.0 to 2.10.0; right on 2.3.1 to 2.7.1 and from 2.11.0 on"
    ]


def test_only_what_the_submission_found_makes_a_sentence_and_a_cell_of_it_is_named() -> None:
    past = stored(".........xx...")
    assert beyond([at("2.9.1", "agree", 1)], past) == []
    own: list[Row] = [at("2.9.1", "agree", 1), at("2.12.1", "zero_gradient", 2)]
    (finding,) = sentences(own, Known(past, (), FOURTEEN))
    assert (finding.cell, finding.cells) == (2, 1)
    assert finding.text.endswith("torch 2.11.0 to 2.12.1; right up to 2.10.0 and from 2.13.0 on")
    # Another fault that only the store knows is named beside this one, and in no sentence of its own.
    assert beyond([at("2.12.1", "zero_gradient")], stored("o........ox...")) == [
        f"{HEAD}torch 2.12.1 only; right up to 2.10.0 and from 2.13.0 on; another fault on 2.2.2 and 2.11.0"
    ]


def test_other_checkouts_of_the_store_do_not_appear() -> None:
    own: list[Row] = [at("2.11.0", "zero_gradient")]
    assert beyond(own, stored("..............", label=NEW)) == [f"{HEAD}on torch 2.11.0"]
    # The same content under the name by which another submission asked for it is the same checkout.
    renamed = [replace(row, label="path:fork") for row in stored("........-x...-")]  # type: ignore[type-var]
    assert beyond(own, renamed) == [f"{HEAD}torch 2.11.0; right up to 2.9.1 and on 2.12.1 to 2.14.1; untried on 2.10.0"]


def test_both_checkouts_of_a_submission_are_known_from_before() -> None:
    own: list[Row] = [at("2.11.0", "zero_gradient", 1), at("2.11.0", "agree", 2, NEW)]
    past = [*stored("........x-----"), *stored("........x-----", label=NEW)]
    assert beyond(own, past) == [
        f"{HEAD}torch 2.10.0 to 2.11.0; "
        "right up to 2.9.1; untried on 2.12.1 to 2.15.0; "
        "fixed in deepspeed==0.19.8 in 1 of 2 cells, the same fault in 1"
    ]


def test_a_checkout_that_was_never_asked_is_not_said_to_give_no_answer() -> None:
    own: list[Row] = [at("2.11.0", "zero_gradient", 1, **TRACED), at("2.11.0", "mismatch", 2), at("2.9.1", "agree", 3)]
    assert beyond(own, []) == [
        "deepspeed==0.18.3: wrong gradient in exchange/dim0 (eager; 2 ranks): torch 2.11.0; right on 2.9.1; "
        "untried on 2.10.0 and 2.12.1 to 2.15.0",
        "torch: zero gradient in traced torch-itself/dim0 (aot_eager; 2 ranks): on torch 2.11.0, wherever it was tried",
    ]


def test_builds_of_one_version_that_differ_are_told() -> None:
    def build(verdict: str, variant: str, torch: str = "2.11.0") -> Row:
        return replace(at(torch, verdict), runtime=f"{torch}-{variant}")

    own = [build("agree", "cpu"), build("zero_gradient", "index"), build("agree", "index", "2.10.0")]
    own += [build("raised", "cpu", "2.10.0"), build("agree", "index", "2.12.1"), build("agree", "cpu", "2.12.1")]
    found = [text for text in texts(own) if "zero" in text]
    assert found == [
        f"{HEAD}torch 2.11.0 only; right from 2.12.1 on; another fault on 2.10.0; right on 2.10.0-index and 2.11.0-cpu"
    ]


def test_which_torch_a_checkout_needs_is_read_from_everything_stored_of_it() -> None:
    schema = "needs another torch: torch.library.infer_schema to take list[int]"
    own: list[Row] = [at("2.2.2", "unimportable", 1, signature=CUSTOM_OP)]
    own += [at("2.5.1", "unimportable", 2, signature=schema)]
    why = {"2.2.2": CUSTOM_OP, "2.3.1": CUSTOM_OP, "2.4.1": schema, "2.5.1": schema}
    imports = [Import(own[0].checkout, torch, f"{torch}-index", "release", why.get(torch, "")) for torch in FOURTEEN]
    imports.append(Import("of another checkout", "2.15.0", "2.15.0-index", "release", CUSTOM_OP))
    assert beyond(own, [], imports) == [
        "deepspeed==0.18.3: not importable (every case): torch 2.2.2 to 2.3.1; needs a newer torch (2.6.0 is the first "
        "in the catalogue that imports it; missing: torch.library.custom_op); "
        "not importable for another reason on 2.4.1 and 2.5.1",
        "deepspeed==0.18.3: not importable (every case): torch 2.4.1 to 2.5.1; needs a newer torch (2.6.0 is the first "
        "in the catalogue that imports it; missing: torch.library.infer_schema to take list[int]); "
        "not importable for another reason on 2.2.2 and 2.3.1",
    ]
    assert beyond(own[:1], []) == [
        "deepspeed==0.18.3: not importable (every case): on torch 2.2.2; "
        "needs another torch (missing: torch.library.custom_op)"
    ]
    # What cannot be imported there is no other fault, and no untried version either.
    zero: list[Row] = [at("2.11.0", "zero_gradient"), at("2.10.0", "agree")]
    assert beyond(zero, [], imports) == [
        f"{HEAD}torch 2.11.0; right on 2.10.0; not importable on 2.2.2 to 2.5.1; untried on 2.12.1 to 2.15.0"
    ]


def test_what_one_checkout_needs_is_not_read_from_the_imports_of_another() -> None:
    own: list[Row] = [at("2.5.1", "unimportable", 1, OLD, signature=CUSTOM_OP)]
    own += [at("2.5.1", "unimportable", 2, NEW, signature=CUSTOM_OP)]
    first, second = (row.checkout for row in own)

    def facts(checkout: str, *torches: str) -> list[Import]:
        return [Import(checkout, torch, f"{torch}-index", "release", "") for torch in torches]

    def told(*imports: Import) -> list[str]:
        return [text.replace(": not importable (every case): torch 2.5.1", "") for text in beyond(own, [], imports)]

    lacks = "missing: torch.library.custom_op)"
    assert told(*facts(first, "2.6.0", "2.7.1"), *facts(second, "2.7.1")) == [
        f"{OLD}; needs a newer torch (2.6.0 is the first in the catalogue that imports it; {lacks}; {NEW} has it too",
        f"{NEW}; needs a newer torch (2.7.1 imports it, 2.6.0 untried; {lacks}; {OLD} has it too",
    ]
    assert told(*facts(first, "2.6.0"), *facts(second, "2.6.0")) == [
        f"{OLD} and {NEW}; needs a newer torch (2.6.0 is the first in the catalogue that imports it; {lacks}"
    ]


# -- between checkouts -----------------------------------------------------------------------------------------------


def test_a_fault_that_a_later_release_lacks_is_fixed_in_it_and_said_once() -> None:
    rows = [*good(zero_in_traced_modes(), NEW), *zero_in_traced_modes()]
    assert texts(rows) == [
        "deepspeed==0.18.3: zero gradient in traced exchange/dim0 (aot_eager, inductor; 2 ranks): "
        "torch 2.11.0 only; right up to 2.9.1; fixed in deepspeed==0.19.8"
    ]


def test_a_fault_that_an_older_release_lacks_is_a_regression_in_the_newer() -> None:
    rows = [*zero_in_traced_modes(NEW), *good(zero_in_traced_modes(), OLDER)]
    assert texts(rows) == [
        "regression in deepspeed==0.19.8: zero gradient in traced exchange/dim0 (aot_eager, inductor; 2 ranks): "
        "torch 2.11.0 only; right up to 2.9.1; deepspeed==0.9.5 agrees"
    ]


def ends(*verdicts: tuple[str, str | None]) -> str:
    """The only sentence about a wrong gradient on torch 2.11.0, without what and where."""
    found = texts([at("2.11.0", verdict, label=label) for label, verdict in verdicts])
    (text,) = [text for text in found if "wrong gradient" in text]
    return text.replace(": wrong gradient in exchange/dim0 (eager; 2 ranks): on torch 2.11.0", "")


def test_several_checkouts() -> None:
    labels = [f"deepspeed==0.{minor}.0" for minor in range(8, 13)]
    bad = [(label, "mismatch") for label in labels[:4]]
    assert ends((OLD, "mismatch"), (NEW, "agree"), (OLDER, "mismatch")) == (
        "deepspeed==0.9.5 and deepspeed==0.18.3; fixed in deepspeed==0.19.8"
    )
    assert ends(*bad, (labels[4], "agree")) == "deepspeed==0.8.0 to deepspeed==0.11.0; fixed in deepspeed==0.12.0"
    assert ends((OLDER, "mismatch"), (OLD, "agree"), (NEW, "mismatch")) == (
        "deepspeed==0.9.5 and deepspeed==0.19.8; deepspeed==0.18.3 agrees; a regression in deepspeed==0.19.8"
    )
    assert ends((OLDER, "raised"), (OLD, "mismatch"), (NEW, None)) == (
        "deepspeed==0.18.3; another fault in deepspeed==0.9.5; no answer from deepspeed==0.19.8"
    )
    assert ends((OLDER, "agree"), (OLD, "mismatch"), (NEW, "agree")) == (
        "regression in deepspeed==0.18.3; deepspeed==0.9.5 agrees; fixed in deepspeed==0.19.8"
    )


def test_a_folder_or_another_subject_is_neither_older_nor_newer() -> None:
    assert ends((OLD, "mismatch"), (ODD, "agree")) == f"{OLD}; {ODD} agrees"
    assert ends((OLD, "agree"), (ODD, "mismatch")) == f"{ODD}; {OLD} agrees"
    assert ends((OLD, "mismatch"), ("other==1.0", "agree")) == f"{OLD}; other==1.0 agrees"


def test_what_holds_for_some_cells_only_is_counted() -> None:
    modes = ("eager", "aot_eager", "inductor")
    rows: list[Row] = [at("2.11.0", "mismatch", label=NEW, mode=mode) for mode in modes]
    rows += [at("2.11.0", "raised" if mode == "eager" else "agree", label=OLD, mode=mode) for mode in modes]
    first, second = texts(rows)
    assert first.startswith("regression in deepspeed==0.19.8: wrong gradient in exchange/dim0 (eager, aot_eager, ")
    assert first.endswith("on torch 2.11.0; deepspeed==0.18.3 agrees in 2 of 3 cells, another fault in 1")
    assert second.endswith("on torch 2.11.0; another fault in deepspeed==0.19.8")


def test_an_import_that_fails_is_said_once_for_all_cases() -> None:
    need: dict[str, Any] = {"signature": CUSTOM_OP}
    rows: list[Row] = []
    for case in (DIM0, HEADS):
        rows += [at("2.2.2", "unimportable", 1, NEW, case=case, **need), at("2.9.1", "agree", 2, NEW, case=case)]
        rows += [at("2.2.2", "mismatch", 3, case=case), at("2.9.1", "mismatch", 4, case=case)]
    (finding,) = [finding for finding in sentences(rows) if "(every case)" in finding.text]
    assert finding.text == (
        "regression in deepspeed==0.19.8: not importable (every case): torch 2.2.2 only; "
        "needs a newer torch (2.9.1 is the first in the catalogue that imports it; missing: torch.library.custom_op); "
        "deepspeed==0.18.3 can be imported"
    )
    assert (finding.why, finding.cells) == (CUSTOM_OP, 2)


def test_a_checkout_that_cannot_be_imported_is_never_called_another_fault() -> None:
    none: dict[str, Any] = {"signature": CUSTOM_OP}
    rows: list[Row] = [at("2.2.2", "unimportable", 1, NEW, **none), at("2.9.1", "mismatch", 2, NEW)]
    rows += [at(torch, "mismatch", 3) for torch in ("2.2.2", "2.9.1")]
    found = texts(rows)
    assert not any("another fault" in text for text in found)
    assert {text.partition("ranks): ")[2] for text in found if "wrong gradient" in text} == {
        "on torch 2.2.2 and 2.9.1; deepspeed==0.19.8: the same fault in 1 of 2 cells, not importable in 1",
        "torch 2.9.1 only; not importable on 2.2.2; deepspeed==0.18.3 has it too",
    }
    assert ends((OLD, "mismatch"), (NEW, "unimportable")) == f"{OLD}; {NEW} is not importable there"
    # What only one of two checkouts is, is not said of both.
    rows = [at("2.2.2", "unimportable", 1, NEW), at("2.2.2", "agree", 2), at("2.9.1", "raised", 3, NEW)]
    found = [text for text in texts([*rows, at("2.9.1", "raised", 4)]) if ": raised in " in text]
    assert sorted("not importable on 2.2.2" in text for text in found) == [False, True]
    two = texts([at("2.2.2", "unimportable", signature="needs a"), at("2.9.1", "unimportable", signature="needs b")])
    assert two[0].endswith("torch 2.2.2 only; not importable for another reason on 2.9.1")


# -- what exactly ----------------------------------------------------------------------------------------------------


def fault(*details: str, verdict: str = "partial_zero", signature: str = "partial_zero: grad/x") -> str:
    modes = ("eager", "aot_eager", "inductor")
    rows: list[Row] = [
        at("2.11.0", verdict, mode=mode, detail=detail, signature=signature)
        for mode, detail in zip(modes, details, strict=False)
    ]
    (text,) = texts(rows)
    return text.removeprefix(f"{OLD}: ").partition(" in exchange/")[0]


def test_the_factor_is_in_the_sentence() -> None:
    assert fault("gradient of x is 2 times the oracle's on every rank", verdict="scaled",
                 signature="scaled by 2: grad/x") == "scaled gradient \u00d72"  # fmt: skip


def test_the_ranks_are_in_the_sentence_where_only_some_are_wrong() -> None:
    one = "gradient of x is partly zero, all of it on rank 1: 0 of 16 elements on rank 1 are non-zero, expected 16"
    last = one.replace("rank 1", "rank 3")
    every = "gradient of x is partly zero, part of it on every rank: 8 of 16 elements on rank 0 are non-zero"
    assert fault(one, one) == "partly zero gradient, all of it on rank 1,"
    assert fault(one, last) == "partly zero gradient, all of it on some ranks,"
    assert fault(every) == fault(one, every) == fault(one, "") == "partly zero gradient"
    for said in ("on rank 0", "on ranks 0, 2 and 3"):
        wrong = f"gradient of x is wrong by 0.5 of its norm (at most 2, first at [0]) {said}; forward exact"
        assert fault(wrong, verdict="mismatch") == f"wrong gradient, {said},"
    # An error's own words about ranks are not ours.
    assert fault("ValueError: no work on rank 1, on every rank", verdict="raised") == "raised"


def test_a_fault_outside_the_contract_is_told_as_one_and_apart_from_those_inside() -> None:
    silent = "outside the contract: every one of 2 ranks answered silently, and a refusal was due"
    assert fault(silent, verdict="mismatch") == "silent answer outside its contract"
    assert fault("outside the contract: KeyError", verdict="raised") == "raised outside its contract"
    error: dict[str, Any] = {"signature": "KeyError"}
    rows: list[Row] = [at("2.11.0", "raised", 1, detail="outside the contract: KeyError: 'a'", **error),
                       at("2.11.0", "raised", 2, mode="inductor", detail="KeyError: 'a'", **error)]  # fmt: skip
    found = sentences(rows)
    assert sorted(("outside its contract" in f.text, f.cell, f.why) for f in found) == [
        (False, 2, "KeyError: 'a'"), (True, 1, "KeyError: 'a'"),
    ]  # fmt: skip


def test_one_real_example_of_the_error_is_told_and_the_key_alone_leaves_its_numbers_out() -> None:
    rows: list[Row] = [
        at("2.11.0", "raised", cell, mode=mode, signature="ValueError: shape [<n>, …] in toy/a.py f",
           detail=f"ValueError: shape [{cell}, 8], at toy/a.py:{cell}0, on every rank")
        for cell, mode in ((3, "eager"), (4, "inductor"))
    ]  # fmt: skip
    (finding,) = sentences(rows)
    assert (finding.cell, finding.cells) == (3, 2)
    assert finding.why == "ValueError: shape [3, 8], at toy/a.py:30, on every rank"


def test_an_import_that_was_never_tried_on_that_torch_is_not_called_good() -> None:
    rows: list[Row] = [at("2.2.2", "unimportable", label=NEW), at("2.9.1", label=NEW), at("2.9.1", label=OLD)]
    assert texts(rows)[0].endswith("torch 2.2.2 only; imports from 2.9.1 on; no answer from deepspeed==0.18.3")


# -- order and truth -------------------------------------------------------------------------------------------------


def test_a_fault_everywhere_is_told_as_such_and_agreement_not_at_all() -> None:
    (finding,) = sentences([at("2.9.1", "mismatch", 5), at("2.11.0", "mismatch", 6)])
    assert finding.axis == "throughout"
    assert finding.text.endswith("on torch 2.9.1 and 2.11.0, wherever it was tried")
    assert sentences([at("2.9.1"), at("2.11.0")]) == []
    assert sentences([]) == []


def test_the_most_important_comes_first() -> None:
    def track(case: str, verdict: str, old: str, new: str, **more: Any) -> list[Row]:
        """``old`` and ``new``: on which of the two torch versions a checkout has the fault."""
        return [
            at(torch, verdict if torch in where.split() else "agree", label=label, case=f"exchange/{case}", **more)
            for label, where in ((OLD, old), (NEW, new))
            for torch in ("2.9.1", "2.11.0")
        ]

    both = "2.9.1 2.11.0"
    rows = [
        *track("everywhere", "raised", both, both),
        *track("lately_fixed", "raised", both, ""),
        *track("lately_broken", "raised", "", both),
        *track("newly_fixed", "raised", "2.11.0", ""),
        *track("newly_broken", "raised", "", "2.11.0"),
        *track("loud", "mismatch", "", "2.11.0", forward_ok=False, mode="inductor"),
        *track("silent_throughout", "zero_gradient", both, both, forward_ok=True),
        *track("silent", "zero_gradient", "", both, forward_ok=True),
    ]
    probes = [match.group(1) for text in texts(rows) if (match := re.search(r"exchange/(\w+)", text))]
    assert probes == [
        "silent", "silent_throughout", "newly_broken", "loud", "newly_fixed", "lately_broken", "lately_fixed",
        "everywhere",
    ]  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from([None, *(verdict.value for verdict in Verdict)]), min_size=2, max_size=6))
def test_every_fault_is_in_some_sentence_and_no_cell_is_wrongly_named(said: list[str | None]) -> None:
    rows: list[Row] = [at(f"2.{minor}.0", verdict, minor) for minor, verdict in enumerate(said)]
    found = sentences(rows)
    failing = {row.cell: row for row in rows if row.verdict is not None and Verdict(row.verdict).failing}
    assert all(finding.cell in failing for finding in found)
    assert {failing[finding.cell].verdict for finding in found} == {row.verdict for row in failing.values()}


LABELS, TORCHES, MODES = (OLDER, OLD, NEW, ODD), ("2.2.2", "2.9.1", "2.11.0"), ("eager", "aot_eager", "inductor")
KNOWN = {"zero gradient": "zero_gradient", "raised": "raised", "wrong gradient": "mismatch"}
ANSWERS = st.sampled_from(["agree", "agree", "agree", "refused", None, "unsupported", "unimportable", *KNOWN.values()])


@settings(max_examples=150, deadline=None)
@given(st.lists(ANSWERS, min_size=36, max_size=36))
def test_no_sentence_says_what_the_rows_do_not_and_every_failing_cell_is_in_one(said: list[str | None]) -> None:
    places = [(label, torch, mode) for label in LABELS for torch in TORCHES for mode in MODES]
    rows = {
        place: at(place[1], verdict, number, place[0], mode=place[2])
        for number, (place, verdict) in enumerate(zip(places, said, strict=True))
    }
    # What a failed import says of itself has tests of its own; here, what it is called beside other faults.
    found = [finding for finding in sentences(list(rows.values())) if "(every case)" not in finding.text]
    assert sum(finding.cells for finding in found) == sum(verdict in KNOWN.values() for verdict in said)
    for finding in found:
        _check(finding, rows)


def _check(finding: Finding, rows: dict[tuple[str, str, str], Cell]) -> None:
    head, what, claims = re.split(r": (?=zero|raised|wrong)|\): ", finding.text)
    fault = KNOWN[what.partition(" in ")[0]]
    modes = [mode for mode in MODES if re.search(rf"\b{mode}\b", what.partition("(")[2])]
    having = head.removeprefix("regression in ").replace(" and ", ", ").split(", ")
    bad = [
        torch
        for torch in TORCHES
        if all(rows[label, torch, mode].verdict == fault for label in having for mode in modes)
    ]
    assert finding.cells == len(having) * len(bad) * len(modes)

    def there(labels: Iterable[str], torches: Iterable[str]) -> list[str | None]:
        torches = list(torches)
        return [rows[label, torch, mode].verdict for label in labels for torch in torches for mode in modes]

    def others(name: str) -> list[str | None]:
        return there([label for label in LABELS if label in name.replace(" and ", ", ").split(", ")], bad)

    def right(torch: str) -> bool:
        here = there(having, [torch])
        return not any(map(_failing, here)) and any(map(_settled, here))

    says: dict[str, Callable[[str], bool]] = {
        r"\bup to ([\d.]+\d)": right,
        r"\bfrom ([\d.]+\d) on": right,
        r"^right .*\bon ([\d.]+\d)": right,
        r"fixed in (\S+)$": lambda name: all(map(_settled, others(name))) and name in (OLD, NEW),
        r"(\S.*) agrees?$": lambda names: all(map(_settled, others(names))),
        r"another fault in (\S+(?:==|:).*)$": lambda names: all(_answers(v) and v != fault for v in others(names)),
        r"(\S.*) (?:is|are) not importable there": lambda names: set(others(names)) == {"unimportable"},
        r"(\S.*) (?:has|have) it too$": lambda names: set(others(names)) == {fault},
        r"no answer from (.*)": lambda names: not any(_failing(v) or _settled(v) for v in others(names)),
        r"no answer on (.*)": lambda torches: (
            not any(_failing(v) or _settled(v) for v in there(having, torches.replace(" and ", ", ").split(", ")))
        ),
        r"absent from (.*)": lambda names: set(others(names)) == {"unsupported"},
        r"absent on (.*)": lambda torches: (
            set(there(having, torches.replace(" and ", ", ").split(", "))) == {"unsupported"}
        ),
        r"absent in some cells on ([\d.]+\d)": lambda torch: (
            "unsupported" in (here := set(there(having, [torch]))) and len(here) > 1
        ),
        r"^torch ([\d.]+\d) only": lambda torch: (
            not any(
                None in _beside(torch, [rows[label, its, mode].verdict for its in TORCHES])
                for label in having
                for mode in modes
            )
        ),
        r"another fault on (.*)": lambda torches: any(
            _answers(v) and v != fault for v in there(having, torches.replace(" and ", ", ").split(", "))
        ),
        r"^not importable on (.*)": lambda torches: all(
            set(there(having, [torch])) == {"unimportable"} for torch in torches.replace(" and ", ", ").split(", ")
        ),
    }
    for claim in claims.split("; "):
        for pattern, holds in says.items():
            for match in re.finditer(pattern, claim):
                assert holds(match.group(1)), (finding.text, claim)
        if counted := re.match(r"(?:fixed in )?(\S+) (?:agrees )?in (\d+) of (\d+) cells", claim):
            here = others(counted.group(1))
            assert (sum(map(_settled, here)), len(here)) == (int(counted.group(2)), int(counted.group(3)))
    if head.startswith("regression in "):
        older = LABELS[: LABELS.index(having[0])]
        assert ODD not in having
        assert any(map(_settled, there(older, bad)))


def _beside(torch: str, said: Sequence[str | None]) -> list[str | None]:
    """What ``said`` has of the versions between this one and the next that is good, on either side."""
    place = TORCHES.index(torch)
    sides = said[:place][::-1], said[place + 1 :]
    return [verdict for side in sides for verdict in takewhile(lambda verdict: not _settled(verdict), side)]


def _failing(verdict: str | None) -> bool:
    return verdict is not None and Verdict(verdict).failing


def _answers(verdict: str | None) -> bool:
    """Whether a case was tried and failed."""
    return _failing(verdict) and verdict != "unimportable"


def _settled(verdict: str | None) -> bool:
    return verdict is not None and Verdict(verdict).settled
