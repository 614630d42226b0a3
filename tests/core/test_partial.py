"""What is left of a turn that was cut off anywhere, and going on with it."""

import pytest

from tests.core.chunks import Chunk, block, call, fold, parts
from think_celery.core.folding import Folding, final_message, full_message
from think_celery.core.part import INTERRUPTED

LIMIT = 1_800_000
TURN: list[Chunk] = [
    {"type": "start"},
    {"type": "start-step"},
    *block("reasoning", "h", "m"),
    *block("text", "Let me ", "look."),
    call("tool-input-start"),
    call("tool-input-delta", inputTextDelta='{"q": "be'),
    call("tool-input-delta", inputTextDelta='es"}'),
    call("tool-input-available", input={"q": "bees"}),
    call("tool-output-available", output="10%", preliminary=True),
    call("tool-output-available", output="done"),
    {"type": "finish-step"},
    {"type": "start-step"},
    *block("text", "Bees."),
    {"type": "finish-step"},
    {"type": "finish"},
]


@pytest.mark.spec("T96")
@pytest.mark.parametrize("ending", [[], [{"type": "abort"}], [{"type": "error", "errorText": "gone"}]])
def test_a_turn_cut_off_before_it_said_anything_stores_nothing(ending: list[Chunk]) -> None:
    for length in range(4):  # up to the start of the first block
        folding, _ = fold(*TURN[:length], *ending)
        assert full_message(folding) is final_message(folding, LIMIT) is None


@pytest.mark.parametrize("length", range(4, len(TURN)))
def test_a_turn_cut_off_anywhere_leaves_a_closed_message(length: int) -> None:
    """Field report 85: an open call in the conversation would have every later turn refused."""
    folding, _ = fold(*TURN[:length], {"type": "abort"})
    stored = final_message(folding, LIMIT)
    assert stored is not None
    assert {part["state"] for part in stored["parts"] if part["type"] in ("text", "reasoning")} == {"done"}
    for part in stored["parts"]:
        if part["type"] == "tool-find":
            assert isinstance(part["input"], dict)
            assert "rawInput" not in part
            assert part["state"] in ("output-available", "output-error")
            assert part.get("errorText", INTERRUPTED) == INTERRUPTED


def test_one_message_is_stored_and_the_whole_one_is_told() -> None:
    folding, _ = fold(*TURN)
    assert final_message(folding, LIMIT) == full_message(folding) == folding.message()


def test_going_on_with_a_stored_message() -> None:
    stored = fold({"type": "start"}, *block("text", "One."), call("tool-input-available", input={}))[
        0
    ].message()
    folding = Folding.onto({**stored, "metadata": {"n": 1}})
    start = folding.fold({"type": "start", "messageId": "other", "messageMetadata": {"k": 2}})
    assert start == {"type": "start", "messageId": "m1", "messageMetadata": {"n": 1, "k": 2}}
    folding.fold(call("tool-output-available", output=5))
    for chunk in block("text", "Two."):
        folding.fold(chunk)
    message = folding.message()
    assert message["id"] == "m1"
    assert [part.get("text", part.get("output")) for part in message["parts"]] == ["One.", 5, "Two."]
    assert stored["parts"][1]["state"] == "input-available"


def test_going_on_in_the_middle_of_an_input() -> None:
    streaming = fold(call("tool-input-start"), call("tool-input-delta", inputTextDelta='{"q": "be'))[0]
    folding = Folding.onto(streaming.message())
    assert folding.message() == streaming.message()
    folding.fold(call("tool-input-delta", inputTextDelta='es"'))
    assert folding.message()["parts"][0]["input"] == {"q": "bees"}
    folding.fold(call("tool-input-available", input={"q": "bees"}))
    (part,) = folding.message()["parts"]
    assert (part["state"], "rawInput" in part) == ("input-available", False)


def test_a_step_is_taken_back() -> None:
    folding, _ = fold(
        {"type": "start-step"},
        *block("text", "kept"),
        {"type": "start-step"},
        *block("text", "wrong", end=False),
        call("tool-input-available", input={}),
        {"type": "reset-step"},
        call("tool-output-available", output=1),
        call("tool-input-available", input={"q": 1}),
    )
    kinds = [part["type"] for part in folding.message()["parts"]]
    assert kinds == ["step-start", "text", "step-start", "tool-find"]
    assert folding.message()["parts"][3]["input"] == {"q": 1}
    nothing, _ = fold({"type": "start-step"}, *block("text", "wrong"), {"type": "reset-step"})
    assert (nothing.has_content, final_message(nothing, LIMIT)) == (False, None)


def test_an_answered_approval_is_not_asked_again() -> None:
    asked = [
        call("tool-input-available", input={}),
        call("tool-approval-request", approvalId="a1", reason="big"),
    ]
    yes = {"type": "tool-approval-response", "approvalId": "a1", "approved": True}
    folding, forwarded = fold(*asked, yes, asked[1], call("tool-output-denied"))
    assert forwarded == [*asked, yes]
    assert folding.message()["parts"][0]["approval"] == {"id": "a1", "requestReason": "big", "approved": True}
    no = {**yes, "approved": False, "reason": "too big"}
    (denied,) = parts(*asked, no, call("tool-output-denied"))
    assert (denied["state"], denied["approval"]["reason"]) == ("output-denied", "too big")
    assert fold({**yes, "approvalId": "lost"})[1] == []
    assert (
        fold(*asked, call("tool-output-available", output=1), yes)[1][-1]["type"] == "tool-output-available"
    )


def test_metadata_of_a_call_and_of_its_result_are_two_things() -> None:
    (part,) = parts(
        call("tool-input-start", providerMetadata={"p": {"k": 1}}),
        call("tool-input-available", input={}, providerMetadata={"p": {"k": 2}}),
        call("tool-output-available", output=1, providerMetadata={"p": {"k": 3}}),
    )
    assert part["callProviderMetadata"] == {"p": {"k": 2}}
    assert part["resultProviderMetadata"] == {"p": {"k": 3}}
