"""What is stored of a message: sanitising, the size limit, and what the model is shown of old messages."""

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from think_celery.core.compaction import compact, sanitise, shorten_history, shrink
from think_celery.core.folding import Folding, final_message, full_message
from think_celery.core.wire import json_bytes

LIMIT = 1_800_000


def assistant(*parts: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"id": "m", "role": "assistant", "parts": list(parts), **more}


def output(value: Any, call: str = "c1") -> dict[str, Any]:
    return {"type": "tool-t", "toolCallId": call, "state": "output-available", "input": {}, "output": value}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


@pytest.mark.spec("T92")
def test_ephemeral_provider_metadata_is_removed() -> None:
    openai = {"itemId": "i", "reasoningEncryptedContent": "e"}
    message = assistant(
        {"type": "reasoning", "text": " ", "providerMetadata": {"openai": openai}},
        {"type": "reasoning", "text": "", "providerMetadata": {"anthropic": {"redactedData": "r"}}},
        {"type": "reasoning", "text": "kept", "providerMetadata": {"openai": {**openai, "other": 1}}},
        {**output(1), "callProviderMetadata": {"openai": openai, "p": {"k": 1}}},
        {**output(2), "resultProviderMetadata": {"openai": openai}},
        {"type": "text", "text": "a", "providerMetadata": {"openai": {"itemId": "i"}}},
        text(""),
    )
    before = copy.deepcopy(message)
    assert sanitise(message)["parts"] == [
        {"type": "reasoning", "text": "", "providerMetadata": {"anthropic": {"redactedData": "r"}}},
        {"type": "reasoning", "text": "kept", "providerMetadata": {"openai": {"other": 1}}},
        {**output(1), "callProviderMetadata": {"p": {"k": 1}}},
        output(2),
        text("a"),
    ]
    assert message == before


def test_a_message_without_such_data_passes_unchanged() -> None:
    message = assistant(text("a"), output({"k": None}), {"type": "data-x", "data": 1}, metadata={"k": 1})
    assert sanitise(message) == message
    assert compact(message, max_bytes=LIMIT) is message


@pytest.mark.spec("T93")
def test_large_outputs_are_compacted_in_the_stored_message_only() -> None:
    folding = Folding("m")
    folding.fold({"type": "tool-input-available", "toolCallId": "c1", "toolName": "t", "input": {}})
    folding.fold({"type": "tool-output-available", "toolCallId": "c1", "output": "x" * 2_000_000})
    folding.fold({"type": "tool-input-available", "toolCallId": "c2", "toolName": "t", "input": {}})
    folding.fold(
        {"type": "tool-output-available", "toolCallId": "c2", "output": {"rows": ["y" * 5000] * 9, "n": 9}}
    )
    folding.fold({"type": "tool-input-available", "toolCallId": "c3", "toolName": "t", "input": {}})
    folding.fold({"type": "tool-output-available", "toolCallId": "c3", "output": "short"})
    stored = final_message(folding, LIMIT)
    assert stored is not None
    assert json_bytes(stored) <= LIMIT
    first, second, third = (part["output"] for part in stored["parts"])
    assert first.startswith("x" * 500)
    assert "2,000,000" in first
    assert isinstance(second["rows"], list)
    assert second["rows"][0].startswith("yyy")
    assert third == "short"
    assert stored["metadata"] == {"compactedToolOutputs": ["c1", "c2"]}
    told = full_message(folding)  # what the hooks of the turn are given
    assert told is not None
    assert told["parts"][0]["output"] == "x" * 2_000_000
    assert "metadata" not in told


@pytest.mark.spec("T94")
def test_large_texts_are_shortened_oldest_first() -> None:
    message = {"id": "m", "role": "user", "parts": [text("a" * 900), text("b" * 2_000_000), text("c" * 5000)]}
    before = copy.deepcopy(message)
    stored = compact(message, max_bytes=LIMIT)
    assert json_bytes(stored) <= LIMIT
    assert stored["metadata"] == {"compactedTextParts": [1]}
    assert stored["parts"][1]["text"].startswith("b" * 500)
    assert "2,000,000" in stored["parts"][1]["text"]
    assert (stored["parts"][0], stored["parts"][2]) == (message["parts"][0], message["parts"][2])
    assert message == before


def test_outputs_of_other_roles_are_not_touched_before_text() -> None:
    message = {
        "id": "m",
        "role": "user",
        "parts": [{"type": "data-d", "data": "d" * 2000}, text("t" * 20_000)],
    }
    assert "compactedToolOutputs" not in compact(message, max_bytes=10_000)["metadata"]


def test_long_fields_and_whole_parts_go_last() -> None:
    many = assistant(*[text(f"{number} " + "x" * 900) for number in range(100)])
    stored = compact(many, max_bytes=10_000)
    assert json_bytes(stored) <= 10_000
    assert stored["metadata"]["droppedParts"] == 101 - len(stored["parts"])
    assert stored["parts"][-1] == many["parts"][-1]
    data = assistant({"type": "data-d", "data": ["d" * 400] * 100}, text("end"))
    assert compact(data, max_bytes=10_000)["metadata"] == {"compactedParts": [0]}


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.integers() | st.text(max_size=5).map(lambda word: word * 300),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=40), inner, max_size=6),
    max_leaves=30,
)
PARTS = st.one_of(
    st.text(max_size=8).map(lambda word: text(word * 400)),
    JSON.map(output),
    st.builds(lambda data: {"type": "data-d", "data": data}, JSON),
    st.text(max_size=4).map(lambda word: {"type": "reasoning", "text": word * 900}),
)


@settings(max_examples=60)
@given(st.lists(PARTS, max_size=40), st.dictionaries(st.text(max_size=5), JSON, max_size=2))
def test_a_compacted_message_always_fits(parts: list[dict[str, Any]], metadata: dict[str, Any]) -> None:
    message = assistant(*parts, metadata=metadata)
    stored = compact(message, max_bytes=10_000)
    assert json_bytes(stored) <= 10_000
    assert (stored["id"], stored["role"]) == ("m", "assistant")
    if json_bytes(message) <= 10_000:
        assert stored is message


@given(JSON)
def test_shrinking_keeps_the_shape_and_bounds_the_size(value: Any) -> None:
    small = shrink(value, 1000)
    assert type(small) is type(value)
    if isinstance(value, (str, list, dict)):
        assert len(json.dumps(small, ensure_ascii=False)) < 7000  # a control character is written as six


def test_a_file_in_an_output_is_not_cut_in_half() -> None:
    file = {"kind": "binary", "media_type": "image/png", "data": "A" * 9000}
    assert shrink({"image": file}, 1000)["image"] == {"omitted": "binary of 9,000 characters"}


def test_the_model_is_shown_old_messages_shortened() -> None:
    old = assistant(text("a" * 20_000), text("b" * 9000), output("o" * 600), output("p" * 400, "c2"))
    recent = [assistant(text("a" * 20_000), output("o" * 600)) for _ in range(4)]
    before = copy.deepcopy(old)
    shown = shorten_history([old, *recent])
    assert [len(part.get("text") or part["output"]) for part in shown[0]["parts"]] == [536, 9000, 283, 400]
    assert shown[1:] == recent
    assert old == before
    assert shorten_history([old]) == [old]
