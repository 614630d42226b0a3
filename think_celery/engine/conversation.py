"""Between a chat turn and its callback: one step of the one, one method of the other, in turns."""

import inspect
import logging
from collections.abc import AsyncGenerator
from contextlib import suppress
from functools import partial
from typing import Any

from think_celery.core.callback import ChatStart, StreamCallback
from think_celery.core.turn import TurnResult
from think_celery.engine.blocking import in_thread
from think_celery.engine.chat import Heard
from think_celery.engine.loop import Steps
from think_celery.engine.runtime import Runtime
from think_celery.errors import InvalidInput, ProcessClosing

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
    loop, steps = runtime.loop, Steps(conversation)
    try:
        heard = loop.run(steps.next())
        while heard.result is None:
            try:
                answer = _tell(callback, heard)()
                if inspect.isawaitable(answer):
                    loop.run(_result_of(answer))
            except Exception as error:  # noqa: BLE001 it is handed on
                heard = loop.run(steps.fail(_passable(error)))
            else:
                heard = loop.run(steps.next())
        return heard.result
    finally:
        with suppress(ProcessClosing):
            loop.run(steps.close())


async def hear_async(
    runtime: Runtime, conversation: AsyncGenerator[Heard], callback: StreamCallback
) -> TurnResult:
    """Call the methods on this event loop, plain ones in a thread, until there is a result."""
    loop, steps = runtime.loop, Steps(conversation)
    try:
        heard = await loop.run_async(steps.next())
        while heard.result is None:
            try:
                tell = _tell(callback, heard)
                # By the process loop: the caller's loop keeps its own limit of threads.
                answer = await loop.run_async(in_thread(tell)) if _may_block(tell.func) else tell()
                if inspect.isawaitable(answer):
                    await answer
            except Exception as error:  # noqa: BLE001 it is handed on
                heard = await loop.run_async(steps.fail(_passable(error)))
            else:
                heard = await loop.run_async(steps.next())
        return heard.result
    finally:
        with suppress(ProcessClosing):
            await loop.run_async(steps.close())


def _tell(callback: StreamCallback, heard: Heard) -> "partial[Any]":
    method = getattr(callback, f"on_{heard.kind}")
    match heard.kind:
        case "start":
            return partial(method, ChatStart(heard.text))
        case "event" | "error":
            return partial(method, heard.text)
        case _:
            return partial(method)


def _may_block(method: Any) -> bool:
    """True for a plain function of the caller's; a method that is not overridden does nothing."""
    is_own = getattr(method, "__func__", None) in vars(StreamCallback).values()
    return not (is_own or inspect.iscoroutinefunction(method))


def _passable(error: Exception) -> Exception:
    """Return an error that may be raised in a coroutine (PEP 479)."""
    if not isinstance(error, StopIteration | StopAsyncIteration):
        return error
    told = RuntimeError(f"the callback raised {error!r}")
    told.__cause__ = error
    return told


async def _result_of(answer: Any) -> object:
    return await answer
