"""The hint that there is work. The database is the truth: a lost hint costs a few seconds, never a job.

On the straight line this stands between ``service.store`` (after its commit) and ``workers.loop`` (which looks at the
queue on a hint, on a freed device, or when ``BEAT_S`` have passed). A :class:`LocalBroker` serves workers in the same
process, a :class:`CeleryBroker` those of a fleet.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Protocol

from sqlalchemy.exc import SQLAlchemyError

from service import store

if TYPE_CHECKING:
    from celery import Celery

    from service.config import Settings
    from service.db import Database

TASK = "gradmatrix.hint"
QUEUE = "hints"
PATIENCE_S = 0.5
"""How long somebody who has posted waits for Redis: a hint saves seconds, and may not cost any."""
DOWN_S = 5.0
EXPIRES_S = 60
"""A worker that comes late looks by itself."""
log = logging.getLogger(__name__)


class Publisher(Protocol):
    """What a submitter needs of any broker."""

    def publish(self) -> None:
        """Say that there is work. Call it after the commit: a worker that looks before finds nothing."""


class Broker(Publisher, Protocol):
    """What a submitter and a worker need of any broker."""

    def wait(self, timeout: float) -> bool:
        """Wait for a hint, at most ``timeout`` seconds; whether there was one since the last call."""


class LocalBroker:
    """A hint between threads of one process: all that wait hear it, and one that comes late hears it then."""

    def __init__(self) -> None:
        self._said = threading.Condition()
        self._count = 0
        self._mine = threading.local()

    def publish(self) -> None:
        """Say that there is work."""
        with self._said:
            self._count += 1
            self._said.notify_all()

    def wait(self, timeout: float) -> bool:
        """Wait for a hint that this thread has not heard, at most ``timeout`` seconds; whether there was one."""
        heard = getattr(self._mine, "count", 0)
        with self._said:
            hinted = self._said.wait_for(lambda: self._count > heard, timeout)
            # taken before the queue is read: a hint that comes meanwhile is heard by the next call
            self._mine.count = self._count
        return hinted


class CeleryBroker:
    """A hint to every worker of a fleet: a Celery message that all of them get. Raises BrokerDownError."""

    def __init__(self, url: str) -> None:
        self._app = celery_app(url, patience_s=PATIENCE_S)
        self._down_until = 0.0

    def publish(self) -> None:
        """Say that there is work. Where it did not go through it is not tried again for some seconds."""
        if time.monotonic() < self._down_until:
            raise BrokerDownError("it was away a moment ago")
        try:
            self._publish()
        except BrokerDownError:
            self._down_until = time.monotonic() + DOWN_S
            raise

    def _publish(self) -> None:
        from celery.utils import uuid
        from kombu import Exchange
        from kombu.exceptions import OperationalError
        from redis.exceptions import RedisError

        everyone = Exchange(QUEUE, type="fanout")
        message = self._app.amqp.create_task_message(uuid(), TASK, (), {}, expires=EXPIRES_S, ignore_result=True)
        try:
            with self._app.producer_pool.acquire(block=True) as producer:
                # By its exchange: of the queues that hang on it, every worker has one of its own.
                self._app.amqp.send_task_message(
                    producer, TASK, message, exchange=everyone, routing_key=QUEUE, declare=[everyone], retry=False
                )
        except (OperationalError, RedisError, OSError) as error:
            raise BrokerDownError(str(error)) from error


class BrokerDownError(Exception):
    """The broker cannot be reached. Nothing is lost: the hint stays in the outbox, and workers look by themselves."""


def celery_app(url: str, patience_s: float = 5.0) -> Celery:
    """The Celery application of publishers and workers alike: one queue, of which every worker has a copy.

    ``patience_s`` is how long it waits for a word of Redis.
    """
    from celery import Celery
    from kombu.common import Broadcast

    app = Celery("gradmatrix", broker=url, set_as_current=False)
    app.conf.update(
        # a queue of its own for every worker
        task_queues=(Broadcast(QUEUE),),
        task_default_queue=QUEUE,
        task_ignore_result=True,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_transport_options={
            "socket_timeout": patience_s,
            "socket_connect_timeout": min(patience_s, 2.0),
            "max_retries": 1,
        },
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        worker_cancel_long_running_tasks_on_connection_loss=True,
        worker_send_task_events=False,
    )
    return app


def publisher(settings: Settings) -> Publisher:
    """How this process says that there is work."""
    return CeleryBroker(settings.broker_url) if settings.broker_url else LocalBroker()


def announce(database: Database, broker: Publisher) -> bool:
    """Send what the outbox holds; whether all of it is sent. What is not stays for the reconciler, or the next call."""
    try:
        with database.read() as session:
            waiting = store.hints(session)
        if waiting:
            broker.publish()  # in no transaction: a broker that hangs must not make others wait for rows
            with database.session() as session:
                store.drop_hints(session, [number for number, _ in waiting])
    except (BrokerDownError, SQLAlchemyError) as error:
        log.warning("a hint could not be sent; workers look by themselves within seconds: %s", error)
        return False
    return True
