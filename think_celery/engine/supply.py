"""The messages of a turn whose caller makes them when it starts (the function form)."""

import asyncio
from collections.abc import Mapping
from uuid import uuid4

from think_celery.abort import AbortController
from think_celery.core.compaction import compact
from think_celery.core.message import parse_messages
from think_celery.core.wire import json_text
from think_celery.engine import context, hooks, news
from think_celery.engine.calls import Call, Messages
from think_celery.engine.context import Here
from think_celery.engine.runtime import Runtime
from think_celery.errors import InvalidInput
from think_celery.ledger.rows import Row


async def supply(runtime: Runtime, row: Row, call: Call | None, transcript: Messages) -> str | None:
    """Ask a turn's caller for its messages, in view of the conversation; the lane waits meanwhile.

    Returns:
        JSON text of those that are not part of the conversation already; None when the turn was stopped.

    Raises:
        InvalidInput: What it returned is no list of messages.
        RuntimeError: Nobody in this process waits for the turn any more.
        Exception: What the function raised.
    """
    if call is None or call.supply is None:
        raise RuntimeError("the caller that was to supply the messages no longer waits for the turn")
    known, stop = {message["id"]: None for message in transcript}, AbortController()
    here = Here(row.address, row.uid, row.root_id, call.caller, stop.signal)
    work = _made(here, call, transcript)
    making = asyncio.get_running_loop().create_task(work, context=call.supply.inside)
    attempt, told = row.submission.attempt, news.of_status(runtime, row)
    with runtime.running.during(runtime.streams, row.uid, attempt, making, stop=stop, news=told):
        try:
            given = await making
        except asyncio.CancelledError:
            if runtime.running.was_stopped(row.uid):
                return None
            raise  # the process is closing
    return stored(runtime, without(given, known), allow_empty=True)


async def _made(here: Here, call: Call, transcript: Messages) -> object:
    assert call.supply is not None
    with context.inside_turn(here):
        return await hooks.call(call.supply.make, transcript)


def without(given: object, known: Mapping[str, object]) -> object:
    """Return what a function of the conversation gave, less what is part of that already.

    Args:
        known: The conversation by id; with None for a message, whatever was given under its id is left out.
    """
    if not isinstance(given, list | tuple):
        return given
    return [each for each in given if not _is_known(each, known)]


def _is_known(message: object, known: Mapping[str, object]) -> bool:
    found = message.get("id") if isinstance(message, Mapping) else getattr(message, "id", None)
    return isinstance(found, str) and found in known and known[found] in (None, message)


def stored(runtime: Runtime, given: object, *, allow_empty: bool) -> str:
    """Return messages as JSON text that is ready to store; blank ones are messages like any other.

    Raises:
        InvalidInput: A message cannot be accepted; names the field and the remedy.
    """
    if given is None:
        raise InvalidInput("messages", "is None; return or hand over a list of messages")
    if allow_empty and isinstance(given, list | tuple) and not given:
        return "[]"
    parsed = parse_messages(
        given, new_id=lambda: str(uuid4()), max_bytes=runtime.settings.max_messages_bytes, allow_blank=True
    )
    return json_text([compact(message, max_bytes=runtime.settings.max_message_bytes) for message in parsed])
