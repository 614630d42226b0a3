"""One chat turn as its caller hears it: from the turn itself when it runs here, else from its stream."""

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal
from uuid import UUID, uuid4

from think_celery.abort import AbortSignal
from think_celery.core.address import Address
from think_celery.core.frame import StreamEvent
from think_celery.core.recovery import is_interruption
from think_celery.core.submission import TERMINAL
from think_celery.core.turn import Chunk, TurnResult, TurnView
from think_celery.core.wire import chunks_of_message, json_text
from think_celery.engine import asking, ending, near, reading
from think_celery.engine.asking import Ask
from think_celery.engine.calls import Call, Item
from think_celery.engine.patience import Wait
from think_celery.engine.runtime import Runtime, in_ledger_pool
from think_celery.ledger import submissions
from think_celery.ledger.rows import Row
from think_celery.stream.reader import Look, read_turn

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


def cancel(runtime: Runtime, address: Address, request_id: str, reason: object) -> None:
    """Abort a turn; one that this process has announced and not placed yet is not placed any more."""
    if request_id == "":
        return  # what a continuation of nothing was named
    if ending.cancel(runtime, address, request_id, reason).outcome == "not_found":
        runtime.calls.abort(address, request_id, reason)


def cancel_all(runtime: Runtime, address: Address, reason: object) -> None:
    """Abort every turn of an agent; see `cancel`."""
    ending.cancel_all(runtime, address, metadata=None, reason=reason)
    runtime.calls.abort(address, None, reason)


async def converse(runtime: Runtime, ask: Ask) -> AsyncGenerator[Heard]:
    """Run one turn and yield what its caller is to hear (T 1.2 to 1.4).

    Raises:
        NestedTurnError: The asked agent turned out to wait for the calling turn.
        LedgerUnavailable: PostgreSQL did not answer in time.
    """
    uid = uuid4()
    with runtime.calls.open(ask.address, str(uid)) as stop:
        yield Heard("start", str(uid))
        ask = replace(ask, signal=AbortSignal.any(ask.signal, stop.signal))
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
    end, is_told = _end(ask), False
    try:
        async with asking.stoppable(runtime, ask, uid):
            while (item := await _take(call, end)) is not None:
                is_told = item.kind != "event"
                try:
                    yield Heard(item.kind, item.text)
                except Exception as error:  # noqa: BLE001 it is handed on
                    item.answer(error)
                else:
                    item.answer()
        if call.raises is not None:
            raise call.raises
        row = call.row if call.over.is_set() else await _look(runtime, uid)
        now = None if row is None else row.submission
        for heard in _ends(await asking.result(runtime, ask, uid, now, message=call.message), is_told):
            yield heard
    finally:
        call.relay.close()


async def _take(call: Call, end: float | None) -> Item | None:
    """Return the next item, None at the end and when the time is up."""
    try:
        async with asyncio.timeout(_left(end)):
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
        async with asking.stoppable(runtime, ask, uid), aclosing(_chunks(runtime, uid, look, end)) as chunks:
            async for chunk in chunks:
                try:
                    yield Heard("event", json_text(chunk))
                except Exception:
                    await near.stop(runtime, ask.address, uid, reason="the caller failed to take an event")
                    raise
        now = await _look(runtime, uid)
        last = await asking.result(runtime, ask, uid, None if now is None else now.submission)
        if last.status in {"pending", "running"} and not _is_past(end):
            last = last.model_copy(update={"status": "interrupted"})
        for heard in _ends(last):
            yield heard
    finally:
        await wait.close()


async def _chunks(runtime: Runtime, uid: UUID, look: Look, end: float | None) -> AsyncGenerator[Chunk]:
    """Yield what a turn's stream says, until it ends, the time is up, or another attempt takes over.

    A message that got a hole on its way is said once more, whole, from its `start` on.
    """
    has_hole = False
    async with aclosing(read_turn(runtime.streams, uid=uid, after=None, look=look)) as events:
        while (event := await _next(events, end)) is not None:
            if event.chunk is not None and event.chunk["type"] not in _UNHEARD:
                yield event.chunk
            elif event.kind == "gap":
                has_hole = True
            elif event.kind == "reset":
                has_hole, view = False, await look()
                if view is not None and view.status not in TERMINAL:
                    return
            elif event.kind == "end" and has_hole and event.message is not None:
                for chunk in chunks_of_message(event.message):
                    yield chunk


async def _next(events: AsyncGenerator[StreamEvent], end: float | None) -> StreamEvent | None:
    try:
        async with asyncio.timeout(_left(end)):
            return await anext(events, None)
    except TimeoutError:
        return None


def _ends(last: TurnResult, is_told: bool = False) -> Iterator[Heard]:
    """Yield the closing method, unless it was called already, and the result."""
    if is_interruption(last.error):
        last = last.model_copy(update={"status": "interrupted"})
    if not is_told:
        match last.status:
            case "completed":
                yield Heard("done")
            case "error":
                yield Heard("error", last.error or "")
            case "interrupted":
                yield Heard("interrupted")
    yield Heard("result", result=last)


async def _look(runtime: Runtime, uid: UUID) -> Row | None:
    return await in_ledger_pool(runtime, partial(submissions.find_by_uid, runtime.database, uid))


def _end(ask: Ask) -> float | None:
    return None if ask.timeout is None else time.monotonic() + ask.timeout


def _left(end: float | None) -> float | None:
    return None if end is None else end - time.monotonic()


def _is_past(end: float | None) -> bool:
    return end is not None and time.monotonic() >= end
