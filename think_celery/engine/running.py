"""The turns that this process runs now, and the ways to stop one from outside.

A turn is one asyncio task. Three signals lead to its end, and any one is enough: the abort channel, the flag
(looked at when a turn starts and after a lost connection), and the ledger, compared at every heartbeat.
"""

import asyncio
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from think_celery.abort import AbortController
from think_celery.core.routing import abort_channel
from think_celery.core.submission import Status
from think_celery.stream import abort
from think_celery.stream.hub import LOOK, Streams

log = logging.getLogger(__name__)
_PATIENCE_SECONDS = 60.0


@dataclass(slots=True)
class _Turn:
    attempt: int
    task: "asyncio.Task[Any]"
    stop: AbortController
    stopped: bool = False
    unknown: int = 0
    """Heartbeats at which the ledger did not give us this turn."""


class Running:
    """One process' running turns; touched on the process loop, except where said."""

    def __init__(self) -> None:
        self._turns: dict[UUID, _Turn] = {}
        self._listener: asyncio.Task[None] | None = None
        self._looks: set[asyncio.Task[None]] = set()

    def __bool__(self) -> bool:
        """True while a turn runs; callable from any thread."""
        return bool(self._turns)

    @contextmanager
    def during(
        self,
        streams: Streams,
        uid: UUID,
        attempt: int,
        task: "asyncio.Task[Any]",
        *,
        stop: AbortController,
        news: tuple[str, bytes],
    ) -> Iterator[None]:
        """Make a task stoppable for the length of the block.

        Args:
            stop: Tells what the turn has started.
            news: Channel and payload that tell others of the start.
        """
        mine = self._turns[uid] = _Turn(attempt, task, stop)
        if self._listener is None or self._listener.done():
            self._listener = asyncio.create_task(self._listen(streams), name="think-aborts")
        look = asyncio.create_task(self._look(streams, uid, attempt, news))
        self._looks.add(look)
        look.add_done_callback(self._looks.discard)
        try:
            yield
        finally:
            # The look goes on: cancelled in its middle it would cost the connection that it asks through.
            if self._turns.get(uid) is mine:  # else a later attempt runs here, too
                del self._turns[uid]

    def was_stopped(self, uid: UUID) -> bool:
        """True when a running turn was asked to stop."""
        turn = self._turns.get(uid)
        return turn is not None and turn.stopped

    def stop(self, uid: UUID, attempt: int | None = None) -> bool:
        """Cancel a turn's task if this process runs it (and this attempt of it)."""
        turn = self._turns.get(uid)
        if turn is None or turn.stopped or attempt not in {None, turn.attempt}:
            return False
        turn.stopped = True
        turn.stop.abort("the turn was stopped")
        turn.task.cancel()
        log.info("turn.stopped uid=%s attempt=%d", uid, turn.attempt)
        return True

    def compare(self, held: Mapping[UUID, Status | None]) -> None:
        """Stop what the ledger no longer runs here: ended rows, and lanes that are another's for two beats.

        Args:
            held: The rows of the lanes that the ledger gives this process, with their status.
        """
        for uid, turn in list(self._turns.items()):
            if uid in held:
                turn.unknown = 0
                if held[uid] is not Status.RUNNING:
                    self.stop(uid)
                continue
            turn.unknown += 1  # the first time it may have been claimed after the ledger was read
            if turn.unknown >= 2:
                self.stop(uid)

    async def _look(
        self, streams: Streams, uid: UUID, attempt: int, news: tuple[str, bytes] | None = None
    ) -> None:
        if await abort.is_asked(streams, uid, attempt, also=news):
            self.stop(uid, attempt)

    async def _listen(self, streams: Streams) -> None:
        async with streams.subscribe(abort_channel(streams.settings.redis_prefix)) as heard:
            while True:
                payload = await heard.get(_PATIENCE_SECONDS)
                if payload == LOOK:  # something may have been missed
                    for uid, turn in list(self._turns.items()):
                        await self._look(streams, uid, turn.attempt)
                elif payload is not None and (asked := abort.read(payload)) is not None:
                    self.stop(*asked)
