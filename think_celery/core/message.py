"""Messages in the AI SDK's wire form (`UIMessage`, versions 5 to 7), and what callers may hand in.

Known fields are checked, unknown ones are kept and passed through. Messages are stored and forwarded as JSON
objects.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from think_celery.core.address import check_text
from think_celery.core.wire import strict_json
from think_celery.errors import InvalidInput

OUTPUT = "data-output"
"""Type of the part that holds a structured answer."""
IDENTIFIER_LIMIT = 500
ROLES = ("system", "user", "assistant")
RESERVED_METADATA = ("channel", "turnMetadata")
"""Keys of a message's metadata by which the original knows who speaks; nobody may claim them from outside."""
_TEXT_FIELDS: dict[str, tuple[str, ...]] = {
    "text": ("text",),
    "reasoning": ("text",),
    "file": ("url", "mediaType"),
    "source-url": ("sourceId", "url"),
    "source-document": ("sourceId", "mediaType", "title"),
    "dynamic-tool": ("toolCallId", "toolName"),
}


class UIMessage(BaseModel):
    """One entry of a conversation; unknown fields are kept.

    Attributes:
        id: Unique in the conversation.
        role: Who speaks.
        parts: The pieces of the message as JSON objects, each with a `type`.
        metadata: A JSON object of the application, None when absent.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    id: str
    role: Literal["system", "user", "assistant"]
    parts: list[dict[str, Any]]
    metadata: dict[str, Any] | None = None

    @property
    def text(self) -> str:
        """All text parts joined."""
        return message_text(self)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form; absent metadata is left out, every other field is kept as it is."""
        data = self.model_dump()
        if data["metadata"] is None:
            del data["metadata"]
        return data


def message_text(message: UIMessage | Mapping[str, Any]) -> str:
    """Return all text parts of a message joined, empty when it has none.

    >>> message_text({"parts": [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]})
    'Hello'
    """
    parts = message.parts if isinstance(message, UIMessage) else message.get("parts") or ()
    return "".join(str(part.get("text", "")) for part in parts if part.get("type") == "text")


def structured_output(message: Mapping[str, Any] | None) -> Any:
    """Return the structured answer that an assistant message holds, None without one.

    >>> structured_output({"parts": [{"type": "data-output", "data": {"total": 3}}]})
    {'total': 3}
    """
    parts = (message or {}).get("parts") or ()
    return next((part.get("data") for part in reversed(parts) if part.get("type") == OUTPUT), None)


def text_message(text: str, *, message_id: str, metadata: dict[str, Any] | None = None) -> UIMessage:
    """Return a user message with one text part."""
    part = {"type": "text", "text": text}
    return UIMessage(id=message_id, role="user", parts=[part], metadata=metadata)


def parse_messages(
    value: object, *, new_id: Callable[[], str], max_bytes: int, allow_blank: bool = False
) -> list[dict[str, Any]]:
    """Return the messages of a call as JSON objects that are ready to store.

    Reserved keys of their metadata (`RESERVED_METADATA`) are left out.

    Args:
        value: A list of messages (`UIMessage` or AI SDK JSON objects), one message, or one text. A message
            without `id` gets a new one.
        new_id: Makes message ids.
        max_bytes: Largest JSON text of all messages together.
        allow_blank: Accept messages whose only content is blank text.

    Raises:
        InvalidInput: The list is empty or a message cannot be accepted; names the field and the remedy.

    Source: S 1.2, T 2.1, 2.7.
    """
    items = _as_list(value)
    if not items:
        raise InvalidInput("messages", "is empty; hand over at least one message, such as user_message('…')")
    raw = [_as_object(item, f"messages[{index}]") for index, item in enumerate(items)]
    plain = strict_json("messages", raw, max_bytes=max_bytes)
    messages = [
        _check_message(message, f"messages[{index}]", new_id, allow_blank)
        for index, message in enumerate(plain)
    ]
    _refuse_equal_ids(messages)
    return messages


def _as_list(value: object) -> list[object]:
    if isinstance(value, str):
        return [{"role": "user", "parts": [{"type": "text", "text": value}]}]
    if isinstance(value, (UIMessage, Mapping)):
        return [value]
    if isinstance(value, (list, tuple)):
        return list(value)
    if callable(value):
        problem = "is a function, which cannot be stored; save_messages calls functions when the turn starts"
        raise InvalidInput("messages", problem)
    raise InvalidInput(
        "messages", f"must be text, a message or a list of messages, not {type(value).__name__}"
    )


def _as_object(item: object, field: str) -> Mapping[str, Any]:
    if isinstance(item, UIMessage):
        return item.to_json()
    if isinstance(item, Mapping):
        return item
    if isinstance(item, str):
        raise InvalidInput(field, "is text, which says nothing of its role; use user_message('…')")
    if callable(item):
        raise InvalidInput(field, "is a function, which cannot be stored; call it first")
    raise InvalidInput(field, f"must be a message, not {type(item).__name__}; use user_message('…')")


def _check_message(
    message: dict[str, Any], field: str, new_id: Callable[[], str], allow_blank: bool
) -> dict[str, Any]:
    role = message.get("role")
    if role not in ROLES:
        raise InvalidInput(f"{field}.role", f"must be one of {', '.join(ROLES)}, not {role!r}")
    parts = message.get("parts")
    if parts is None and "content" in message:
        form = '{"parts": [{"type": "text", "text": "…"}]}'
        raise InvalidInput(f"{field}.parts", f"is missing; `content` is another API's form, write {form}")
    if not isinstance(parts, list) or not parts:
        raise InvalidInput(
            f"{field}.parts", 'must be a list with at least one part {"type": "text", "text": "…"}'
        )
    for index, part in enumerate(parts):
        _check_part(part, f"{field}.parts[{index}]")
    if not allow_blank and all(part["type"] == "text" and not part["text"].strip() for part in parts):
        raise InvalidInput(f"{field}.parts[0].text", "is blank; write something for the agent to answer")
    identifier = message.pop("id", None)
    identifier = new_id() if identifier is None else check_identifier(f"{field}.id", identifier)
    metadata = message.pop("metadata", None)
    if metadata is None:
        return {"id": identifier, **message}
    if not isinstance(metadata, dict):
        raise InvalidInput(f"{field}.metadata", f"must be a JSON object, not {type(metadata).__name__}")
    kept = {name: value for name, value in metadata.items() if name not in RESERVED_METADATA}
    return {"id": identifier, **message, "metadata": kept}


def _check_part(part: object, field: str) -> None:
    if not isinstance(part, dict):
        raise InvalidInput(field, f"must be a JSON object with a type, not {type(part).__name__}")
    kind = part.get("type")
    if not isinstance(kind, str) or not kind:
        raise InvalidInput(f"{field}.type", 'is missing; a text part is {"type": "text", "text": "…"}')
    needed = ("toolCallId", "state") if kind.startswith("tool-") else _TEXT_FIELDS.get(kind, ())
    for name in needed:
        if not isinstance(part.get(name), str):
            found = f"not {type(part[name]).__name__}" if name in part else "but it is missing"
            raise InvalidInput(f"{field}.{name}", f"must be text, {found}")


def _refuse_equal_ids(messages: list[dict[str, Any]]) -> None:
    seen: dict[str, int] = {}
    for index, message in enumerate(messages):
        first = seen.setdefault(message["id"], index)
        if first != index:
            problem = f"is also the id of messages[{first}]; the conversation would keep only the first"
            raise InvalidInput(f"messages[{index}].id", problem)


def parse_metadata(value: object, *, max_bytes: int) -> dict[str, Any] | None:
    """Return a submission's metadata as a plain JSON object, None when there is none.

    Raises:
        InvalidInput: Not a JSON object (cycles and NaN included), a NUL character, or too big.
    """
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise InvalidInput("metadata", f"must be a JSON object, not {type(value).__name__}")
    metadata: dict[str, Any] = strict_json("metadata", value, max_bytes=max_bytes)
    return metadata


def check_identifier(field: str, value: object) -> str:
    """Return an id or key given by a caller.

    Raises:
        InvalidInput: No text, blank, longer than 500 characters, or with control characters.
    """
    hint = "must not be blank; leave it out to have one made"
    return check_text(field, value, limit=IDENTIFIER_LIMIT, blank=hint)
