"""Structured answers, toolsets that are opened and closed, threads, and the usage of runs that break off."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextvars import ContextVar
from typing import Any, Self

import pytest
from pydantic import BaseModel
from pydantic_ai import PromptedOutput
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.toolsets import FunctionToolset

from tests.engine.driving import Answer, agent, answer, ask, make_turn, user
from tests.engine.hooking import hooked
from think_celery import Think
from think_celery.core.address import Address
from think_celery.core.hook import StepResult, TurnConfig
from think_celery.engine.blocking import in_thread
from think_celery.engine.model import UsageSink, run_model
from think_celery.errors import TurnSetupError
from think_celery.testing import Item, Thought, ToolCall, scripted_model


class Report(BaseModel):
    """What a customer ordered."""

    customer: str
    items: list[str] = []


FINAL = ToolCall("final_result", {"customer": "Ann", "items": ["tea"]})
DATA = {"customer": "Ann", "items": ["tea"]}


def parts(found: Answer) -> list[str]:
    assert found.failure is None
    assert found.message is not None
    return [part["type"] for part in found.message["parts"]]


def test_a_structured_answer_is_a_data_part() -> None:
    script: list[Item] = ["Here: ", FINAL]
    found = ask(agent(scripted_model(script), output_type=Report), user("Go"))
    assert parts(found) == ["step-start", "text", "data-output"]
    assert found.part("data-output") == {"type": "data-output", "data": DATA}
    assert not [chunk for chunk in found.chunks if "toolCallId" in chunk]
    assert found.types[-3:] == ["data-output", "finish-step", "finish"]


def test_tools_may_come_before_a_structured_answer_and_a_wrong_one_is_given_back() -> None:
    requests: list[Any] = []

    def look_up() -> str:
        return "tea"

    wrong = ToolCall("final_result", {"items": 5})
    model = scripted_model(ToolCall("look_up"), wrong, FINAL, on_request=requests.append)
    found = ask(agent(model, look_up, output_type=Report), user("Go"))
    assert parts(found) == ["step-start", "tool-look_up", "step-start", "step-start", "data-output"]
    assert len(requests) == 3
    assert not [chunk for chunk in found.chunks if chunk.get("toolName") == "final_result"]


def test_the_model_sees_its_structured_answers_again() -> None:
    requests: list[Any] = []
    first = ask(agent(scripted_model(FINAL), output_type=Report), user("Go"))
    assert first.message is not None
    later = agent(scripted_model("ok", on_request=requests.append))
    ask(later, user("Go"), first.message, user("And?", "m2"))
    assert '{"customer":"Ann","items":["tea"]}' in str(requests[0])


def test_an_answer_that_is_text_is_shown_once() -> None:
    requests: list[Any] = []
    text = '{"customer": "Ann", "items": ["tea"]}'
    first = ask(agent(scripted_model([text]), output_type=PromptedOutput(Report)), user("Go"))
    assert parts(first) == ["step-start", "text", "data-output"]
    assert first.part("data-output")["data"] == DATA
    assert first.message is not None
    ask(
        agent(scripted_model("ok", on_request=requests.append)), user("Go"), first.message, user("And?", "m2")
    )
    assert str(requests[0]).count("Ann") == 1


def test_the_choice_between_text_and_structure_is_the_models() -> None:
    chosen = agent(scripted_model("Just words."), output_type=[Report, str])
    assert parts(ask(chosen, user("Go"))) == ["step-start", "text"]


def test_one_turn_may_ask_for_another_kind_of_answer() -> None:
    structured = hooked(scripted_model(FINAL), before_turn=lambda context: TurnConfig(output_type=Report))
    assert ask(structured, user("Go")).part("data-output")["data"] == DATA
    plain = hooked(
        scripted_model("Words."), output_type=Report, before_turn=lambda context: TurnConfig(output_type=str)
    )
    assert parts(ask(plain, user("Go"))) == ["step-start", "text"]


def test_a_structured_answer_that_never_comes_ends_at_the_bound() -> None:
    model = scripted_model(ToolCall("final_result", {"items": 5}))
    found = ask(agent(model, output_type=Report, max_steps=3), user("Go"))
    assert found.failure is None
    assert found.message is None
    assert found.chunks[-1] == {"type": "finish", "finishReason": "tool-calls"}


@pytest.mark.spec("T13")
@pytest.mark.parametrize("script", [[""], [Thought("nothing to add")]])
def test_a_model_with_nothing_to_say_is_not_asked_again(script: list[Item]) -> None:
    requests: list[Any] = []
    found = ask(agent(scripted_model(script, on_request=requests.append)), user("Go"))
    assert (found.failure, len(requests)) == (None, 1)
    assert found.types[-1] == "finish"
    assert (found.message is None) == (script == [""])


class Opened(FunctionToolset[Think]):
    """A toolset that has a connection to open, as an MCP server has."""

    def __init__(self, *, failure: Exception | None = None) -> None:
        super().__init__([self.look_up])
        self.failure = failure
        self.open = self.opened = 0

    def look_up(self) -> str:
        assert self.open
        return f"opened {self.opened}"

    async def __aenter__(self) -> Self:
        if self.failure is not None:
            raise self.failure
        self.open += 1
        self.opened += 1
        return self

    async def __aexit__(self, *error: object) -> None:
        self.open -= 1


def test_a_toolset_is_open_for_the_length_of_a_turn() -> None:
    toolset = Opened()
    chosen = agent(scripted_model(ToolCall("look_up"), "ok"), toolset)
    for number in (1, 2):
        found = ask(chosen, user("Go"))
        assert found.part("tool-look_up")["output"] == f"opened {number}"
        assert toolset.open == 0
    failing = agent(scripted_model(ToolCall("look_up"), RuntimeError("boom")), toolset)
    assert str(ask(failing, user("Go")).failure) == "boom"
    assert (toolset.open, toolset.opened) == (0, 3)


@pytest.mark.parametrize("added", [False, True])
def test_a_toolset_that_does_not_open_is_a_failure_of_the_set_up(added: bool) -> None:
    toolset = Opened(failure=ConnectionError("no server"))
    model = scripted_model("never")
    chosen = (
        hooked(model, before_turn=lambda context: TurnConfig(tools=[toolset]))
        if added
        else agent(model, toolset)
    )
    found = ask(chosen, user("Go"))
    assert isinstance(found.failure, TurnSetupError)
    assert (str(found.failure), found.chunks) == ("no server", [])


def test_two_tools_of_one_name_are_a_failure_of_the_set_up() -> None:
    def look_up() -> str:
        return "mine"

    found = ask(agent(scripted_model("never"), look_up, Opened()), user("Go"))
    assert isinstance(found.failure, TurnSetupError)
    assert "look_up" in str(found.failure)


@pytest.mark.parametrize("method", ["get_model", "get_system_prompt", "get_tools"])
def test_whatever_a_class_raises_when_asked_is_a_failure_of_the_set_up(method: str) -> None:
    def raising(self: Think) -> Any:
        raise LookupError(f"{method} is broken")

    found = ask(agent(scripted_model("never"), **{method: raising}), user("Go"))
    assert isinstance(found.failure, TurnSetupError)
    assert str(found.failure) == f"{method} is broken"
    assert isinstance(found.failure.__cause__, LookupError)


def test_something_that_is_no_model_is_named() -> None:
    found = ask(agent(5), user("Go"))
    assert "a int is no model" in str(found.failure)


def test_model_settings_of_the_class_reach_the_model() -> None:
    seen: list[Any] = []

    async def stream(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
        seen.append(info.model_settings)
        yield "ok"

    chosen = agent(FunctionModel(stream_function=stream), model_settings={"temperature": 0.3})
    assert ask(chosen, user("Go")).text == "ok"
    assert seen == [{"temperature": 0.3, "max_retries": 0}]


number: ContextVar[int] = ContextVar("number")


def test_sixty_tools_may_wait_for_sixty_children_with_tools() -> None:
    count = 60
    together = threading.Barrier(count, timeout=60)
    seen: set[int] = set()

    def leaf() -> str:
        together.wait()
        seen.add(number.get())
        return "leaf"

    async def all_at_once() -> None:
        loop = asyncio.get_running_loop()
        child = agent(scripted_model(ToolCall("leaf"), "child"), leaf)

        def ask_child() -> str:
            together.wait()
            return asyncio.run_coroutine_threadsafe(_numbered(child, number.get()), loop).result(60).text

        parent = agent(scripted_model(ToolCall("ask_child"), "parent"), ask_child)
        async with asyncio.timeout(60):
            found = await asyncio.gather(*[_numbered(parent, each) for each in range(count)])
        assert {each.part("tool-ask_child")["output"] for each in found} == {"child"}

    asyncio.run(all_at_once())
    assert seen == set(range(count))


async def _numbered(chosen: type[Think], mine: int) -> Answer:
    number.set(mine)
    return await answer(chosen, user("Go"))


def test_hooks_wait_in_as_many_threads_as_there_are_turns() -> None:
    count = 100
    together = threading.Barrier(count, timeout=60)

    async def all_at_once() -> None:
        def meet(context: Any) -> None:
            together.wait()

        chosen = hooked(scripted_model("ok"), before_turn=meet)
        turns = [asyncio.create_task(answer(chosen, user("Go"))) for _ in range(count)]
        async with asyncio.timeout(60):
            assert {found.text for found in await asyncio.gather(*turns)} == {"ok"}

    asyncio.run(all_at_once())


def test_a_thread_gets_the_context_and_gives_what_it_raises() -> None:
    def fail() -> None:
        raise LookupError(number.get())

    async def inside() -> None:
        number.set(7)
        with pytest.raises(LookupError, match="7"):
            await in_thread(fail)
        assert await in_thread(pow, 2, 5) == 32

    asyncio.run(inside())


def test_cancelling_does_not_wait_for_a_tool_in_a_thread() -> None:
    begun, gate = threading.Event(), threading.Event()

    def hang() -> None:
        begun.set()
        assert gate.wait(60)

    async def cancel_it() -> None:
        turn = asyncio.create_task(answer(agent(scripted_model(ToolCall("hang"), "ok"), hang), user("Go")))
        await in_thread(begun.wait, 10)
        turn.cancel()
        async with asyncio.timeout(5):
            with pytest.raises(asyncio.CancelledError):
                await turn
        gate.set()

    asyncio.run(cancel_it())


def test_the_usage_of_a_run_that_fails_or_is_cancelled_is_recorded() -> None:
    steps: list[StepResult] = []

    def work() -> str:
        return "done"

    model = scripted_model(ToolCall("work"), RuntimeError("boom"))
    found = ask(hooked(model, work, on_step_finish=steps.append), user("Go"))
    assert str(found.failure) == "boom"
    (step,) = steps
    assert found.usage == {**step.usage, "toolCalls": 1}
    assert step.usage["outputTokens"] > 0

    async def cancel_it() -> UsageSink:
        usage, waiting = UsageSink(), asyncio.Event()

        async def stream(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
            yield "so far so good"
            waiting.set()
            await asyncio.Event().wait()

        async def run() -> None:
            chosen = agent(FunctionModel(stream_function=stream))(Address("Base", "a"))
            async for _ in run_model(chosen, make_turn([user("Hi")], usage), usage):
                pass

        turn = asyncio.create_task(run())
        await waiting.wait()
        turn.cancel()
        with pytest.raises(asyncio.CancelledError):
            await turn
        return usage

    value = asyncio.run(cancel_it()).value
    assert value is not None
    assert value["outputTokens"] > 0
