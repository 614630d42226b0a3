"""Writing a turn's frames: logged and published in one round trip, and never a reason for a turn to fail."""

import asyncio
import logging
from typing import Any
from uuid import UUID

import redis.asyncio
from redis.exceptions import ResponseError

from think_celery.core import frame as frames
from think_celery.core.backoff import delay_seconds
from think_celery.core.frame import EncodedFrame, FrameKind
from think_celery.core.routing import log_key, turn_channel
from think_celery.errors import InvalidInput
from think_celery.settings import Settings
from think_celery.stream.connection import read_entries

log = logging.getLogger(__name__)

KEEP_BYTES = 8 * 1024 * 1024
"""Frames kept in memory while Redis is away; beyond it they are dropped and readers are told of a gap."""
LIVE_BYTES = 256 * 1024
"""Largest published batch. A bigger one is announced by an empty payload, which means: read the log."""
RUNNING_SECONDS = 24 * 3600
"""Life of the log without any new frame, renewed while frames come."""
_RENEW_SECONDS = 60.0
_AFTER_END_SECONDS = 30.0
_FULL_FRAMES, _FULL_BYTES = 64, 64 * 1024
_ROOM_FRAMES, _ROOM_BYTES = 512, 1024 * 1024
_RETRY_BASE, _RETRY_LIMIT = 0.1, 1.0


class TurnWriter:
    """The frames of one attempt at one turn; used on the process loop by the turn's own task.

    Frames wait at most `stream_flush_ms` for their neighbours. The first visible one, one that follows a
    pause that long, and settled tool calls are sent at once. While Redis is away, `write` returns at once and
    frames are kept (up to `KEEP_BYTES`) and sent later. A writer whose turn was started anew elsewhere finds
    its ids refused and falls silent.

    Args:
        settings: Prefix, flush interval, log length and retention.
        client: Client of the process loop.
        uid: Internal id of the submission.
        attempt: Number of this start, from 1.
    """

    def __init__(self, settings: Settings, client: redis.asyncio.Redis, uid: UUID, attempt: int) -> None:
        if attempt < 1:
            raise InvalidInput("attempt", f"is {attempt}, starts are counted from 1")
        self._settings = settings
        self._client = client
        self._log_key = log_key(settings.redis_prefix, uid)
        self._channel = turn_channel(settings.redis_prefix, uid)
        self._uid, self._attempt = uid, attempt
        self._seq = 0
        self._pending: list[EncodedFrame] = []
        self._bytes = 0
        self._sending: list[EncodedFrame] = []
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._progress = asyncio.Event()
        self._due = 0.0
        self._urgent = False
        self._content_sent = False
        self._rest_until = 0.0
        self._failures = 0
        self._renew_at = 0.0
        self._closed = False
        self._silent = False
        self._give_up_at: float | None = None
        self._also: tuple[str, bytes] | None = None

    async def write(self, chunk: dict[str, Any]) -> None:
        """Take one chunk; it may be changed afterwards. Never raises for Redis' sake."""
        if self._closed or self._silent:
            return
        self._add(FrameKind.CHUNK, frames.encode(chunk))
        if frames.is_content(chunk):
            rested = asyncio.get_running_loop().time() >= self._rest_until
            self._urgent = self._urgent or rested or not self._content_sent
            self._content_sent = True
        elif frames.is_settled_tool(chunk):
            self._urgent = True
        self._plan()
        await self._let_others_run()

    async def end(
        self,
        status: str,
        error: str | None = None,
        message_id: str | None = None,
        *,
        also: tuple[str, bytes] | None = None,
    ) -> None:
        """Write the turn's outcome as its last frame and let the log expire; a second call does nothing.

        Args:
            also: Channel and payload of something to be published in the same round trip.

        Returns when readers can have it, or after `redis_timeout`; what could not be sent by then is tried
        for another 30 s in the background.
        """
        if self._closed or self._silent:
            return
        self._add(FrameKind.END, frames.encode(frames.end_data(status, error, message_id)))
        self._also = also
        await self._finish()

    async def close(self) -> None:
        """Send what is waiting and leave the turn open, for the next attempt to go on."""
        if not self._closed:
            await self._finish()

    async def flush(self, timeout: float) -> bool:
        """Send what is waiting; True when nothing waits any more, False after the given seconds."""
        if not self._silent:
            self._start()
        try:
            async with asyncio.timeout(timeout):
                while self._task is not None or self._pending:
                    self._progress.clear()
                    await self._progress.wait()
        except TimeoutError:
            return False
        return True

    async def resume(self) -> None:
        """Go on after the frames that a lost writer of the same attempt has logged.

        Raises:
            redis.exceptions.RedisError, OSError: The log cannot be read within `redis_timeout`.
        """
        async with asyncio.timeout(self._settings.redis_timeout):
            tail = await read_entries(self._client, "XREVRANGE", self._log_key, "+", "-", "COUNT", 1)
        for entry_id, fields in tail:
            attempt, _, seq = entry_id.partition(b"-")
            if int(attempt) >= self._attempt:
                self._seq = int(seq)
            ended = FrameKind.END.encode() in fields
            self._silent = ended or int(attempt) > self._attempt

    def abandon(self) -> None:
        """Stop at once; what is waiting is lost to readers."""
        self._closed = self._silent = True
        self._forget()
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()

    @property
    def waiting(self) -> int:
        """Frames that are not known to be in the log."""
        return len(self._pending) + len(self._sending)

    def _add(self, kind: FrameKind, data: bytes) -> None:
        if len(data) > KEEP_BYTES:
            kind, data = FrameKind.GAP, b"{}"
        elif self._bytes + len(data) > KEEP_BYTES and kind is FrameKind.CHUNK:
            self._drop()
            return
        self._seq += 1
        self._bytes += len(data)
        self._pending.append(EncodedFrame(self._seq, kind, data))

    def _drop(self) -> None:
        """Give up what waits and the frame at hand; a gap frame takes the place of the last one."""
        lost = len(self._pending) + 1
        self._seq += 1
        self._pending = [EncodedFrame(self._seq, FrameKind.GAP, b"{}")]
        self._bytes = sum(len(item.data) for item in self._sending) + 2
        log.warning("stream.frames_dropped uid=%s attempt=%d frames=%d", self._uid, self._attempt, lost)

    def _plan(self) -> None:
        if self._task is not None or (self._failures and self._timer is not None):
            return
        now = asyncio.get_running_loop().time()
        if self._timer is None:
            self._wait(self._settings.stream_flush_ms / 1000)
        if self._urgent or self._full or now >= self._due:
            self._start()

    def _wait(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        self._due = loop.time() + seconds
        self._timer = loop.call_later(seconds, self._start)

    def _start(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._task is None and self._pending:
            self._task = asyncio.get_running_loop().create_task(self._flush())

    @property
    def _full(self) -> bool:
        return len(self._pending) >= _FULL_FRAMES or self._bytes >= _FULL_BYTES

    @property
    def _crowded(self) -> bool:
        return self.waiting >= _ROOM_FRAMES or self._bytes >= _ROOM_BYTES

    async def _let_others_run(self) -> None:
        """Give the flush its share of the loop, and hold back a producer that outruns a working Redis."""
        if self._task is None:
            return
        await asyncio.sleep(0)
        while self._crowded and self._task is not None and not self._failures:
            self._progress.clear()
            await self._progress.wait()

    async def _finish(self) -> None:
        loop = asyncio.get_running_loop()
        self._closed = True
        self._give_up_at = loop.time() + _AFTER_END_SECONDS
        if not await self.flush(self._settings.redis_timeout):
            log.warning("stream.end_delayed uid=%s frames=%d", self._uid, self.waiting)

    async def _flush(self) -> None:
        try:
            while self._pending:
                self._sending, self._pending = self._pending[:_ROOM_FRAMES], self._pending[_ROOM_FRAMES:]
                self._urgent = False
                if not await self._send() or not (self._full or self._urgent or self._closed):
                    break
        finally:
            self._task = None
            self._after_flush()
            self._progress.set()

    def _after_flush(self) -> None:
        now = asyncio.get_running_loop().time()
        if self._give_up_at is not None and now >= self._give_up_at:
            self._forget()
        if self._silent or not self._pending:
            return
        if self._failures:
            self._wait(delay_seconds(self._failures, base=_RETRY_BASE, limit=_RETRY_LIMIT))
        else:
            self._wait(0 if self._urgent else self._settings.stream_flush_ms / 1000)

    async def _send(self) -> bool:
        """Append and publish what is in `_sending`; on failure it waits again. True when it is in the log."""
        pipe = self._pipeline(self._sending)
        count = len(self._sending)
        try:
            async with asyncio.timeout(self._settings.redis_timeout):
                replies = (await pipe.execute(raise_on_error=False))[:count]
        except Exception as error:  # noqa: BLE001 - whatever it is, the frames stay and the turn goes on
            self._failed(error)
            return False
        refused = [reply for reply in replies if isinstance(reply, ResponseError)]
        known = [reply for reply in refused if "equal or smaller" in str(reply)]
        if len(known) < len(refused):
            self._failed(next(reply for reply in refused if reply not in known))
            return False
        if known and not self._failures:
            # Nothing was sent twice, so these ids are below those of a later attempt.
            log.warning("stream.superseded uid=%s attempt=%d", self._uid, self._attempt)
            self._silent = True
            self._forget()
            return False
        self._bytes -= sum(len(item.data) for item in self._sending)
        self._sending, self._failures = [], 0
        return True

    def _failed(self, error: Exception) -> None:
        self._failures += 1
        if self._failures == 1:
            log.warning("stream.append_failed uid=%s attempt=%d error=%r", self._uid, self._attempt, error)
        self._pending, self._sending = self._sending + self._pending, []
        self._renew_at = 0.0

    def _forget(self) -> None:
        self._pending, self._sending, self._bytes = [], [], 0

    def _pipeline(self, batch: list[EncodedFrame]) -> "redis.asyncio.client.Pipeline":
        pipe = self._client.pipeline(transaction=False)
        add = pipe.execute_command
        key, attempt, last = self._log_key, self._attempt, batch[-1]
        for seq, kind, data in batch[:-1]:
            add("XADD", key, f"{attempt}-{seq}", kind.value, data)
        limit = self._settings.stream_max_frames
        add("XADD", key, "MAXLEN", "~", limit, f"{attempt}-{last.seq}", last.kind.value, last.data)
        payload = frames.encode_batch(attempt, batch)
        add("PUBLISH", self._channel, payload if len(payload) <= LIVE_BYTES else b"")
        now = asyncio.get_running_loop().time()
        self._rest_until = now + self._settings.stream_flush_ms / 1000
        if last.kind is FrameKind.END:
            add("EXPIRE", key, self._settings.stream_keep_seconds)
            if self._also is not None:
                add("PUBLISH", *self._also)
        elif now >= self._renew_at:
            add("EXPIRE", key, RUNNING_SECONDS)
            self._renew_at = now + _RENEW_SECONDS
        return pipe
