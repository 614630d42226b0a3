"""Run a turn here, for somebody here who waits for it: in a worker process no slot is awaited.

A thread of its own works off the agent's lane, whatever is ahead in it included, until the row has ended. Who
waits and who works are apart: a caller that is stopped leaves the work in order.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from contextvars import Context
from functools import partial
from uuid import UUID

from think_celery.agent import registry
from think_celery.core.address import Address
from think_celery.core.routing import agent_channel
from think_celery.engine import drain, ending
from think_celery.engine.blocking import in_thread
from think_celery.engine.calls import Call
from think_celery.engine.context import Here
from think_celery.engine.patience import Wait
from think_celery.engine.runtime import PRODUCER, Runtime, in_ledger_pool
from think_celery.errors import LedgerUnavailable, NestedTurnError, ServiceError, ThinkError
from think_celery.ledger import submissions
from think_celery.ledger.rows import Row

log = logging.getLogger(__name__)
_LOOK_SECONDS = 0.2


def is_possible(runtime: Runtime, address: Address) -> bool:
    """True when this process runs turns, and has the agent's class."""
    return runtime.pool != PRODUCER and address.type_name in registry


def run(runtime: Runtime, call: Call, here: Here | None) -> "asyncio.Task[None]":
    """Start working towards a call's end; its row is in the lane."""
    loop = asyncio.get_running_loop()
    # In an empty context: the turns ahead of it are not part of the caller's turn.
    return loop.create_task(_see_through(runtime, call, here), name=f"call-{call.uid}", context=Context())


@asynccontextmanager
async def attending(runtime: Runtime, address: Address, uid: UUID) -> AsyncIterator[None]:
    """Work off an agent's lane as long as somebody here waits for one of its rows."""
    if not is_possible(runtime, address):
        yield
        return
    over = asyncio.Event()
    loop = asyncio.get_running_loop()
    task = loop.create_task(_attend(runtime, address, uid, over), context=Context())
    try:
        yield
    finally:
        over.set()
        task.cancel()


async def _attend(runtime: Runtime, address: Address, uid: UUID, over: asyncio.Event) -> None:
    try:
        await _work_off(runtime, address, uid, over)
    except ThinkError as error:  # workers serve the lane as well; who waits sees it in the ledger
        log.warning("lane.not_attended agent=%s error=%s", address, error)


async def _see_through(runtime: Runtime, call: Call, here: Here | None) -> None:
    wait = Wait(runtime, here, call.address)
    watch = asyncio.create_task(_watch(runtime, call, wait))
    row: Row | None = None
    try:
        row = await _work_off(runtime, call.address, call.uid, call.over)
        while call.runs_here and not await _is_over(call):
            pass  # who runs it tells the caller, and sees to the hook, unless it loses the lane
    except Exception as error:  # noqa: BLE001 the caller will see it
        call.failure = call.failure or error
    finally:
        watch.cancel()
        runtime.calls.drop(call)
        call.finish(row)
        await wait.close()


async def _is_over(call: Call) -> bool:
    with suppress(TimeoutError):
        async with asyncio.timeout(_LOOK_SECONDS):
            await call.over.wait()
    return call.over.is_set()


async def _watch(runtime: Runtime, call: Call, wait: Wait) -> None:
    while True:
        await asyncio.sleep(_LOOK_SECONDS)
        try:
            await wait.check()
        except NestedTurnError as error:
            call.failure = error
            await stop(runtime, call.address, call.uid, reason=str(error))
            return


async def _work_off(runtime: Runtime, address: Address, uid: UUID, over: asyncio.Event) -> Row | None:
    """Return the row once it has ended; None when it was deleted or nobody waits any more."""
    errand = drain.Errand(uid)
    try:
        channel = agent_channel(runtime.settings.redis_prefix, address)
        async with runtime.streams.subscribe(channel) as heard:
            while not over.is_set():
                try:
                    await in_thread(drain.run_errand, runtime, address, errand)
                    find = partial(submissions.find_by_uid, runtime.database, uid)
                    row = await in_ledger_pool(runtime, find)
                    if row is None or row.submission.is_terminal:
                        return row
                except LedgerUnavailable as error:
                    log.warning("turn.unseen uid=%s error=%s", uid, error)
                errand.is_spent = False  # it went back to its place
                await heard.get(_LOOK_SECONDS)
    finally:
        errand.is_spent = True
    return None


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


async def _stop_later(runtime: Runtime, address: Address, uid: UUID, reason: str | None) -> None:
    await asyncio.sleep(_LOOK_SECONDS)
    await stop(runtime, address, uid, reason=reason)
