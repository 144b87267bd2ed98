"""What a container says is stored in order and in company, and what goes wrong is told to who said it."""

from __future__ import annotations

import threading

import pytest

from workers import writer
from workers.writer import AT_MOST, Writer


class Shelf:
    """Stores, when it may, and remembers in which pieces."""

    def __init__(self) -> None:
        self.pieces: list[list[int]] = []
        self.failures: list[Exception] = []
        self.started, self.may = threading.Event(), threading.Event()
        self.may.set()

    def store(self, items: list[int]) -> None:
        self.started.set()
        assert self.may.wait(30)
        if 13 in items:
            raise LookupError("13 has no place")
        self.pieces.append(items)

    def writer(self) -> Writer[int]:
        return Writer(self.store, self.failures.append)


@pytest.fixture
def shelf(monkeypatch: pytest.MonkeyPatch) -> Shelf:
    monkeypatch.setattr(writer, "LINGER_S", 0.0)
    return Shelf()


def test_what_comes_meanwhile_goes_in_one_piece_and_in_order(shelf: Shelf) -> None:
    shelf.may.clear()
    with shelf.writer() as made:
        made.put(1)
        assert shelf.started.wait(30)
        for item in (2, 3, 4):
            made.put(item)
        shelf.may.set()
        made.flush()
        assert shelf.pieces == [[1], [2, 3, 4]]


def test_the_first_one_waits_for_company_but_not_when_somebody_waits_for_it(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "LINGER_S", 3600.0)
    with shelf.writer() as made:
        made.put(1)
        made.put(2)
        made.flush()
        assert shelf.pieces == [[1, 2]]
        many = list(range(100, 100 + AT_MOST))
        for item in (*many, 1000):  # for the last one there is room only when the others have gone
            made.put(item)
        made.flush()
        assert shelf.pieces == [[1, 2], many, [1000]]


def test_at_the_end_all_is_stored(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "LINGER_S", 3600.0)
    with shelf.writer() as made:
        made.put(1)
    assert shelf.pieces == [[1]]
    with shelf.writer():
        pass
    assert shelf.pieces == [[1]], "nothing is stored as nothing"


def test_a_failure_is_told_once_and_what_comes_after_it_is_stored(shelf: Shelf) -> None:
    with shelf.writer() as made:
        made.put(13)
        with pytest.raises(LookupError, match="13 has no place"):
            made.flush()
        made.put(14)
        made.flush()
    assert shelf.pieces == [[14]]
    assert [str(failure) for failure in shelf.failures] == ["13 has no place"]


def test_who_brings_more_is_told_of_a_failure_too(shelf: Shelf) -> None:
    shelf.may.clear()
    with shelf.writer() as made:
        made.put(13)
        assert shelf.started.wait(30)
        shelf.may.set()
        with pytest.raises(LookupError):
            for item in range(10**6):
                made.put(item)


def test_nobody_goes_on_before_what_is_being_stored_is_stored(shelf: Shelf) -> None:
    shelf.may.clear()
    seen: list[int] = []
    with shelf.writer() as made:
        made.put(1)
        assert shelf.started.wait(30)

        def flush() -> None:
            made.flush()
            seen.append(len(shelf.pieces))

        flushing = threading.Thread(target=flush)
        flushing.start()
        flushing.join(0.2)  # one that does not wait is through by now
        shelf.may.set()
        flushing.join(30)
    assert seen == [1]
