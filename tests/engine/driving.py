"""Runs an agent's model the way a turn does, without a ledger, and keeps what came of it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from think_celery.agent import Think
from think_celery.core.address import Address
from think_celery.core.folding import Folding, final_message
from think_celery.core.message import text_message
from think_celery.core.submission import Kind, Status, Submission
from think_celery.core.turn import Chunk, Turn
from think_celery.engine.model import ModelPolicy, UsageSink, run_model

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
TOOL_CHUNKS = ("tool-input-start", "tool-input-available", "tool-output-available", "tool-output-error")


@dataclass
class Answer:
    """What one turn gave."""

    chunks: list[Chunk] = field(default_factory=list)
    message: dict[str, Any] | None = None
    usage: dict[str, Any] | None = None
    failure: Exception | None = None

    @property
    def types(self) -> list[str]:
        """Types of the chunks."""
        return [chunk["type"] for chunk in self.chunks]

    @property
    def text(self) -> str:
        """The streamed text."""
        return "".join(chunk["delta"] for chunk in self.chunks if chunk["type"] == "text-delta")

    def part(self, kind: str) -> dict[str, Any]:
        """Return the one part of a kind."""
        (part,) = (part for part in (self.message or {})["parts"] if part["type"] == kind)
        found: dict[str, Any] = part
        return found


class Base(Think, abstract=True):
    """Answers with the model and the tools that a test gives it."""

    model: Any = None
    tools: Any = ()

    def get_model(self) -> Any:
        return self.model

    def get_tools(self) -> list[Any]:
        return list(self.tools)


def agent(model: Any, *tools: Any, **more: Any) -> type[Think]:
    """Return an agent class with that model and those tools."""
    return type("Base", (Base,), {"model": model, "tools": tools, **more}, abstract=True)


def user(text: str, message_id: str = "m1") -> dict[str, Any]:
    """Return a stored user message."""
    return text_message(text, message_id=message_id).to_json()


def make_turn(
    messages: list[dict[str, Any]],
    usage: UsageSink,
    policy: ModelPolicy = ModelPolicy(),
    metadata: dict[str, Any] | None = None,
) -> Turn:
    """Return a turn over a conversation whose last message is new."""
    submission = Submission(
        submission_id="s1",
        agent="Test/a",
        kind=Kind.SUBMIT,
        status=Status.RUNNING,
        request_id="s1",
        created_at=EPOCH,
    )

    def run(agent: Think) -> AsyncIterator[Chunk]:
        return run_model(agent, turn, usage, policy)

    turn = Turn(submission, lambda: messages, messages[-1:], 1, metadata, run)
    return turn


async def answer(
    agent: type[Think],
    *messages: dict[str, Any],
    name: str = "a",
    policy: ModelPolicy = ModelPolicy(),
    metadata: dict[str, Any] | None = None,
) -> Answer:
    """Let an agent answer through its default `on_chat_message`."""
    usage = UsageSink()
    turn = make_turn(list(messages), usage, policy, metadata)
    folding = Folding("answer")
    found = Answer()
    spoken = agent(Address(agent.type_name, name)).on_chat_message(turn)
    try:
        async with aclosing(spoken) as items:  # type: ignore[type-var]
            async for item in items:
                assert isinstance(item, dict)
                found.chunks.append(item)
                folding.fold(item)
    except Exception as error:
        found.failure = error
    found.message = final_message(folding, 1_800_000)
    found.usage = usage.value
    return found


def ask(agent: type[Think], *messages: dict[str, Any], **options: Any) -> Answer:
    """Let an agent answer, in an event loop of its own."""
    return asyncio.run(answer(agent, *messages, **options))
