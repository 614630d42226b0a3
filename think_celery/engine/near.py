"""Run a turn here, for somebody here who waits for it: in a worker process no slot is awaited.

A thread of its own works off the agent's lane, whatever is ahead in it included. Who waits and who works are
apart: the wait is over when its row is, whatever else the thread is in the middle of.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from contextvars import Context
from functools import partial
from typing import Any
from uuid import UUID

from think_celery.agent import registry
from think_celery.core.address import Address
from think_celery.core.failure import describe
from think_celery.core.routing import agent_channel
from think_celery.engine import drain, ending
from think_celery.engine.blocking import in_thread
from think_celery.engine.calls import Call
from think_celery.engine.patience import Wait
from think_celery.engine.runtime import PRODUCER, Runtime, in_ledger_pool
from think_celery.errors import LedgerUnavailable, ServiceError
from think_celery.ledger import submissions
from think_celery.ledger.rows import Row

log = logging.getLogger(__name__)
_SOON_SECONDS, _LOOK_SECONDS = 0.2, 1.0
"""Signals come at once; after so long, and then less often, it is looked whether one was lost."""


def is_possible(runtime: Runtime, address: Address) -> bool:
    """True when this process runs turns, and has the agent's class."""
    return runtime.pool != PRODUCER and address.type_name in registry


def run(runtime: Runtime, call: Call) -> "asyncio.Task[None]":
    """Start working towards a call's end; its row is in the lane."""
    return _apart(_see_through(runtime, call), name=f"call-{call.uid}")


@asynccontextmanager
async def attending(runtime: Runtime, address: Address, uid: UUID) -> AsyncIterator[None]:
    """Work off an agent's lane as long as somebody here waits for one of its rows."""
    if not is_possible(runtime, address):
        yield
        return
    task = _apart(_attend(runtime, address, uid), name=f"attend-{uid}")
    try:
        yield
    finally:
        task.cancel()


def _apart(work: Coroutine[Any, Any, None], *, name: str) -> "asyncio.Task[None]":
    # In an empty context: the turns ahead in the lane are not part of the caller's turn.
    return asyncio.get_running_loop().create_task(work, name=name, context=Context())


async def _see_through(runtime: Runtime, call: Call) -> None:
    wait = Wait(runtime, call.caller, call.address)
    work = asyncio.create_task(_attend(runtime, call.address, call.uid, call.stirred))
    row: Row | None = None
    try:
        row = await _end_of(runtime, call, wait, work)
    except Exception as error:  # noqa: BLE001 the caller will see it
        call.failure = call.failure or error
        runtime.loop.send_off(stop(runtime, call.address, call.uid, reason=describe(error)))
    finally:
        work.cancel()
        runtime.calls.drop(call)
        call.finish(row)
        await wait.close()


async def _end_of(runtime: Runtime, call: Call, wait: Wait, work: "asyncio.Task[None]") -> Row | None:
    """Return a call's row once it has ended; None when it was deleted.

    Who runs it here says so, and sees to the hook. Whatever else may end it shows in the ledger.
    """
    while True:
        with suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_SECONDS):
                await call.stirred.wait()
        call.stirred.clear()
        if call.over.is_set():
            return call.row
        if work.done():
            await work  # raises what went wrong
        await wait.check()
        if not call.runs_here:
            with suppress(LedgerUnavailable):
                row = await in_ledger_pool(
                    runtime, partial(submissions.find_by_uid, runtime.database, call.uid)
                )
                if row is None or row.submission.is_terminal:
                    return row


async def _attend(
    runtime: Runtime, address: Address, uid: UUID, stirred: asyncio.Event | None = None
) -> None:
    """Work off a lane, now and whenever something is heard of it, until this is cancelled."""
    errand = drain.Errand(uid)
    try:
        await _work_off(runtime, address, errand)
        pause = _SOON_SECONDS
        async with runtime.streams.subscribe(agent_channel(runtime.settings.redis_prefix, address)) as heard:
            while True:
                news = await heard.get(pause)
                pause = _SOON_SECONDS if news else min(2 * pause, _LOOK_SECONDS)
                if stirred is not None:
                    stirred.set()
                await _work_off(runtime, address, errand)
    finally:
        errand.is_spent = True


async def _work_off(runtime: Runtime, address: Address, errand: drain.Errand) -> None:
    errand.is_spent = False  # a row that a lost process had begun may be back in its place
    try:
        await in_thread(drain.run_errand, runtime, address, errand)
    except ServiceError as error:
        log.warning("lane.not_attended agent=%s error=%s", address, error)
    if errand.is_spent:
        await asyncio.sleep(_SOON_SECONDS)  # long enough for who waits to hear of the end


async def stop(runtime: Runtime, address: Address, uid: UUID, *, reason: str | None) -> None:
    """Cancel a turn that somebody here waits for: in the ledger, and at once where it runs here.

    A ledger that does not answer is asked again later, by somebody else than the caller.
    """
    try:
        cancel = partial(ending.cancel, runtime, address, str(uid), reason)
        await in_ledger_pool(runtime, cancel)
    except ServiceError as error:
        log.warning("turn.not_cancelled uid=%s error=%s", uid, error)
        if error.retryable and not runtime.closing.is_set():
            runtime.loop.send_off(_stop_later(runtime, address, uid, reason))
    runtime.running.stop(uid)
    if (call := runtime.calls.get(uid)) is not None:
        call.stirred.set()


async def _stop_later(runtime: Runtime, address: Address, uid: UUID, reason: str | None) -> None:
    await asyncio.sleep(_SOON_SECONDS)
    await stop(runtime, address, uid, reason=reason)
