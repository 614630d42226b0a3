"""Between a chat turn and its callback: one step of the one, one method of the other, in turns."""

import asyncio
import inspect
import logging
from collections.abc import AsyncGenerator
from functools import partial
from typing import Any

from think_celery.core.callback import ChatStart, StreamCallback
from think_celery.core.turn import TurnResult
from think_celery.engine.blocking import in_thread
from think_celery.engine.chat import Heard
from think_celery.engine.runtime import Runtime
from think_celery.errors import InvalidInput

log = logging.getLogger(__name__)


def check(callback: object, tools: object) -> None:
    """Refuse what is no callback, and warn of tools, which belong to the agent."""
    if callback is not None and not isinstance(callback, StreamCallback):
        problem = f"must be an object of a class derived from StreamCallback, not {type(callback).__name__}"
        raise InvalidInput("callback", problem)
    if tools:
        log.warning("chat.tools_ignored remedy='return them from get_tools() of the agent that is asked'")


def hear(runtime: Runtime, conversation: AsyncGenerator[Heard], callback: StreamCallback) -> TurnResult:
    """Call the methods in this thread until there is a result; raises what ends the conversation."""
    loop = runtime.loop
    try:
        heard = loop.run(_next(conversation))
        while heard.result is None:
            try:
                answer = _tell(callback, heard)()
                if inspect.isawaitable(answer):
                    loop.run(_result_of(answer))
            except Exception as error:  # noqa: BLE001 it is handed on
                heard = loop.run(_raise(conversation, error))
            else:
                heard = loop.run(_next(conversation))
        return heard.result
    finally:
        loop.run(conversation.aclose())


async def hear_async(
    runtime: Runtime, conversation: AsyncGenerator[Heard], callback: StreamCallback
) -> TurnResult:
    """Call the methods on this loop, plain ones in a thread, until there is a result."""
    loop = runtime.loop
    try:
        heard = await asyncio.wrap_future(loop.spawn(_next(conversation)))
        while heard.result is None:
            try:
                tell = _tell(callback, heard)
                answer = tell() if inspect.iscoroutinefunction(tell.func) else await in_thread(tell)
                if inspect.isawaitable(answer):
                    await answer
            except Exception as error:  # noqa: BLE001 it is handed on
                heard = await asyncio.wrap_future(loop.spawn(_raise(conversation, error)))
            else:
                heard = await asyncio.wrap_future(loop.spawn(_next(conversation)))
        return heard.result
    finally:
        runtime.loop.send_off(conversation.aclose())


def _tell(callback: StreamCallback, heard: Heard) -> "partial[Any]":
    match heard.kind:
        case "start":
            return partial(callback.on_start, ChatStart(heard.text))
        case "event":
            return partial(callback.on_event, heard.text)
        case "done":
            return partial(callback.on_done)
        case "error":
            return partial(callback.on_error, heard.text)
        case _:
            return partial(callback.on_interrupted)


async def _next(conversation: AsyncGenerator[Heard]) -> Heard:
    return await anext(conversation)


async def _raise(conversation: AsyncGenerator[Heard], error: Exception) -> Heard:
    return await conversation.athrow(error)


async def _result_of(answer: Any) -> object:
    return await answer
