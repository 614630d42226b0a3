"""The seam between a turn and its model; importing it is cheap.

The model library takes about two seconds to import, so it is loaded on first use, in a thread: a process that
only submits never pays for it, and the event loop of a worker never stands still for it.
"""

import asyncio
import importlib
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from think_celery.agent import Think
from think_celery.core.turn import Chunk, Turn

_LOOP = "think_celery.engine.steps"


class UsageSink:
    """Holds what a turn has used so far; several runs of the model in one turn add up."""

    def __init__(self) -> None:
        self._total: dict[str, Any] = {}

    @property
    def value(self) -> dict[str, Any] | None:
        """The counts, `inputTokens` and so on; None before the first record."""
        return dict(self._total) or None

    def record(self, usage: dict[str, Any]) -> None:
        """Add the counts of one run."""
        for name, count in usage.items():
            self._total[name] = self._total.get(name, 0) + count


def load() -> None:
    """Import the model library now; a worker does so before its first turn."""
    importlib.import_module(_LOOP)


async def run_model(agent: Think, turn: Turn, usage: UsageSink) -> AsyncGenerator[Chunk, None]:
    """Run the agent's model and tools over the conversation.

    Args:
        agent: Says which model, system prompt and tools.
        turn: The conversation to answer.
        usage: Gets the counts when the run ends, whatever the end is.

    Yields:
        UI message chunks of the AI SDK (version 6 wire) as JSON objects: one `start`, then per step
        `start-step` to `finish-step`, one `finish`. Reaching `max_steps` ends the run like any other.

    Raises:
        Exception: Whatever the model, its provider or the set-up raised, unchanged; the text of a missing
            key or package says what to set or install. Before it come chunks that close what was open: text
            blocks, and calls as `tool-output-error`. No `error` chunk: only the exception tells of it.
    """
    await asyncio.to_thread(load)
    steps = importlib.import_module(_LOOP)
    async with aclosing(steps.run_steps(agent, turn, usage)) as chunks:
        async for chunk in chunks:
            yield chunk
