"""A turn may be cut off after any chunk: what is stored of it never spoils the turns that follow."""

from collections.abc import Iterator
from typing import Any

import pytest
from pydantic_ai.messages import ModelMessage, ModelResponse, NativeToolCallPart, ToolCallPart, ToolReturnPart

from tests.engine.driving import user
from tests.golden.reading import Recording, recordings
from think_celery.core.folding import Folding, final_message
from think_celery.core.part import is_tool
from think_celery.core.wire import json_bytes
from think_celery.engine.history import load_history

LIMIT = 1_800_000
OPEN = {"streaming", "input-streaming", "input-available"}
RECORDINGS = recordings()


def partials(recording: Recording) -> Iterator[dict[str, Any]]:
    """Yield what would be stored if the turn ended after each of its chunks."""
    folding = Folding("m1") if recording.onto is None else Folding.onto(recording.onto)
    for chunk in recording.chunks:
        folding.fold(chunk)
        if (message := final_message(folding, LIMIT)) is not None:
            yield message


def unanswered(history: list[ModelMessage]) -> set[str]:
    """Return the calls that are not answered right after them: providers refuse such a conversation."""
    missing: set[str] = set()
    for message, following in zip(history, [*history[1:], None], strict=True):
        if isinstance(message, ModelResponse):
            asked = {part.tool_call_id for part in message.parts if isinstance(part, ToolCallPart)}
            told = following.parts if following is not None else ()
            missing |= asked - {part.tool_call_id for part in told if isinstance(part, ToolReturnPart)}
    return missing


def calls(history: list[ModelMessage]) -> set[str]:
    """Return the calls that the model is shown; one that it is not shown it would make again."""
    kinds = (ToolCallPart, NativeToolCallPart)
    return {part.tool_call_id for message in history for part in message.parts if isinstance(part, kinds)}


@pytest.mark.parametrize("name", RECORDINGS)
def test_every_partial_is_closed_and_can_be_sent(name: str) -> None:
    for message in partials(RECORDINGS[name]):
        json_bytes(message)
        assert not [part for part in message["parts"] if part.get("state") in OPEN]
        history = load_history([user("First"), message, user("Next", "m9")])
        assert history[-1].kind == "request"
        assert {part["toolCallId"] for part in message["parts"] if is_tool(part)} == calls(history)
        assert not unanswered(history)
