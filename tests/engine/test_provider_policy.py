"""What becomes of a request that a provider refuses: repeated for a while, and then told in words."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from pydantic_ai.exceptions import (
    ModelAPIError,
    ModelConnectionError,
    ModelHTTPError,
    ModelQuotaExceededError,
    ModelRateLimitError,
    ModelServerError,
)
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.wrapper import WrapperModel

from tests.engine.driving import Base, agent, answer, ask, user
from tests.engine.openai_server import KEY, OpenAIServer, openai_server
from think_celery import Think
from think_celery.engine.model import ModelPolicy
from think_celery.engine.provider import pause_seconds
from think_celery.testing import ToolCall

QUICK = ModelPolicy(retries=3, longest_pause_seconds=0.01)


def refusal(status: int, *, retry_after: float | None = None, words: str = "Slow down.") -> ModelHTTPError:
    return ModelHTTPError(status, "m", {"error": {"message": words}}, retry_after=retry_after)


def refusing(*errors: Exception, say: str = "ok", calls: list[int] | None = None) -> FunctionModel:
    """Return a model that raises those errors, one a request, and then answers."""
    left = list(errors)

    async def stream(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
        if calls is not None:
            calls.append(1)
        if left:
            raise left.pop(0)
        yield say

    return FunctionModel(stream_function=stream)


PASSING = [
    refusal(429),
    refusal(408),
    refusal(500),
    refusal(503),
    refusal(529),
    ModelConnectionError("m", "connection reset"),
    ModelRateLimitError("m", "too many"),
    ModelServerError("m", "fault"),
]
LASTING = [
    refusal(400),
    refusal(401),
    refusal(404),
    ModelQuotaExceededError("m", "no credit"),
    ModelHTTPError(429, "m", headers={"x-should-retry": "false"}),
    ValueError("not a provider's"),
]


@pytest.mark.parametrize("error", PASSING, ids=str)
def test_a_passing_refusal_is_repeated(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        found = ask(agent(refusing(error, error)), user("Hi"), policy=QUICK)
    assert (found.failure, found.text) == (None, "ok")
    assert found.types.count("start") == found.types.count("start-step") == 1
    assert caplog.text.count("model.refused model=function:") == 2
    assert found.usage is not None
    assert found.usage["requests"] == 1


@pytest.mark.parametrize("error", LASTING, ids=str)
def test_a_lasting_refusal_is_not_repeated(error: Exception) -> None:
    calls: list[int] = []
    found = ask(agent(refusing(error, calls=calls)), user("Hi"), policy=QUICK)
    assert found.failure is error
    assert len(calls) == 1


def test_the_number_of_repetitions_is_bounded() -> None:
    calls: list[int] = []
    found = ask(agent(refusing(*[refusal(429)] * 9, calls=calls)), user("Hi"), policy=QUICK)
    assert isinstance(found.failure, ModelHTTPError)
    assert (len(calls), found.types) == (4, ["start"])
    calls.clear()
    ask(agent(refusing(*[refusal(429)] * 9, calls=calls)), user("Hi"), policy=ModelPolicy(retries=0))
    assert len(calls) == 1


def test_the_pauses_grow_and_are_bounded() -> None:
    policy = ModelPolicy(retries=10, longest_pause_seconds=8.0)

    def pause(attempt: int, error: Exception, key: str = "k") -> float | None:
        return pause_seconds(error, attempt=attempt, key=key, policy=policy)

    plain = [pause(attempt, refusal(503)) for attempt in range(1, 11)]
    bounds = [0.5, 1, 2, 4, 8, 8, 8, 8, 8, 8]
    for waited, bound in zip(plain, bounds, strict=True):
        assert waited is not None
        assert 0.75 * bound <= waited <= bound
    assert pause(11, refusal(503)) is None
    assert len({pause(1, refusal(503), key=str(number)) for number in range(20)}) > 10
    assert pause(1, refusal(429, retry_after=5.0)) == 5.0
    assert pause(1, refusal(429, retry_after=0.0)) == 0.0
    assert pause(1, refusal(429, retry_after=9.0)) is None


def test_what_was_streamed_already_is_not_streamed_again() -> None:
    calls: list[int] = []

    async def stream(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
        calls.append(1)
        yield "so far"
        raise refusal(503)

    found = ask(agent(FunctionModel(stream_function=stream)), user("Hi"), policy=QUICK)
    assert isinstance(found.failure, ModelHTTPError)
    assert (len(calls), found.text) == (1, "so far")


def test_a_later_step_is_repeated_without_its_tools() -> None:
    runs: list[int] = []
    left = [refusal(503)]

    def work() -> str:
        runs.append(1)
        return "done"

    async def stream(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
        from think_celery.testing import scripted_model

        if len(messages) > 1 and left:
            raise left.pop()
        script = scripted_model(ToolCall("work"), "ok").stream_function  # type: ignore[attr-defined]
        async for delta in script(messages, info):
            yield delta

    found = ask(agent(FunctionModel(stream_function=stream), work), user("Hi"), policy=QUICK)
    assert (found.failure, found.text, runs, left) == (None, "ok", [1], [])


def test_a_pause_can_be_cancelled() -> None:
    async def cancel_the_pause() -> None:
        calls: list[int] = []
        refused = refusing(refusal(429, retry_after=50.0), calls=calls)
        turn = asyncio.create_task(answer(agent(refused), user("Hi")))
        async with asyncio.timeout(10):
            while not calls:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            await asyncio.sleep(0.01)
            turn.cancel()
            with pytest.raises(asyncio.CancelledError):
                await turn

    asyncio.run(cancel_the_pause())


class Counting:
    """Counts how many requests of its model are under way."""

    def __init__(self) -> None:
        self.now = self.most = self.begun = 0
        self.gate = asyncio.Event()

    def model(self, name: str) -> FunctionModel:
        async def stream(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
            self.begun += 1
            self.now += 1
            self.most = max(self.most, self.now)
            try:
                await self.gate.wait()
                yield "ok"
            finally:
                self.now -= 1

        return FunctionModel(stream_function=stream, model_name=name)

    async def reach(self, begun: int) -> None:
        async with asyncio.timeout(10):
            while self.begun < begun:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        await asyncio.sleep(0.05)  # nobody else may follow
        assert self.begun == begun


def test_calls_at_once_are_limited_per_model_and_the_waiting_can_be_cancelled() -> None:
    async def crowd() -> None:
        counting = Counting()
        policy = ModelPolicy(calls=2)

        def turns(model: FunctionModel, count: int) -> list[asyncio.Task[Any]]:
            chosen = agent(model)
            return [asyncio.create_task(answer(chosen, user("Hi"), policy=policy)) for _ in range(count)]

        waiting = turns(counting.model("crowded"), 6)
        await counting.reach(2)
        for task in waiting[-2:]:
            task.cancel()
        for task in waiting[-2:]:
            with pytest.raises(asyncio.CancelledError):
                await task
        free = turns(counting.model("free"), 1)
        await counting.reach(3)
        counting.gate.set()
        for task in [*waiting[:4], *free]:
            assert (await task).text == "ok"
        assert (counting.most, counting.begun, counting.now) == (3, 5, 0)

    asyncio.run(crowd())


def test_a_child_does_not_wait_for_the_place_of_its_parent() -> None:
    async def nested() -> None:
        from think_celery.testing import scripted_model

        policy = ModelPolicy(calls=1)
        child = agent(scripted_model("child"))

        async def ask_child() -> str:
            return (await answer(child, user("Hi"), policy=policy)).text

        parent = agent(scripted_model(ToolCall("ask_child"), "parent"), ask_child)
        async with asyncio.timeout(10):
            found = await answer(parent, user("Hi"), policy=policy)
        assert (found.failure, found.part("tool-ask_child")["output"]) == (None, "child")

    asyncio.run(nested())


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            refusal(429, retry_after=90),
            "m: too many requests: allow fewer at once (THINK_MODEL_CALLS), or try "
            "again later (HTTP 429, Slow down.; it asks to wait 90 s)",
        ),
        (refusal(401, words="Bad key."), "m: check the API key and what it may use (HTTP 401, Bad key.)"),
        (refusal(500), "m: the provider has a fault: try again later (HTTP 500, Slow down.)"),
        (
            refusal(418),
            "m: the provider refuses this request; repeating it is no use (HTTP 418, Slow down.)",
        ),
        (
            ModelConnectionError("m", "refused"),
            "m: the provider could not be reached: check the network and the base URL (refused)",
        ),
        (ModelAPIError("m", "odd"), "m: the provider failed (odd)"),
    ],
)
def test_a_providers_error_says_what_to_do(error: ModelAPIError, text: str) -> None:
    for _ in range(2):
        found = ask(agent(refusing(error)), user("Hi"), policy=ModelPolicy(retries=0))
        assert found.failure is error
        assert str(found.failure) == text


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenAIServer]:
    with openai_server() as running:
        monkeypatch.setenv("OPENAI_BASE_URL", running.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        yield running


class Provided(Base, abstract=True):
    """Talks to the local server."""

    model: Any = "openai-chat:gpt-4o"


@pytest.mark.parametrize("status", [429, 503])
def test_a_refusal_over_http_is_repeated_once_by_us_alone(server: OpenAIServer, status: int) -> None:
    server.fail_next = status
    found = ask(Provided, user("Hi"), policy=QUICK)
    assert (found.failure, found.text) == (None, "Hello from the server.")
    assert len(server.requests) == 2
    server.fail_next = status
    found = ask(Provided, user("Hi"), policy=ModelPolicy(retries=0))
    assert f"HTTP {status}" in str(found.failure)
    assert len(server.requests) == 3


def test_a_provider_that_is_away_is_told_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: whoever connects is refused
        monkeypatch.setenv("OPENAI_BASE_URL", f"http://127.0.0.1:{taken.getsockname()[1]}/v1")
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        found = ask(Provided, user("Hi"), policy=QUICK)
    assert isinstance(found.failure, ModelConnectionError)
    assert "could not be reached: check the network" in str(found.failure)


def test_a_model_that_only_passes_on_is_no_hindrance() -> None:
    class Passing(WrapperModel):
        """Adds nothing."""

    chosen: type[Think] = agent(Passing(refusing(refusal(503))))
    assert ask(chosen, user("Hi"), policy=QUICK).text == "ok"
