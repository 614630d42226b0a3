"""The stored conversation as the model library's messages.

Stored history is always sendable: unknown keys and parts that the library refuses are left out of the
request, calls without a result are closed, and the request never ends with the assistant speaking. The stored
messages stay as they are.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, UserPromptPart
from pydantic_ai.ui.vercel_ai import VercelAIAdapter, request_types
from pydantic_ai.ui.vercel_ai.request_types import UIMessage, UIMessagePart

from think_celery.core.compaction import shorten_history
from think_celery.core.message import message_text
from think_celery.core.part import close_open_parts, is_tool

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


def load_history(messages: Sequence[dict[str, Any]]) -> list[ModelMessage]:
    """Return the conversation for a model request.

    Args:
        messages: The conversation in order (AI SDK `UIMessage` as JSON objects).

    Raises:
        ValueError: There is nothing to send.

    Source: T 2.8, 4.7.
    """
    loaded = [_strict(close_open_parts(message)) for message in shorten_history(messages)]
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
    for without in ("", "providerMetadata"):
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
