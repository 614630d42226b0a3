"""An agent that needs no model: `THINK_AGENTS=greeter`, with this folder on PYTHONPATH."""

from collections.abc import AsyncIterator
from typing import Any

from think_celery import Think, Turn


class Greeter(Think):
    """Greets, and says how often it was spoken to."""

    async def on_chat_message(self, turn: Turn) -> AsyncIterator[str | dict[str, Any]]:
        """Answer in a few words, streamed one by one."""
        count = sum(message["role"] == "user" for message in turn.messages)
        for word in f"Hello, {self.name}! This is message number {count}.".split(" "):
            yield word + " "
