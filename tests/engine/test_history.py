"""What the model is shown of the stored conversation, whatever is stored."""

from typing import Any

import pytest
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, ToolReturnPart, UserPromptPart

from tests.engine.driving import agent, ask, user
from think_celery.core.part import INTERRUPTED
from think_celery.testing import ToolCall, scripted_model

Requests = list[list[ModelMessage]]


def double(number: int) -> int:
    """Double a number."""
    return 2 * number


@pytest.mark.spec("T2")
def test_the_model_sees_the_conversation_so_far() -> None:
    requests: Requests = []
    chosen = agent(
        scripted_model(ToolCall("double", {"number": 4}), "8.", on_request=requests.append), double
    )
    first = ask(chosen, user("4?"))
    assert first.message is not None
    stored = {**first.message, "unknown": 1, "metadata": {"k": "v"}}
    ask(chosen, user("4?"), stored, user("Sure?", "m2"))
    shown = requests[-2]
    spoken = [part.part_kind for message in shown for part in message.parts]
    assert spoken == ["user-prompt", "tool-call", "tool-return", "text", "user-prompt"]
    assert "Sure?" in str(shown[-1])
    assert [message.kind for message in shown] == ["request", "response", "request", "response", "request"]


@pytest.mark.spec("T128")
def test_an_interrupted_call_is_shown_as_failed() -> None:
    requests: Requests = []
    chosen = agent(scripted_model("ok", on_request=requests.append), double)
    call = {"type": "tool-double", "toolCallId": "c1", "state": "input-available", "input": {"number": 1}}
    partial = {"id": "p", "role": "assistant", "parts": [{"type": "step-start"}, call]}
    assert ask(chosen, user("4?"), partial, user("Again", "m2")).text == "ok"
    (returned,) = (
        part for message in requests[0] for part in message.parts if isinstance(part, ToolReturnPart)
    )
    assert (returned.tool_call_id, returned.content) == ("c1", INTERRUPTED)
    assert call["state"] == "input-available"


def test_the_request_never_ends_with_the_assistant() -> None:
    requests: Requests = []
    chosen = agent(scripted_model("ok", on_request=requests.append))
    said = {"id": "p", "role": "assistant", "parts": [{"type": "text", "text": "Said."}]}
    assert ask(chosen, user("Hi"), said).text == "ok"
    last = requests[0][-1]
    assert isinstance(last, ModelRequest)
    assert isinstance(last.parts[-1], UserPromptPart)
    assert isinstance(requests[0][-2], ModelResponse)


def test_an_empty_conversation_is_refused() -> None:
    assert "no message" in str(ask(agent(scripted_model("ok"))).failure)


HOSTILE_PARTS: list[dict[str, Any]] = [
    {"type": "hologram", "x": 1},
    {"type": "text", "text": "kept", "later": {"x": 1}, "providerMetadata": {"p": "not an object"}},
    {"type": "file", "url": "https://example.com/a.png", "mediaType": "image/png"},
    {"type": "file", "url": "data:image/png;base64,!!!", "mediaType": "image/png"},
    {"type": "source-url", "sourceId": "s", "url": "https://example.com"},
    {"type": "data-x", "data": {"a": 1}},
    {"type": "reasoning", "text": "hm", "providerMetadata": {"pydantic_ai": {"signature": 5}}},
    {
        "type": "tool-x",
        "toolCallId": "c1",
        "state": "output-available",
        "input": [1],
        "output": {"kind": "binary"},
    },
    {"type": "tool-x", "toolCallId": "c2", "state": "weird"},
    {"type": "dynamic-tool", "toolName": "d", "toolCallId": "c3", "state": "output-error", "input": None},
    {
        "type": "tool-x",
        "toolCallId": "c4",
        "state": "approval-requested",
        "input": {},
        "approval": {"id": "a"},
    },
    {
        "type": "tool-x",
        "toolCallId": "c5",
        "state": "output-available",
        "input": {},
        "output": {"kind": "binary", "data": "broken", "media_type": "image/png"},
    },
]


@pytest.mark.parametrize("role", ["user", "assistant", "system"])
@pytest.mark.parametrize(
    "part", HOSTILE_PARTS, ids=lambda part: f"{part['type']}-{part.get('toolCallId', '')}"
)
def test_whatever_is_stored_can_be_sent(role: str, part: dict[str, Any]) -> None:
    text = {"type": "text", "text": "words"}
    odd = {"id": "p", "role": role, "parts": [text, part]}
    found = ask(agent(scripted_model("ok")), user("Hi"), odd, user("Go on", "m2"))
    assert (found.failure, found.text) == (None, "ok")


@pytest.mark.parametrize("role", ["user", "assistant", "system"])
def test_all_of_it_at_once(role: str) -> None:
    requests: Requests = []
    odd = {"id": "p", "role": role, "parts": HOSTILE_PARTS}
    found = ask(agent(scripted_model("ok", on_request=requests.append)), user("Hi"), odd, user("Go on", "m2"))
    assert (found.failure, found.text) == (None, "ok")
    assert "kept" in str(requests[0])
