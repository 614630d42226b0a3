"""Folding UI message chunks into one assistant message (T 2.3).

Incremental and split-invariant: however the text of a block is cut into deltas, even in the middle of a
surrogate pair, the message is the same, and so is the text that observers put together.
"""

from collections.abc import Callable, Mapping
from typing import Any

from think_celery.core.compaction import compact, sanitise
from think_celery.core.message import IDENTIFIER_LIMIT
from think_celery.core.part import SETTLED, Part, close_open_parts, normal_input
from think_celery.core.wire import clean_json, json_text

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
        self._error: str | None = None

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
        if isinstance(given, str) and given.strip() and len(given) <= IDENTIFIER_LIMIT:
            self._id = given
        stamped = {**chunk, "messageId": self._id}
        return {**stamped, "messageMetadata": dict(self._metadata)} if self._metadata else stamped

    def _start_step(self, chunk: Chunk) -> Chunk:
        self._parts.append(Part({"type": "step-start"}))
        return {**chunk, "type": "start-step"}

    def _block(self, kind: str, chunk: Chunk) -> Part | None:
        part = self._blocks.get((kind, str(chunk.get("id"))))
        if part is None:
            part = next((part for part in reversed(self._parts) if part.data["type"] == kind), None)
        return part

    def _open_block(self, kind: str, chunk: Chunk) -> Part:
        part = Part({"type": kind, "text": "", "state": "streaming"})
        self._parts.append(part)
        self._blocks[kind, str(chunk.get("id"))] = part
        return part

    def _block_start(self, chunk: Chunk) -> Chunk:
        self._open_block(chunk["type"].removesuffix("-start"), chunk).merge_metadata(chunk)
        return chunk

    def _block_delta(self, chunk: Chunk) -> Chunk:
        kind = chunk["type"].removesuffix("-delta")
        part = self._block(kind, chunk) or self._open_block(kind, chunk)
        if chunk["delta"]:
            part.pieces.append(chunk["delta"])
        part.merge_metadata(chunk)
        return chunk

    def _block_end(self, chunk: Chunk) -> Chunk | None:
        kind = chunk["type"].removesuffix("-end")
        self._held.pop((f"{kind}-delta", str(chunk.get("id"))), None)
        part = self._block(kind, chunk)
        if part is None:
            return None
        part.data["state"] = "done"
        part.merge_metadata(chunk)
        return chunk

    def _call(self, chunk: Chunk) -> Part | None:
        return self._calls.get(str(chunk.get("toolCallId")))

    def _open_call(self, chunk: Chunk, state: str) -> Part:
        name = str(chunk.get("toolName") or "")
        dynamic = bool(chunk.get("dynamic"))
        data: dict[str, Any] = (
            {"type": "dynamic-tool", "toolName": name} if dynamic else {"type": f"tool-{name}"}
        )
        data |= {"toolCallId": str(chunk.get("toolCallId")), "state": state}
        part = Part(data)
        self._parts.append(part)
        self._calls[data["toolCallId"]] = part
        return part

    def _describe_call(self, part: Part, chunk: Chunk) -> None:
        for name in ("providerExecuted", "title"):
            if chunk.get(name) is not None:
                part.data[name] = chunk[name]
        part.merge_metadata(chunk, "callProviderMetadata")

    def _input_start(self, chunk: Chunk) -> Chunk | None:
        if self._call(chunk) is not None:
            return None
        self._describe_call(self._open_call(chunk, "input-streaming"), chunk)
        return chunk

    def _input_delta(self, chunk: Chunk) -> Chunk | None:
        part = self._call(chunk)
        if part is None or part.data["state"] != "input-streaming":
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
        self._describe_call(part, chunk)
        return chunk

    def _approval_request(self, chunk: Chunk) -> Chunk | None:
        part = self._call(chunk)
        if part is None or part.data["state"] in SETTLED or part.data["state"] == "approval-responded":
            return None
        approval = {"id": chunk.get("approvalId"), "descriptor": chunk.get("approvalDescriptor")}
        self._finish_input(part)
        part.data["approval"] = {key: value for key, value in approval.items() if value is not None}
        part.data["state"] = "approval-requested"
        return chunk

    def _output_denied(self, chunk: Chunk) -> Chunk | None:
        part = self._call(chunk)
        if part is None or part.data["state"] in SETTLED or part.data["state"] == "approval-responded":
            return None
        self._finish_input(part)
        part.data["state"] = "output-denied"
        return chunk

    def _output(self, chunk: Chunk) -> Chunk | None:
        part = self._call(chunk)
        if part is None:
            return None
        self._finish_input(part)
        for name in ("output", "errorText", "preliminary"):
            part.data.pop(name, None)
        if chunk["type"] == "tool-output-error":
            part.data |= {"state": "output-error", "errorText": _error_text(chunk)}
        else:
            part.data |= {"state": "output-available", "output": chunk.get("output")}
            if chunk.get("preliminary") is not None:
                part.data["preliminary"] = chunk["preliminary"]
        self._describe_call(part, chunk)
        return chunk

    def _finish_input(self, part: Part) -> None:
        if part.data["state"] == "input-streaming":
            part.data["input"] = normal_input(part.joined())

    def _data(self, chunk: Chunk) -> Chunk:
        if chunk.get("transient") is True:
            return chunk
        data = {key: value for key, value in chunk.items() if key != "transient"}
        if data.get("id") is not None:
            same = (data["type"], data["id"])
            for part in self._parts:
                if (part.data["type"], part.data.get("id")) == same:
                    part.data["data"] = data.get("data")
                    return chunk
        self._parts.append(Part(data))
        return chunk

    def _attachment(self, chunk: Chunk) -> Chunk:
        self._parts.append(Part(dict(chunk)))
        return chunk

    def _fail(self, chunk: Chunk) -> None:
        self._error = _error_text(chunk)


_FOLDS: dict[str, Callable[[Folding, Chunk], Chunk | None]] = {
    "start": Folding._start,
    "start-step": Folding._start_step,
    "step-start": Folding._start_step,
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
    "tool-output-available": Folding._output,
    "tool-output-error": Folding._output,
    "tool-output-denied": Folding._output_denied,
    "file": Folding._attachment,
    "source-url": Folding._attachment,
    "source-document": Folding._attachment,
    "finish": Folding._merge_metadata,
    "message-metadata": Folding._merge_metadata,
    "error": Folding._fail,
}


def _error_text(chunk: Chunk) -> str:
    text = chunk.get("errorText")
    return text if isinstance(text, str) and text.strip() else json_text(chunk)


def final_message(folding: Folding, max_bytes: int) -> dict[str, Any] | None:
    """Return the message to store at the end of a turn, whatever the end was.

    Args:
        folding: What the turn streamed.
        max_bytes: Largest stored message; a bigger one is compacted and says so in its metadata.

    Returns:
        The settled, sanitised and compacted message; None when nothing was said (step marks only).

    Source: T 2.6 to 2.8.
    """
    message = sanitise(folding.settled())
    if all(part["type"] == "step-start" for part in message["parts"]):
        return None
    return compact(message, max_bytes=max_bytes)
