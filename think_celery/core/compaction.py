"""What of a message is stored, and what of old messages the model is shown (T 2.7, 2.8)."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from think_celery.core.wire import json_bytes, json_text

KEEP_CHARACTERS = 500
SHRINK_ABOVE = 1000
RECENT_MESSAGES = 4
OLD_OUTPUT_ABOVE = 500
OLD_TEXT_ABOVE = 10_000
_EPHEMERAL = ("itemId", "reasoningEncryptedContent")
_METADATA_FIELDS = ("providerMetadata", "callProviderMetadata", "resultProviderMetadata")


def sanitise(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message without what must not be stored (T 2.7); the given one is not changed.

    OpenAI's item ids and encrypted reasoning are removed from provider metadata, then empty text and blank
    reasoning; redacted reasoning (blank, with metadata) stays.
    """
    parts = [_without_ephemeral(part) for part in message["parts"]]
    return {**message, "parts": [part for part in parts if not _is_blank(part)]}


def _without_ephemeral(part: dict[str, Any]) -> dict[str, Any]:
    for name in _METADATA_FIELDS:
        metadata = part.get(name)
        if isinstance(metadata, dict) and isinstance(metadata.get("openai"), dict):
            part = {**part, name: _strip_openai(metadata)}
            if not part[name]:
                del part[name]
    return part


def _strip_openai(metadata: dict[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in metadata["openai"].items() if key not in _EPHEMERAL}
    rest = {key: value for key, value in metadata.items() if key != "openai"}
    return {**rest, "openai": kept} if kept else rest


def _is_blank(part: Mapping[str, Any]) -> bool:
    text = str(part.get("text") or "")
    if part["type"] == "reasoning":
        return not text.strip() and not part.get("providerMetadata")
    return part["type"] == "text" and not text


def compact(message: dict[str, Any], *, max_bytes: int) -> dict[str, Any]:
    """Return a message whose JSON text fits into `max_bytes` (T 2.8); one that fits is returned as it is.

    In this order, each only while it is still too big: tool outputs above 1,000 characters (of assistants;
    `metadata.compactedToolOutputs` lists the calls), text above 1,000 characters, oldest first
    (`compactedTextParts` lists the indices), every other long field (`compactedParts`), whole parts, oldest
    first (`droppedParts` counts them). The given message is not changed.
    """
    if json_bytes(message) <= max_bytes:
        return message
    work = {**message, "parts": [dict(part) for part in message["parts"]]}
    work["metadata"] = dict(message.get("metadata") or {})
    steps: list[Callable[[dict[str, Any], int], None]] = [_compact_texts, _compact_fields, _drop_parts]
    if message["role"] == "assistant":
        steps.insert(0, _compact_outputs)
    for step in steps:
        step(work, max_bytes)
        if json_bytes(work) <= max_bytes:
            break
    return work


def _compact_outputs(work: dict[str, Any], max_bytes: int) -> None:
    shrunk: list[str] = []
    for part in work["parts"]:
        if part.get("state") == "output-available" and characters(part.get("output")) > SHRINK_ABOVE:
            part["output"] = shrink(part["output"], SHRINK_ABOVE)
            shrunk.append(str(part.get("toolCallId")))
    if shrunk:
        work["metadata"]["compactedToolOutputs"] = shrunk


def _compact_texts(work: dict[str, Any], max_bytes: int) -> None:
    long = [
        index
        for index, part in enumerate(work["parts"])
        if part["type"] == "text" and characters(part.get("text")) > SHRINK_ABOVE
    ]
    excess = json_bytes(work) + 32 + 8 * len(long) - max_bytes  # the note below has a size as well
    cut: list[int] = []
    for index in long:
        if excess <= 0:
            break
        part = work["parts"][index]
        before = json_bytes(part)
        part["text"] = shorten(part["text"])
        excess -= before - json_bytes(part)
        cut.append(index)
    if cut:
        work["metadata"]["compactedTextParts"] = cut


def _compact_fields(work: dict[str, Any], max_bytes: int) -> None:
    cut: list[int] = []
    for index, part in enumerate(work["parts"]):
        for name, value in part.items():
            if name not in ("type", "toolCallId", "toolName", "state") and characters(value) > SHRINK_ABOVE:
                part[name] = shrink(value, SHRINK_ABOVE)
                cut.append(index)
    if cut:
        work["metadata"]["compactedParts"] = sorted(set(cut))


def _drop_parts(work: dict[str, Any], max_bytes: int) -> None:
    if json_bytes(work["metadata"]) > max_bytes // 2:
        work["metadata"] = {"compactedMetadata": True}
    sizes = [json_bytes(part) + 1 for part in work["parts"]]
    note = {
        "type": "text",
        "text": "[the beginning of this message was too long to be stored]",
        "state": "done",
    }
    room = max_bytes - json_bytes({**work, "parts": [note]}) - 64
    kept = 0
    while kept < len(sizes) and room >= sizes[-1 - kept]:
        room -= sizes[-1 - kept]
        kept += 1
    dropped = len(sizes) - kept
    work["metadata"]["droppedParts"] = dropped
    work["parts"] = [note, *work["parts"][dropped:]]


def characters(value: object) -> int:
    """Return the length of a text, or of a value's JSON text."""
    return len(value) if isinstance(value, str) else len(json_text(value))


def shorten(text: str, keep: int = KEEP_CHARACTERS) -> str:
    """Return the beginning of a text and how long it was."""
    return f"{text[:keep]}… [shortened from {len(text):,} characters]"


def shrink(value: Any, limit: int) -> Any:
    """Return a short value of the same shape: text stays text, a list a list, an object an object.

    Args:
        value: A JSON value.
        limit: Characters above which a text is cut; what the entries of a list or object may take.
    """
    if isinstance(value, str):
        return shorten(value, limit // 2) if len(value) > limit else value
    if isinstance(value, list):
        kept = _fitting([(None, item) for item in value], limit)
        rest = len(value) - len(kept)
        return [item for _, item in kept] + ([f"… [{rest:,} more items]"] if rest else [])
    if isinstance(value, dict):
        if "kind" in value and isinstance(value.get("data"), str):
            # A file with half of its data would be refused when it is read back.
            return {"omitted": f"{value['kind']} of {len(value['data']):,} characters"}
        kept = _fitting(list(value.items()), limit)
        rest = len(value) - len(kept)
        return dict(kept) | ({"…": f"[{rest:,} more entries]"} if rest else {})
    return value


def _fitting(entries: list[tuple[Any, Any]], limit: int) -> list[tuple[Any, Any]]:
    kept: list[tuple[Any, Any]] = []
    for key, item in entries:
        small = shrink(item, limit // 2) if characters(item) > limit // 2 else item
        limit -= characters(small) + characters(key)
        if limit < 0:
            break
        kept.append((key, small))
    return kept


def shorten_history(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the conversation as the model is shown it (T 2.8); the given messages are not changed.

    The last four messages are untouched; in older ones tool outputs above 500 and texts above 10,000
    characters are shortened.
    """
    old = max(0, len(messages) - RECENT_MESSAGES)
    return [_old(message) for message in messages[:old]] + list(messages[old:])


def _old(message: dict[str, Any]) -> dict[str, Any]:
    return {**message, "parts": [_old_part(part) for part in message.get("parts", ())]}


def _old_part(part: dict[str, Any]) -> dict[str, Any]:
    text = part.get("text")
    if part.get("type") == "text" and isinstance(text, str) and len(text) > OLD_TEXT_ABOVE:
        return {**part, "text": shorten(text)}
    if part.get("state") == "output-available" and characters(part.get("output")) > OLD_OUTPUT_ABOVE:
        return {**part, "output": shrink(part["output"], OLD_OUTPUT_ABOVE)}
    return part
