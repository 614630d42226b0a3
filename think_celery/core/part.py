"""Parts of a message: how one is built from deltas, and how one is closed that never got its end."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import from_json

from think_celery.core.wire import clean_json

SETTLED = frozenset({"output-available", "output-error", "output-denied"})
"""States of a tool part that has its result."""
INTERRUPTED = "The call was interrupted before its result was known; it may or may not have taken effect."


def is_tool(part: Mapping[str, Any]) -> bool:
    """True for the call of a tool, static or dynamic."""
    kind = str(part.get("type", ""))
    return kind == "dynamic-tool" or kind.startswith("tool-")


@dataclass(slots=True)
class Part:
    """A part under construction; deltas are joined when somebody looks, not each time."""

    data: dict[str, Any]
    pieces: list[str] = field(default_factory=list)

    @classmethod
    def stored(cls, data: Mapping[str, Any]) -> "Part":
        """Return a part of a stored message, to go on with."""
        part = cls(dict(data))
        given = part.data.get("text") if data["type"] in ("text", "reasoning") else None
        if data.get("state") == "input-streaming":
            given = part.data.pop("rawInput", None)
        if given and isinstance(given, str):
            part.pieces.append(given)
        return part

    @property
    def has_content(self) -> bool:
        """True unless this is a step mark or an empty block; redacted reasoning has only metadata."""
        if self.data["type"] == "reasoning" and self.data.get("providerMetadata"):
            return True
        return bool(self.pieces) or self.data["type"] not in ("step-start", "text", "reasoning")

    @property
    def approval(self) -> dict[str, Any]:
        """What was asked of and said by a person about this call, empty when nothing was."""
        approval = self.data.get("approval")
        return approval if isinstance(approval, dict) else {}

    def name_tool(self, name: str) -> None:
        """Say which tool a call is for."""
        self.data |= {"toolName": name} if self.data["type"] == "dynamic-tool" else {"type": f"tool-{name}"}

    def joined(self) -> str:
        """Return the deltas so far as one text."""
        if len(self.pieces) > 1:
            self.pieces[:] = ["".join(self.pieces)]
        return self.pieces[0] if self.pieces else ""

    def render(self) -> dict[str, Any]:
        """Return the part as a JSON object; a copy, whose nested values are shared."""
        data = dict(self.data)
        if "text" in data and data["type"] in ("text", "reasoning"):
            data["text"] = self.joined()
        elif data.get("state") == "input-streaming" and self.pieces:
            data["rawInput"] = self.joined()
            if (partial := self._partial_input()) is not None:
                data["input"] = partial
        return data

    def finish_input(self) -> None:
        """Take what has arrived of a streamed input as the whole of it."""
        if self.data["state"] == "input-streaming":
            self.data["input"] = self.render().get("input", {})

    def _partial_input(self) -> dict[str, Any] | None:
        try:
            value = from_json(self.joined(), allow_partial="trailing-strings")
        except ValueError:
            return None
        return clean_json(value) if isinstance(value, dict) else None

    def describe(self, chunk: Mapping[str, Any], name: str = "providerMetadata") -> None:
        """Take over a chunk's provider metadata; what it says of reasoning is added to what is known.

        Providers send the signature of a thought with its last chunk, and other things before.
        """
        given = chunk.get("providerMetadata")
        if not isinstance(given, dict):
            return
        known = self.data.get(name)
        if self.data["type"] == "reasoning" and isinstance(known, dict):
            given = {
                **known,
                **{provider: _added(known.get(provider), given[provider]) for provider in given},
            }
        self.data[name] = given


def _added(known: object, given: object) -> object:
    return {**known, **given} if isinstance(known, dict) and isinstance(given, dict) else given


def normal_input(value: object) -> dict[str, Any]:
    """Return a tool input that every provider accepts in later requests (T 2.3).

    An object stays, text that holds a JSON object becomes that object, everything else becomes `{}`.

    >>> normal_input('{"a":1}'), normal_input('{"a":'), normal_input([1])
    ({'a': 1}, {}, {})
    """
    if isinstance(value, str) and value.startswith("{"):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return {}
    return clean_json(value) if isinstance(value, Mapping) else {}


def close_open_parts(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message that no later model request can choke on (T 2.6, 4.7); the given one is not changed.

    Open text and reasoning are done, calls without a result end in `output-error` (they are never removed, or
    the model would silently repeat them), malformed inputs become objects. Calls that wait for a person are
    left alone. Open reasoning loses its provider metadata: providers refuse half a signature.
    """
    return {**message, "parts": [_closed(part) for part in message.get("parts", ())]}


def _closed(part: dict[str, Any]) -> dict[str, Any]:
    state = part.get("state")
    if not is_tool(part):
        return _closed_block(part) if state == "streaming" else part
    if not isinstance(part.get("input"), dict):
        part = {**part, "input": normal_input(part.get("input"))}
    if state in SETTLED or state in ("approval-requested", "approval-responded"):
        return part
    kept = {key: value for key, value in part.items() if key != "rawInput"}
    return {**kept, "state": "output-error", "errorText": INTERRUPTED}


def _closed_block(part: dict[str, Any]) -> dict[str, Any]:
    lost = "providerMetadata" if part.get("type") == "reasoning" else None
    return {key: value for key, value in part.items() if key != lost} | {"state": "done"}
