"""Whole turns with a provider over HTTP: many in one process, failed ones, and one cancelled in a tool."""

import asyncio
import gc
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest

from tests.engine.openai_server import KEY, OpenAIServer, openai_server
from tests.engine.stage import Stage, beside
from think_celery import Think
from think_celery.core.address import Address
from think_celery.core.failure import describe
from think_celery.core.hook import ErrorContext, StepResult, ToolCall, TurnContext
from think_celery.core.submission import Status
from think_celery.engine.runtime import Runtime
from think_celery.errors import TurnSetupError

TURNS, TRACED, AGENTS = 100, 40, 5
GROWTH_BYTES = 4_000
"""A turn that stayed in memory, with its run of the model and its conversation, is more than 20,000."""


def weather(city: str) -> str:
    """Tell the weather."""
    return f"sunny in {city}"


class Provided(Think):
    """Asks a provider, with a tool and plain hooks."""

    def get_model(self) -> str:
        return "openai-chat:gpt-4o"

    def get_tools(self) -> list[Any]:
        return [weather]

    def before_turn(self, context: TurnContext) -> None:
        assert context.messages

    def before_tool_call(self, call: ToolCall) -> None:
        assert call.tool_name == "weather"

    def on_step_finish(self, step: StepResult) -> None:
        assert step.usage["inputTokens"] > 0


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenAIServer]:
    with openai_server() as running:
        monkeypatch.setenv("OPENAI_BASE_URL", running.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        yield running


def run(runtime: Runtime, address: Address) -> None:
    stage = Stage(runtime, address)
    receipt = stage.handle.submit_messages("Weather?")
    stage.drain()
    row = stage.row(receipt.submission_id)
    assert (row.status, row.error) == (Status.COMPLETED, None)
    assert row.usage is not None
    assert row.usage["requests"] in (1, 2)  # the server sees an earlier result as good enough
    assert "sunny in Berlin" in stage.texts("assistant")[-1]


def test_a_hundred_turns_reuse_loop_connections_and_memory(
    runtime: Runtime, server: OpenAIServer, caplog: pytest.LogCaptureFixture
) -> None:
    addresses = [Address("Provided", f"p-{uuid4()}") for _ in range(AGENTS)]
    for number in range(TURNS - TRACED):
        run(runtime, addresses[number % AGENTS])
    tracemalloc.start()
    try:
        before = held(runtime, server)
        for number in range(TRACED):
            run(runtime, addresses[number % AGENTS])
        caplog.clear()
        assert held(runtime, server) - before < TRACED * GROWTH_BYTES
    finally:
        tracemalloc.stop()
    assert server.connections == 1
    assert "Event loop is closed" not in caplog.text


def held(runtime: Runtime, server: OpenAIServer) -> int:
    """Return how much of what was allocated since the tracing began is in use."""

    async def drop_cancelled_timers() -> None:
        # An event loop keeps them, and the context of the turns they belonged to, until there are many.
        loop = asyncio.get_running_loop()
        for _ in range(2000):
            loop.call_later(60, print).cancel()
        await asyncio.sleep(0)

    runtime.loop.run(drop_cancelled_timers())
    server.requests.clear()
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def test_turns_side_by_side_share_the_connections_and_a_new_process_opens_its_own(
    make_runtime: Callable[[], Runtime], server: OpenAIServer
) -> None:
    def several(runtime: Runtime, address: Address) -> Callable[[], None]:
        return lambda: [run(runtime, address) for _ in range(3)] and None

    for _ in range(2):  # a second runtime has a loop of its own, as a second process has
        runtime = make_runtime()
        addresses = [Address("Provided", f"p-{uuid4()}") for _ in range(4)]
        with beside(*[several(runtime, address) for address in addresses]):
            pass
        runtime.close()
    assert server.connections <= 8


def test_the_connections_are_closed_with_the_process(
    make_runtime: Callable[[], Runtime], server: OpenAIServer
) -> None:
    known, before = set(threading.enumerate()), threading.active_count()
    runtime = make_runtime()
    run(runtime, Address("Provided", f"p-{uuid4()}"))
    new = set(threading.enumerate()) - known
    handlers = [thread for thread in new if "process_request_thread" in thread.name]
    assert len(handlers) == 1
    runtime.close()
    handlers[0].join(10)  # the server's thread ends with its connection
    assert not handlers[0].is_alive()
    assert threading.active_count() <= before + 1


told: list[tuple[Exception, ErrorContext]] = []


class Broken(Think):
    """Cannot be set up, or fails in the stream, as its message says; says it in other words."""

    def get_model(self) -> str:
        return "openai-chat:gpt-4o"

    def before_turn(self, context: TurnContext) -> None:
        if "set-up" in str(context.messages[-1]):
            raise LookupError("no such customer")

    def on_chat_error(self, error: Exception, context: ErrorContext) -> Exception | None:
        told.append((error, context))
        return RuntimeError("Sorry.") if context.stage == "stream" else None


@pytest.mark.spec("T17", "T23")
def test_where_a_turn_failed_is_told(runtime: Runtime, server: OpenAIServer) -> None:
    stage = Stage(runtime, Address("Broken", f"b-{uuid4()}"))
    told.clear()

    def turn(text: str) -> tuple[str, str | None]:
        receipt = stage.handle.submit_messages(text)
        stage.drain()
        row = stage.row(receipt.submission_id)
        return row.status.value, row.error

    assert turn("set-up") == ("error", "no such customer")
    server.fail_next = 400
    assert turn("stream") == ("error", "Sorry.")
    assert turn("set-up again") == ("error", "no such customer")
    (set_up, first), (streamed, second), _ = told
    assert isinstance(set_up, TurnSetupError)
    assert isinstance(set_up.__cause__, LookupError)
    refused = "gpt-4o: the provider refuses this request; repeating it is no use"
    assert describe(streamed) == f"{refused} (HTTP 400, The server had an error.)"
    assert (first.stage, second.stage) == ("turn", "stream")
    assert first.messages_persisted
    assert stage.texts("user") == ["set-up", "stream", "set-up again"]
    assert stage.texts("assistant") == []


def test_a_turn_after_a_failed_set_up_completes(runtime: Runtime, server: OpenAIServer) -> None:
    stage = Stage(runtime, Address("Broken", f"b-{uuid4()}"))
    for text, status in (("set-up", Status.ERROR), ("hello", Status.COMPLETED)):
        receipt = stage.handle.submit_messages(text)
        stage.drain()
        assert stage.row(receipt.submission_id).status is status
    assert stage.texts("assistant") == ["Hello from the server."]


begun = threading.Event()


class Hanging(Think):
    """Its tool never ends."""

    def get_model(self) -> str:
        return "openai-chat:gpt-4o"

    def get_tools(self) -> list[Any]:
        async def weather(city: str) -> str:
            begun.set()
            await asyncio.Event().wait()
            return city

        return [weather]


def test_a_conversation_goes_on_after_a_cancelled_tool_call(runtime: Runtime, server: OpenAIServer) -> None:
    stage = Stage(runtime, Address("Hanging", f"h-{uuid4()}"))
    begun.clear()
    receipt = stage.handle.submit_messages("Weather?")
    with stage.draining():
        assert begun.wait(20)
        stage.handle.cancel_submission(receipt.submission_id)
    row = stage.row(receipt.submission_id)
    assert row.status is Status.ABORTED
    assert row.usage is not None
    assert row.usage["inputTokens"] > 0
    (_, partial) = stage.handle.get_messages()
    call = next(part for part in partial["parts"] if part["type"] == "tool-weather")
    assert (call["state"], call["input"]) == ("output-error", {"city": "Berlin"})
    later = stage.handle.submit_messages("Never mind. Hi!")
    stage.drain()
    assert stage.row(later.submission_id).status is Status.COMPLETED
    sent = server.requests[-1][1]["messages"]
    asked = [call["id"] for message in sent for call in message.get("tool_calls") or ()]
    assert [message["tool_call_id"] for message in sent if message["role"] == "tool"] == asked
    assert len(asked) == 1
