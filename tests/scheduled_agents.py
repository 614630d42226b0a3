"""An agent with scheduled tasks of every kind, for tests with real workers."""

import os
import threading
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from think_celery import ScheduledTask, Think, Turn

LOG_VARIABLE = "TICKING_LOG"
HOLD_VARIABLE = "TICKING_HOLD"
HOURS_VARIABLE = "CHANGING_HOURS"
"""A handler stays at work while this file exists."""


def note(line: str) -> None:
    """Append a line to the test's file, which several processes write."""
    descriptor = os.open(Path(os.environ[LOG_VARIABLE]), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(descriptor, f"{line}\n".encode())
    finally:
        os.close(descriptor)


class Ticking(Think):
    """Every hour: a prompt, a prompt that a function makes, and a handler."""

    async def on_chat_message(self, turn: Turn) -> AsyncIterator[str | dict[str, Any]]:
        yield f"did {turn.text}"

    def get_scheduled_tasks(self) -> Mapping[str, ScheduledTask]:
        return {
            "prompt": ScheduledTask(schedule="every 1 hour", prompt="the prompt"),
            "function": ScheduledTask(schedule="every 1 hour", prompt=self.words),
            "handler": ScheduledTask(schedule="every 1 hour", handler=self.handle_it),
        }

    async def words(self) -> str:
        return f"made for {self.name}"

    def handle_it(self, occurrence: Any) -> None:
        note(f"{os.getpid()} {occurrence.idempotency_key}")
        hold = os.environ.get(HOLD_VARIABLE)
        while hold is not None and Path(hold).exists():
            pause.wait(0.02)


class Minutely(Think):
    """A prompt every minute that may queue, so that nothing ever waits for an earlier one."""

    async def on_chat_message(self, turn: Turn) -> AsyncIterator[str | dict[str, Any]]:
        yield "did it"

    def get_scheduled_tasks(self) -> Mapping[str, ScheduledTask]:
        return {
            f"task{number}": ScheduledTask(
                schedule="every 1 minute", prompt=f"number {number}", overlap="queue"
            )
            for number in range(10)
        }


class Policies(Think):
    """Every hour, by each policy for what was missed."""

    async def on_chat_message(self, turn: Turn) -> AsyncIterator[str | dict[str, Any]]:
        yield "did it"

    def get_scheduled_tasks(self) -> Mapping[str, ScheduledTask]:
        return {
            policy: ScheduledTask(schedule="every 1 hour", prompt=policy, missed=policy)
            for policy in ("once", "latest", "skip")
        }


class Changing(Think):
    """Every so many hours, as the environment says, and every morning."""

    async def on_chat_message(self, turn: Turn) -> AsyncIterator[str | dict[str, Any]]:
        yield "did it"

    def get_scheduled_tasks(self) -> Mapping[str, ScheduledTask]:
        hours = int(os.environ.get(HOURS_VARIABLE, "3"))
        return {
            "hourly": ScheduledTask(schedule=f"every {hours} hours", prompt="hourly"),
            "daily": ScheduledTask(schedule="every day at 09:00 in Europe/London", prompt="daily"),
        }


pause = threading.Event()
