"""What `before_turn` and `before_step` are told, what they may change, and what their failure does."""

from typing import Any

import pytest
from pydantic_ai.settings import ModelSettings
from pydantic_ai.toolsets import FunctionToolset

from tests.engine.driving import Base, agent, ask, user
from tests.engine.hooking import double, hooked, raising, seeing
from think_celery.core.hook import (
    StepConfig,
    StepContext,
    TurnConfig,
    TurnContext,
)
from think_celery.errors import TurnSetupError
from think_celery.testing import Thought, ToolCall, scripted_model


def test_before_turn_is_told_everything() -> None:
    told: list[TurnContext] = []

    class Prompted(Base, abstract=True):
        model = scripted_model("ok")
        tools = (double,)

        def get_system_prompt(self) -> str:
            return "Be brief."

        async def before_turn(self, context: TurnContext) -> None:
            told.append(context)

    call = {"type": "tool-double", "toolCallId": "c1", "state": "input-available", "input": {"number": 1}}
    ask(Prompted, user("Hi"), {"id": "p", "role": "assistant", "parts": [call]}, user("Again", "m2"))
    (context,) = told
    assert (context.system, context.tools, context.model) == ("Be brief.", [double], Prompted.model)
    assert (context.continuation, context.body, context.metadata) == (False, None, None)
    assert context.submission.submission_id == "s1"
    assert [message["role"] for message in context.messages] == ["user", "assistant", "user"]
    assert context.messages[1]["parts"][0]["state"] == "output-error"
    assert call["state"] == "input-available"


@pytest.mark.spec("T150")
def test_what_before_turn_changes_holds_for_one_turn() -> None:
    seen: list[Any] = []
    shown: list[str] = []

    class Changing(Base, abstract=True):
        model = seeing(seen)
        tools = (double, len)

        def get_system_prompt(self) -> str:
            return "Original."

        def before_turn(self, context: TurnContext) -> TurnConfig | None:
            shown.append(context.system)
            is_first = len(context.messages) == 1
            return TurnConfig(system="Other.", active_tools=["double"]) if is_first else None

    first = user("One")
    ask(Changing, first)
    ask(Changing, first, user("Two", "m2"))
    assert shown == ["Original.", "Original."]
    assert [(system, tools) for system, tools, _, _ in seen] == [
        ("Other.", ["double"]),
        ("Original.", ["double", "len"]),
    ]


def test_before_turn_may_change_model_messages_tools_and_settings() -> None:
    seen: list[Any] = []

    def twice(number: int) -> int:
        """Double a number, too."""
        return 2 * number

    def changed(context: TurnContext) -> TurnConfig:
        return TurnConfig(
            model=seeing(seen, say="another"),
            system="",
            messages=[user("Instead")],
            tools=[twice],
            tool_choice="none",
            settings=ModelSettings(temperature=0.1),
        )

    chosen = hooked(scripted_model("never"), double, before_turn=changed)
    chosen.model_settings = {"temperature": 0.9, "top_p": 0.5}
    found = ask(chosen, user("Hi"))
    assert found.text == "another"
    ((system, tools, settings, messages),) = seen
    assert (system, tools) == (None, ["double", "twice"])
    assert settings == {"temperature": 0.1, "top_p": 0.5, "tool_choice": "none", "max_retries": 0}
    assert "Instead" in str(messages)
    assert "Hi" not in str(messages)


@pytest.mark.parametrize("as_toolset", [False, True])
def test_added_tools_win_over_equal_names(as_toolset: bool) -> None:
    def other() -> str:
        return "the added one"

    other.__name__ = "double"
    added = FunctionToolset([other]) if as_toolset else other
    model = scripted_model(ToolCall("double"), "ok")
    chosen = hooked(model, double, before_turn=lambda context: TurnConfig(tools=[added]))
    assert ask(chosen, user("Go")).part("tool-double")["output"] == "the added one"


@pytest.mark.spec("T149")
def test_stop_when_ends_earlier_and_never_later() -> None:
    requests: list[Any] = []
    model = scripted_model(["so ", ToolCall("double", {"number": 1})], on_request=requests.append)

    async def never(steps: Any) -> bool:
        return False

    def turn(**config: Any) -> int:
        requests.clear()
        found = ask(hooked(model, double, before_turn=lambda context: TurnConfig(**config)), user("Go"))
        assert found.failure is None
        assert found.chunks[-1] == {"type": "finish", "finishReason": "tool-calls"}
        return len(requests)

    assert turn(max_steps=2) == 2
    assert turn(max_steps=2, stop_when=never) == 2
    assert turn(max_steps=5, stop_when=[never, lambda steps: len(steps) == 3]) == 3
    assert turn(stop_when=lambda steps: steps[-1].tool_results[-1].output == 2) == 1
    assert turn() == 10


@pytest.mark.spec("T151")
@pytest.mark.parametrize("by_hook", [False, True])
def test_reasoning_can_be_kept_back(by_hook: bool) -> None:
    model = scripted_model([Thought("secret"), "Said."])
    chosen = (
        hooked(model, before_turn=lambda context: TurnConfig(send_reasoning=False))
        if by_hook
        else agent(model, send_reasoning=False)
    )
    found = ask(chosen, user("Go"))
    assert not [kind for kind in found.types if kind.startswith("reasoning")]
    assert found.message is not None
    assert [part["type"] for part in found.message["parts"]] == ["step-start", "text"]
    open_hearted = hooked(
        model, send_reasoning=False, before_turn=lambda context: TurnConfig(send_reasoning=True)
    )
    assert ask(open_hearted, user("Go")).part("reasoning")["text"] == "secret"


@pytest.mark.spec("T23")
def test_a_raising_before_turn_is_a_failure_of_the_set_up() -> None:
    found = ask(hooked(scripted_model("ok"), before_turn=raising), user("Go"))
    assert isinstance(found.failure, TurnSetupError)
    assert str(found.failure) == "no such customer"
    assert isinstance(found.failure.__cause__, LookupError)
    assert (found.chunks, found.message) == ([], None)


@pytest.mark.parametrize(
    "config", [{"max_steps": 0}, {"messages": []}, {"tools": [5]}, {"model": "nowhere:x"}]
)
def test_what_before_turn_cannot_mean_is_a_failure_of_the_set_up(config: dict[str, Any]) -> None:
    found = ask(hooked(scripted_model("ok"), before_turn=lambda context: TurnConfig(**config)), user("Go"))
    assert isinstance(found.failure, TurnSetupError)
    assert found.chunks == []


def test_an_answer_of_the_wrong_kind_is_named() -> None:
    found = ask(hooked(scripted_model("ok"), before_turn=lambda context: {"system": "x"}), user("Go"))
    assert str(found.failure) == "before_turn returned a dict; return a TurnConfig or None"
    found = ask(hooked(scripted_model("ok"), before_step=lambda context: True), user("Go"))
    assert str(found.failure) == "before_step returned a bool; return a StepConfig or None"


def test_before_step_changes_one_step() -> None:
    seen: list[Any] = []

    def changed(context: StepContext) -> StepConfig | None:
        if context.step_number == 0:
            return StepConfig(active_tools=["double"], tool_choice="required")
        return StepConfig(
            model=seeing(seen, say="closing words"),
            system="Close.",
            messages=[context.messages[0]],
            settings={"temperature": 0.5},
        )

    model = scripted_model(ToolCall("double", {"number": 1}), "never")
    found = ask(hooked(model, double, len, before_step=changed), user("Go"))
    assert (found.failure, found.text) == (None, "closing words")
    ((system, tools, settings, messages),) = seen
    assert (system, tools, len(messages)) == ("Close.", ["double", "len"], 1)
    assert settings == {"temperature": 0.5, "max_retries": 0}
    assert not [kind for kind in found.types if kind.startswith("data-")]


def test_an_inactive_tool_cannot_be_called() -> None:
    called: list[int] = []

    def forbidden() -> None:
        called.append(1)

    model = scripted_model(ToolCall("forbidden"), "ok")
    chosen = hooked(model, forbidden, double, before_turn=lambda context: TurnConfig(active_tools=["double"]))
    found = ask(chosen, user("Go"))
    assert (found.failure, found.text, called) == (None, "ok", [])
    assert found.part("tool-forbidden")["state"] == "output-error"


def test_a_raising_before_step_is_a_failure_of_the_stream() -> None:
    found = ask(hooked(scripted_model("ok"), before_step=raising), user("Go"))
    assert isinstance(found.failure, LookupError)

    def second(context: StepContext) -> None:
        if context.step_number:
            raising()

    model = scripted_model(["so far ", ToolCall("double", {"number": 1})], "never")
    found = ask(hooked(model, double, before_step=second), user("Go"))
    assert isinstance(found.failure, LookupError)
    assert found.text == "so far "
    assert found.part("tool-double")["output"] == 2
