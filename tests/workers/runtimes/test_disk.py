"""Room on the disk that builds in progress have been promised."""

from __future__ import annotations

from workers.runtimes.disk import Promised


def test_what_is_promised_is_not_free_until_it_is_written_or_released() -> None:
    promised = Promised()
    assert promised.take("a", 60, lambda: 100) is None
    assert promised.take("b", 50, lambda: 100) == 60, "they fit alone, not together"
    promised.written("a", left=10)
    assert promised.take("b", 50, lambda: 50) == 10, "50 are on the disk now, 10 are still to come"
    assert promised.take("b", 40, lambda: 50) is None
    assert promised.take("c", 1, lambda: 50) == 50
    promised.release("a")
    promised.release("b")
    promised.written("b", left=10)
    assert promised.take("c", 51, lambda: 50) == 0, "nobody is left to wait for"
