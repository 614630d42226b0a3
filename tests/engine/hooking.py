"""Agents with the hooks that a test gives them."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from pydantic_ai.messages import ModelMessage
from pydantic_ai.models.function import AgentInfo, FunctionModel

from tests.engine.driving import agent
from think_celery import Think

Hook = Callable[..., Any]


def double(number: int) -> int:
    """Double a number."""
    return 2 * number


def hooked(model: Any, *tools: Any, **hooks: Any) -> type[Think]:
    """Return an agent class with that model, those tools and those hooks, which need no `self`."""
    methods = {name: _method(hook) if callable(hook) else hook for name, hook in hooks.items()}
    return agent(model, *tools, **methods)


def _method(hook: Hook) -> Hook:
    if asyncio.iscoroutinefunction(hook):

        async def awaited(self: Think, *arguments: Any) -> Any:
            return await hook(*arguments)

        return awaited
    return lambda self, *arguments: hook(*arguments)


def seeing(seen: list[Any], *, say: str = "ok") -> FunctionModel:
    """Return a model that notes what each request told it."""

    async def stream(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
        tools = sorted(tool.name for tool in info.function_tools)
        seen.append((info.instructions, tools, dict(info.model_settings or {}), messages))
        yield say

    return FunctionModel(stream_function=stream, model_name="seeing")


def raising(*arguments: Any) -> Any:
    raise LookupError("no such customer")
