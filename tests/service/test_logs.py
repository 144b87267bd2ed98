"""Log lines name whose work they are about, for people and for programs."""

from __future__ import annotations

import json
import logging
import threading
from typing import Any

import pytest

from service.logs import Lines, LogFormat, bound


def line(form: LogFormat, message: str = "it %s", *args: Any, raised: BaseException | None = None) -> str:
    exc_info = None if raised is None else (type(raised), raised, None)
    record = logging.LogRecord("here", logging.WARNING, __file__, 1, message, args or ("is",), exc_info)
    record.created = 0.25
    return Lines(form).format(record)


def test_a_line_for_people_ends_with_the_ids() -> None:
    with bound(submissions=(3, 4), job=7), bound(attempt=9):
        assert line("text") == "1970-01-01 00:00:00 warning it is submissions=3,4 job=7 attempt=9"
    assert line("text") == "1970-01-01 00:00:00 warning it is"


def test_a_line_for_programs_is_an_object() -> None:
    with bound(job=7):
        said = json.loads(line("json", "two\nlines %s", "x"))
    assert said == {
        "time": "1970-01-01T00:00:00.250+00:00",
        "level": "warning",
        "logger": "here",
        "message": "two\nlines x",
        "job": 7,
    }


@pytest.mark.parametrize("form", ["text", "json"])
def test_what_was_raised_is_in_it(form: LogFormat) -> None:
    said = line(form, raised=ValueError("the reason"))
    assert "ValueError: the reason" in (json.loads(said)["exception"] if form == "json" else said)


def test_the_ids_are_those_of_the_thread() -> None:
    seen: list[str] = []
    with bound(job=7):
        other = threading.Thread(target=lambda: seen.append(line("text")))
        other.start()
        other.join()
    assert "job" not in seen[0]
