"""The agent under test: says one word and records when it did."""

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
