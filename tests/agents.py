"""Agents that act as their messages say; tests drive them through real turns."""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from think_celery import Think, Turn

LOG_VARIABLE = "RECORDER_LOG"


class Scripted(Think):
    """Does what the last user message says: `ok`, `say WORDS`, `error TEXT`, `sleep SECONDS`, `chunks`."""

    async def on_chat_message(self, turn: Turn) -> AsyncIterator[str | dict[str, Any]]:
        verb, _, rest = turn.text.partition(" ")
        match verb:
            case "say":
                for word in rest.split(" "):
                    yield word + " "
            case "error":
                yield "so far "
                raise RuntimeError(rest)
            case "sleep":
                yield "sleeping "
                await asyncio.sleep(float(rest))
                yield "slept"
            case "chunks":
                yield {"type": "data-progress", "id": "p", "data": 1}
                yield {"type": "data-progress", "id": "p", "data": 2}
                yield "done"
            case "silent":
                return
            case _:
                yield f"{turn.text} ({len(turn.messages)})"


class Recorder(Think):
    """Writes start and end of every turn to the file named by RECORDER_LOG, one line each turn."""

    async def on_chat_message(self, turn: Turn) -> AsyncIterator[str | dict[str, Any]]:
        started = time.monotonic_ns()
        seconds = float((turn.metadata or {}).get("seconds", 0))
        if seconds:
            await asyncio.sleep(seconds)
        yield f"did {turn.text}"
        line = f"{self.name}\t{turn.text}\t{started}\t{time.monotonic_ns()}\t{os.getpid()}\n"
        descriptor = os.open(Path(os.environ[LOG_VARIABLE]), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)


class NoModel(Think):
    """Overrides nothing, so that its first turn says what is missing."""
