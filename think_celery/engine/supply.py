"""The messages of a turn whose caller makes them when it starts (the function form)."""

from collections.abc import Mapping
from typing import Any
from uuid import uuid4

from think_celery.core.compaction import compact
from think_celery.core.message import parse_messages
from think_celery.core.wire import json_text
from think_celery.engine.calls import Call
from think_celery.engine.runtime import Runtime
from think_celery.errors import InvalidInput


async def supply(runtime: Runtime, call: Call | None, transcript: list[dict[str, Any]]) -> str:
    """Ask a turn's caller for its messages, in view of the conversation.

    Returns:
        JSON text of the list; messages that are part of the conversation already do no harm in it.

    Raises:
        InvalidInput: What it returned is no list of messages.
        RuntimeError: Nobody in this process waits for the turn any more.
    """
    if call is None or call.supply is None:
        raise RuntimeError("the caller that was to supply the messages no longer waits for the turn")
    given = await call.supply(transcript)
    if isinstance(given, list | tuple):
        known = {message["id"] for message in transcript}
        given = [each for each in given if _id_of(each) not in known]
    return stored(runtime, given, allow_empty=True)


def _id_of(message: object) -> object:
    return message.get("id") if isinstance(message, Mapping) else getattr(message, "id", None)


def stored(runtime: Runtime, given: object, *, allow_empty: bool, allow_blank: bool = False) -> str:
    """Return messages as JSON text that is ready to store.

    Raises:
        InvalidInput: A message cannot be accepted; names the field and the remedy.
    """
    if given is None:
        raise InvalidInput("messages", "is None; return or hand over a list of messages")
    if allow_empty and isinstance(given, list | tuple) and not given:
        return "[]"
    parsed = parse_messages(
        given,
        new_id=lambda: str(uuid4()),
        max_bytes=runtime.settings.max_messages_bytes,
        allow_blank=allow_blank,
    )
    return json_text([compact(message, max_bytes=runtime.settings.max_message_bytes) for message in parsed])
