"""Agents with scheduled prompts, in workers and beats that send three of ten messages twice."""

import os
import random
from collections.abc import AsyncIterator, Mapping
from typing import Any

from celery.beat import Scheduler

from think_celery import ScheduledTask, Think, Turn
from think_celery.worker.publisher import CeleryPublisher

TASKS = 10
AGENTS_VARIABLE = "HOURLY_AGENTS"
DOUBLE_VARIABLE = "HOURLY_DOUBLES"


class Hourly(Think):
    """Half of its prompts are texts, half are made by a function."""

    async def on_chat_message(self, turn: Turn) -> AsyncIterator[str | dict[str, Any]]:
        yield f"did {turn.text}"

    @classmethod
    def scheduled_agents(cls) -> list[str]:
        return [f"agent{number}" for number in range(int(os.environ.get(AGENTS_VARIABLE, "0")))]

    def get_scheduled_tasks(self) -> Mapping[str, ScheduledTask]:
        return {f"task{number}": self._task(number) for number in range(TASKS)}

    def _task(self, number: int) -> ScheduledTask:
        text = f"{self.name} {number}"
        prompt = text if number % 2 else lambda: text
        return ScheduledTask(schedule="every 1 hour", prompt=prompt, overlap="queue")


class TwiceScheduler(Scheduler):  # type: ignore[misc]
    """Beat's scheduler in memory."""

    def apply_async(self, entry: Any, *args: Any, **kwargs: Any) -> Any:
        if random.random() < 0.3:
            super().apply_async(entry, *args, **{**kwargs, "advance": False})
        return super().apply_async(entry, *args, **kwargs)


def twice(publish: Any) -> Any:
    def publish_and_again(*args: Any, **kwargs: Any) -> None:
        publish(*args, **kwargs)
        if random.random() < 0.3:
            publish(*args, **kwargs)

    return publish_and_again


if os.environ.get(DOUBLE_VARIABLE):
    CeleryPublisher.publish = twice(CeleryPublisher.publish)  # type: ignore[method-assign]
