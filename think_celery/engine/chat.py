"""One chat turn as its caller hears it: from the turn itself when it runs here, else from its stream."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Literal
from uuid import UUID, uuid4

from think_celery.core.frame import StreamEvent
from think_celery.core.recovery import is_interruption
from think_celery.core.turn import TurnResult, TurnView
from think_celery.core.wire import json_text
from think_celery.engine import asking, near, reading
from think_celery.engine.asking import Ask
from think_celery.engine.calls import Call, Item
from think_celery.engine.patience import Wait
from think_celery.engine.runtime import Runtime, in_ledger_pool
from think_celery.errors import TurnSetupError
from think_celery.ledger import submissions
from think_celery.ledger.rows import Row
from think_celery.stream.reader import read_turn

_UNHEARD = {"error", "abort"}


@dataclass(frozen=True, slots=True)
class Heard:
    """What happens next in a call: one method of its callback, or its result.

    Who receives it deals with it before asking for the next, and throws into the generator what that raised.
    """

    kind: Literal["start", "event", "done", "error", "interrupted", "result"]
    text: str = ""
    """The request id, the chunk as JSON, or the failure's text."""
    result: TurnResult | None = None


async def converse(runtime: Runtime, ask: Ask) -> AsyncGenerator[Heard]:
    """Run one turn and yield what its caller is to hear (T 1.2 to 1.4).

    Raises:
        NestedTurnError: The asked agent turned out to wait for the calling turn.
        LedgerUnavailable: PostgreSQL did not answer in time; nothing was accepted.
    """
    uid = uuid4()
    yield Heard("start", str(uid))
    if (stopped := asking.stopped(ask, uid)) is not None:
        yield Heard("result", result=stopped)
        return
    source = _near if near.is_possible(runtime, ask.address) else _far
    async with aclosing(source(runtime, ask, uid)) as heard:
        # Not `async for`: what the caller's method raised has to get through to where it matters.
        step = anext(heard, None)
        while (each := await step) is not None:
            try:
                yield each
            except Exception as error:  # noqa: BLE001 it is handed on
                step = heard.athrow(error)
            else:
                step = anext(heard, None)


async def _near(runtime: Runtime, ask: Ask, uid: UUID) -> AsyncGenerator[Heard]:
    call = await asking.call(runtime, ask, uid)
    end = _end(ask)
    try:
        async with asking.stoppable(runtime, ask, uid):
            while (item := await _take(call, end)) is not None:
                try:
                    yield Heard(item.kind, item.text)  # type: ignore[arg-type]
                except Exception as error:  # noqa: BLE001 it is handed on
                    item.answer(error)
                else:
                    item.answer()
        if call.failure is not None and not isinstance(call.failure, TurnSetupError):
            raise call.failure
        row = call.row if call.over.is_set() else await _look(runtime, uid)
        now = None if row is None else row.submission
        yield Heard("result", result=await asking.result(runtime, ask, uid, now, message=call.message))
    finally:
        call.relay.close()
        if not call.over.is_set() and not _is_past(end):
            # The caller was stopped, and what it asked for with it.
            stop = near.stop(runtime, ask.address, uid, reason="the call was cancelled")
            runtime.loop.send_off(stop)


async def _take(call: Call, end: float | None) -> Item | None:
    """Return the next item, None at the end and when the time is up."""
    left = None if end is None else end - time.monotonic()
    try:
        async with asyncio.timeout(left):
            return await call.relay.take()
    except TimeoutError:
        return None


async def _far(runtime: Runtime, ask: Ask, uid: UUID) -> AsyncGenerator[Heard]:
    row = await asking.place(runtime, ask, uid, runs_here=False)
    end, wait = _end(ask), Wait(runtime, ask.here, ask.address)

    async def look() -> TurnView | None:
        await wait.check()
        return await in_ledger_pool(runtime, partial(reading.view, runtime, row))

    try:
        async with (
            asking.stoppable(runtime, ask, uid),
            aclosing(read_turn(runtime.streams, uid=uid, after=None, look=look)) as events,
        ):
            while (event := await _next(events, end)) is not None:
                if event.kind == "reset":
                    yield Heard("interrupted")
                    interrupted = await asking.result(runtime, ask, uid, row.submission)
                    yield Heard("result", result=interrupted.model_copy(update={"status": "interrupted"}))
                    return
                if event.kind == "chunk" and event.chunk is not None and event.chunk["type"] not in _UNHEARD:
                    try:
                        yield Heard("event", json_text(event.chunk))
                    except Exception:
                        await near.stop(
                            runtime, ask.address, uid, reason="the caller failed to take an event"
                        )
                        raise
        now = await _look(runtime, uid)
        last = await asking.result(runtime, ask, uid, None if now is None else now.submission)
        if is_interruption(last.error):
            last = last.model_copy(update={"status": "interrupted"})
        if (closing := _closing(last)) is not None:
            yield closing
        yield Heard("result", result=last)
    finally:
        await wait.close()


def _closing(last: TurnResult) -> Heard | None:
    match last.status:
        case "completed":
            return Heard("done")
        case "error":
            return Heard("error", last.error or "")
        case "interrupted":
            return Heard("interrupted")
    return None


async def _next(events: AsyncGenerator[StreamEvent], end: float | None) -> StreamEvent | None:
    left = None if end is None else end - time.monotonic()
    try:
        async with asyncio.timeout(left):
            event = await anext(events, None)
    except TimeoutError:
        return None
    return None if event is None or event.kind == "end" else event


async def _look(runtime: Runtime, uid: UUID) -> Row | None:
    return await in_ledger_pool(runtime, partial(submissions.find_by_uid, runtime.database, uid))


def _end(ask: Ask) -> float | None:
    return None if ask.timeout is None else time.monotonic() + ask.timeout


def _is_past(end: float | None) -> bool:
    return end is not None and time.monotonic() >= end
