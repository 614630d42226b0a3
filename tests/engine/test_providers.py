"""The way to a real provider: model names, keys and OpenAI's streaming protocols, against a local server."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from tests.engine.driving import Answer, answer, ask, user
from tests.engine.openai_server import ENCRYPTED, KEY, OpenAIServer, openai_server
from think_celery import Think

MODELS = ["openai:gpt-5", "openai-responses:gpt-5", "openai-chat:gpt-4o"]
cities: list[str] = []


def weather(city: str) -> str:
    """Tell the weather.

    Args:
        city: Where.
    """
    cities.append(city)
    return f"sunny in {city}"


class Provided(Think, abstract=True):
    """Talks to the model that a test names."""

    model = "openai:gpt-5"
    tools: list[Any] = []

    def get_model(self) -> str:
        return self.model

    def get_system_prompt(self) -> str:
        return "Be brief."

    def get_tools(self) -> list[Any]:
        return self.tools


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenAIServer]:
    with openai_server() as running:
        monkeypatch.setenv("OPENAI_BASE_URL", running.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        yield running


def agent(model: str, *tools: Any) -> type[Think]:
    return type("Provided", (Provided,), {"model": model, "tools": list(tools)}, abstract=True)


def path(model: str) -> str:
    return "/v1/chat/completions" if model.startswith("openai-chat") else "/v1/responses"


@pytest.mark.parametrize("model", MODELS)
def test_text_streams_from_the_provider_to_a_message(server: OpenAIServer, model: str) -> None:
    found = ask(agent(model), user("Hi"))
    assert found.failure is None
    assert found.text == "Hello from the server."
    assert found.types == [
        "start",
        "start-step",
        "text-start",
        *["text-delta"] * 4,
        "text-end",
        "finish-step",
        "finish",
    ]
    assert found.chunks[-1]["finishReason"] == "stop"
    assert found.part("text")["text"] == "Hello from the server."
    assert found.usage is not None
    assert (found.usage["requests"], found.usage["inputTokens"], found.usage["outputTokens"]) == (1, 11, 7)
    ((where, body),) = server.requests
    assert where == path(model)
    assert (body["model"], body["stream"]) == (model.partition(":")[2], True)
    assert "Be brief." in str(body)
    assert "Hi" in str(body)


@pytest.mark.parametrize("model", MODELS)
def test_a_tool_call_goes_there_and_back(server: OpenAIServer, model: str) -> None:
    cities.clear()
    found = ask(agent(model, weather), user("Weather?"))
    assert found.failure is None
    assert cities == ["Berlin"]
    part = found.part("tool-weather")
    assert (part["state"], part["input"], part["output"]) == (
        "output-available",
        {"city": "Berlin"},
        "sunny in Berlin",
    )
    assert found.text == "It is sunny in Berlin there."
    assert [found.types.count(kind) for kind in ("start", "start-step", "finish-step", "finish")] == [
        1,
        2,
        2,
        1,
    ]
    assert found.usage is not None
    assert (found.usage["requests"], found.usage["toolCalls"], found.usage["totalTokens"]) == (2, 1, 36)
    assert [where for where, _ in server.requests] == [path(model)] * 2


def test_reasoning_goes_back_to_the_provider_in_later_turns(server: OpenAIServer) -> None:
    question = user("Weather?")
    first = ask(agent("openai:gpt-5", weather), question)
    assert first.message is not None
    assert first.part("reasoning")["text"] == "Look it up."
    ask(agent("openai:gpt-5"), question, first.message, user("And now?", "m2"))
    sent = server.requests[-1][1]["input"]
    kinds = [item.get("type") or item["role"] for item in sent]
    assert [kind for kind in kinds if kind != "message"][-4:] == [
        "reasoning",
        "function_call",
        "function_call_output",
        "user",
    ]
    assert next(item for item in sent if item.get("type") == "reasoning")["encrypted_content"] == ENCRYPTED


@pytest.mark.parametrize("model", MODELS)
def test_a_refused_key_is_the_turns_failure(
    server: OpenAIServer, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "wrong")
    found = ask(agent(model), user("Hi"))
    assert "401" in str(found.failure)
    assert "Incorrect API key" in str(found.failure)
    assert (found.types, found.message) == (["start"], None)


@pytest.mark.parametrize("model", MODELS)
def test_a_stream_that_breaks_off_keeps_what_was_said(server: OpenAIServer, model: str) -> None:
    server.break_next = True
    found = ask(agent(model), user("Hi"))
    assert found.failure is not None
    assert "finish" not in found.types
    assert found.text.startswith("Hello ")
    assert found.message is not None
    assert found.part("text")["state"] == "done"


def test_a_provider_error_is_raised_with_its_status(server: OpenAIServer) -> None:
    server.fail_next = 400
    found = ask(agent("openai:gpt-5"), user("Hi"))
    assert "400" in str(found.failure)
    assert "error" not in found.types


@pytest.mark.parametrize("model", MODELS)
def test_a_missing_key_says_which_variable_to_set(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    found = ask(agent(model), user("Hi"))
    assert "OPENAI_API_KEY" in str(found.failure)
    assert found.chunks == []


@pytest.mark.parametrize("model", ["no-such-model", "nowhere:gpt-5", ""])
def test_an_unknown_model_is_named(model: str) -> None:
    found = ask(agent(model), user("Hi"))
    assert f"Unknown model: {model}".strip() in str(found.failure)


def test_turns_of_one_loop_share_a_client_and_another_loop_gets_its_own(server: OpenAIServer) -> None:
    async def two() -> tuple[Answer, Answer]:
        return await answer(agent("openai:gpt-5"), user("Hi")), await answer(
            agent("openai:gpt-5"), user("Hi")
        )

    for _ in range(2):
        assert [found.text for found in asyncio.run(two())] == ["Hello from the server."] * 2
