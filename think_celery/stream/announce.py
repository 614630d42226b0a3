"""Telling workers which queue has work: publish from any thread, listen in a thread of its own."""

import asyncio
import logging
import threading
from collections.abc import Callable
from contextlib import suppress

from think_celery.core.routing import announce_channel
from think_celery.errors import StreamUnavailable
from think_celery.settings import Settings
from think_celery.stream.connection import REDIS_ERRORS, make_sync
from think_celery.stream.hub import LOOK, Streams

log = logging.getLogger(__name__)

_LONG_SECONDS = 3600.0


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
        self._settings = settings
        self._on_queue = on_queue
        self._lock = threading.Lock()
        self._stopping = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self.run, name="think-announcements", daemon=True)

    def start(self) -> None:
        """Begin to listen; returns at once."""
        self._thread.start()

    def stop(self, timeout: float = 5.0) -> None:
        """End the thread, in mid-wait as well; callable from any thread, more than once."""
        with self._lock:
            self._stopping = True
            if self._loop is not None and self._task is not None:
                # The loop may have ended by itself.
                with suppress(RuntimeError):
                    self._loop.call_soon_threadsafe(self._task.cancel)
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def run(self) -> None:
        """Listen in the calling thread until `stop`; connects again for ever."""
        # A loop of its own: the callback blocks, and the main process of a prefork pool has no other loop.
        with suppress(asyncio.CancelledError):
            asyncio.run(self._listen())

    async def _listen(self) -> None:
        with self._lock:
            if self._stopping:
                return
            self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        streams = Streams(self._settings, asyncio.get_running_loop())
        try:
            async with streams.subscribe(announce_channel(self._settings.redis_prefix)) as heard:
                while True:
                    payload = await heard.get(_LONG_SECONDS)
                    if payload is not None:
                        self._call(None if payload == LOOK else payload.decode(errors="replace"))
        finally:
            await streams.aclose()

    def _call(self, queue: str | None) -> None:
        try:
            self._on_queue(queue)
        except Exception:
            log.exception("announcements.callback_failed queue=%s", queue)
