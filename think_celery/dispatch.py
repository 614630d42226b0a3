"""Ringing the bell: announce an agent's queue and publish its nudge, within a deadline and never in the way.

The app comes in from outside, so this module knows no Celery. The publishing connections are its own, because
a team's app may have no socket timeouts at all (celery#4627: its publish then hangs for ever).
"""

import logging
import os
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from queue import Empty, LifoQueue
from typing import Any, Protocol
from uuid import UUID

from kombu.entity import Exchange, Queue
from kombu.messaging import Producer

from think_celery.core.address import Address
from think_celery.core.routing import queue_name
from think_celery.settings import Settings

log = logging.getLogger(__name__)

RUN_TURN = "think.run_turn"
_CONNECTIONS = 10
_REDIS_SCHEMES = ("redis", "rediss", "unix", "valkey", "valkeys", "sentinel")


class TaskSender(Protocol):
    """The two methods of a Celery app that the dispatcher calls."""

    def send_task(self, name: str, args: Sequence[Any], **options: Any) -> Any:
        """Publish a task message by name."""

    def connection_for_write(self, **options: Any) -> Any:
        """Return a new, not yet opened connection to the broker."""


class Announces(Protocol):
    """Tells the workers which queue to consume."""

    def announce(self, queue: str) -> object:
        """Publish the queue's name within `publish_timeout`, or raise."""


class Dispatcher:
    """Rings the bells of one process.

    Args:
        sender: The Celery app that carries the messages.
        settings: `publish_timeout` bounds one nudge; a failure silences the next ones for `publish_pause`.
        announcer: The way to the workers' queue subscribers.
    """

    def __init__(self, sender: TaskSender, settings: Settings, announcer: Announces) -> None:
        self._sender = sender
        self._settings = settings
        self._announcer = announcer
        self._broker = _Breaker(settings.publish_pause)
        self._listeners = _Breaker(settings.publish_pause)
        redis = settings.broker_url.get_secret_value().partition("://")[0] in _REDIS_SCHEMES
        # A Redis list exists by being pushed to; on AMQP an undeclared queue would swallow the message.
        self._declare: list[Queue] | None = [] if redis else None
        self._transport = _transport_options(settings.publish_timeout / 2, redis=redis)
        self._pid = 0
        self._slots: LifoQueue[Producer | None] = LifoQueue()

    def nudge(self, agent: Address, uid: UUID | None, *, task_id: str, announce: bool) -> bool:
        """Tell some worker that an agent has work; losing or repeating this is harmless.

        Args:
            agent: Whose lane to look at.
            uid: The row that rings; None for a nudge that only names the lane.
            task_id: Celery's id of the message; never one that was used before.
            announce: Tell the workers first to consume the agent's queue.

        Returns:
            True when everything was sent; False when something failed, or failed lately: the sweeper rings
            again. Never raises, and takes at most about 1.5 times `publish_timeout`.
        """
        end = time.monotonic() + self._settings.publish_timeout
        slots = self._own_slots()
        try:
            producer = slots.get(timeout=self._settings.publish_timeout)
        except Empty:
            return False
        try:
            queue = queue_name(agent, self._settings.queue_scope)
            heard = not announce or self._announce(queue)
            if time.monotonic() >= end:
                self._broker.trip()
            if not self._broker.passes():
                return False
            producer = producer or self._new_producer()
            args = (agent.type_name, agent.name, None if uid is None else str(uid))
            if self._send(producer, queue, args, task_id):
                return heard
            _discard(producer)
            producer = None
            return False
        finally:
            slots.put(producer)

    def close(self) -> None:
        """Close the publishing connections; a later nudge opens them again."""
        slots, self._pid = self._slots, 0
        with suppress(Empty):
            while True:
                _discard(slots.get_nowait())

    def _announce(self, queue: str) -> bool:
        if not self._listeners.passes():
            return False
        try:
            self._announcer.announce(queue)
        except Exception as error:  # noqa: BLE001 - the row is accepted, a lost bell must not fail the call
            self._listeners.trip(error)
            return False
        self._listeners.mend()
        return True

    def _send(self, producer: Producer, queue: str, args: Sequence[Any], task_id: str) -> bool:
        try:
            self._sender.send_task(
                RUN_TURN,
                args,
                task_id=task_id,
                producer=producer,
                queue=_queue(queue),
                router=_AS_GIVEN,
                declare=self._declare,
                serializer="json",
                priority=0,  # a list per priority would let a later bell pass an earlier one
                ignore_result=True,
                retry=False,  # each repetition costs another socket timeout
                add_to_parent=False,
                argsrepr=str(tuple(args)),
                kwargsrepr="{}",
            )
        except Exception as error:  # noqa: BLE001 - as above
            self._broker.trip(error)
            return False
        self._broker.mend()
        return True

    def _new_producer(self) -> Producer:
        timeout = self._settings.publish_timeout / 2
        return Producer(  # type: ignore[no-untyped-call]
            self._sender.connection_for_write(transport_options=self._transport, connect_timeout=timeout),
            auto_declare=False,
        )

    def _own_slots(self) -> "LifoQueue[Producer | None]":
        if self._pid != os.getpid():
            slots: LifoQueue[Producer | None] = LifoQueue()
            for _ in range(_CONNECTIONS):
                slots.put(None)
            self._slots, self._pid = slots, os.getpid()
        return self._slots


class _Breaker:
    """Skips a service for a while after a failure; then one caller at a time tries it again."""

    def __init__(self, pause: float) -> None:
        self._pause = pause
        self._until: float | None = None
        self._lock = threading.Lock()

    def passes(self) -> bool:
        if self._until is None:
            return True
        with self._lock:
            now = time.monotonic()
            if self._until is not None and now < self._until:
                return False
            self._until = now + self._pause  # this caller probes; the others go on skipping meanwhile
            return True

    def trip(self, error: Exception | None = None) -> None:
        with self._lock:
            now = time.monotonic()
            news = self._until is None or now >= self._until
            self._until = now + self._pause
        if error is not None:
            level = logging.WARNING if news else logging.DEBUG
            log.log(level, "nudge.failed error=%s: %s pause=%gs", type(error).__name__, error, self._pause)

    def mend(self) -> None:
        if self._until is not None:
            self._until = None
            log.info("nudge.recovered")


class _AsGiven:
    """A Celery router that lets our queue stand: an app's `task_routes` may match every name."""

    def route(self, options: dict[str, Any], *_: Any, **__: Any) -> dict[str, Any]:
        return options


_AS_GIVEN = _AsGiven()


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
