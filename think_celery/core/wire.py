"""What may cross the wire: strict JSON from callers, cleaned JSON from models and tools, messages as chunks.

PostgreSQL refuses U+0000 and no encoder accepts half a surrogate pair, so neither may get past this module.
Callers are told where such a character stands; output of models and tools is repaired, because nobody could
correct it.
"""

import json
import math
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from think_celery.errors import InvalidInput

REPLACEMENT = "\ufffd"
DEPTH_LIMIT = 100
_BAD = re.compile("[\x00\ud800-\udfff]")
_BAD_WIDE = re.compile("[\ud800-\udbff][\udc00-\udfff]|[\x00\ud800-\udfff]")
_NUMBER_BITS = 1024

ATTACHMENTS = ("file", "reasoning-file", "source-url", "source-document", "custom", "steering-message")
"""Chunks that are parts as they are."""
CALL_FIELDS = ("providerExecuted", "title", "toolMetadata")
"""What chunks and parts of a call have in common."""
APPROVAL_FIELDS = {
    "approvalId": "id",
    "approvalDescriptor": "descriptor",
    "reason": "requestReason",
    "inputSchemaInput": "inputSchemaInput",
    "isAutomatic": "isAutomatic",
    "signature": "signature",
}
"""Fields of an approval request, as the chunk and as the part names them."""


def clean_text(text: str) -> str:
    """Return text that every store and encoder accepts: NUL and lone surrogates become U+FFFD.

    Two halves of a pair that stand side by side are joined.

    >>> clean_text("a\\x00b") == "a\\ufffdb"
    True
    >>> clean_text("\\ud83d\\ude00") == "\\U0001f600"
    True
    """
    if text.isascii() and "\x00" not in text:
        return str.__str__(text)
    return str.__str__(_BAD_WIDE.sub(_repair, text))


def _repair(match: re.Match[str]) -> str:
    pair = match[0]
    if len(pair) == 1:
        return REPLACEMENT
    return chr(0x10000 + ((ord(pair[0]) - 0xD800) << 10) + (ord(pair[1]) - 0xDC00))


def clean_json(value: object) -> Any:
    """Return a JSON value whatever comes in; never raises.

    Texts and keys are cleaned, NaN and infinities become None, bytes are decoded leniently; what JSON
    does not know becomes its `str()`, and so do cycles and what is nested deeper than 100 levels.
    """
    return _clean(value, ())


def _clean(value: object, above: tuple[int, ...]) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, int):
        return int(value) if value.bit_length() <= _NUMBER_BITS else None
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, (Mapping, list, tuple, set, frozenset)):
        return _clean_nested(value, above)
    return clean_text(_text(value))


def _clean_nested(value: Mapping[Any, Any] | Collection[Any], above: tuple[int, ...]) -> Any:
    if id(value) in above or len(above) >= DEPTH_LIMIT:
        return clean_text(_text(value))
    above = (*above, id(value))
    if isinstance(value, Mapping):
        return {clean_text(_text(key)): _clean(item, above) for key, item in value.items()}
    return [_clean(item, above) for item in value]


def _text(value: object) -> str:
    if isinstance(value, (bytes, bytearray)):
        return value.decode("utf-8", "replace")
    try:
        return str(value)
    except Exception:  # noqa: BLE001 - a foreign __str__ may raise anything, and cleaning never raises
        return f"<{type(value).__name__}>"


def json_text(value: object) -> str:
    """Return the compact JSON text of a value that `strict_json` or `clean_json` returned."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def json_bytes(value: object) -> int:
    """Return the size of a value's compact JSON text in UTF-8 bytes."""
    return len(json_text(value).encode())


def strict_json(field: str, value: object, *, max_bytes: int) -> Any:
    """Return a plain JSON copy of what a caller handed in.

    Args:
        field: Name for errors; nested faults are named by path, such as `messages[0].parts[1].text`.
        value: Anything.
        max_bytes: Largest accepted size of the compact JSON text, in UTF-8 bytes.

    Raises:
        InvalidInput: Not JSON (cycles, NaN, foreign types, keys that are no text), a NUL or half a surrogate
            pair, nested deeper than 100 levels, or too big.
    """
    copy = _Strict(field, max_bytes).copy(value, field, ())
    size = json_bytes(copy)
    if size > max_bytes:
        raise InvalidInput(field, too_big(size, max_bytes))
    return copy


def too_big(size: int, limit: int) -> str:
    """Return the words for a value beyond its limit, both sizes in bytes."""
    return f"is {size:,} bytes of JSON, at most {limit:,} are accepted; refer to content stored elsewhere"


class _Strict:
    """One strict copy: `budget` bounds the work for values that share parts and unfold to gigabytes."""

    def __init__(self, root: str, max_bytes: int) -> None:
        self.root = root
        self.max_bytes = max_bytes
        self.budget = max_bytes

    def copy(self, value: object, field: str, above: tuple[int, ...]) -> Any:
        self.budget -= 1
        if self.budget < 0:
            raise InvalidInput(
                self.root, f"is more than {self.max_bytes:,} bytes of JSON, which is the limit"
            )
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            return self.text(value, field)
        if isinstance(value, (int, float)):
            return self.number(value, field)
        if isinstance(value, (Mapping, list, tuple)):
            return self.nested(value, field, above)
        raise InvalidInput(field, f"is a {type(value).__name__}, which JSON does not know; convert it first")

    def text(self, value: str, field: str) -> str:
        self.budget -= len(value)
        if (not value.isascii() or "\x00" in value) and (bad := _BAD.search(value)):
            name = "a NUL character" if bad[0] == "\x00" else "half a surrogate pair"
            raise InvalidInput(field, f"contains {name} (U+{ord(bad[0]):04X}) at {bad.start()}; remove it")
        return str.__str__(value)

    def number(self, value: int | float, field: str) -> int | float:
        if isinstance(value, float):
            if not math.isfinite(value):
                raise InvalidInput(field, f"is {value}, which JSON does not know; use null")
            return float(value)
        if value.bit_length() > _NUMBER_BITS:
            raise InvalidInput(field, "is too large a number; send it as text")
        return int(value)

    def nested(
        self, value: Mapping[Any, Any] | list[Any] | tuple[Any, ...], field: str, above: tuple[int, ...]
    ) -> Any:
        if id(value) in above:
            raise InvalidInput(field, "contains itself; JSON has no cycles")
        if len(above) >= DEPTH_LIMIT:
            raise InvalidInput(field, f"is nested deeper than {DEPTH_LIMIT} levels")
        above = (*above, id(value))
        if not isinstance(value, Mapping):
            return [self.copy(item, f"{field}[{index}]", above) for index, item in enumerate(value)]
        copy: dict[str, Any] = {}
        for key, item in value.items():
            if not isinstance(key, str):
                raise InvalidInput(field, f"has the key {key!r}, which is no text; JSON keys are texts")
            copy[self.text(key, f"key of {field}")] = self.copy(item, f"{field}.{key}", above)
        return copy


def chunks_of_message(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a stored assistant message as the chunks that build it, `start` to `finish`, for late readers.

    Folding them again gives the same message, but reasoning without an id gets one. Parts that no chunk can
    express are left out (T 3.6).
    """
    return [_present(chunk) for chunk in _message_chunks(message)]


def _present(chunk: dict[str, Any]) -> dict[str, Any]:
    nullable = ("input", "output", "data")
    return {key: item for key, item in chunk.items() if item is not None or key in nullable}


def _message_chunks(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    yield {"type": "start", "messageId": message["id"], "messageMetadata": message.get("metadata") or None}
    open_step = False
    for number, part in enumerate(message.get("parts", ())):
        kind = str(part.get("type", ""))
        if kind == "step-start":
            if open_step:
                yield {"type": "finish-step"}
            open_step = True
            yield {"type": "start-step"}
        elif kind in ("text", "reasoning"):
            yield from _block_chunks(part, kind, f"{kind}-{number}")
        elif kind == "dynamic-tool" or kind.startswith("tool-"):
            yield from _tool_chunks(part, kind)
        elif kind in ATTACHMENTS or kind.startswith("data-"):
            yield dict(part)
    if open_step:
        yield {"type": "finish-step"}
    yield {"type": "finish"}


def _block_chunks(part: Mapping[str, Any], kind: str, block: str) -> Iterator[dict[str, Any]]:
    block = part.get("id") or block
    yield {"type": f"{kind}-start", "id": block, "providerMetadata": part.get("providerMetadata")}
    if part.get("text"):
        yield {"type": f"{kind}-delta", "id": block, "delta": part["text"]}
    if part.get("state") != "streaming":
        yield {"type": f"{kind}-end", "id": block, "citations": part.get("citations")}


def _tool_chunks(part: Mapping[str, Any], kind: str) -> Iterator[dict[str, Any]]:
    call: dict[str, Any] = {"toolCallId": part.get("toolCallId")}
    named = {
        **call,
        "toolName": part["toolName"] if kind == "dynamic-tool" else kind.removeprefix("tool-"),
        "dynamic": True if kind == "dynamic-tool" else None,
        "providerMetadata": part.get("callProviderMetadata"),
        **{name: part.get(name) for name in CALL_FIELDS},
    }
    state = part.get("state")
    if state == "input-streaming":
        yield {"type": "tool-input-start", **named}
        if "input" in part or "rawInput" in part:
            text = part["rawInput"] if "rawInput" in part else json_text(part["input"])
            yield {"type": "tool-input-delta", **call, "inputTextDelta": text}
    elif state == "output-error" and "rawInput" in part:
        yield {"type": "tool-input-start", **named}
        yield from _approval_chunks(part.get("approval") or {}, call)
        wrong = {"input": part["rawInput"], **_result(part, "errorText")}
        yield {"type": "tool-input-error", **named, **wrong}
    else:
        yield {"type": "tool-input-available", **named, "input": part.get("input", {})}
        yield from _approval_chunks(part.get("approval") or {}, call)
        yield from _outcome_chunks(part, call)


def _approval_chunks(approval: Mapping[str, Any], call: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if "id" in approval:
        asked = {name: approval.get(known) for name, known in APPROVAL_FIELDS.items()}
        yield {"type": "tool-approval-request", **call, **asked}
        if "approved" in approval:
            answer = {name: approval.get(name) for name in ("approved", "reason")}
            yield {"type": "tool-approval-response", "approvalId": approval["id"], **answer}


def _outcome_chunks(part: Mapping[str, Any], call: dict[str, Any]) -> Iterator[dict[str, Any]]:
    match part.get("state"):
        case "output-available":
            yield {"type": "tool-output-available", **call, **_result(part, "output", "preliminary")}
        case "output-error":
            yield {"type": "tool-output-error", **call, **_result(part, "errorText")}
        case "output-denied":
            yield {"type": "tool-output-denied", **call}


def _result(part: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {
        **{name: part.get(name) for name in names},
        "providerMetadata": part.get("resultProviderMetadata"),
    }
