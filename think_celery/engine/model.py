"""The seam between a turn and its model; importing it is cheap.

The model library takes about two seconds to import, so it is loaded on first use, in a thread: a process that
only submits never pays for it, and the event loop of a worker never stands still for it.
"""

import importlib
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from think_celery.agent import Think
from think_celery.core.turn import Chunk, Turn
from think_celery.engine.blocking import in_thread
from think_celery.settings import Settings

_LOOP = "think_celery.engine.steps"
_PROVIDER = "think_celery.engine.provider"


@dataclass(frozen=True, slots=True)
class ModelPolicy:
    """How this process treats the providers of models.

    Attributes:
        calls: Calls of one model at once; 0 for no limit.
        retries: How often a request is sent again that was refused for the moment.
        longest_pause_seconds: Longest wait before that, and what a provider may ask for.
    """

    calls: int = 0
    retries: int = 4
    longest_pause_seconds: float = 60.0

    @classmethod
    def of(cls, settings: Settings) -> "ModelPolicy":
        """Return what the settings say."""
        return cls(settings.model_calls, settings.model_retries, settings.model_retry_seconds)


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


async def close_models() -> None:
    """Close the connections that models opened on this event loop; a process does so at its end."""
    if _PROVIDER in sys.modules:
        await importlib.import_module(_PROVIDER).close()


async def run_model(
    agent: Think, turn: Turn, usage: UsageSink, policy: ModelPolicy = ModelPolicy()
) -> AsyncGenerator[Chunk, None]:
    """Run the agent's model and tools over the conversation.

    Args:
        agent: Says which model, system prompt and tools; its hooks are called.
        turn: The conversation to answer.
        usage: Gets the counts when the run ends, whatever the end is.
        policy: How to treat the model's provider.

    Yields:
        UI message chunks of the AI SDK (version 6 wire) as JSON objects: one `start`, then per step
        `start-step` to `finish-step`, one `finish`. Reaching `max_steps` ends the run like any other.

    Raises:
        TurnSetupError: Nothing was sent to the model: `get_model`, `get_system_prompt`, `get_tools`,
            `before_turn` or a toolset raised, a key or package is missing, or there is nothing to send. The
            text says what to do, the cause is chained, and no chunk came before it.
        Exception: Whatever the model, its provider or `before_step` raised, unchanged but for the text of a
            provider's error. Before it come chunks that close what was open: text blocks, and calls as
            `tool-output-error`. No `error` chunk: only the exception tells of it.
    """
    await in_thread(load)
    steps = importlib.import_module(_LOOP)
    async with aclosing(steps.run_steps(agent, turn, usage, policy)) as chunks:
        async for chunk in chunks:
            yield chunk
