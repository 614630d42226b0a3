"""After a turn: tell its caller, and call `on_chat_response`, in the order of the lane and outside of it.

That the hook is due is a flag on the row, written with the row's end; so a crash loses no call. One process
at a time works off an agent's flags, and calls never overlap. The lane is free meanwhile: a hook may start
turns of its own agent and wait for them; their own hooks come after it has returned.
"""

import asyncio
import logging
from contextvars import Context
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from think_celery.agent import registry
from think_celery.core.address import Address
from think_celery.core.submission import Status
from think_celery.core.turn import ChatResponse
from think_celery.engine import context, hooks
from think_celery.engine.blocking import in_thread
from think_celery.engine.calls import Call, Method
from think_celery.engine.making import agent_of
from think_celery.engine.responding import Due
from think_celery.engine.runtime import Runtime, in_ledger_pool
from think_celery.errors import LedgerUnavailable, ThinkError
from think_celery.ledger import responses
from think_celery.ledger.rows import Row

if TYPE_CHECKING:
    from think_celery.engine.turn import Outcome

log = logging.getLogger(__name__)
HOOK = "on_chat_response"
_RETRY_SECONDS = 0.5


def wake(runtime: Runtime, address: Address) -> None:
    """Have an agent's due hooks called; from any thread, and without waiting for them."""
    if address.type_name in registry:
        runtime.loop.send_off(_wake(runtime, address))


def follow(runtime: Runtime, row: Row, outcome: "Outcome", *, deleted: bool = False) -> None:
    """After a row has ended here: tell who waits for it in this process, and see to the hook."""
    call = runtime.calls.get(row.uid)
    if call is not None or (row.response_due and not deleted):
        runtime.loop.send_off(_follow(runtime, None if deleted else row, outcome, call))


async def _follow(runtime: Runtime, row: Row | None, outcome: "Outcome", call: Call | None) -> None:
    due: Due | None = None
    if row is not None and row.response_due:
        due = runtime.responding.expect(row.uid, Due(row.address, outcome.full))
        await _wake(runtime, row.address)
    if call is None:
        return
    call.failure, call.message = call.failure or outcome.failure, outcome.full
    status = None if row is None else row.submission.status
    if status is Status.COMPLETED:
        await _deliver(call, "done")
    call.told.set()
    if row is not None and status is Status.ERROR and call.listens:
        if due is not None:
            await runtime.responding.heard(due)  # who is told of a failure may take it that the agent knows
        await _deliver(call, "error", row.submission.error or "")
    call.finish(row)


async def _deliver(call: Call, kind: Method, text: str = "") -> None:
    if not call.listens or call.raises is not None:
        return
    try:
        await call.relay.deliver(kind, text)
    except Exception as error:  # noqa: BLE001 the caller's own method raised it, and will see it
        call.failure = error


async def _wake(runtime: Runtime, address: Address) -> None:
    responding = runtime.responding
    if address in responding.tasks:
        responding.again.add(address)
        return
    # In an empty context: what a hook starts is part of no turn.
    work = _work_off(runtime, address)
    task = asyncio.get_running_loop().create_task(work, name=f"responses-{address}", context=Context())
    responding.tasks[address] = task


async def _work_off(runtime: Runtime, address: Address) -> None:
    responding = runtime.responding
    try:
        while True:
            responding.again.discard(address)
            await _call_due(runtime, address)
            if address not in responding.again:
                return
    except ThinkError as error:  # the flags stay, for the agent's next turn or another process
        _log_postponed(address, error)
    finally:
        del responding.tasks[address]
        responding.leave(address)


async def _call_due(runtime: Runtime, address: Address) -> None:
    done: UUID | None = None
    while True:
        taken = await _take(runtime, address, done)
        if done is not None:
            runtime.responding.done(done)
        if taken is None:
            return
        row, stored = taken
        known = runtime.responding.due(row.uid)
        await _call(runtime, row, stored if known is None else known.message)
        done = row.uid


async def _take(
    runtime: Runtime, address: Address, done: UUID | None
) -> tuple[Row, dict[str, Any] | None] | None:
    take = partial(responses.take, runtime.database, address, holder=runtime.worker_id, done=done)
    while True:
        try:
            return await in_ledger_pool(runtime, take)
        except LedgerUnavailable as error:  # nobody else calls the hooks as long as this process lives
            _log_postponed(address, error)
            runtime.responding.release(address)
            await asyncio.sleep(_RETRY_SECONDS)


def _log_postponed(address: Address, error: ThinkError) -> None:
    log.warning("hook.postponed hook=%s agent=%s error=%s", HOOK, address, error)


async def _call(runtime: Runtime, row: Row, message: dict[str, Any] | None) -> None:
    if (call := runtime.calls.get(row.uid)) is not None:
        await call.told.wait()
    try:
        agent = await in_thread(agent_of, runtime, row.address)
    except Exception:  # the class is gone or cannot be made; nobody else would do better
        log.exception("hook.failed hook=%s agent=%s", HOOK, row.address)
    else:
        waits = partial(runtime.loop.loop.call_soon_threadsafe, runtime.responding.waits, row.address)
        with runtime.responding.calling(row.address), context.inside_response(waits):
            await hooks.responded(agent, ChatResponse(row.submission, message))
