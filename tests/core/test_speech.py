"""What an agent leaves implicit is completed, however it mixes text, chunks and a model's own stream."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from think_celery.core.folding import Folding, final_message
from think_celery.core.message import message_text
from think_celery.core.speech import Speech

MODEL = [
    {"type": "start"},
    {"type": "start-step"},
    {"type": "text-start", "id": "m"},
    {"type": "text-delta", "id": "m", "delta": "M"},
    {"type": "text-end", "id": "m"},
    {"type": "finish-step"},
    {"type": "finish", "finishReason": "stop"},
]


def spoken(items: list[str | dict[str, Any]]) -> list[dict[str, Any]]:
    speech = Speech()
    return [chunk for item in items for chunk in speech.say(item)] + speech.close()


def test_text_before_and_after_a_models_stream() -> None:
    chunks = spoken(["before ", *MODEL, "after"])
    types = [chunk["type"] for chunk in chunks]
    assert types.count("start") == types.count("finish") == 1
    assert (types[0], types[-1]) == ("start", "finish")
    assert types.count("start-step") == types.count("finish-step") == 3
    assert chunks[-1]["finishReason"] == "stop"


# Half surrogate pairs and NUL do not survive folding; that is another test's matter.
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=3)


@given(st.lists(st.one_of(TEXT, st.just("MODEL"), st.just("data")), max_size=8))
def test_every_mixture_is_well_formed(items: list[str]) -> None:
    flat: list[Any] = []
    for item in items:
        flat += MODEL if item == "MODEL" else [{"type": "data-x", "data": 1}] if item == "data" else [item]
    chunks = spoken(flat)
    types = [chunk["type"] for chunk in chunks]
    assert types.count("start") == types.count("finish") == (1 if types else 0)
    assert types.count("text-start") == types.count("text-end")
    assert types.count("start-step") == types.count("finish-step")
    folding = Folding("id")
    for chunk in chunks:
        folding.fold(chunk)
    message = final_message(folding, 1_800_000)
    said = "".join("M" if item == "MODEL" else "" if item == "data" else item for item in items)
    assert message_text(message or {}) == said


def test_blocks_that_the_agent_did_not_open_or_close() -> None:
    delta = {"type": "text-delta", "id": "x", "delta": "a"}
    thought = {"type": "reasoning-start", "id": "x"}
    assert spoken([delta, delta, thought]) == [
        {"type": "start"},
        {"type": "text-start", "id": "x"},
        delta,
        delta,
        thought,
        {"type": "text-end", "id": "x"},
        {"type": "reasoning-end", "id": "x"},
        {"type": "finish"},
    ]


@pytest.mark.parametrize("bad", [7, None, {"no": "type"}, ["text"]])
def test_other_things_are_refused(bad: Any) -> None:
    with pytest.raises(TypeError, match="yield text or a chunk"):
        Speech().say(bad)
