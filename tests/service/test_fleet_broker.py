"""Hints over Redis: sent, kept while it is away, and sent afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from service import store
from service.broker import BrokerDownError, CeleryBroker, announce
from tests.support.redis import RedisServer
from tests.support.stored import at, open_world

pytestmark = pytest.mark.services


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    server = RedisServer()
    yield server
    server.stop()


def test_what_could_not_be_sent_stays_in_the_outbox_until_it_can(redis: RedisServer, tmp_path: Path) -> None:
    world, broker = open_world(tmp_path), CeleryBroker(redis.url)

    def ask() -> None:
        with world.db.session() as session:
            store.open_submission(session, requester="x", reason="manual", priority=0, request={}, now=at(0))

    def waiting() -> int:
        with world.db.read() as session:
            return len(store.hints(session))

    ask()
    assert announce(world.db, broker) is True
    assert waiting() == 0
    redis.halt()
    ask()
    for _ in range(2):  # over the connection that was there, and over none
        assert announce(world.db, broker) is False
        assert waiting() == 1
    with pytest.raises(BrokerDownError):
        broker.publish()
    redis.start()
    assert announce(world.db, broker) is False, "not again at once"
    broker._down_until = 0.0
    assert announce(world.db, broker) is True
    assert waiting() == 0
    world.db.dispose()


def test_a_redis_that_hangs_costs_one_post_half_a_second_and_the_next_nothing(
    redis: RedisServer, tmp_path: Path
) -> None:
    world, broker = open_world(tmp_path), CeleryBroker(redis.url)
    broker.publish()
    with redis.frozen():
        with pytest.raises(BrokerDownError, match=r"(?i)time"):
            broker.publish()
        with pytest.raises(BrokerDownError, match="away a moment ago"):
            broker.publish()
    with world.db.session() as session:
        store.open_submission(session, requester="x", reason="manual", priority=0, request={}, now=at(0))
    assert announce(world.db, broker) is False
    broker._down_until = 0.0
    assert announce(world.db, broker) is True
    world.db.dispose()
