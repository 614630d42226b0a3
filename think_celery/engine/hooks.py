"""Call what a class overrides; a hook that fails is logged and harms nobody."""

import asyncio
import inspect
import logging
from collections.abc import Callable
from typing import Any

from think_celery.agent import Think
from think_celery.core.turn import ChatResponse

log = logging.getLogger(__name__)


async def surfaced(agent: Think, error: Exception) -> Exception:
    """Ask `on_chat_error` which error people should see; without an answer it is the original (T 5)."""
    answer = await _ask(agent, "on_chat_error", error)
    if answer is None or isinstance(answer, Exception):
        return answer or error
    return RuntimeError(str(answer))


async def responded(agent: Think, response: ChatResponse) -> None:
    """Tell `on_chat_response` of a turn that is settled."""
    await _ask(agent, "on_chat_response", response)


def overrides(cls: type[Think], name: str) -> bool:
    """True when the class defines the hook itself, so that calling it has a point."""
    return getattr(cls, name) is not getattr(Think, name)


async def call(hook: Callable[[Any], Any], argument: object) -> Any:
    """Call a hook, awaitable or plain, and return what it says; raises what it raises."""
    if inspect.iscoroutinefunction(hook):
        return await hook(argument)
    answer = await asyncio.to_thread(hook, argument)  # a plain function may block
    return await answer if inspect.isawaitable(answer) else answer


async def _ask(agent: Think, name: str, argument: object) -> Any:
    if not overrides(type(agent), name):
        return None
    try:
        return await call(getattr(agent, name), argument)
    except Exception:  # a user's hook may raise anything
        log.exception("hook.failed hook=%s agent=%s", name, agent.address)
        return None
