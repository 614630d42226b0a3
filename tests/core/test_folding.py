"""Folding chunks into a message, rule by rule."""

import copy

import pytest

from tests.core.chunks import Chunk, block, call, fold, parts
from think_celery.core.folding import Folding, final_message
from think_celery.core.part import INTERRUPTED, close_open_parts, normal_input
from think_celery.core.wire import json_bytes

LIMIT = 1_800_000


def test_a_whole_turn() -> None:
    folding, forwarded = fold(
        {"type": "start"},
        {"type": "start-step"},
        *block("reasoning", "h", "m"),
        call("tool-input-start"),
        call("tool-input-delta", inputTextDelta='{"q":'),
        call("tool-input-delta", inputTextDelta='"x"}'),
        call("tool-input-available", input={"q": "x"}),
        call("tool-output-available", output=[1]),
        {"type": "finish-step"},
        {"type": "step-start"},
        *block("text", "Hel", "lo"),
        {"type": "finish-step"},
        {"type": "finish", "finishReason": "stop", "messageMetadata": {"k": 1}},
    )
    assert folding.message() == {
        "id": "m1",
        "role": "assistant",
        "parts": [
            {"type": "step-start"},
            {"type": "reasoning", "id": "b", "text": "hm", "state": "done"},
            {
                "type": "tool-find",
                "toolCallId": "c1",
                "state": "output-available",
                "input": {"q": "x"},
                "output": [1],
            },
            {"type": "step-start"},
            {"type": "text", "text": "Hello", "state": "done"},
        ],
        "metadata": {"k": 1},
    }
    assert len(forwarded) == 19
    assert [chunk["type"] for chunk in forwarded].count("start-step") == 2
    assert final_message(folding, LIMIT) == folding.message()


@pytest.mark.spec("T90")
def test_the_start_carries_the_id_that_is_stored() -> None:
    folding, forwarded = fold({"type": "start"}, *block("text", "a"))
    assert forwarded[0] == {"type": "start", "messageId": "m1"}
    assert folding.message()["id"] == folding.message_id == "m1"


def test_an_id_given_by_the_provider_is_adopted_once() -> None:
    folding, forwarded = fold({"type": "start", "messageId": "p1"}, {"type": "start", "messageId": "p2"})
    assert (folding.message_id, forwarded) == ("p1", [{"type": "start", "messageId": "p1"}])
    for useless in ("", " ", None, 5, "x" * 501):
        assert fold({"type": "start", "messageId": useless})[0].message_id == "m1"


def test_metadata_is_merged_from_every_source() -> None:
    folding = Folding("m1", metadata={"continuation": True})
    start = folding.fold({"type": "start", "messageMetadata": {"a": 1, "b": 1}})
    again = folding.fold({"type": "start", "messageMetadata": {"b": 2}})
    folding.fold({"type": "message-metadata", "messageMetadata": {"c": {"x": 1}}})
    folding.fold({"type": "finish", "messageMetadata": {"c": {"y": 1}}})
    assert folding.message()["metadata"] == {"continuation": True, "a": 1, "b": 2, "c": {"y": 1}}
    assert start is not None
    assert start["messageMetadata"] == {"continuation": True, "a": 1, "b": 1}
    assert again == {"type": "message-metadata", "messageMetadata": {"b": 2}}


def test_interleaved_blocks_are_told_apart_by_id() -> None:
    found = parts(
        *block("text", "a", name="1", end=False),
        *block("text", "b", name="2", end=False),
        {"type": "text-delta", "id": "1", "delta": "A"},
        {"type": "text-end", "id": "2"},
    )
    assert [(part["text"], part["state"]) for part in found] == [("aA", "streaming"), ("b", "done")]


def test_a_delta_without_its_start_continues_or_creates_a_part() -> None:
    assert parts(
        {"type": "text-delta", "id": "x", "delta": "a"}, {"type": "text-delta", "id": "y", "delta": "b"}
    ) == [{"type": "text", "text": "ab", "state": "streaming"}]


def test_an_end_without_a_part_is_ignored() -> None:
    assert fold({"type": "text-end", "id": "x"})[1] == []


@pytest.mark.spec("T83")
def test_provider_metadata_of_reasoning_is_merged() -> None:
    found = parts(
        {"type": "reasoning-start", "id": "r", "providerMetadata": {"anthropic": {"id": "i"}}},
        {"type": "reasoning-delta", "id": "r", "delta": "a", "providerMetadata": {"anthropic": {"n": 1}}},
        {
            "type": "reasoning-end",
            "id": "r",
            "providerMetadata": {"anthropic": {"signature": "s"}, "other": {}},
        },
    )
    metadata = {"anthropic": {"id": "i", "n": 1, "signature": "s"}, "other": {}}
    assert found == [
        {"type": "reasoning", "id": "r", "text": "a", "state": "done", "providerMetadata": metadata}
    ]


@pytest.mark.spec("T83")
def test_observers_are_sent_the_merged_metadata() -> None:
    _, forwarded = fold(
        {"type": "reasoning-start", "id": "r", "providerMetadata": {"anthropic": {"id": "i"}}},
        {"type": "reasoning-end", "id": "r", "providerMetadata": {"anthropic": {"signature": "s"}}},
    )
    assert forwarded[1]["providerMetadata"] == {"anthropic": {"id": "i", "signature": "s"}}
    text = [
        {"type": "text-start", "id": "t", "providerMetadata": {"p": {"a": 1}}},
        {"type": "text-end", "id": "t", "providerMetadata": {"p": {"b": 1}}},
    ]
    assert fold(*text)[1] == text
    assert parts(*text)[0]["providerMetadata"] == {"p": {"b": 1}}


@pytest.mark.spec("T85")
@pytest.mark.parametrize("settled", ["tool-output-available", "tool-output-error", "tool-output-denied"])
def test_a_replayed_call_changes_nothing_and_is_not_forwarded(settled: str) -> None:
    folding, _ = fold(call("tool-input-available", input={"q": 1}), call(settled, output=1, errorText="no"))
    before = folding.message()
    replay = [
        call("tool-input-start"),
        call("tool-input-delta", inputTextDelta="{}"),
        call("tool-input-available", input={"q": 2}),
        call("tool-input-error", input={}, errorText="late"),
        call("tool-output-denied"),
        call("tool-approval-request", approvalId="a"),
    ]
    assert [folding.fold(chunk) for chunk in replay] == [None] * 6
    assert folding.message() == before


@pytest.mark.spec("T86")
@pytest.mark.parametrize("malformed", [None, "", 7, [1], "[1]", '{"a":', "null", '{"a":1}x'])
def test_a_malformed_input_becomes_an_empty_object(malformed: object) -> None:
    assert normal_input(malformed) == {}
    for kind in ("tool-input-available", "tool-input-error"):
        folding, forwarded = fold(call(kind, input=malformed, errorText="bad"))
        assert folding.message()["parts"][0]["input"] == {}
        if kind == "tool-input-available":
            assert forwarded[0]["input"] == {}
        else:
            assert folding.message()["parts"][0]["rawInput"] == malformed
    assert parts(call("tool-input-available"))[0]["input"] == {}


@pytest.mark.spec("T86")
def test_an_input_as_text_becomes_its_object() -> None:
    assert parts(call("tool-input-available", input='{"a":1}'))[0]["input"] == {"a": 1}
    assert parts(call("tool-input-available", input={"a": None}))[0]["input"] == {"a": None}


def test_a_streaming_input_is_shown_as_far_as_it_can_be_read() -> None:
    folding, _ = fold(call("tool-input-start"))
    assert "input" not in folding.message()["parts"][0]
    folding.fold(call("tool-input-delta", inputTextDelta='{"city": "Ber'))
    assert folding.message()["parts"][0]["input"] == {"city": "Ber"}
    folding.fold(call("tool-input-delta", inputTextDelta='lin", "days": [1, 2'))
    assert folding.message()["parts"][0]["input"] == {"city": "Berlin", "days": [1, 2]}
    assert folding.message()["parts"][0]["rawInput"] == '{"city": "Berlin", "days": [1, 2'
    folding.fold(call("tool-output-available", output="ok"))
    (part,) = folding.message()["parts"]
    assert (part["input"], "rawInput" in part) == ({"city": "Berlin", "days": [1, 2]}, False)


@pytest.mark.spec("T87")
def test_preliminary_outputs_progress_to_the_final_one() -> None:
    folding, forwarded = fold(
        call("tool-input-available", input={}),
        call("tool-output-available", output="10%", preliminary=True),
        call("tool-output-available", output="50%", preliminary=True),
    )
    assert (folding.message()["parts"][0]["output"], folding.message()["parts"][0]["preliminary"]) == (
        "50%",
        True,
    )
    assert forwarded[-1]["preliminary"] is True
    folding.fold(call("tool-output-available", output="done"))
    (part,) = folding.message()["parts"]
    assert (part["state"], part["output"], "preliminary" in part) == ("output-available", "done", False)


def test_an_output_of_an_unknown_call_makes_no_part() -> None:
    folding, forwarded = fold(
        call("tool-output-available", output=1), call("tool-output-error", errorText="x")
    )
    assert (folding.message()["parts"], forwarded) == ([], [])


def test_dynamic_tools_say_their_name() -> None:
    (part,) = parts(call("tool-input-start", dynamic=True, title="Find", providerExecuted=True))
    assert (part["type"], part["toolName"], part["title"]) == ("dynamic-tool", "find", "Find")


def test_an_approval_is_recorded() -> None:
    request = call("tool-approval-request", approvalId="a1")
    assert parts(call("tool-input-available", input={}), request)[0]["approval"] == {"id": "a1"}


@pytest.mark.spec("T89")
def test_data_parts_are_replaced_appended_or_passed_on() -> None:
    chunks: list[Chunk] = [
        {"type": "data-x", "id": "1", "data": 1},
        {"type": "data-x", "id": "1", "data": 2},
        {"type": "data-x", "data": 3},
        {"type": "data-x", "data": 3},
        {"type": "data-x", "data": 4, "transient": True},
    ]
    folding, forwarded = fold(*chunks)
    assert forwarded == chunks
    assert [(part.get("id"), part["data"]) for part in folding.message()["parts"]] == [
        ("1", 2),
        (None, 3),
        (None, 3),
    ]


def test_files_sources_and_unknown_chunks() -> None:
    file = {"type": "file", "url": "data:,a", "mediaType": "text/plain"}
    source = {"type": "source-url", "sourceId": "s", "url": "https://example.com"}
    later = {"type": "hologram", "x": 1}
    folding, forwarded = fold(file, source, later, {"type": "abort", "reason": "r"})
    assert folding.message()["parts"] == [file, source]
    assert forwarded == [file, source, later, {"type": "abort", "reason": "r"}]


@pytest.mark.spec("T19")
def test_nothing_counts_after_an_error() -> None:
    folding, forwarded = fold(
        *block("text", "before"), {"type": "error", "errorText": "boom"}, *block("text", "after", name="z")
    )
    assert folding.error == "boom"
    assert [part["text"] for part in folding.message()["parts"]] == ["before"]
    assert [chunk["type"] for chunk in forwarded] == ["text-start", "text-delta", "text-end"]


def test_an_error_without_text_tells_its_chunk() -> None:
    assert fold({"type": "error", "code": 5})[0].error == '{"type":"error","code":5}'


def test_hostile_output_is_cleaned_in_message_and_stream() -> None:
    folding, forwarded = fold(
        *block("text", "a\x00b\ud83d"),
        call("tool-input-available", input={"k\x00": "\udc00"}),
        call("tool-output-available", output={"nan": float("nan"), "date": object}),
    )
    assert folding.message()["parts"][0]["text"] == "a\ufffdb"
    assert folding.message()["parts"][1]["input"] == {"k\ufffd": "\ufffd"}
    json_bytes(forwarded)
    json_bytes(folding.message())


def test_a_character_cut_in_two_arrives_whole() -> None:
    folding, forwarded = fold(*block("text", "a\ud83d", "\ude00b"))
    assert folding.message()["parts"][0]["text"] == "a\U0001f600b"
    assert [chunk["delta"] for chunk in forwarded if "delta" in chunk] == ["a", "\U0001f600b"]


@pytest.mark.spec("T96")
def test_a_turn_that_said_nothing_has_no_message() -> None:
    for chunks in (
        [],
        [{"type": "start"}, {"type": "start-step"}],
        [{"type": "start-step"}, {"type": "text-start", "id": "b"}],
        [{"type": "data-x", "data": 1, "transient": True}],
    ):
        folding, _ = fold(*chunks)
        assert (folding.has_content, final_message(folding, LIMIT)) == (False, None)
    folding, _ = fold(*block("text", "a", end=False))
    assert folding.has_content


def test_a_partial_message_is_settled() -> None:
    folding, _ = fold(
        {"type": "start-step"},
        {"type": "reasoning-start", "id": "r", "providerMetadata": {"anthropic": {"signature": "half"}}},
        {"type": "reasoning-delta", "id": "r", "delta": "hm"},
        *block("text", "so fa", end=False),
        call("tool-input-start"),
        call("tool-input-delta", inputTextDelta='{"q": "x'),
    )
    streaming = folding.message()
    assert folding.settled()["parts"][1:] == [
        {"type": "reasoning", "id": "r", "text": "hm", "state": "done"},
        {"type": "text", "text": "so fa", "state": "done"},
        {
            "type": "tool-find",
            "toolCallId": "c1",
            "state": "output-error",
            "input": {"q": "x"},
            "errorText": INTERRUPTED,
        },
    ]
    assert folding.message() == streaming


@pytest.mark.spec("T129")
def test_closing_leaves_what_is_settled() -> None:
    kept = [
        {"type": "tool-a", "toolCallId": "1", "state": "output-error", "input": {}, "errorText": "its own"},
        {"type": "tool-a", "toolCallId": "2", "state": "output-denied", "input": {}},
        {
            "type": "dynamic-tool",
            "toolName": "d",
            "toolCallId": "3",
            "state": "approval-responded",
            "input": {},
        },
        {"type": "text", "text": "a"},
    ]
    broken = {"type": "tool-a", "toolCallId": "4", "state": "output-available", "input": "[1]", "output": 1}
    message = {"id": "m", "role": "assistant", "parts": [*kept, broken]}
    before = copy.deepcopy(message)
    assert close_open_parts(message)["parts"] == [*kept, {**broken, "input": {}}]
    assert message == before


def test_a_snapshot_is_a_copy() -> None:
    folding, _ = fold(*block("text", "a", end=False))
    folding.message()["parts"].clear()
    folding.message()["parts"][0]["text"] = "changed"
    assert folding.message()["parts"][0]["text"] == "a"
