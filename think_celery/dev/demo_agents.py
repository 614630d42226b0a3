"""Agents that answer without a key and without a network, always the same to the same message.

Everything but the model is the real thing: turns, tools, streaming, the conversation.
"""

import re
from collections.abc import AsyncIterator
from typing import Any

from think_celery.agent import Think
from think_celery.core.task import ScheduledTask
from think_celery.core.turn import Turn
from think_celery.testing import Item, Thought, ToolCall, scripted_model

_WORD_SECONDS = 0.03
_ORDER = re.compile(r"order\s+#?(\d{1,9})", re.IGNORECASE)
_STATES = ("waiting for payment", "being packed", "on its way", "delivered")


class TaskAgent(Think):
    """Answers with what it understood; looks up an order when a message names one ("order 42")."""

    def get_model(self) -> Any:
        return scripted_model(self._first, self._after_lookup, pause_seconds=_WORD_SECONDS)

    def get_system_prompt(self) -> str:
        return "You are a background task assistant."

    def get_tools(self) -> list[Any]:
        return [look_up_order]

    def get_scheduled_tasks(self) -> dict[str, ScheduledTask]:
        return {
            "hourly_digest": ScheduledTask(
                schedule="every 1 hour", prompt="Look through the queue and say what has waited for long."
            )
        }

    def _first(self, text: str) -> Item | list[Item]:
        if found := _ORDER.search(text):
            return [
                f"Let me look up order {found[1]}. ",
                ToolCall("look_up_order", {"number": int(found[1])}),
            ]
        return (
            f"Hello, I am {self.name}'s task agent. You wrote {_shortened(text)}, which is {_count(text)}. "
            "I answer offline from a script; everything around me is real."
        )

    def _after_lookup(self, text: str) -> Item | list[Item]:
        found = _ORDER.search(text)
        number = int(found[1]) if found else 0
        return f"Order {number} is {look_up_order(number)}."


class Researcher(Think):
    """Thinks aloud, looks in two places, and sums up: three model calls in one turn."""

    def get_model(self) -> Any:
        return scripted_model(
            lambda text: [
                Thought(f"I should look for {_shortened(text)}. "),
                ToolCall("search", {"query": text[:200]}),
            ],
            lambda text: [ToolCall("search", {"query": f"criticism of {text[:180]}"})],
            lambda text: (
                f"I found two notes on {_shortened(text)}: one in favour, one against. In short: it depends."
            ),
            pause_seconds=_WORD_SECONDS,
        )

    def get_system_prompt(self) -> str:
        return "You research a question before you answer."

    def get_tools(self) -> list[Any]:
        return [search]


class Echo(Think):
    """Repeats the message without any model: `on_chat_message` may yield text itself."""

    async def on_chat_message(self, turn: Turn) -> AsyncIterator[str | dict[str, Any]]:
        for word in re.findall(r"\s*\S+", turn.text):
            yield word


def look_up_order(number: int) -> str:
    """Return where an order is.

    Args:
        number: The order's number.
    """
    return _STATES[number % len(_STATES)]


def search(query: str) -> list[str]:
    """Search the notes.

    Args:
        query: What to look for.
    """
    return [f"note on {query}"]


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return f"“{line if len(line) <= 60 else line[:59] + '…'}”"


def _count(text: str) -> str:
    words = len(text.split())
    return f"{words} word{'' if words == 1 else 's'}"
