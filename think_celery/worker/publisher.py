"""Carries bells into a Celery app's broker, each within a deadline.

The publishing connections are its own, because a team's app may have no socket timeouts at all (celery#4627:
its publish then hangs for ever).
"""

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache, lru_cache
from queue import Empty, LifoQueue
from typing import Any

from celery import Celery
from kombu.entity import Exchange, Queue
from kombu.messaging import Producer

from think_celery.settings import Settings

log = logging.getLogger(__name__)

_CONNECTIONS = 10
_REDIS_SCHEMES = ("redis", "rediss", "unix", "valkey", "valkeys", "sentinel")


class CeleryPublisher:
    """Publishes task messages and revokes for one process; see `think_celery.dispatch.Publisher`.

    Args:
        app: The app whose broker and message format are used.
        settings: Half of `publish_timeout` bounds each step on the network.
    """

    def __init__(self, app: Celery, settings: Settings) -> None:
        self.app = app
        self._timeout = settings.publish_timeout / 2
        redis = settings.broker_url.get_secret_value().partition("://")[0] in _REDIS_SCHEMES
        # A Redis list exists by being pushed to; on AMQP an undeclared queue would swallow the message.
        self._declare: list[Queue] | None = [] if redis else None
        self._transport = _transport_options(self._timeout, redis=redis)
        self._pid = 0
        self._slots: LifoQueue[Producer | None] = LifoQueue()

    def publish(self, name: str, args: Sequence[Any], *, task_id: str, queue: str) -> None:
        """Publish one task message; raises whatever the broker's client raises."""
        amqp = self.app.amqp
        # What `send_task` does, without its way through routers, options of the task and the calling task.
        message = amqp.create_task_message(
            task_id,
            name,
            args,
            ignore_result=True,
            argsrepr=str(tuple(args)),
            kwargsrepr="{}",
            create_sent_event=self.app.conf.task_send_sent_event,
        )
        with self._producer() as producer:
            amqp.send_task_message(
                producer,
                name,
                message,
                queue=_queue(queue),
                declare=self._declare,
                serializer="json",
                priority=0,  # a list per priority would let a later bell pass an earlier one
                retry=False,  # each repetition costs another socket timeout
            )

    def revoke(self, task_ids: Sequence[str]) -> None:
        """Tell every worker to skip these messages; raises as `publish` does.

        This is `app.control.revoke`, which repeats for ever while the broker is away.
        """
        mailbox = self.app.control.mailbox
        message = {"method": "revoke", "arguments": {"task_id": list(task_ids)}}
        with self._producer() as producer:
            producer.publish(  # type: ignore[no-untyped-call]
                {**message, "destination": None, "pattern": None, "matcher": None},
                exchange=mailbox.exchange.name,
                declare=[mailbox.exchange],
                headers={"clock": self.app.clock.forward(), "expires": 0},
                serializer="json",
                retry=False,
            )

    def close(self) -> None:
        """Close the publishing connections; a later call opens them again."""
        slots, self._pid = self._slots, 0
        with suppress(Empty):
            while True:
                _discard(slots.get_nowait())

    @contextmanager
    def _producer(self) -> Iterator[Producer]:
        slots = self._own_slots()
        try:
            producer = slots.get(timeout=2 * self._timeout)
        except Empty:
            raise TimeoutError("every publishing connection is waiting for the broker") from None
        try:
            producer = producer or self._new_producer()
            yield producer
        except BaseException:
            _discard(producer)
            producer = None
            raise
        finally:
            slots.put(producer)

    def _new_producer(self) -> Producer:
        connection = self.app.connection_for_write(
            transport_options=self._transport, connect_timeout=self._timeout
        )
        producer = Producer(connection, auto_declare=False)  # type: ignore[no-untyped-call]
        if self._declare is not None:
            # kombu makes a Redis client per message, which takes a third of a publish.
            producer.channel.Client = cache(producer.channel.Client)
        return producer

    def _own_slots(self) -> "LifoQueue[Producer | None]":
        if self._pid != os.getpid():  # a forked child must not use its parent's connections
            slots: LifoQueue[Producer | None] = LifoQueue()
            for _ in range(_CONNECTIONS):
                slots.put(None)
            self._slots, self._pid = slots, os.getpid()
        return self._slots


@lru_cache(maxsize=4096)
def _queue(name: str) -> Queue:
    # The nameless exchange routes by queue name and keeps no binding; Redis would hold one per agent.
    return Queue(name, Exchange(""), routing_key=name)  # type: ignore[no-untyped-call]


def _transport_options(timeout: float, *, redis: bool) -> dict[str, Any]:
    once = {"max_retries": 0, "interval_start": 0, "interval_step": 0, "interval_max": 0}
    if not redis:
        return {**once, "read_timeout": timeout, "write_timeout": timeout}
    return {**once, "socket_timeout": timeout, "socket_connect_timeout": timeout, "retry_on_timeout": False}


def _discard(producer: Producer | None) -> None:
    if producer is None or producer.connection is None:
        return
    try:
        producer.connection.release()
    except Exception as error:  # it is broken: that is why it goes
        log.debug("nudge.release_failed error=%s", error, exc_info=True)
