"""What is cleaned, and stored messages as the chunks that build them."""

import json
from datetime import date
from enum import StrEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from think_celery.core.folding import Folding
from think_celery.core.wire import (
    chunks_of_message,
    clean_json,
    clean_text,
    json_bytes,
    json_text,
    strict_json,
)
from think_celery.errors import InvalidInput

HOSTILE = st.text(st.characters(categories=None) | st.sampled_from("\x00\ud800\udbff\udc00\udfff"))
ANYTHING: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | HOSTILE | st.binary() | st.dates(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(HOSTILE | st.integers(), inner, max_size=4)
        | st.tuples(inner, inner)
    ),
    max_leaves=12,
)


@given(HOSTILE)
def test_cleaned_text_can_be_stored_and_encoded(text: str) -> None:
    cleaned = clean_text(text)
    assert "\x00" not in cleaned
    assert cleaned.encode().decode() == cleaned
    assert clean_text(cleaned) == cleaned


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00")))
def test_clean_text_is_left_alone(text: str) -> None:
    assert clean_text(text) == text


def test_halves_that_meet_are_joined() -> None:
    assert clean_text("a\ud83d\ude00b") == "a\U0001f600b"
    assert clean_text("\ud83d\ud83d\ude00\ude00") == "\ufffd\U0001f600\ufffd"


@given(ANYTHING)
def test_cleaning_never_raises_and_gives_json(value: object) -> None:
    text = json_text(clean_json(value))
    assert json.loads(text) == clean_json(value)
    assert "\\u0000" not in text
    assert json_bytes(clean_json(value)) == len(text.encode())


def test_cleaning_values_that_json_does_not_know() -> None:
    class Loud:
        def __str__(self) -> str:
            raise RuntimeError("no")

    class Word(StrEnum):
        A = "a"

    cycle: list[Any] = [1]
    cycle.append(cycle)
    cleaned = clean_json(
        {
            "k\x00": float("nan"),
            "d": date(2026, 1, 2),
            "b": b"\xff",
            "l": Loud(),
            "w": Word.A,
            "n": 10**400,
            "s": {1},
        }
    )
    assert cleaned == {
        "k\ufffd": None,
        "d": "2026-01-02",
        "b": "\ufffd",
        "l": "<Loud>",
        "w": "a",
        "n": None,
        "s": [1],
    }
    assert type(cleaned["w"]) is str
    assert clean_json(cycle)[0] == 1
    json.dumps(clean_json(cycle))


def test_strict_json_takes_exactly_what_fits() -> None:
    assert strict_json("field", {"a": 1}, max_bytes=7) == {"a": 1}
    with pytest.raises(InvalidInput, match="7 bytes of JSON, at most 6"):
        strict_json("field", {"a": 1}, max_bytes=6)
    assert json_bytes("é") == 4


FULL = {
    "id": "m1",
    "role": "assistant",
    "parts": [
        {"type": "step-start"},
        {
            "type": "reasoning",
            "id": "r1",
            "text": "hm",
            "state": "done",
            "providerMetadata": {"anthropic": {"signature": "s"}},
        },
        {"type": "text", "text": "Let me see", "state": "done"},
        {
            "type": "tool-search",
            "toolCallId": "c1",
            "state": "output-available",
            "providerExecuted": True,
            "title": "Search",
            "callProviderMetadata": {"p": {"k": 1}},
            "input": {"q": "x"},
            "output": None,
        },
        {
            "type": "dynamic-tool",
            "toolName": "d",
            "toolCallId": "c2",
            "state": "output-error",
            "input": {},
            "errorText": "no",
        },
        {"type": "tool-a", "toolCallId": "c3", "state": "output-denied", "input": {"n": None}},
        {
            "type": "tool-a",
            "toolCallId": "c4",
            "state": "output-error",
            "input": {},
            "errorText": "bad",
            "rawInput": "{",
            "callProviderMetadata": {"p": {"k": 2}},
            "resultProviderMetadata": {"p": {"k": 3}},
        },
        {
            "type": "tool-pay",
            "toolCallId": "c5",
            "state": "output-available",
            "input": {},
            "toolMetadata": {"icon": "coin"},
            "approval": {"id": "a1", "descriptor": {"eur": 5}, "isAutomatic": True, "approved": True},
            "output": [1],
            "preliminary": True,
            "resultProviderMetadata": {"p": {"k": 4}},
        },
        {
            "type": "dynamic-tool",
            "toolName": "pay",
            "toolCallId": "c6",
            "state": "output-denied",
            "input": {},
            "approval": {"id": "a2", "requestReason": "big", "approved": False, "reason": "no"},
        },
        {"type": "step-start"},
        {"type": "file", "url": "data:text/plain;base64,aGk=", "mediaType": "text/plain"},
        {"type": "reasoning-file", "url": "data:text/plain;base64,aGk=", "mediaType": "text/plain"},
        {"type": "custom", "kind": "openai.compaction"},
        {"type": "steering-message", "id": "u2", "parts": [{"type": "text", "text": "Shorter!"}]},
        {"type": "source-url", "sourceId": "s1", "url": "https://example.com", "title": "T"},
        {"type": "data-weather", "id": "w", "data": {"c": 21, "n": None}},
        {"type": "text", "text": "Done.", "state": "done", "citations": [{"type": "url", "url": "u"}]},
    ],
    "metadata": {"model": "m"},
}


def fold(chunks: list[dict[str, Any]]) -> Folding:
    folding = Folding("other")
    for chunk in chunks:
        folding.fold(chunk)
    return folding


def test_a_stored_message_as_chunks_folds_to_itself() -> None:
    chunks = chunks_of_message(FULL)
    assert fold(chunks).message() == FULL
    types = [chunk["type"] for chunk in chunks]
    assert (types[0], types[-1], types.count("start"), types.count("finish")) == ("start", "finish", 1, 1)
    assert types.count("start-step") == types.count("finish-step") == 2
    assert json.loads(json_text(chunks)) == chunks


def test_an_unfinished_message_as_chunks_folds_to_itself() -> None:
    message = {
        "id": "m2",
        "role": "assistant",
        "parts": [
            {"type": "text", "text": "half", "state": "streaming"},
            {
                "type": "tool-a",
                "toolCallId": "c1",
                "state": "input-streaming",
                "input": {"q": "x"},
                "rawInput": '{"q":"x',
            },
            {"type": "tool-b", "toolCallId": "c2", "state": "input-available", "input": {}},
            {
                "type": "tool-c",
                "toolCallId": "c3",
                "state": "approval-requested",
                "input": {},
                "approval": {"id": "a1"},
            },
            {
                "type": "tool-c",
                "toolCallId": "c4",
                "state": "approval-responded",
                "input": {},
                "approval": {"id": "a2", "approved": True},
            },
        ],
    }
    assert fold(chunks_of_message(message)).message() == message


def test_a_message_of_another_maker_as_chunks_gains_what_was_left_out() -> None:
    call = {"type": "tool-a", "toolCallId": "c1", "state": "input-streaming", "input": {"q": "x"}}
    thought = {"type": "reasoning", "text": "hm"}
    message = {"id": "m3", "role": "assistant", "parts": [thought, call]}
    assert fold(chunks_of_message(message)).message()["parts"] == [
        {**thought, "id": "reasoning-0", "state": "done"},
        {**call, "rawInput": '{"q":"x"}'},
    ]


def test_parts_that_chunks_cannot_express_are_left_out() -> None:
    message = {"id": "m", "role": "assistant", "parts": [{"type": "hologram"}, {"type": "text", "text": "a"}]}
    assert [part["type"] for part in fold(chunks_of_message(message)).message()["parts"]] == ["text"]
