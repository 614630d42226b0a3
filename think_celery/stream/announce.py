"""Telling workers which queue has work: publish from any thread, listen in a thread of its own."""

import logging
import threading
from collections.abc import Callable
from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError

from think_celery.core.backoff import delay_seconds
from think_celery.core.routing import announce_channel
from think_celery.errors import StreamUnavailable
from think_celery.settings import Settings
from think_celery.stream.connection import REDIS_ERRORS, make_sync, own_connection

log = logging.getLogger(__name__)

_PING_SECONDS = 10.0
_RETRY_BASE, _RETRY_LIMIT = 0.1, 2.0


class Announcer:
    """Announces queues to the workers; threads may share it.

    Args:
        settings: Where Redis is, and `publish_timeout`, which bounds every call.
    """

    def __init__(self, settings: Settings) -> None:
        self._channel = announce_channel(settings.redis_prefix)
        self._client = make_sync(settings, timeout=settings.publish_timeout)

    def announce(self, queue: str) -> int:
        """Tell the workers to consume a queue.

        Returns:
            How many workers heard it; 0 means that none listens, and the wanted set in the ledger has to do.

        Raises:
            StreamUnavailable: Not told within `publish_timeout`.
        """
        try:
            return int(self._client.publish(self._channel, queue))
        except REDIS_ERRORS as error:
            raise StreamUnavailable(f"Redis did not take the announcement of {queue}: {error}") from error

    def close(self) -> None:
        """Close the connections; a later call opens them again."""
        self._client.close()


class AnnouncementListener:
    """Hears announcements in a thread of its own, for as long as the process lives.

    Args:
        settings: Where Redis is.
        on_queue: Called in that thread with each queue, and with None after every (re)connect: announcements
            may have been missed, so read the wanted set again. What it raises is logged and harms nobody.
    """

    def __init__(self, settings: Settings, on_queue: Callable[[str | None], None]) -> None:
        self._channel = announce_channel(settings.redis_prefix)
        self._reply_seconds = settings.redis_timeout
        self._client = make_sync(settings)
        self._on_queue = on_queue
        self._stopping = threading.Event()
        self._connection: Any = None
        self._thread = threading.Thread(target=self.run, name="think-announcements", daemon=True)

    def start(self) -> None:
        """Begin to listen; returns at once."""
        self._thread.start()

    def stop(self, timeout: float = 5.0) -> None:
        """End the thread, in mid-wait as well; callable from any thread, more than once."""
        self._stopping.set()
        connection = self._connection
        if connection is not None:
            connection.disconnect()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def run(self) -> None:
        """Listen in the calling thread until `stop`; connects again for ever."""
        failures = 0
        while not self._stopping.is_set():
            connection = self._connection = own_connection(self._client)
            try:
                connection.connect()
                connection.send_command("SUBSCRIBE", self._channel)
                self._hear(connection.read_response())
                failures = 0
                self._listen(connection)
            except (*REDIS_ERRORS, ValueError) as error:
                # A socket that `stop` closed under a read fails as ValueError in some places.
                if not self._stopping.is_set():
                    failures += 1
                    log.warning("announcements.disconnected error=%s", error)
            finally:
                connection.disconnect()
            if failures:
                self._stopping.wait(delay_seconds(failures, base=_RETRY_BASE, limit=_RETRY_LIMIT))

    def _listen(self, connection: Any) -> None:
        while not self._stopping.is_set():
            if not connection.can_read(timeout=_PING_SECONDS):
                connection.send_command("PING", check_health=False)
                if not connection.can_read(timeout=self._reply_seconds):
                    raise RedisConnectionError("nothing was heard, not even the reply to a PING")
            self._hear(connection.read_response())

    def _hear(self, reply: Any) -> None:
        match reply:
            case [b"subscribe", _, _]:
                self._call(None)
            case [b"message", _, bytes(queue)]:
                self._call(queue.decode(errors="replace"))

    def _call(self, queue: str | None) -> None:
        try:
            self._on_queue(queue)
        except Exception:
            log.exception("announcements.callback_failed queue=%s", queue)
