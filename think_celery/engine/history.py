"""The stored conversation as the model library's messages.

Stored history is always sendable: unknown keys and parts that the library refuses are left out of the
request, calls without a result are closed, and the request never ends with the assistant speaking. The stored
messages stay as they are.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, UserPromptPart
from pydantic_ai.ui.vercel_ai import VercelAIAdapter, request_types
from pydantic_ai.ui.vercel_ai.request_types import UIMessage, UIMessagePart

from think_celery.agent import Think
from think_celery.core.compaction import shorten_history
from think_celery.core.message import OUTPUT, message_text
from think_celery.core.part import INTERRUPTED, close_open_parts, is_tool
from think_celery.core.wire import json_text
from think_celery.engine import hooks

log = logging.getLogger(__name__)
_PLAIN: dict[str, type[Any]] = {
    "text": request_types.TextUIPart,
    "reasoning": request_types.ReasoningUIPart,
    "file": request_types.FileUIPart,
    "step-start": request_types.StepStartUIPart,
}
_TOOL_STATES = {
    "output-available": "OutputAvailable",
    "output-error": "OutputError",
    "output-denied": "OutputDenied",
    "approval-requested": "ApprovalRequested",
    "approval-responded": "ApprovalResponded",
}
_CONTINUE = "Continue."
_UNDECIDED = "The call waits for a person's approval; it has not run."
_REPAIR = "repair_interrupted_tool_part"


async def repair(agent: Think, messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the conversation with every call that never got its result closed, as the agent wants it.

    The given messages are not changed; those that need no repair are returned as they are.

    Raises:
        TypeError: `repair_interrupted_tool_part` returned no part, or a call without a result.
        Exception: Whatever that hook raises.

    Source: T 4.7.
    """
    closed = [_decided(close_open_parts(message)) for message in messages]
    if hooks.overrides(type(agent), _REPAIR):
        for message in closed:
            message["parts"] = [await _repaired(agent, part) for part in message["parts"]]
    return [
        before if after["parts"] == before.get("parts") else after
        for before, after in zip(messages, closed, strict=True)
    ]


async def _repaired(agent: Think, part: dict[str, Any]) -> dict[str, Any]:
    if not is_tool(part) or part.get("errorText") != INTERRUPTED:
        return part
    answer = await hooks.ask(agent, _REPAIR, dict, part)
    if answer is None:
        return part
    if answer.get("type") == "text" or (is_tool(answer) and str(answer.get("state")).startswith("output-")):
        return answer
    raise TypeError(f"{_REPAIR} returned neither a text part nor a call with a result")


def _decided(message: dict[str, Any]) -> dict[str, Any]:
    """Close calls that wait for a person: providers refuse a conversation with a call that has no result."""
    return {**message, "parts": [_without_question(part) for part in message["parts"]]}


def _without_question(part: dict[str, Any]) -> dict[str, Any]:
    if not is_tool(part) or part.get("state") not in ("approval-requested", "approval-responded"):
        return part
    approval = part.get("approval")
    if isinstance(approval, dict) and approval.get("approved") is False:
        return {**part, "state": "output-denied"}
    return {**part, "state": "output-error", "errorText": _UNDECIDED}


def load_history(messages: Sequence[dict[str, Any]]) -> list[ModelMessage]:
    """Return the conversation for a model request.

    Args:
        messages: The conversation in order (AI SDK `UIMessage` as JSON objects).

    Raises:
        ValueError: There is nothing to send.

    Source: T 2.8, 4.7.
    """
    closed = [_decided(close_open_parts(message)) for message in shorten_history(messages)]
    loaded = [_strict(_spoken(message)) for message in closed]
    try:
        history = VercelAIAdapter.load_messages(loaded)
    except ValueError:
        history = VercelAIAdapter.load_messages([_sendable(message) for message in loaded])
    if not history:
        raise ValueError("the conversation holds no message that could be sent to the model")
    if isinstance(history[-1], ModelResponse):
        # Some providers refuse a request that ends with the assistant's words (T 1.7).
        history.append(ModelRequest(parts=[UserPromptPart(_CONTINUE)]))
    return history


def _spoken(message: dict[str, Any]) -> dict[str, Any]:
    """Let the model see its structured answers again, as text, unless they were text in the first place."""
    texts = [str(part.get("text")) for part in message["parts"] if part.get("type") == "text"]
    said = [
        {"type": "text", "text": json_text(part["data"])}
        if _is_unsaid(message["role"], part, texts)
        else part
        for part in message["parts"]
    ]
    return {**message, "parts": said}


def _is_unsaid(role: str, part: Mapping[str, Any], texts: list[str]) -> bool:
    if role != "assistant" or part.get("type") != OUTPUT or "data" not in part:
        return False
    return not any(_means(text, part["data"]) for text in texts)


def _means(text: str, data: Any) -> bool:
    try:
        return bool(json.loads(text) == data)
    except (ValueError, RecursionError):
        return False


def _strict(message: Mapping[str, Any]) -> UIMessage:
    role = message["role"]
    parts = [strict for part in message["parts"] if (strict := _strict_part(role, part)) is not None]
    return UIMessage(id=str(message["id"]), role=role, parts=parts)


def _strict_part(role: str, part: Mapping[str, Any]) -> UIMessagePart | None:
    kind = _part_type(role, part)
    if kind is None:
        return None
    names = {field.alias or name for name, field in kind.model_fields.items()}
    known = {name: value for name, value in part.items() if name in names and value is not None}
    for without in ("", "providerMetadata", "callProviderMetadata", "approval"):
        try:
            return kind.model_validate({name: value for name, value in known.items() if name != without})  # type: ignore[no-any-return]
        except ValidationError as error:
            log.warning("history.part_left_out type=%s faults=%d", part.get("type"), error.error_count())
    return None


def _part_type(role: str, part: Mapping[str, Any]) -> type[Any] | None:
    """Return the library's class for a part; None for parts that it does not take from that role."""
    kind = str(part.get("type", ""))
    if is_tool(part):
        state = _TOOL_STATES.get(str(part.get("state")))
        if role != "assistant" or state is None:
            return None
        found: type[Any] = getattr(
            request_types, f"{'Dynamic' if kind == 'dynamic-tool' else ''}Tool{state}Part"
        )
        return found
    if kind == "file" and role == "assistant" and not str(part.get("url", "")).startswith("data:"):
        return None
    if kind.startswith("data-") and role != "system":
        return request_types.DataUIPart
    return (
        _PLAIN.get(kind)
        if role == "assistant" or kind == "text" or (role, kind) == ("user", "file")
        else None
    )


def _sendable(message: UIMessage) -> UIMessage:
    """Return the message, or only its text when the library cannot read the rest."""
    try:
        VercelAIAdapter.load_messages([message])
    except ValueError as error:
        log.warning("history.reduced_to_text message=%s error=%s", message.id, type(error).__name__)
        text = message_text(message.model_dump(by_alias=True))
        parts: list[UIMessagePart] = [request_types.TextUIPart(text=text)] if text else []
        return UIMessage(id=message.id, role=message.role, parts=parts)
    return message
