"""Run what may block in a thread, so that the event loop, which serves every turn, goes on."""

import math
from collections.abc import Callable
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
