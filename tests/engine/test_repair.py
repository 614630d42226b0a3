"""Calls that never got their result: what the model is shown in their place."""

from typing import Any

import pytest

from tests.engine.driving import agent, ask, user
from tests.engine.hooking import hooked, seeing
from think_celery.core.part import INTERRUPTED
from think_celery.errors import TurnSetupError

INTERRUPTED_CALL = {"type": "tool-double", "toolCallId": "c1", "input": "not an object"}


@pytest.mark.parametrize(
    "state",
    [
        {"state": "input-streaming"},
        {"state": "input-available"},
        {"state": "output-error", "errorText": INTERRUPTED},
    ],
)
def test_an_interrupted_call_can_be_shown_differently(state: dict[str, Any]) -> None:
    seen: list[Any] = []
    given: list[dict[str, Any]] = []

    async def repaired(part: dict[str, Any]) -> dict[str, Any]:
        given.append(part)
        return {**part, "state": "output-available", "output": "it was 2"}

    settled = {
        "type": "tool-double",
        "toolCallId": "c2",
        "state": "output-error",
        "input": {},
        "errorText": "own words",
    }
    said = {"id": "p", "role": "assistant", "parts": [{**INTERRUPTED_CALL, **state}, settled]}
    chosen = hooked(seeing(seen), repair_interrupted_tool_part=repaired)
    found = ask(chosen, user("Hi"), said, user("Again", "m2"))
    assert found.failure is None
    (part,) = given
    assert (part["toolCallId"], part["input"], part["state"]) == ("c1", {}, "output-error")
    shown = str(seen[0][3])
    assert "it was 2" in shown
    assert "own words" in shown
    assert INTERRUPTED not in shown


def test_a_repair_may_be_a_text_and_must_not_leave_the_call_open() -> None:
    seen: list[Any] = []
    said = {"id": "p", "role": "assistant", "parts": [{**INTERRUPTED_CALL, "state": "input-available"}]}
    text = {"type": "text", "text": "Shall I try again?"}
    chosen = hooked(seeing(seen), repair_interrupted_tool_part=lambda part: text)
    assert ask(chosen, user("Hi"), said, user("Yes", "m2")).failure is None
    assert "Shall I try again?" in str(seen[0][3])
    for answer in ({**INTERRUPTED_CALL, "state": "input-available"}, {"type": "step-start"}, 5):
        chosen = hooked(seeing(seen), repair_interrupted_tool_part=lambda part, answer=answer: answer)
        found = ask(chosen, user("Hi"), said, user("Yes", "m2"))
        assert isinstance(found.failure, TurnSetupError)
        assert "repair_interrupted_tool_part returned" in str(found.failure)


@pytest.mark.parametrize(
    ("approval", "told"),
    [({}, "waits for a person"), ({"approved": True}, "waits for a person"), ({"approved": False}, "denied")],
)
def test_a_call_that_waits_for_a_person_is_shown_with_a_result(approval: dict[str, Any], told: str) -> None:
    seen: list[Any] = []
    state = "approval-responded" if approval else "approval-requested"
    call = {
        "type": "tool-double",
        "toolCallId": "c1",
        "state": state,
        "input": {},
        "approval": {"id": "a", **approval},
    }
    said = {"id": "p", "role": "assistant", "parts": [call]}
    assert ask(agent(seeing(seen)), user("Hi"), said, user("Again", "m2")).failure is None
    results = [part for message in seen[0][3] for part in message.parts if part.part_kind == "tool-return"]
    assert [part.tool_call_id for part in results] == ["c1"]
    assert told in results[0].content
    assert call["state"] == state
