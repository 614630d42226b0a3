"""What one process hears and says on Redis: one pub/sub connection for all readers, one pool for the rest."""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID
from weakref import WeakSet

import redis.asyncio
from redis.exceptions import ConnectionError as RedisConnectionError

from think_celery.core.address import Address
from think_celery.core.backoff import delay_seconds
from think_celery.core.frame import encode
from think_celery.core.routing import agent_channel, log_key, turn_channel
from think_celery.errors import WrongContext
from think_celery.settings import Settings
from think_celery.stream.connection import REDIS_ERRORS, make_async, own_connection
from think_celery.stream.writer import TurnWriter

log = logging.getLogger(__name__)

LOOK = b""
"""The payload that says: something may have been missed, look again."""
_QUEUE_LIMIT = 256
_FORGET_AT_ONCE = 500
_PING_SECONDS = 10.0
_CLOSE_SECONDS = 0.5
_RETRY_BASE, _RETRY_LIMIT = 0.05, 1.0


class Subscription:
    """What one reader hears on one channel.

    The first thing heard is `LOOK`, as soon as the channel is really subscribed; it is heard again after
    every reconnect, and when the reader was so slow that what waited for it was thrown away.
    """

    def __init__(self) -> None:
        self.live = False
        """True while the server is known to deliver this channel to us."""
        self._items: deque[bytes] = deque()
        self._waiter: asyncio.Future[None] | None = None

    async def get(self, timeout: float) -> bytes | None:
        """Return the next payload, None when nothing was heard for the given seconds."""
        if not self._items:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                async with asyncio.timeout(timeout):
                    await self._waiter
            except TimeoutError:
                return None
            finally:
                self._waiter = None
        return self._items.popleft()

    def put(self, payload: bytes) -> None:
        """Hand over a payload; never waits. A full queue is replaced by one `LOOK`."""
        if len(self._items) >= _QUEUE_LIMIT:
            self._items.clear()
            payload = LOOK
        self._items.append(payload)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Streams:
    """The stream side of one process; every coroutine of it runs on the process loop.

    Args:
        settings: Where Redis is, prefix and deadlines.
        loop: The process loop; nothing is connected before the first use.
    """

    def __init__(self, settings: Settings, loop: asyncio.AbstractEventLoop) -> None:
        self.settings = settings
        self.client: redis.asyncio.Redis = make_async(settings)
        self._loop = loop
        self._channels: dict[bytes, set[Subscription]] = {}
        self._subscribed: set[bytes] = set()
        self._connection: Any = None  # redis-py types a pooled connection as its untyped base
        self._listener: asyncio.Task[None] | None = None
        self._writers: WeakSet[TurnWriter] = WeakSet()
        self._mute_until = 0.0
        self.closed = False
        """True once `aclose` was called."""

    def writer(self, uid: UUID, attempt: int) -> TurnWriter:
        """Return the writer of one attempt at a turn."""
        writer = TurnWriter(self.settings, self.client, uid, attempt)
        self._writers.add(writer)
        if self.closed:
            writer.abandon()
        return writer

    @asynccontextmanager
    async def subscribe(self, channel: str) -> AsyncIterator[Subscription]:
        """Hear a channel for the length of the block; returns at once, `LOOK` says when it is subscribed.

        Raises:
            WrongContext: Called off the process loop, or after `aclose`.
        """
        if self.closed or asyncio.get_running_loop() is not self._loop:
            raise WrongContext("streams belong to the event loop of their process, and end with it")
        name = channel.encode()
        subscription = Subscription()
        readers = self._channels.setdefault(name, set())
        readers.add(subscription)
        if name in self._subscribed:
            subscription.live = True
            subscription.put(LOOK)
        self._listen()
        try:
            if len(readers) == 1:
                await self._send("SUBSCRIBE", name)
            yield subscription
        finally:
            readers.discard(subscription)
            if not readers and self._channels.get(name) is readers:
                del self._channels[name]
                self._subscribed.discard(name)
                await self._send("UNSUBSCRIBE", name)

    async def publish_status(self, agent: Address, payload: Mapping[str, Any]) -> None:
        """Tell the agent's channel of a status change; best effort, never raises, pauses after a failure."""
        await self._publish(*self.status_news(agent, payload))

    def status_news(self, agent: Address, payload: Mapping[str, Any]) -> tuple[str, bytes]:
        """Return channel and payload of the same, for who sends it along with something else."""
        return agent_channel(self.settings.redis_prefix, agent), encode(payload)

    async def wake(self, uid: UUID) -> None:
        """Make the readers of a turn look at the log and the ledger now; best effort, as `publish_status`."""
        await self._publish(turn_channel(self.settings.redis_prefix, uid), LOOK)

    async def finish(
        self, uid: UUID, attempt: int, *, status: str, error: str | None = None, message_id: str | None = None
    ) -> None:
        """Write the end frame of an attempt whose own writer is gone; best effort, never raises.

        Without it readers still learn the end from the ledger, a moment later.
        """
        writer = self.writer(uid, attempt)
        try:
            await writer.resume()
        except REDIS_ERRORS as error_text:
            log.warning("stream.finish_failed uid=%s error=%s", uid, error_text)
            return
        await writer.end(status, error, message_id)

    async def forget(self, uids: Iterable[UUID]) -> None:
        """Delete the logs of turns whose agent is deleted; best effort, never raises: they expire anyway."""
        keys = [log_key(self.settings.redis_prefix, uid) for uid in uids]
        try:
            for start in range(0, len(keys), _FORGET_AT_ONCE):
                await self.client.unlink(*keys[start : start + _FORGET_AT_ONCE])
        except REDIS_ERRORS as error:
            log.warning("stream.not_forgotten count=%d error=%s", len(keys), error)

    async def aclose(self) -> None:
        """Close every connection; readers end with `StreamUnavailable`, waiting frames get half a second."""
        self.closed = True
        for reader in [reader for readers in self._channels.values() for reader in readers]:
            reader.put(LOOK)
        writers = list(self._writers)
        await asyncio.gather(*(writer.flush(_CLOSE_SECONDS) for writer in writers))
        for writer in writers:
            writer.abandon()
        if self._listener is not None:
            self._listener.cancel()
            await asyncio.gather(self._listener, return_exceptions=True)
        await self.client.aclose()

    async def _publish(self, channel: str, payload: bytes) -> None:
        if self._loop.time() < self._mute_until:
            return
        try:
            async with asyncio.timeout(self.settings.redis_timeout):
                await self.client.publish(channel, payload)
        except REDIS_ERRORS as error:
            # Calls must not pile up behind a frozen server.
            self._mute_until = self._loop.time() + self.settings.publish_pause
            log.warning("stream.publish_failed channel=%s error=%s", channel, error)

    def _listen(self) -> None:
        if self._listener is None or self._listener.done():
            self._listener = self._loop.create_task(self._run())

    async def _send(self, *command: Any) -> None:
        """Send on the open connection; without one, or when it breaks, the next connect subscribes to all."""
        connection = self._connection
        if connection is None:
            return
        try:
            async with asyncio.timeout(self.settings.redis_timeout):
                await connection.send_command(*command)
        except REDIS_ERRORS:
            log.debug("stream.subscribe_failed", exc_info=True)

    async def _run(self) -> None:
        failures = 0
        while True:
            connection = own_connection(self.client)
            try:
                async with asyncio.timeout(self.settings.redis_timeout):
                    await connection.connect()
                failures = 0
                await self._session(connection)
            except REDIS_ERRORS as error:
                failures += 1
                if failures == 1:
                    log.warning("stream.disconnected error=%s", error)
            except Exception:
                # Whatever it was, the readers of this process need their connection back.
                failures += 1
                log.exception("stream.listener_failed")
            finally:
                self._connection = None
                self._mark_dead()
                await connection.disconnect(nowait=True)
            await asyncio.sleep(delay_seconds(max(failures, 1), base=_RETRY_BASE, limit=_RETRY_LIMIT))

    async def _session(self, connection: Any) -> None:
        # Set before the snapshot is sent: a channel added meanwhile sends its own SUBSCRIBE.
        self._connection = connection
        if names := list(self._channels):
            await connection.send_command("SUBSCRIBE", *names)
        asked = False
        while True:
            reply = await connection.read_response(timeout=_PING_SECONDS)
            if reply is not None:
                asked = False
                self._hear(reply)
            elif asked:
                raise RedisConnectionError("nothing was heard, not even the reply to a PING")
            else:
                asked = True
                await connection.send_command("PING")

    def _hear(self, reply: Any) -> None:
        if not isinstance(reply, list) or len(reply) != 3:
            return
        kind, channel, data = reply
        readers = self._channels.get(channel, ())
        if kind == b"message":
            for reader in readers:
                reader.put(data)
        elif kind == b"subscribe" and readers:
            self._subscribed.add(channel)
            for reader in readers:
                reader.live = True
                reader.put(LOOK)

    def _mark_dead(self) -> None:
        self._subscribed.clear()
        for readers in self._channels.values():
            for reader in readers:
                reader.live = False
