"""Following a turn: subscribe, replay, tail; and when Redis has nothing to say, ask the ledger."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from uuid import UUID

from think_celery.core.backoff import delay_seconds
from think_celery.core.frame import (
    Frame,
    FrameKind,
    Playhead,
    StreamEvent,
    TurnView,
    decode_batch,
    decode_entry,
    end_event,
)
from think_celery.core.routing import log_key, turn_channel
from think_celery.core.submission import TERMINAL, Status
from think_celery.core.wire import chunks_of_message
from think_celery.errors import LedgerUnavailable, ServiceError, StreamUnavailable
from think_celery.stream.connection import REDIS_ERRORS, Entries, read_entries
from think_celery.stream.hub import Streams, Subscription

log = logging.getLogger(__name__)

Look = Callable[[], Awaitable[TurnView | None]]

_SILENT_SECONDS = 2.0
_DEAF_SECONDS = 0.5
_GRACE_SECONDS = 1.0
_GRACE_LOOK_SECONDS = 0.2
_LEDGER_PATIENCE_SECONDS = 30.0
_PAGE = 500


def read_turn(
    streams: Streams, *, uid: UUID, after: str | None, look: Look
) -> AsyncGenerator[StreamEvent, None]:
    """Follow a turn from its first frame, or from a cursor, to its end.

    The reader may come before the turn starts or after it ended, may be slow, and may outlive any number of
    Redis restarts. Every frame is told once and in order; what cannot be told is announced by a `gap`, and
    then the `end` carries the stored message.

    Args:
        streams: The stream side of this process; the iterator runs on its loop.
        uid: Internal id of the submission.
        after: Cursor (`id`) of the last event that the caller has had; None for everything.
        look: Reads the turn from the ledger, with the stored message once the status is terminal; None when
            the submission does not exist (any more).

    Returns:
        An iterator whose last event is of kind `end`. Close it (`aclose`) when leaving early.

    Raises:
        InvalidInput: `after` is no cursor; raised by the call itself.
        ServiceError: Raised while iterating, when neither Redis nor the ledger answered for 30 s.

    Source: T 3.6.
    """
    return _Reader(streams, uid, Playhead(after), look).events()


class _Reader:
    def __init__(self, streams: Streams, uid: UUID, head: Playhead, look: Look) -> None:
        self._streams = streams
        self._client = streams.client
        self._uid = uid
        self._key = log_key(streams.settings.redis_prefix, uid)
        self._head = head
        self._look = look
        self._behind = False
        """True while the log is known to hold frames that were not read yet."""
        self._held: list[Frame] = []
        """Live frames beyond a hole, taken once the log has been read."""
        self._blind = False
        """True when the log could not be read."""
        self._status: str | None = None
        self._deaf_rounds = 0
        self._grace_until: float | None = None
        self._ledger_dead_since: float | None = None

    async def events(self) -> AsyncGenerator[StreamEvent, None]:
        channel = turn_channel(self._streams.settings.redis_prefix, self._uid)
        async with self._streams.subscribe(channel) as heard:
            while True:
                for event in await self._next(heard):
                    if event.kind == "end":
                        yield await self._complete(event)
                        return
                    yield event

    async def _next(self, heard: Subscription) -> list[StreamEvent]:
        if self._streams.closed:
            raise StreamUnavailable(
                "this process is closing its streams; follow the turn again from the last cursor"
            )
        if self._behind:
            return await self._catch_up()
        payload = await heard.get(self._patience(heard))
        if payload:
            self._deaf_rounds = 0
            return self._live(payload)
        events = await self._catch_up()
        if events or self._behind:
            return events
        return await self._ask_ledger()

    def _patience(self, heard: Subscription) -> float:
        if self._grace_until is not None:
            return _GRACE_LOOK_SECONDS
        if heard.live and not self._blind:
            return _SILENT_SECONDS
        self._deaf_rounds += 1
        return delay_seconds(self._deaf_rounds, base=_DEAF_SECONDS, limit=_SILENT_SECONDS)

    def _live(self, payload: bytes) -> list[StreamEvent]:
        try:
            frames = decode_batch(payload)
        except ValueError as error:
            log.warning("stream.bad_payload uid=%s error=%s", self._uid, error)
            self._behind = True
            return []
        events: list[StreamEvent] = []
        for index, frame in enumerate(frames):
            if self._head.knows(frame):
                continue
            if not self._head.follows(frame):
                self._behind, self._held = True, frames[index:]
                break
            events += self._take([frame])
        return events

    def _take(self, frames: Iterable[Frame]) -> list[StreamEvent]:
        events: list[StreamEvent] = []
        for frame in frames:
            taken = self._head.take(frame)
            if taken and self._status == Status.PENDING and frame.kind is not FrameKind.END:
                self._status = Status.RUNNING
                events.append(StreamEvent(kind="status", status=self._status))
            events += taken
        return events

    async def _catch_up(self) -> list[StreamEvent]:
        """Take one page of the log, and after the last page what was held back."""
        held, self._behind = self._held, False
        page = await self._read_log(str(self._head.at))
        if page is None:
            # What was held is in the log as well, or becomes a gap.
            self._held = []
            return []
        frames, full = page
        events = self._take(frames)
        if full:
            self._behind = True
            return events
        self._held = []
        return events + self._take(held)

    async def _read_log(self, after: str) -> tuple[list[Frame], bool] | None:
        """Return the next frames and whether there may be more, None when Redis does not answer."""
        entries = await self._ask_redis("XRANGE", self._key, f"({after}", "+", "COUNT", _PAGE)
        if entries is None:
            return None
        frames = _frames(entries)
        return frames, bool(frames) and len(entries) == _PAGE

    async def _ask_redis(self, *command: str | int) -> Entries | None:
        settings = self._streams.settings
        seconds = min(_DEAF_SECONDS, settings.redis_timeout) if self._blind else settings.redis_timeout
        try:
            async with asyncio.timeout(seconds):
                entries = await read_entries(self._client, *command)
        except (*REDIS_ERRORS, TimeoutError) as error:
            if not self._blind:
                log.warning("stream.log_unreadable uid=%s error=%s", self._uid, error)
            self._blind = True
            return None
        self._blind = False
        return entries

    async def _ask_ledger(self) -> list[StreamEvent]:
        try:
            async with asyncio.timeout(self._streams.settings.database_timeout):
                view = await self._look()
        except (ServiceError, TimeoutError) as error:
            return self._without_ledger(error)
        self._ledger_dead_since = None
        if view is None:
            return [StreamEvent(kind="gap"), StreamEvent(kind="end")]
        if view.status in TERMINAL:
            return await self._after_end(view)
        self._grace_until = None
        if view.status == self._status:
            return []
        self._status = view.status
        return [StreamEvent(kind="status", status=view.status)]

    def _without_ledger(self, error: Exception) -> list[StreamEvent]:
        now = asyncio.get_running_loop().time()
        if self._ledger_dead_since is None:
            self._ledger_dead_since = now
            log.warning("stream.ledger_unreadable uid=%s error=%s", self._uid, error)
        retryable = not isinstance(error, ServiceError) or error.retryable
        if retryable and now - self._ledger_dead_since < _LEDGER_PATIENCE_SECONDS:
            return []
        if isinstance(error, ServiceError):
            raise error
        raise LedgerUnavailable("the ledger did not answer in time, and the stream is silent") from error

    async def _after_end(self, view: TurnView) -> list[StreamEvent]:
        """The ledger says that the turn is over, and no end frame has come."""
        entries = await self._ask_redis("XREVRANGE", self._key, "+", "-", "COUNT", 1)
        tail = _frames(entries or [])
        if not tail:
            return self._from_ledger(view)
        last = tail[0]
        if not self._head.knows(last):
            self._behind = True
            return []
        if last.kind is FrameKind.END:
            return [end_event(last, self._head.cursor)]
        return [] if self._in_grace() else self._from_ledger(view)

    def _in_grace(self) -> bool:
        """True for a moment after the first sight of the end: its frame may be on the way."""
        now = asyncio.get_running_loop().time()
        if self._grace_until is None:
            self._grace_until = now + _GRACE_SECONDS
        return now < self._grace_until

    def _from_ledger(self, view: TurnView) -> list[StreamEvent]:
        events: list[StreamEvent] = []
        if self._head.begun and (view.message is not None or view.attempt > self._head.at.attempt):
            events.append(StreamEvent(kind="reset"))
        if view.message is not None:
            chunks = chunks_of_message(view.message)
            events += [StreamEvent(kind="chunk", chunk=chunk) for chunk in chunks]
        events.append(
            StreamEvent(
                kind="end",
                status=view.status,
                error=view.error,
                message_id=view.message_id,
                message=view.message,
            )
        )
        return events

    async def _complete(self, event: StreamEvent) -> StreamEvent:
        """Give the stored message to a reader that was told of a gap."""
        if not self._head.gapped or event.status is None or event.message is not None:
            return event
        try:
            async with asyncio.timeout(self._streams.settings.database_timeout):
                view = await self._look()
        except (ServiceError, TimeoutError) as error:
            log.warning("stream.message_unreadable uid=%s error=%s", self._uid, error)
            return event
        return event.model_copy(update={"message": view.message if view else None})


def _frames(entries: Entries) -> list[Frame]:
    frames = (decode_entry(entry_id, fields) for entry_id, fields in entries)
    return [frame for frame in frames if frame is not None]
