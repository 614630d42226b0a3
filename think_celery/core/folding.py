"""Folding UI message chunks into one assistant message (T 2.3).

Incremental and split-invariant: however the text of a block is cut into deltas, even in the middle of a
surrogate pair, the message is the same, and so is the text that observers put together.
"""

from collections.abc import Callable, Mapping
from typing import Any

from think_celery.core.compaction import compact, sanitise
from think_celery.core.message import IDENTIFIER_LIMIT
from think_celery.core.part import SETTLED, Part, close_open_parts, is_tool, normal_input
from think_celery.core.wire import APPROVAL_FIELDS, ATTACHMENTS, CALL_FIELDS, clean_json, json_text

_DELTAS = {"text-delta": "delta", "reasoning-delta": "delta", "tool-input-delta": "inputTextDelta"}

Chunk = dict[str, Any]


class Folding:
    """One assistant message under construction.

    Args:
        message_id: Id of the message, unless the first `start` brings one.
        metadata: Metadata to begin with.
    """

    def __init__(self, message_id: str, *, metadata: dict[str, Any] | None = None) -> None:
        self._id = message_id
        self._metadata = dict(metadata or {})
        self._parts: list[Part] = []
        self._blocks: dict[tuple[str, str], Part] = {}
        self._calls: dict[str, Part] = {}
        self._held: dict[tuple[str, str], str] = {}
        self._started = False
        self._keeps_id = False
        self._error: str | None = None

    @classmethod
    def onto(cls, message: Mapping[str, Any]) -> "Folding":
        """Go on with an assistant message that has parts already; no `start` changes its id."""
        folding = cls(str(message["id"]), metadata=message.get("metadata"))
        folding._keeps_id = True
        for data in message.get("parts", ()):
            folding._add(Part.stored(data))
        return folding

    @property
    def message_id(self) -> str:
        """Id of the message."""
        return self._id

    @property
    def error(self) -> str | None:
        """Text of the error chunk that ended the stream, None when there was none."""
        return self._error

    @property
    def has_content(self) -> bool:
        """True when something was said: more than step marks and empty blocks."""
        return any(part.has_content for part in self._parts)

    def message(self) -> dict[str, Any]:
        """Return the message so far, a copy; blocks that are still open read `streaming`."""
        parts = [part.render() for part in self._parts]
        message: dict[str, Any] = {"id": self._id, "role": "assistant", "parts": parts}
        if self._metadata:
            message["metadata"] = dict(self._metadata)
        return message

    def settled(self) -> dict[str, Any]:
        """Return the message as if the stream ended now: blocks done, open calls in `output-error`."""
        return close_open_parts(self.message())

    def fold(self, chunk: Mapping[str, Any]) -> Chunk | None:
        """Apply one chunk.

        Returns:
            The chunk to forward to observers, cleaned and with the message id in `start`; None when they must
            not see it: it would set a client back (a repeated call, a second `start`), names a block or call
            that does not exist, is an error (`error` has its text), or comes after one.
        """
        if self._error is not None:
            return None
        kind = str(chunk.get("type", ""))
        delta = _DELTAS.get(kind)
        if delta is not None:
            chunk = {**chunk, delta: self._whole_characters(chunk, kind, delta)}
        clean: Chunk = clean_json(chunk)
        if delta is not None and not clean[delta] and not clean.get("providerMetadata"):
            return None
        if kind.startswith("data-"):
            return self._data(clean)
        fold = _FOLDS.get(kind)
        return clean if fold is None else fold(self, clean)

    def _whole_characters(self, chunk: Mapping[str, Any], kind: str, delta: str) -> str:
        """Hold back the first half of a surrogate pair until its second half arrives in the next delta."""
        key = (kind, str(chunk.get("toolCallId", chunk.get("id"))))
        given = chunk.get(delta)
        text = self._held.pop(key, "") + (given if isinstance(given, str) else "")
        if text and "\ud800" <= text[-1] <= "\udbff":
            self._held[key] = text[-1]
            return text[:-1]
        return text

    def _merge_metadata(self, chunk: Chunk) -> Chunk:
        metadata = chunk.get("messageMetadata")
        if isinstance(metadata, dict):
            self._metadata.update(metadata)
        return chunk

    def _start(self, chunk: Chunk) -> Chunk | None:
        self._merge_metadata(chunk)
        if self._started:
            metadata = chunk.get("messageMetadata")
            return {"type": "message-metadata", "messageMetadata": metadata} if metadata else None
        self._started = True
        given = chunk.get("messageId")
        if isinstance(given, str) and given.strip() and len(given) <= IDENTIFIER_LIMIT and not self._keeps_id:
            self._id = given
        stamped = {**chunk, "messageId": self._id}
        return {**stamped, "messageMetadata": dict(self._metadata)} if self._metadata else stamped

    def _add(self, part: Part) -> Part:
        self._parts.append(part)
        if is_tool(part.data):
            self._calls[str(part.data.get("toolCallId"))] = part
        return part

    def _start_step(self, chunk: Chunk) -> Chunk:
        self._add(Part({"type": "step-start"}))
        return {**chunk, "type": "start-step"}

    def _reset_step(self, chunk: Chunk) -> Chunk:
        """Take back what the current step has said; the step goes on."""
        while self._parts and self._parts[-1].data["type"] != "step-start":
            self._calls.pop(str(self._parts.pop().data.get("toolCallId")), None)
        self._blocks.clear()
        self._held.clear()
        return chunk

    def _block(self, kind: str, chunk: Chunk) -> Part | None:
        part = self._blocks.get((kind, str(chunk.get("id"))))
        if part is None:
            part = next((part for part in reversed(self._parts) if part.data["type"] == kind), None)
        return part

    def _open_block(self, kind: str, chunk: Chunk) -> Part:
        part = self._add(Part({"type": kind, "text": "", "state": "streaming"}))
        if kind == "reasoning" and isinstance(chunk.get("id"), str):
            part.data["id"] = chunk["id"]
        self._blocks[kind, str(chunk.get("id"))] = part
        return part

    def _block_start(self, chunk: Chunk) -> Chunk:
        self._open_block(chunk["type"].removesuffix("-start"), chunk).describe(chunk)
        return chunk

    def _block_delta(self, chunk: Chunk) -> Chunk:
        kind = chunk["type"].removesuffix("-delta")
        part = self._block(kind, chunk) or self._open_block(kind, chunk)
        if chunk["delta"]:
            part.pieces.append(chunk["delta"])
        return self._described(part, chunk)

    def _block_end(self, chunk: Chunk) -> Chunk | None:
        kind = chunk["type"].removesuffix("-end")
        self._held.pop((f"{kind}-delta", str(chunk.get("id"))), None)
        part = self._block(kind, chunk)
        if part is None:
            return None
        part.data["state"] = "done"
        if isinstance(chunk.get("citations"), list):
            part.data["citations"] = chunk["citations"]
        return self._described(part, chunk)

    def _described(self, part: Part, chunk: Chunk) -> Chunk:
        """Let observers, who replace what they know by what a chunk says, end with the same metadata."""
        part.describe(chunk)
        if isinstance(chunk.get("providerMetadata"), dict):
            return {**chunk, "providerMetadata": part.data["providerMetadata"]}
        return chunk

    def _call(self, chunk: Chunk) -> Part | None:
        return self._calls.get(str(chunk.get("toolCallId")))

    def _open_call(self, chunk: Chunk, state: str) -> Part:
        named = {"type": "dynamic-tool", "toolName": ""} if chunk.get("dynamic") else {"type": "tool-"}
        return self._add(Part({**named, "toolCallId": str(chunk.get("toolCallId")), "state": state}))

    def _describe_call(self, part: Part, chunk: Chunk, metadata: str = "callProviderMetadata") -> None:
        if chunk.get("toolName"):
            part.name_tool(str(chunk["toolName"]))
        part.data |= {name: chunk[name] for name in CALL_FIELDS if chunk.get(name) is not None}
        part.describe(chunk, metadata)

    def _input_start(self, chunk: Chunk) -> Chunk | None:
        if self._call(chunk) is not None:
            return None
        self._describe_call(self._open_call(chunk, "input-streaming"), chunk)
        return chunk

    def _input_delta(self, chunk: Chunk) -> Chunk | None:
        part = self._call(chunk)
        if part is None or part.data["state"] != "input-streaming" or not chunk["inputTextDelta"]:
            return None
        part.pieces.append(chunk["inputTextDelta"])
        return chunk

    def _input_available(self, chunk: Chunk) -> Chunk | None:
        part = self._call(chunk)
        if part is not None and part.data["state"] != "input-streaming":
            return None
        part = part or self._open_call(chunk, "input-available")
        part.data |= {"state": "input-available", "input": normal_input(chunk.get("input"))}
        self._describe_call(part, chunk)
        return {**chunk, "input": part.data["input"]}

    def _input_error(self, chunk: Chunk) -> Chunk | None:
        part = self._call(chunk)
        if part is not None and part.data["state"] in SETTLED:
            return None
        part = part or self._open_call(chunk, "output-error")
        given = chunk.get("input")
        part.data |= {"state": "output-error", "input": normal_input(given), "errorText": _error_text(chunk)}
        if given != part.data["input"]:
            part.data["rawInput"] = given
        self._describe_call(part, chunk, "resultProviderMetadata")
        return chunk

    def _approval_request(self, chunk: Chunk) -> Chunk | None:
        part = self._call(chunk)
        if part is None or part.data["state"] in SETTLED or part.data["state"] == "approval-responded":
            return None
        approval = {known: chunk.get(name) for name, known in APPROVAL_FIELDS.items()}
        part.finish_input()
        part.data["approval"] = {
            name: value for name, value in approval.items() if value is not None and value is not False
        }
        part.data["state"] = "approval-requested"
        return chunk

    def _approval_response(self, chunk: Chunk) -> Chunk | None:
        part = next(
            (part for part in self._calls.values() if part.approval.get("id") == chunk.get("approvalId")),
            None,
        )
        if part is None or part.data["state"] in SETTLED:
            return None
        answer = {"approved": chunk.get("approved") is True, "reason": chunk.get("reason")}
        answer = {key: value for key, value in answer.items() if value is not None}
        part.data |= {"state": "approval-responded", "approval": {**part.approval, **answer}}
        self._describe_call(part, chunk)
        return chunk

    def _output_denied(self, chunk: Chunk) -> Chunk | None:
        part = self._call(chunk)
        if part is None or part.data["state"] in SETTLED or part.approval.get("approved") is True:
            return None
        part.finish_input()
        part.data["state"] = "output-denied"
        return chunk

    def _output(self, chunk: Chunk) -> Chunk | None:
        part = self._call(chunk)
        if part is None:
            return None
        part.finish_input()
        for name in ("output", "errorText", "preliminary"):
            part.data.pop(name, None)
        if chunk["type"] == "tool-output-error":
            part.data |= {"state": "output-error", "errorText": _error_text(chunk)}
        else:
            part.data.pop("rawInput", None)
            part.data |= {"state": "output-available", "output": chunk.get("output")}
            if chunk.get("preliminary") is not None:
                part.data["preliminary"] = chunk["preliminary"]
        self._describe_call(part, chunk, "resultProviderMetadata")
        return chunk

    def _data(self, chunk: Chunk) -> Chunk:
        if chunk.get("transient") is True:
            return chunk
        if chunk.get("id") is not None:
            same = (chunk["type"], chunk["id"])
            for part in self._parts:
                if (part.data["type"], part.data.get("id")) == same:
                    part.data["data"] = chunk.get("data")
                    return chunk
        return self._attachment(chunk)

    def _attachment(self, chunk: Chunk) -> Chunk:
        self._add(Part(dict(chunk)))
        return chunk

    def _fail(self, chunk: Chunk) -> None:
        self._error = _error_text(chunk)


_FOLDS: dict[str, Callable[[Folding, Chunk], Chunk | None]] = {
    "start": Folding._start,
    "start-step": Folding._start_step,
    "step-start": Folding._start_step,
    "reset-step": Folding._reset_step,
    "text-start": Folding._block_start,
    "text-delta": Folding._block_delta,
    "text-end": Folding._block_end,
    "reasoning-start": Folding._block_start,
    "reasoning-delta": Folding._block_delta,
    "reasoning-end": Folding._block_end,
    "tool-input-start": Folding._input_start,
    "tool-input-delta": Folding._input_delta,
    "tool-input-available": Folding._input_available,
    "tool-input-error": Folding._input_error,
    "tool-approval-request": Folding._approval_request,
    "tool-approval-response": Folding._approval_response,
    "tool-output-available": Folding._output,
    "tool-output-error": Folding._output,
    "tool-output-denied": Folding._output_denied,
    **dict.fromkeys(ATTACHMENTS, Folding._attachment),
    "finish": Folding._merge_metadata,
    "message-metadata": Folding._merge_metadata,
    "error": Folding._fail,
}


def _error_text(chunk: Chunk) -> str:
    text = chunk.get("errorText")
    return text if isinstance(text, str) and text.strip() else json_text(chunk)


def full_message(folding: Folding) -> dict[str, Any] | None:
    """Return the message at the end of a turn, whatever the end was, as long as it is.

    Returns:
        The settled and sanitised message; None when nothing was said (step marks only).

    Source: T 2.6, 2.7.
    """
    message = sanitise(folding.settled())
    return None if all(part["type"] == "step-start" for part in message["parts"]) else message


def final_message(folding: Folding, max_bytes: int) -> dict[str, Any] | None:
    """Return `full_message` as it is stored.

    Args:
        folding: What the turn streamed.
        max_bytes: Largest stored message; a bigger one is compacted and says so in its metadata.

    Source: T 2.8.
    """
    message = full_message(folding)
    return None if message is None else compact(message, max_bytes=max_bytes)
