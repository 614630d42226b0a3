"""The model-and-tools loop: what it streams, how it ends, and what the model is shown."""

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import aclosing
from datetime import date
from typing import Any

import pytest
from pydantic_ai import RunContext, Tool, ToolReturn
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models import Model
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.toolsets import FunctionToolset

from tests.engine.driving import TOOL_CHUNKS, Base, agent, answer, ask, make_turn, user
from think_celery import Think, Turn
from think_celery.core.address import Address
from think_celery.engine.model import UsageSink, run_model
from think_celery.testing import Item, Thought, ToolCall, scripted_model

Requests = list[list[ModelMessage]]


def double(number: int) -> int:
    """Double a number."""
    return 2 * number


def test_the_chunks_of_a_turn_with_a_tool() -> None:
    script: list[Item] = [Thought("hm"), "Let ", "me", ToolCall("double", {"number": 21})]
    found = ask(agent(scripted_model(script, "It is 42."), double), user("21?"))
    assert found.failure is None
    assert [kind for kind in found.types if not kind.endswith("-delta")] == [
        "start",
        "start-step",
        "reasoning-start",
        "reasoning-end",
        "text-start",
        "text-end",
        *TOOL_CHUNKS[:3],
        "finish-step",
        "start-step",
        "text-start",
        "text-end",
        "finish-step",
        "finish",
    ]
    assert json.loads(json.dumps(found.chunks)) == found.chunks
    assert found.part("tool-double") == {
        "type": "tool-double",
        "toolCallId": found.part("tool-double")["toolCallId"],
        "state": "output-available",
        "input": {"number": 21},
        "output": 42,
    }
    assert found.message is not None
    assert "metadata" not in found.message
    assert found.usage is not None
    assert (found.usage["requests"], found.usage["toolCalls"]) == (2, 1)


@pytest.mark.spec("T4")
def test_the_streamed_text_is_the_stored_text() -> None:
    found = ask(agent(scripted_model(["a ", "b ", "c"])), user("Hi"))
    assert found.text == found.part("text")["text"] == "a b c"
    assert found.types.count("text-delta") == 3


@pytest.mark.spec("T149")
def test_reaching_max_steps_is_a_normal_end() -> None:
    requests: Requests = []
    model = scripted_model(["thinking", ToolCall("double", {"number": 1})], on_request=requests.append)
    found = ask(agent(model, double, max_steps=2), user("Go"))
    assert found.failure is None
    assert len(requests) == 2
    assert found.types.count("tool-output-available") == found.types.count("finish-step") == 2
    assert found.chunks[-1] == {"type": "finish", "finishReason": "tool-calls"}
    assert found.text == "thinkingthinking"


@pytest.mark.spec("T24")
def test_a_missing_model_names_the_method_to_override() -> None:
    class Bare(Think, abstract=True):
        """Overrides nothing."""

    found = ask(Bare, user("Hi"))
    assert "get_model" in str(found.failure)
    assert "Bare" in str(found.failure)


@pytest.mark.spec("T16")
def test_a_failure_in_the_stream_is_raised_and_keeps_what_was_said() -> None:
    found = ask(agent(scripted_model(["one ", "two", RuntimeError("boom")])), user("Hi"))
    assert isinstance(found.failure, RuntimeError)
    assert str(found.failure) == "boom"
    assert found.types == ["start", "start-step", "text-start", "text-delta", "text-delta", "text-end"]
    assert found.part("text") == {"type": "text", "text": "one two", "state": "done"}


CIRCLE: list[Any] = []
CIRCLE.append(CIRCLE)


@pytest.mark.parametrize("result", [threading.Lock(), object(), CIRCLE, ToolReturn(return_value=object())])
def test_a_result_that_is_no_json_is_told_to_the_model(result: object) -> None:
    def odd() -> object:
        return result

    found = ask(agent(scripted_model(ToolCall("odd"), "I see."), odd), user("Hi"))
    assert (found.failure, found.text) == (None, "I see.")
    assert "cannot be written as JSON" in found.part("tool-odd")["errorText"]


def test_hostile_text_in_a_result_is_cleaned() -> None:
    def hostile() -> dict[str, Any]:
        return {"text": "a\ud83d", "nul": "\x00", "nan": float("nan"), "date": date(2026, 1, 2)}

    found = ask(agent(scripted_model(ToolCall("hostile"), "ok"), hostile), user("Hi"))
    assert (found.failure, found.text) == (None, "ok")
    output = {"text": "a\ufffd", "nul": "\ufffd", "nan": None, "date": "2026-01-02"}
    assert found.part("tool-hostile")["output"] == output


def test_a_failure_while_a_tool_runs_closes_its_call() -> None:
    async def stop() -> str:
        raise asyncio.InvalidStateError("unreachable")

    class Broken(FunctionToolset[Think]):
        async def get_tools(self, ctx: RunContext[Think]) -> Any:
            if ctx.run_step > 1:
                raise OSError("toolset is gone")
            return await super().get_tools(ctx)

    found = ask(agent(scripted_model(ToolCall("stop"), "never"), Broken([stop])), user("Hi"))
    assert str(found.failure) == "toolset is gone"
    assert "error" not in found.types
    assert found.part("tool-stop")["state"] == "output-error"


def test_a_failure_before_the_first_chunk_has_no_message() -> None:
    found = ask(agent(scripted_model(ValueError("refused"))), user("Hi"))
    assert (str(found.failure), found.types, found.message) == ("refused", ["start"], None)


def test_what_a_tool_raises_is_told_to_the_model() -> None:
    requests: Requests = []

    def fails(reason: str) -> str:
        raise KeyError(reason)

    model = scripted_model(ToolCall("fails", {"reason": "none"}), "I see.", on_request=requests.append)
    found = ask(agent(model, fails), user("Go"))
    assert found.failure is None
    assert found.part("tool-fails")["errorText"] == "KeyError: 'none'"
    assert found.text == "I see."
    assert "KeyError: 'none'" in str(requests[-1])


def test_wrong_arguments_and_unknown_tools_do_not_fail_the_turn() -> None:
    wrong = [ToolCall("double", {"number": "many"}), ToolCall("nothing")]
    found = ask(agent(scripted_model(wrong, wrong, wrong, "Sorry."), double), user("Go"))
    assert found.failure is None
    assert found.text == "Sorry."
    assert found.message is not None
    states = [part["state"] for part in found.message["parts"] if part["type"].startswith("tool-")]
    assert states == ["output-error"] * 6


def test_tools_of_every_kind_are_offered_and_know_their_agent() -> None:
    seen: list[str] = []
    kit: FunctionToolset[Think] = FunctionToolset()

    @kit.tool
    def named(context: RunContext[Think]) -> str:
        """Tell the name."""
        return f"I am {context.deps.name}"

    async def stream(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
        seen.extend(sorted(tool.name for tool in info.function_tools))
        seen.append(info.instructions or "")
        yield "ok"

    class Prompted(Base, abstract=True):
        model = FunctionModel(stream_function=stream)

        def get_system_prompt(self) -> str:
            return f"You serve {self.name}."

        def mine(self) -> str:
            return self.name

        def get_tools(self) -> list[Any]:
            return [double, self.mine, Tool(double, name="twice"), kit]

    assert ask(Prompted, user("Hi")).failure is None
    assert seen == ["double", "mine", "named", "twice", "You serve a."]
    found = ask(agent(scripted_model(ToolCall("named"), "ok"), kit), user("Hi"))
    assert found.part("tool-named")["output"] == "I am a"


def test_something_else_among_the_tools_is_named() -> None:
    found = ask(agent(scripted_model("x"), 5), user("Hi"))
    assert "get_tools() returned a int" in str(found.failure)


def test_a_class_may_answer_its_questions_asynchronously() -> None:
    class Asynchronous(Base, abstract=True):
        async def get_model(self) -> Model:  # type: ignore[override]
            await asyncio.sleep(0)
            return scripted_model("ok")

    assert ask(Asynchronous, user("Hi")).text == "ok"


def test_sync_tools_do_not_block_the_event_loop() -> None:
    count = 60
    barrier = threading.Barrier(count + 1, timeout=60)

    def meet() -> str:
        barrier.wait()
        return "met"

    async def all_at_once() -> None:
        model = scripted_model(ToolCall("meet"), "ok")
        turns = [asyncio.create_task(answer(agent(model, meet), user("Hi"))) for _ in range(count)]
        await asyncio.to_thread(barrier.wait)
        assert {found.text for found in await asyncio.gather(*turns)} == {"ok"}

    asyncio.run(all_at_once())


def test_cancelling_a_turn_closes_the_model() -> None:
    async def cancel_in_the_middle() -> None:
        waiting, closed = asyncio.Event(), asyncio.Event()

        async def stream(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
            try:
                yield "first"
                waiting.set()
                await asyncio.Event().wait()
            finally:
                closed.set()

        turn = asyncio.create_task(answer(agent(FunctionModel(stream_function=stream)), user("Hi")))
        await waiting.wait()
        turn.cancel()
        with pytest.raises(asyncio.CancelledError):
            await turn
        assert closed.is_set()

    asyncio.run(cancel_in_the_middle())


def test_leaving_the_stream_early_closes_the_model() -> None:
    usage = UsageSink()

    async def leave() -> None:
        chosen = agent(scripted_model(["a", "b", "c"]))(Address("Base", "a"))
        async with aclosing(run_model(chosen, make_turn([user("Hi")], usage), usage)) as chunks:
            async for chunk in chunks:
                if chunk["type"] == "text-delta":
                    break

    asyncio.run(leave())
    assert usage.value is not None


def test_usage_of_several_runs_adds_up() -> None:
    class Twice(Base, abstract=True):
        model = scripted_model("ok")

        async def on_chat_message(self, turn: Turn) -> AsyncIterator[str | dict[str, Any]]:
            for _ in range(2):
                async for chunk in turn.run_model(self):
                    yield chunk

    found = ask(Twice, user("Hi"))
    assert found.usage is not None
    assert found.usage["requests"] == 2
    assert found.text == "okok"


def test_declaring_an_agent_does_not_load_the_model_library() -> None:
    code = "import think_celery, sys; sys.exit('pydantic_ai' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
