from __future__ import annotations

from xml.etree import ElementTree

import pytest

from service.reports.junit import junit
from service.store.views import CellRow
from tests.workers.cli.rows import known_fault, row


def parsed(*rows: CellRow) -> ElementTree.Element:
    return ElementTree.fromstring(junit(rows).encode())  # noqa: S314 - our own output


def test_a_suite_per_job_with_its_counts_and_the_totals() -> None:
    root = parsed(*known_fault())
    suites = {suite.get("name"): suite for suite in root}
    assert len(suites) == 2 * 3 * 2
    fault = suites["deepspeed==0.18.3 torch 2.11.0-index gloo 4 ranks"]
    assert (fault.get("tests"), fault.get("failures"), fault.get("errors"), fault.get("skipped")) == (
        "2",
        "1",
        "0",
        "0",
    )
    assert (root.get("tests"), root.get("failures"), root.get("errors")) == ("24", "2", "4")


@pytest.mark.parametrize(
    ("changes", "tag"),
    [
        ({}, None),
        ({"verdict": "agree_untraced"}, None),
        ({"verdict": "zero_gradient"}, "failure"),
        ({"verdict": "wrong_shape"}, "failure"),
        ({"verdict": "leak"}, "failure"),
        ({"verdict": "raised"}, "error"),
        ({"verdict": "hang"}, "error"),
        ({"verdict": "invalid"}, "error"),
        ({"verdict": "infra"}, "error"),
        ({"verdict": None, "state": "queued"}, "error"),
        ({"verdict": "unsupported"}, "skipped"),
        ({"verdict": "refused"}, "skipped"),
        ({"verdict": "insensitive"}, "skipped"),
    ],
)
def test_what_a_verdict_is_in_a_test_report(changes: dict[str, object], tag: str | None) -> None:
    (case,) = parsed(row(**changes)).iter("testcase")
    assert [child.tag for child in case] == ([tag] if tag else [])


def test_a_failure_says_what_failed_and_that_the_forward_agreed() -> None:
    (failure,) = parsed(*[r for r in known_fault() if r.verdict == "zero_gradient"][:1]).iter("failure")
    assert failure.get("type") == "zero_gradient"
    assert (failure.get("message") or "").startswith("zero 0/64 (the forward agreed): ")


def test_control_characters_and_markup_survive_as_text() -> None:
    detail = "a\x00b\x1b[31m <![CDATA[ ]]> & \ufffe \udc80"
    (case,) = parsed(row(verdict="raised", detail=detail, signature="KeyError: '\x0b'", case="x/y[<&\x01>]")).iter(
        "testcase"
    )
    assert case.get("name") == r"x/y[<&\x01>] eager"
    assert (case[0].text or "").splitlines()[:2] == [
        r"a\x00b\x1b[31m <![CDATA[ ]]> & \ufffe \udc80",
        r"KeyError: '\x0b'",
    ]


def test_a_report_of_nothing_is_an_error_with_its_reason() -> None:
    root = ElementTree.fromstring(junit([], "failed: no release 99.0").encode())  # noqa: S314 - our own output
    assert (root.get("tests"), root.get("errors")) == ("1", "1")
    (error,) = root.iter("error")
    assert error.get("message") == "failed: no release 99.0"
