"""The agents under test: one says one word and records when it did, one asks others."""

import json
import time
from collections.abc import AsyncIterator
from typing import Any

from bench import record
from think_celery import Think, Turn


class NoOp(Think):
    """Answers without a model, so that what is measured is the queue."""

    async def on_chat_message(self, turn: Turn) -> AsyncIterator[str | dict[str, Any]]:
        """Yield one word; the message begins with its number."""
        started = time.monotonic_ns()
        yield "done"
        record.note(self.name, int(turn.text.partition(" ")[0]), started)


class Idle(Think):
    """Says one word."""

    async def on_chat_message(self, turn: Turn) -> AsyncIterator[str | dict[str, Any]]:
        """Yield it."""
        yield "done"


class Asking(Think):
    """Asks ten children in turns, as often as its message says, and says how many milliseconds each took."""

    async def on_chat_message(self, turn: Turn) -> AsyncIterator[str | dict[str, Any]]:
        """Yield a JSON list."""
        children = [await self.sub_agent(Idle, f"c{number}") for number in range(10)]
        took: list[float] = []
        for number in range(int(turn.text)):
            began = time.perf_counter()
            result = await children[number % len(children)].chat("x")
            took.append(1000 * (time.perf_counter() - began))
            if result.status != "completed":
                raise RuntimeError(f"{result.status}: {result.error}")
        yield json.dumps(took)
