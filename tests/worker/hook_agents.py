"""An agent whose response hook takes a while and writes down its start and its end."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from think_celery import ChatResponse, Think, Turn

LOG_VARIABLE = "HOOK_LOG"


class Reporter(Think):
    """Answers at once, and reports slowly."""

    async def on_chat_message(self, turn: Turn) -> AsyncIterator[str | dict[str, Any]]:
        yield turn.text

    async def on_chat_response(self, response: ChatResponse) -> None:
        write("begun")
        await asyncio.sleep(float(os.environ["HOOK_SECONDS"]))
        if (response.message or {})["parts"][-1]["text"] == "go on":
            await self.save_messages("last words")
        write("ended")


def write(line: str) -> None:
    with Path(os.environ[LOG_VARIABLE]).open("a") as log:
        log.write(f"{line}\n")
