from __future__ import annotations

import threading

from service.broker import LocalBroker


def test_a_hint_given_before_the_wait_is_kept_and_used_up() -> None:
    broker = LocalBroker()
    broker.publish()
    broker.publish()
    assert broker.wait(0) is True
    assert broker.wait(0) is False


def test_a_hint_wakes_who_waits() -> None:
    broker, woken = LocalBroker(), []
    waiting = threading.Thread(target=lambda: woken.append(broker.wait(60)))
    waiting.start()
    broker.publish()
    waiting.join(60)
    assert woken == [True]


def test_every_thread_that_waits_hears_it() -> None:
    broker, woken = LocalBroker(), []
    both = [threading.Thread(target=lambda: woken.append(broker.wait(60))) for _ in range(2)]
    for thread in both:
        thread.start()
    broker.publish()
    for thread in both:
        thread.join(60)
    assert woken == [True, True]
    assert broker.wait(0) is True, "and so does one that comes late"
