"""Which queues this worker consumes: it hears announcements, and compares itself with the ledger.

Three parties: the listener's thread hears names, the look-up thread reads the wanted set, and the hub's
thread, which alone may touch the consumer, makes it so. A queue that is added waits for the next BRPOP, and
the one in flight may last a second; so it is ended with CLIENT UNBLOCK.
"""

import logging
import threading
import time
from collections.abc import Iterable
from typing import Any

from celery import bootsteps
from celery.worker import state
from kombu.entity import Exchange, Queue
from kombu.serialization import prepare_accept_content

from think_celery.agent import registry
from think_celery.core.address import Address
from think_celery.core.routing import agent_of_queue, queue_name
from think_celery.errors import ThinkError
from think_celery.ledger import lanes
from think_celery.settings import Settings
from think_celery.stream.announce import AnnouncementListener
from think_celery.worker import tasks
from think_celery.worker.beat import MAINTENANCE_QUEUE
from think_celery.worker.process import bindings, current_process

log = logging.getLogger(__name__)

_ADD_AT_ONCE = 200
_UNBLOCK_TRIES = 4
_RETRY_SECONDS = 1.0
_EVENTS_SECONDS = 0.1
_EVENTS_AT_ONCE = 500


class Subscriber:
    """Keeps one worker's consumer at the wanted queues.

    Args:
        settings: Scope, intervals, and where Redis is.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._target: _Target | None = None
        self._announced: dict[str, float] = {}
        self._wanted = self._always()
        self._look = threading.Event()
        self._stopping = threading.Event()
        self._listener: AnnouncementListener | None = None
        self._thread: threading.Thread | None = None

    def attach(self, target: "_Target") -> None:
        """Serve a (new) consumer: what was known before is consumed at once, and everything is read again."""
        self._target = target
        self._apply()
        self._start()
        self._look.set()

    def detach(self) -> None:
        """Leave the consumer alone: it is being stopped, or its connection is gone."""
        target, self._target = self._target, None
        if target is not None and target.connected:
            # kombu waits for the answer to the pop in flight when it closes the channel.
            _quietly(target.end_poll)

    def close(self) -> None:
        """End both threads."""
        self.detach()
        self._stopping.set()
        self._look.set()
        if self._listener is not None:
            self._listener.stop(timeout=1.0)
        if self._thread is not None:
            self._thread.join(1.0)

    def _start(self) -> None:
        if self._settings.queue_scope == "type" or self._thread is not None:
            return
        # Listen first, then read: an announcement between the two must not be missed.
        self._listener = AnnouncementListener(self._settings, self._hear)
        self._listener.start()
        self._thread = threading.Thread(target=self._look_up, name="think-queues", daemon=True)
        self._thread.start()

    def _always(self) -> frozenset[str]:
        queues = {MAINTENANCE_QUEUE}
        if self._settings.queue_scope == "type":
            queues |= {queue_name(Address(known, "any"), "type") for known in registry.known()}
        return frozenset(queues)

    def _hear(self, queue: str | None) -> None:
        """In the listener's thread."""
        if queue is None:
            self._look.set()
            return
        address = agent_of_queue(queue)
        if address is None or address.type_name not in registry:
            return
        with self._lock:
            self._announced[queue] = time.monotonic()
        self._wake()

    def _look_up(self) -> None:
        """The look-up thread: read the wanted set now and then, or when asked to."""
        failed = False
        while not self._stopping.is_set():
            self._look.wait(_RETRY_SECONDS if failed else self._settings.refresh_seconds)
            self._look.clear()
            if self._stopping.is_set():
                return
            asked_at = time.monotonic()
            try:
                found = lanes.wanted(current_process().runtime().database, registry.known())
            except Exception as error:  # the next look tries again
                level = logging.DEBUG if failed else logging.WARNING
                log.log(level, "queues.unknown error=%s", error, exc_info=not isinstance(error, ThinkError))
                failed = True
                continue
            failed = False
            scope = self._settings.queue_scope
            queues = self._always() | {queue_name(address, scope) for address in found}
            with self._lock:
                self._wanted = queues
                # What was heard before the question is in the answer: rows are committed, then announced.
                self._announced = {
                    name: heard for name, heard in self._announced.items() if heard >= asked_at
                }
            self._wake()

    def _wake(self) -> None:
        target = self._target
        if target is not None:
            target.call_soon(self._apply)

    def _apply(self) -> None:
        """On the hub's thread: make the consumer consume what is wanted."""
        target = self._target
        if target is None:
            return
        with self._lock:
            wanted = self._wanted | self._announced.keys()
        try:
            added = target.add(wanted - target.served, at_most=_ADD_AT_ONCE)
            dropped = target.drop(target.served - wanted)
            if added or dropped:
                target.end_poll()
        except Exception as error:  # noqa: BLE001 - a lost connection restarts the consumer, which attaches again
            log.warning("queues.not_changed error=%s: %s", type(error).__name__, error)
            return
        if wanted - target.served:
            target.call_soon(self._apply)  # the rest of a large set, after the hub had a look at its sockets
        if dropped:
            # A message may have got into a queue just before it was dropped: whoever sent it has marked it as
            # wanted first, so a second reading finds it.
            self._look.set()


class _Target:
    """A consumer and its hub; touched on the hub's thread only, except `call_soon`."""

    def __init__(self, worker_consumer: Any, consumer: Any) -> None:
        self._worker_consumer = worker_consumer
        self._consumer = consumer
        self._redis = worker_consumer.connection.transport.driver_type == "redis"
        self.served: set[str] = set()

    @property
    def connected(self) -> bool:
        """False once Celery has given the connection up."""
        return self._worker_consumer.connection is not None

    def call_soon(self, action: Any) -> None:
        """Run an action on the hub's thread; callable from any thread, ends the hub's wait."""
        self._worker_consumer.call_soon(action)

    def add(self, names: Iterable[str], *, at_most: int) -> list[str]:
        """Consume from up to so many of these queues, and return them."""
        added = sorted(names)[:at_most]
        for name in added:
            if not self._consumer.consuming_from(name):
                self._consumer.add_queue(self._queue(name))
        if added:
            self._consumer.consume()
            self.served.update(added)
            log.info("queues.added count=%d first=%s", len(added), added[0])
        return added

    def drop(self, names: Iterable[str]) -> list[str]:
        """Consume no longer from these queues, and return them."""
        dropped = sorted(names)
        for name in dropped:
            self._consumer.cancel_by_queue(name)
            self.served.discard(name)
        if dropped:
            log.info("queues.dropped count=%d first=%s", len(dropped), dropped[0])
        return dropped

    def end_poll(self, tries: int = _UNBLOCK_TRIES) -> None:
        """End the blocking pop in flight, which names the queues of before."""
        if not self._redis:
            return
        channel = self._consumer.channel
        connection, sent_at = channel._in_poll, channel._brpop_sent_at
        hello = getattr(connection, "handshake_metadata", None) or {}
        client_id = hello.get(b"id", hello.get("id"))
        if client_id is None:
            return  # nothing in flight, or a server without HELLO: the pop ends by itself within a second
        with channel.conn_or_acquire() as client:
            ended = client.client_unblock(client_id)
        hub = self._worker_consumer.hub
        if not ended and tries > 1 and hub is not None:
            # Too early: the server has not read the pop yet. Or too late, then another one is in flight by
            # now.
            hub.call_later(0.002, self._end_same_poll, sent_at, tries - 1)

    def _end_same_poll(self, sent_at: float, tries: int) -> None:
        if self._consumer.channel is not None and self._consumer.channel._brpop_sent_at == sent_at:
            self.end_poll(tries)

    def _queue(self, name: str) -> Queue:
        # The nameless exchange keeps no binding, and a Redis list needs no declaration.
        exchange = Exchange("")  # type: ignore[no-untyped-call]
        return Queue(name, exchange, routing_key=name, no_declare=self._redis)  # type: ignore[no-untyped-call]


class SubscriberStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Consumes the agents' queues in every worker that was not bound to fixed queues with `-Q`."""

    label = "think-celery queues"
    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, consumer: Any, **options: Any) -> None:
        super().__init__(consumer, **options)
        app = consumer.app
        self.enabled = app in bindings and app.amqp.queues._consume_from is None
        self._settings = bindings[app].settings if app in bindings else None
        self._subscriber: Subscriber | None = None
        self._own: Any = None

    def start(self, consumer: Any) -> None:
        """Called at the start and after every reconnect."""
        assert self._settings is not None
        accepted = prepare_accept_content(consumer.app.conf.accept_content)  # type: ignore[no-untyped-call]
        if "application/json" not in accepted:
            log.error("queues.json_refused: add 'json' to accept_content, or this worker discards every bell")
        if self._subscriber is None:
            self._subscriber = Subscriber(self._settings)
        if consumer.app.conf.worker_disable_prefetch:
            target = consumer.task_consumer
        else:
            target = self._own = _own_consumer(consumer)
        self._subscriber.attach(_Target(consumer, target))
        if bindings[consumer.app].ready_made and consumer.event_dispatcher is not None and consumer.hub:
            consumer.event_dispatcher.on_send_buffered = _EventBatch(consumer)
            consumer.event_dispatcher.buffer_limit = _EVENTS_AT_ONCE

    def stop(self, consumer: Any) -> None:
        """Called at the end and whenever the connection is lost."""
        if self._subscriber is not None:
            self._subscriber.detach()
        own, self._own = self._own, None
        if own is not None:
            _quietly(own.cancel)
            _quietly(own.channel.close)

    def shutdown(self, consumer: Any) -> None:
        """Called once, when the worker ends."""
        self.stop(consumer)
        if self._subscriber is not None:
            self._subscriber.close()


class _EventBatch:
    """Sends the events of tasks ten times a second at most.

    Celery flushes its buffer in every round of the hub, and a publish takes longer than the rest of a round:
    with short turns, more than a third of a worker's main thread went into telling Flower.
    """

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._due = False

    def __call__(self) -> None:
        """Called with every event, from any thread."""
        if not self._due:
            self._due = True
            hub = self._consumer.hub
            hub.call_soon(hub.call_later, _EVENTS_SECONDS, self._flush)

    def _flush(self) -> None:
        self._due = False
        self._consumer._flush_events()


def _own_consumer(consumer: Any) -> Any:
    """A channel and consumer for the agents' queues alone, which leaves the app's prefetching as it is."""
    channel = consumer.connection.channel()
    own = consumer.app.amqp.Consumer(
        channel, queues=[], accept=["json"], on_decode_error=consumer.on_decode_error
    )
    own.on_message = consumer.create_task_handler()
    slots = getattr(consumer.controller, "max_concurrency", None) or consumer.pool.num_processes
    channel.basic_qos(0, slots, False)
    if consumer.connection.transport.driver_type == "redis":
        # Bells are acknowledged when a slot takes them, so kombu's own count does not see the running ones.
        # Celery replaces the method in the same way for `worker_disable_prefetch`.
        may_consume = channel.qos.can_consume
        channel.qos.can_consume = lambda: _bells_in_hand() < slots and may_consume()
    return own


def _bells_in_hand() -> int:
    while True:
        try:
            return sum(request.name in tasks.NAMES for request in state.reserved_requests)
        except RuntimeError:  # a thread of the pool ended a request meanwhile
            continue


def _quietly(action: Any) -> None:
    try:
        action()
    except Exception as error:  # noqa: BLE001 - the connection is being given up anyway
        log.debug("queues.close_failed error=%s", error)
