"""Turns without a listener: `save_messages` and `continue_last_turn`; and messages without a turn."""

from copy import deepcopy
from functools import partial
from typing import Any, Literal
from uuid import UUID, uuid4

from think_celery.core.address import Address
from think_celery.core.turn import TurnResult
from think_celery.engine import asking, hooks, near, waiters
from think_celery.engine.asking import Ask
from think_celery.engine.runtime import Runtime, in_ledger_pool
from think_celery.engine.supply import stored, without
from think_celery.errors import InvalidInput
from think_celery.ledger import messages

Mode = Literal["append", "upsert"]


async def save(runtime: Runtime, ask: Ask) -> TurnResult:
    """Run one turn to its end and say how that was (T 1.6).

    Raises:
        TurnSetupError: The agent could not prepare the turn, which ran in this process.
        NestedTurnError: The asked agent turned out to wait for the calling turn.
        Exception: What the function raised that was to make the messages.
    """
    uid = uuid4()
    if (stopped := asking.stopped(ask, uid)) is not None:
        return stopped
    if not near.is_possible(runtime, ask.address):
        return await _save_far(runtime, ask, uid)
    call = await asking.call(runtime, ask, uid)
    async with asking.stoppable(runtime, ask, uid):
        await call.over.wait()
    if call.failure is not None:
        raise call.failure
    now = None if call.row is None else call.row.submission
    return await asking.result(runtime, ask, uid, now, message=call.message)


async def _save_far(runtime: Runtime, ask: Ask, uid: UUID) -> TurnResult:
    row = await asking.place(runtime, ask, uid, runs_here=False)
    async with asking.stoppable(runtime, ask, uid):
        last = await waiters.wait(runtime, ask.address, row.submission.submission_id, timeout=ask.timeout)
    return await asking.result(runtime, ask, uid, last)


async def continue_last(runtime: Runtime, ask: Ask) -> TurnResult:
    """Let the assistant go on after its own last message (T 1.7).

    Whether there is one is looked at here, and once more when the turn starts.
    """
    role = await in_ledger_pool(runtime, partial(messages.last_role, runtime.database, ask.address))
    if role != "assistant":
        return TurnResult(request_id="", status="skipped", continuation=True)
    return await save(runtime, ask)


async def add(runtime: Runtime, address: Address, given: object, *, mode: Mode) -> int:
    """Append messages at once, without a turn, and return how many were new (T 1.11).

    Raises:
        InvalidInput: A message or the mode cannot be accepted; nothing was written.
        Exception: What the function raised that was to make the messages.
    """
    if mode not in {"append", "upsert"}:
        raise InvalidInput("mode", f"{mode!r} is unknown; use append or upsert")
    upsert = mode == "upsert"
    if callable(given):
        now, known = await in_ledger_pool(runtime, partial(_conversation, runtime, address, copy=upsert))
        given = without(await hooks.call(given, now), known)
    return await in_ledger_pool(runtime, partial(_append, runtime, address, given, upsert=upsert))


def _conversation(
    runtime: Runtime, address: Address, *, copy: bool
) -> tuple[list[dict[str, Any]], dict[str, object]]:
    now = messages.transcript(runtime.database, address)
    return now, {each["id"]: deepcopy(each) if copy else None for each in now}


def _append(runtime: Runtime, address: Address, given: object, *, upsert: bool) -> int:
    text = stored(runtime, given, allow_empty=True)
    return 0 if text == "[]" else messages.add(runtime.database, address, text, upsert=upsert)
