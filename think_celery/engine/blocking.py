"""Keep the event loop, which serves every turn, from the application's code: from its waits and its exits."""

import asyncio
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar, TypeVarTuple, Unpack

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


async def in_thread(call: Callable[[Unpack[Ts]], T], *arguments: *Ts) -> T:
    """Run a call in a thread and return its result; context variables go with it.

    There are as many threads as calls: one may wait for a turn that needs another (a tool that asks a
    sub-agent), so any limit could make all of them wait for each other. Idle threads are used again, and end
    after some seconds. Cancelling stops the waiting, not the thread.

    Raises:
        Exception: Whatever the call raises.
    """
    from anyio import to_thread  # loaded with the first turn; a process that only submits needs no threads

    # The model library runs its tools' threads under this limit, which belongs to the event loop.
    to_thread.current_default_thread_limiter().total_tokens = math.inf
    return await to_thread.run_sync(call, *arguments)


@contextmanager
def contained() -> Iterator[None]:
    """Make an ordinary failure of what the application's code within the block does to the loop or its task.

    Raises:
        RuntimeError: It tried to end the process, which would end every turn; or something that it waited
            for was cancelled, which would look as if the task itself were.
        Exception: Whatever else it raises.
    """
    try:
        yield
    except (SystemExit, KeyboardInterrupt) as error:
        raise RuntimeError(f"the agent tried to end the process: {error!r}") from error
    except asyncio.CancelledError as error:
        if is_cancelled():
            raise
        raise RuntimeError("CancelledError: something that the agent waited for was cancelled") from error


def is_cancelled() -> bool:
    """True when the running task was asked to end; else a CancelledError is of something that it awaits."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
