"""What holds for any stream of chunks, however its texts are cut."""

import copy
import itertools
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.core.chunks import Chunk, block, call, fold, parts
from think_celery.core.folding import Folding, final_message
from think_celery.core.wire import chunks_of_message, clean_text, json_bytes

LIMIT = 1_800_000
TEXT = st.text(st.characters(categories=None) | st.sampled_from('\x00\ud83d\ude00\ud800{}[]":,'), max_size=40)
CUTS = st.lists(st.integers(0, 40), max_size=8)


def cut(text: str, places: list[int]) -> list[str]:
    borders = [0, *sorted(min(place, len(text)) for place in places), len(text)]
    return [text[start:end] for start, end in itertools.pairwise(borders)]


@given(st.sampled_from(["text", "reasoning"]), TEXT, CUTS)
def test_any_cut_of_a_block_gives_the_same_message(kind: str, text: str, places: list[int]) -> None:
    folding, forwarded = fold(*block(kind, *cut(text, places)))
    whole, _ = fold(*block(kind, text))
    assert folding.message() == whole.message()
    seen = "".join(chunk["delta"] for chunk in forwarded if "delta" in chunk)
    assert seen == folding.message()["parts"][0]["text"]
    half = "\ud800" <= text[-1:] <= "\udbff"
    assert seen == clean_text(text[:-1] if half else text)


@given(TEXT, CUTS)
def test_any_cut_of_an_input_gives_the_same_message(text: str, places: list[int]) -> None:
    def run(pieces: list[str]) -> dict[str, Any]:
        deltas = [call("tool-input-delta", inputTextDelta=piece) for piece in pieces]
        return fold(call("tool-input-start"), *deltas)[0].message()

    assert run(cut(text, places)) == run([text])


@given(st.lists(st.tuples(st.sampled_from("ab"), TEXT), max_size=6), CUTS)
def test_interleaving_does_not_mix_blocks(spoken: list[tuple[str, str]], places: list[int]) -> None:
    opened = [chunk for name in "ab" for chunk in block("text", name=name, end=False)]
    deltas = [
        {"type": "text-delta", "id": name, "delta": piece}
        for name, text in spoken
        for piece in cut(text, places)
    ]
    closed = [{"type": "text-end", "id": name} for name in "ab"]
    found = parts(*opened, *deltas, *closed)
    alone = ["".join(text for name, text in spoken if name == which) for which in "ab"]
    assert found == [part for text in alone for part in parts(*block("text", text))]


IDS = st.sampled_from(["1", "2"])
VALUES = st.none() | st.integers(-5, 5) | TEXT | st.lists(st.integers(), max_size=2) | st.just({"k": "\x00"})
METADATA = st.sampled_from([{}, {"p": {"k": "v"}}, {"p": {"l": 1}}, {"q": 5}])
CHUNKS = st.one_of(
    st.fixed_dictionaries(
        {"type": st.sampled_from(["text-start", "text-end", "reasoning-start", "reasoning-end"]), "id": IDS},
        optional={"providerMetadata": METADATA, "citations": st.just([{"url": "u"}])},
    ),
    st.fixed_dictionaries(
        {"type": st.sampled_from(["text-delta", "reasoning-delta"]), "id": IDS, "delta": TEXT},
        optional={"providerMetadata": METADATA},
    ),
    st.fixed_dictionaries(
        {
            "type": st.sampled_from(
                ["start", "input-delta", "available", "error"],
            ).map(lambda name: "tool-input-" + name.removeprefix("input-")),
            "toolCallId": IDS,
            "toolName": st.just("t"),
            "input": VALUES,
            "inputTextDelta": TEXT,
            "errorText": TEXT,
        },
        optional={"dynamic": st.booleans(), "title": TEXT, "providerMetadata": METADATA},
    ),
    st.fixed_dictionaries(
        {
            "type": st.sampled_from(["available", "error", "denied"]).map(lambda name: f"tool-output-{name}"),
            "toolCallId": IDS,
            "output": VALUES,
            "errorText": TEXT,
        },
        optional={"preliminary": st.booleans(), "providerMetadata": METADATA},
    ),
    st.fixed_dictionaries(
        {"type": st.just("tool-approval-request"), "toolCallId": IDS, "approvalId": IDS},
        optional={"reason": TEXT, "isAutomatic": st.booleans()},
    ),
    st.fixed_dictionaries(
        {"type": st.just("tool-approval-response"), "approvalId": IDS, "approved": st.booleans()},
        optional={"reason": TEXT},
    ),
    st.fixed_dictionaries(
        {"type": st.just("data-d"), "data": VALUES}, optional={"id": IDS, "transient": st.booleans()}
    ),
    st.fixed_dictionaries({"type": st.sampled_from(["start", "finish"]), "messageMetadata": VALUES}),
    st.fixed_dictionaries(
        {
            "type": st.sampled_from(
                [
                    "start-step",
                    "finish-step",
                    "reset-step",
                    "abort",
                    "new",
                    "file",
                    "custom",
                    "message-metadata",
                ]
            )
        }
    ),
    st.fixed_dictionaries({"type": st.just("error"), "errorText": TEXT}),
    st.dictionaries(st.sampled_from(["type", "id", "delta"]), VALUES),
)


@given(st.lists(CHUNKS, max_size=25))
def test_observers_of_any_stream_see_the_message_that_is_stored(chunks: list[Chunk]) -> None:
    folding, forwarded = fold(*copy.deepcopy(chunks))
    observer, seen_again = fold(*forwarded)
    assert observer.message() == folding.message()
    assert seen_again == forwarded
    assert observer.error is None
    json_bytes(forwarded)
    late, _ = fold(*chunks_of_message(folding.message()))
    assert late.message() == folding.message()
    assert Folding.onto(folding.message()).message() == folding.message()
    final = final_message(folding, LIMIT)
    if final is not None:
        json_bytes(final)
        open_states = {"streaming", "input-streaming", "input-available"}
        assert not [part for part in final["parts"] if part.get("state") in open_states]
        assert folding.has_content
