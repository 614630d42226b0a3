"""`chat`: what its caller hears, how it ends, and what it leaves, where the turn runs and from afar."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from tests.agents import Scripted
from think_celery import AgentHandle, AsyncAgentHandle, StreamCallback, Think, Turn, message_text
from think_celery.core.address import Address
from think_celery.core.callback import ChatStart
from think_celery.engine.runtime import Runtime


class Notes(StreamCallback):
    """Writes down what it hears."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.chunks: list[dict[str, Any]] = []
        self.request_id = ""

    async def on_start(self, event: ChatStart) -> None:
        self.request_id = event.request_id
        self.heard.append("start")

    def on_event(self, json_text: str) -> None:
        self.chunks.append(json.loads(json_text))
        if self.heard[-1] != "event":
            self.heard.append("event")

    def on_done(self) -> None:
        self.heard.append("done")

    def on_error(self, message: str) -> None:
        self.heard.append(f"error: {message}")

    def on_interrupted(self) -> None:
        self.heard.append("interrupted")

    @property
    def text(self) -> str:
        return "".join(chunk["delta"] for chunk in self.chunks if chunk["type"] == "text-delta")


def test_a_turn_and_what_is_heard(runtime: Runtime, agent: Address) -> None:
    handle, notes = AgentHandle(agent.type_name, agent.name, runtime=runtime), Notes()
    result = handle.chat("hello", notes)
    assert (result.status, result.error, result.request_id) == ("completed", None, notes.request_id)
    assert notes.heard == ["start", "event", "done"]
    first, second = handle.get_messages()
    assert (first["role"], first["parts"]) == ("user", [{"type": "text", "text": "hello"}])
    assert notes.text == message_text(second) == result.text
    assert result.message == second
