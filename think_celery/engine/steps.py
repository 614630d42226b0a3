"""The model-and-tools loop of one turn, on pydantic-ai."""

import asyncio
import inspect
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from functools import lru_cache
from types import FunctionType
from typing import Any
from weakref import WeakKeyDictionary

from anyio import to_thread
from pydantic_ai import Agent, RunContext, Tool, ToolReturn
from pydantic_ai.exceptions import (
    ApprovalRequired,
    CallDeferred,
    ModelRetry,
    ToolFailed,
    UsageLimitExceeded,
)
from pydantic_ai.messages import tool_return_ta
from pydantic_ai.models import Model, infer_model
from pydantic_ai.toolsets import AbstractToolset, FunctionToolset, ToolsetTool, WrapperToolset
from pydantic_ai.ui.vercel_ai import VercelAIEventStream
from pydantic_ai.ui.vercel_ai.response_types import BaseChunk, DoneChunk, ErrorChunk, MessageMetadataChunk
from pydantic_ai.usage import RunUsage, UsageLimits

from think_celery.agent import Think
from think_celery.core.turn import Chunk, Turn
from think_celery.core.wire import clean_json
from think_celery.engine.history import load_history
from think_celery.engine.model import UsageSink

log = logging.getLogger(__name__)
_NULLABLE = {"tool-output-available": "output", "tool-input-available": "input", "tool-input-error": "input"}
_SIGNALS = (ModelRetry, ToolFailed, CallDeferred, ApprovalRequired)
_THREADS = 1000
# A client's connections belong to one event loop, so models are kept per loop and go with it.
_models: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, Model]] = WeakKeyDictionary()


async def run_steps(agent: Think, turn: Turn, usage: UsageSink) -> AsyncGenerator[Chunk, None]:
    """Run the loop; see `engine.model.run_model`."""
    _allow_threads()
    # In a thread, because they are the application's and may block.
    model, prompt, tools = await to_thread.run_sync(_ask, agent)
    runner = Agent(
        _resolve(await _value(model)),
        instructions=await _value(prompt) or None,
        toolsets=_toolsets(await _value(tools)),
        deps_type=Think,
        # A model that keeps calling a tool wrongly is stopped by `max_steps`, like any other.
        retries={"tools": max(1, agent.max_steps)},
        name=agent.type_name,
    )
    spent = RunUsage()
    stream = _Stream(sdk_version=6)
    try:
        async with runner.run_stream_events(
            message_history=load_history(turn.messages),
            deps=agent,
            usage=spent,
            usage_limits=UsageLimits(request_limit=agent.max_steps),
            infer_name=False,
        ) as events:
            bounded = _bounded(events, stream, spent, agent.max_steps)
            async with aclosing(stream.transform_stream(bounded)) as chunks:  # type: ignore[type-var]
                async for chunk in chunks:
                    if isinstance(chunk, ErrorChunk) and stream.failure is not None:
                        raise stream.failure
                    if (plain := _plain(chunk)) is not None:
                        yield plain
    finally:
        usage.record(_counts(spent))


def _allow_threads() -> None:
    """Let every turn of this loop block in a tool at once; the library's limit of 40 would make them wait."""
    limiter = to_thread.current_default_thread_limiter()
    limiter.total_tokens = max(limiter.total_tokens, _THREADS)


def _ask(agent: Think) -> tuple[Any, Any, Any]:
    return agent.get_model(), agent.get_system_prompt(), agent.get_tools()


async def _value(answer: Any) -> Any:
    return await answer if inspect.isawaitable(answer) else answer


def _resolve(model: Model | str) -> Model:
    """Return the model of a name, made once per event loop: its client keeps connections between turns."""
    if not isinstance(model, str):
        return model
    kept = _models.setdefault(asyncio.get_running_loop(), {})
    if model not in kept:
        kept[model] = infer_model(model)
    return kept[model]


def _toolsets(tools: list[Any]) -> list[AbstractToolset[Think]]:
    single: list[Any] = []
    sets: list[AbstractToolset[Think]] = []
    for tool in tools:
        if isinstance(tool, AbstractToolset):
            sets.append(_Guarded(tool))
        elif isinstance(tool, FunctionType) and tool.__closure__ is None:
            single.append(_tool(tool))
        elif isinstance(tool, Tool) or callable(tool):
            single.append(tool)
        else:
            raise TypeError(
                f"get_tools() returned a {type(tool).__name__}; return functions, Tools or toolsets"
            )
    return [_Guarded(FunctionToolset(single)), *sets] if single else sets


@lru_cache(maxsize=1000)
def _tool(function: FunctionType) -> Tool[Think]:
    """Return the tool of a function of a module; its schema takes a good part of a short turn to derive."""
    return Tool(function)


class _Guarded(WrapperToolset[Think]):
    """Tells the model what a tool raised or could not return, instead of failing the turn (T 5)."""

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[Think], tool: ToolsetTool[Think]
    ) -> Any:
        try:
            return _sendable(await super().call_tool(name, tool_args, ctx, tool))
        except _SIGNALS:
            raise
        except Exception as error:
            log.exception("tool.failed tool=%s", name)
            raise ToolFailed(f"{type(error).__name__}: {error}") from error


def _sendable(result: Any) -> Any:
    """Return a tool's result if it can be written as JSON, cleaned if only its texts are at fault.

    Raises:
        ToolFailed: It is something else, which would fail the next request to the model.
    """
    content = result.return_value if isinstance(result, ToolReturn) else result
    try:
        tool_return_ta.dump_json(content)
    except UnicodeError:
        pass
    except (ValueError, RecursionError) as error:
        if "surrogates" not in str(error):
            kind = type(content).__name__
            raise ToolFailed(
                f"The tool returned a {kind} that cannot be written as JSON ({error})"
            ) from error
    else:
        return result
    cleaned = clean_json(tool_return_ta.dump_python(content, mode="json"))
    return replace(result, return_value=cleaned) if isinstance(result, ToolReturn) else cleaned


class _Stream(VercelAIEventStream[Think, str]):
    """Keeps the exception that the library would turn into an error chunk."""

    failure: Exception | None = None

    async def on_error(self, error: Exception) -> AsyncIterator[BaseChunk]:
        self.failure = error
        async for chunk in super().on_error(error):
            yield chunk

    def reach_limit(self) -> None:
        """Say why the run ends, as the AI SDK does when it stops counting steps."""
        self._finish_reason = "tool-calls"


async def _bounded(
    events: AsyncIterator[Any], stream: _Stream, spent: RunUsage, max_steps: int
) -> AsyncIterator[Any]:
    """Turn the exception for one request too many into the end of the stream."""
    try:
        async for event in events:
            yield event
    except UsageLimitExceeded:
        if spent.requests < max_steps:
            raise
        stream.reach_limit()


def _plain(chunk: BaseChunk) -> Chunk | None:
    """Return the chunk as JSON; None for what is not for observers."""
    if isinstance(chunk, (DoneChunk, MessageMetadataChunk)):
        # Metadata: only the library's own time stamp, which would end up in every stored message.
        return None
    plain: Chunk = chunk.model_dump(mode="json", by_alias=True, exclude_none=True)
    if (field := _NULLABLE.get(plain["type"])) is not None:
        plain.setdefault(field, None)
    return plain


def _counts(spent: RunUsage) -> dict[str, Any]:
    counts = {
        "requests": spent.requests,
        "toolCalls": spent.tool_calls,
        "inputTokens": spent.input_tokens,
        "outputTokens": spent.output_tokens,
        "totalTokens": spent.total_tokens,
        "cachedInputTokens": spent.cache_read_tokens,
        "reasoningTokens": spent.details.get("reasoning_tokens", 0),
    }
    return {name: count for name, count in counts.items() if count}
