"""Call what a class overrides; a hook that only listens is logged when it fails, and harms nobody."""

import inspect
import logging
from collections.abc import Callable
from typing import Any, TypeVar

from think_celery.agent import Think
from think_celery.core.hook import ErrorContext
from think_celery.core.turn import ChatResponse
from think_celery.engine.blocking import contained, in_thread

log = logging.getLogger(__name__)
T = TypeVar("T")


async def surfaced(agent: Think, error: Exception, *, context: ErrorContext) -> Exception:
    """Ask `on_chat_error` which error people should see; without an answer it is the original (T 5)."""
    answer = await tell(agent, "on_chat_error", error, context)
    if answer is None or isinstance(answer, Exception):
        return answer or error
    return RuntimeError(str(answer))


async def responded(agent: Think, response: ChatResponse) -> None:
    """Tell `on_chat_response` of a turn that is settled."""
    await tell(agent, "on_chat_response", response)


def overrides(cls: type[Think], name: str) -> bool:
    """True when the class defines the hook itself, so that calling it has a point."""
    return getattr(cls, name) is not getattr(Think, name)


async def call(hook: Callable[..., Any], *arguments: object) -> Any:
    """Call a hook, awaitable or plain, and return what it says; raises what it raises."""
    with contained():
        if inspect.iscoroutinefunction(hook):
            return await hook(*arguments)
        answer = await in_thread(hook, *arguments)  # a plain function may block
        return await answer if inspect.isawaitable(answer) else answer


async def ask(agent: Think, name: str, kind: type[T], argument: object) -> T | None:
    """Ask a hook what is to be different; None for nothing.

    Raises:
        TypeError: It answered something else than a `kind` or None.
        Exception: Whatever the hook raises.
    """
    if not overrides(type(agent), name):
        return None
    answer = await call(getattr(agent, name), argument)
    if answer is None or isinstance(answer, kind):
        return answer
    raise TypeError(f"{name} returned a {type(answer).__name__}; return a {kind.__name__} or None")


async def tell(agent: Think, name: str, *arguments: object) -> Any:
    """Tell a hook of something that does not depend on it; None when it fails, which is logged."""
    if not overrides(type(agent), name):
        return None
    try:
        return await call(getattr(agent, name), *arguments)
    except Exception:  # a user's hook may raise anything
        log.exception("hook.failed hook=%s agent=%s", name, agent.address)
        return None
