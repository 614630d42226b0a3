"""What callers may hand in as messages, metadata and ids, and how a refusal reads."""

import itertools
import json
from collections.abc import Callable
from enum import StrEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from think_celery.core.message import (
    UIMessage,
    check_identifier,
    message_text,
    parse_messages,
    parse_metadata,
    text_message,
)
from think_celery.errors import InvalidInput
from think_celery.messages import user_message

LIMIT = 10_000


def ids() -> Callable[[], str]:
    numbers = itertools.count(1)
    return lambda: f"new-{next(numbers)}"


def parse(value: object, **options: Any) -> list[dict[str, Any]]:
    return parse_messages(value, new_id=ids(), **{"max_bytes": LIMIT, **options})


def text_part(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def user(*parts: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"id": "m1", "role": "user", "parts": list(parts), **more}


def refusal(value: object, **options: Any) -> tuple[str, str]:
    with pytest.raises(InvalidInput) as caught:
        parse(value, **options)
    return caught.value.field, caught.value.problem


def test_a_text_becomes_one_user_message() -> None:
    assert parse("Hello") == [{"id": "new-1", "role": "user", "parts": [text_part("Hello")]}]


def test_one_message_is_a_list_of_one() -> None:
    message = user_message("Hello", message_id="m1")
    assert parse(message) == parse([message]) == parse(message.to_json()) == [user(text_part("Hello"))]


def test_ids_are_kept_and_missing_ones_are_made() -> None:
    given_ids = [
        user(text_part("a")),
        {"role": "user", "parts": [text_part("b")]},
        user(text_part("c"), id=None),
    ]
    assert [message["id"] for message in parse(given_ids)] == ["m1", "new-1", "new-2"]


def test_unknown_keys_are_kept_everywhere() -> None:
    message = user(
        {**text_part("a"), "later": {"x": [1, None]}}, createdAt="2026-01-01", metadata={"k": None}
    )
    assert parse([message]) == [message]


def test_reserved_metadata_is_left_out() -> None:
    """T 2.7: whoever may send messages could otherwise claim another identity inside the turn."""
    claimed = {"channel": "voice", "turnMetadata": {"user": "root"}, "kept": {"channel": 1}}
    parsed = parse([user(text_part("a"), metadata=claimed), user(text_part("b"), id="m2", metadata={})])
    assert [message["metadata"] for message in parsed] == [{"kept": {"channel": 1}}, {}]
    assert "channel" in claimed


def test_the_result_shares_nothing_with_the_input() -> None:
    message = user(text_part("a"), metadata={"list": [1]})
    parsed = parse([message])
    message["metadata"]["list"].append(2)
    message["parts"][0]["text"] = "b"
    assert parsed[0]["metadata"] == {"list": [1]}
    assert message_text(parsed[0]) == "a"


def test_subclasses_of_json_types_become_plain() -> None:
    class Word(StrEnum):
        HELLO = "hello"

    parsed = parse([user(text_part(Word.HELLO), metadata={"pair": (1, 2), Word.HELLO: True})])
    assert type(parsed[0]["parts"][0]["text"]) is str
    assert parsed[0]["metadata"] == {"pair": [1, 2], "hello": True}
    assert {type(key) for key in parsed[0]["metadata"]} == {str}


@pytest.mark.spec("S3")
@pytest.mark.parametrize("nothing", [[], ()])
def test_an_empty_list_is_refused(nothing: object) -> None:
    field, problem = refusal(nothing)
    assert field == "messages"
    assert "user_message(" in problem


@pytest.mark.parametrize("blank", ["", "  \n\t", "\u00a0"])
def test_blank_text_is_refused_unless_allowed(blank: str) -> None:
    assert refusal(blank)[0] == "messages[0].parts[0].text"
    assert refusal([user(text_part("ok")), user(text_part(""), text_part(blank), id="m2")])[0].startswith(
        "messages[1]"
    )
    assert message_text(parse(blank, allow_blank=True)[0]) == blank


def test_blank_text_beside_another_part_is_accepted() -> None:
    file = {"type": "file", "url": "https://example.com/a.png", "mediaType": "image/png"}
    assert len(parse([user(text_part(""), file)])) == 1


@pytest.mark.parametrize(
    ("value", "field", "words"),
    [
        (5, "messages", "not int"),
        (None, "messages", "not NoneType"),
        ({"a", "b"}, "messages", "not set"),
        (lambda current: current, "messages", "save_messages"),
        ([lambda current: current], "messages[0]", "call it first"),
        (["Hello"], "messages[0]", "user_message("),
        ([7], "messages[0]", "not int"),
        ([user(text_part("a"), role="tool")], "messages[0].role", "'tool'"),
        ([user(text_part("a"), role=None)], "messages[0].role", "system, user, assistant"),
        ([{"role": "user", "content": "Hello"}], "messages[0].parts", "another API"),
        ([user()], "messages[0].parts", "at least one part"),
        ([user(text_part("a"), parts="a")], "messages[0].parts", "must be a list"),
        ([user("a")], "messages[0].parts[0]", "not str"),  # type: ignore[arg-type]
        ([user({"text": "a"})], "messages[0].parts[0].type", "missing"),
        ([user(text_part("a"), {"type": "text"})], "messages[0].parts[1].text", "missing"),
        ([user(text_part("a"), text_part(5))], "messages[0].parts[1].text", "not int"),  # type: ignore[arg-type]
        ([user({"type": "file", "url": "x"})], "messages[0].parts[0].mediaType", "missing"),
        (
            [user({"type": "tool-x", "state": "input-available"})],
            "messages[0].parts[0].toolCallId",
            "missing",
        ),
        ([user({"type": "dynamic-tool", "toolCallId": "c"})], "messages[0].parts[0].toolName", "missing"),
        ([user(text_part("a"), metadata=["a"])], "messages[0].metadata", "not list"),
        ([user(text_part("a"), id="")], "messages[0].id", "blank"),
        ([user(text_part("a"), id=5)], "messages[0].id", "not int"),
        ([user(text_part("a")), user(text_part("b"))], "messages[1].id", "messages[0]"),
        ([user(text_part("a\x00b"))], "messages[0].parts[0].text", "NUL"),
        ([user(text_part("a\ud83d"))], "messages[0].parts[0].text", "surrogate"),
        ([user(text_part("a"), metadata={"k": float("nan")})], "messages[0].metadata.k", "nan"),
        ([user(text_part("a"), metadata={"k": [1, {1: 2}]})], "messages[0].metadata.k[1]", "key 1"),
        ([user(text_part("a"), metadata={"k": object()})], "messages[0].metadata.k", "object"),
        ([user(text_part("a"), metadata={"k": b"x"})], "messages[0].metadata.k", "bytes"),
        ([user(text_part("a"), metadata={"k": 10**400})], "messages[0].metadata.k", "too large"),
    ],
)
def test_a_refusal_names_the_field_and_the_remedy(value: object, field: str, words: str) -> None:
    found, problem = refusal(value)
    assert found == field
    assert words in problem


def test_a_payload_that_is_too_big_tells_both_sizes() -> None:
    field, problem = refusal("x" * 20_000)
    assert field == "messages"
    assert "10,000" in problem
    exact = parse("x" * 1000)
    size = len(json.dumps(exact, separators=(",", ":")))
    unlabelled = size - len('"id":"new-1",')
    assert parse("x" * 1000, max_bytes=unlabelled)
    field, problem = refusal("x" * 1000, max_bytes=unlabelled - 1)
    assert f"{unlabelled:,}" in problem
    assert f"{unlabelled - 1:,}" in problem


def test_shared_parts_that_unfold_to_gigabytes_are_refused_at_once() -> None:
    bomb: list[Any] = ["x"]
    for _ in range(60):
        bomb = [bomb, bomb]
    assert "limit" in refusal([user(text_part("a"), metadata={"k": bomb})])[1]


@pytest.mark.spec("S9")
def test_metadata_must_be_json() -> None:
    cycle: dict[str, Any] = {}
    cycle["self"] = [cycle]
    with pytest.raises(InvalidInput) as caught:
        parse_metadata(cycle, max_bytes=LIMIT)
    assert (caught.value.field, "itself" in caught.value.problem) == ("metadata.self[0]", True)
    for value in ({"k": object()}, {"k": float("inf")}, {"k\x00": 1}, {"k": {1, 2}}, ["a"], "a", 5):
        with pytest.raises(InvalidInput, match="metadata"):
            parse_metadata(value, max_bytes=LIMIT)


def test_metadata_comes_back_as_a_copy() -> None:
    metadata = {"tenant": "a", "nested": {"list": [1, None, True, 0.5]}, "empty": {}}
    parsed = parse_metadata(metadata, max_bytes=LIMIT)
    assert parsed == metadata
    assert parsed is not metadata
    assert parse_metadata(None, max_bytes=LIMIT) is None
    assert parse_metadata({}, max_bytes=LIMIT) == {}


def test_deep_nesting_is_refused() -> None:
    deep: dict[str, Any] = {}
    for _ in range(500):
        deep = {"d": deep}
    with pytest.raises(InvalidInput, match="deeper than 100"):
        parse_metadata(deep, max_bytes=LIMIT)


@pytest.mark.spec("S29")
@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("", "blank"),
        (" \t", "blank"),
        (5, "not int"),
        ("x" * 501, "501"),
        ("a\nb", "U+000A"),
        ("a\x00", "U+0000"),
    ],
)
def test_an_identifier_that_cannot_be_accepted(value: object, words: str) -> None:
    with pytest.raises(InvalidInput, match="submission_id") as caught:
        check_identifier("submission_id", value)
    assert words in caught.value.problem


def test_identifiers_are_taken_as_they_are() -> None:
    for value in ("event-123", " padded ", "x" * 500, "ключ/✓"):
        assert check_identifier("idempotency_key", value) == value


def test_a_message_is_lenient_frozen_and_keeps_what_it_does_not_know() -> None:
    message = UIMessage.model_validate({**user(text_part("Hel"), text_part("lo")), "extra": {"deep": None}})
    assert message.text == message_text(message) == "Hello"
    assert message.to_json() == {**user(text_part("Hel"), text_part("lo")), "extra": {"deep": None}}
    with pytest.raises(ValueError, match="frozen"):
        message.id = "other"  # type: ignore[misc]


def test_user_message_makes_a_new_id_each_time() -> None:
    assert user_message("a").id != user_message("a").id
    assert user_message("a", metadata={"k": 1}).to_json()["metadata"] == {"k": 1}
    assert text_message("a", message_id="m").role == "user"


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), min_size=1))
def test_any_sensible_text_is_accepted_unchanged(text: str) -> None:
    parsed = parse(text, allow_blank=True, max_bytes=1_000_000)
    assert message_text(json.loads(json.dumps(parsed))[0]) == text
