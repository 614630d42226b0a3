"""One event loop in one thread, for the life of a process.

Clients of model providers keep connections that belong to the loop they were opened in. A loop per turn
would close under them; one loop per process lets every turn share them, and cancelling a turn is cancelling
one task.
"""

import asyncio
import logging
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from think_celery.errors import WrongContext

T = TypeVar("T")
log = logging.getLogger(__name__)
_GRACE_SECONDS = 3.0


class LoopThread:
    """An event loop that runs in a thread of its own from the first use on."""

    def __init__(self, name: str = "think-loop") -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._lock = threading.Lock()
        self._started = False

    def run(self, work: Coroutine[Any, Any, T], *, timeout: float | None = None) -> T:
        """Run a coroutine on the loop and wait for its result.

        Raises:
            WrongContext: Called from a running event loop, which it would block.
            TimeoutError: `timeout` seconds passed; the coroutine is cancelled.
        """
        if in_event_loop():
            work.close()
            raise WrongContext("a blocking call inside an event loop; use the async handle and `await` it")
        future = self.spawn(work)
        try:
            return future.result(timeout)
        except BaseException:
            future.cancel()
            raise

    def spawn(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine on the loop and return at once."""
        with self._lock:
            if not self._started:
                self._thread.start()
                self._started = True
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def close(self) -> None:
        """Let running coroutines finish for a moment, cancel the rest, and end the thread."""
        if self._started and self._thread.is_alive():
            ending = asyncio.run_coroutine_threadsafe(self._finish(), self.loop)
            try:
                ending.result(_GRACE_SECONDS * 2)
            except TimeoutError:
                log.warning("loop.close_timed_out")
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(_GRACE_SECONDS)
        if not self.loop.is_running():
            self.loop.close()

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    async def _finish(self) -> None:
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        if others:
            _, late = await asyncio.wait(others, timeout=_GRACE_SECONDS)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        await self.loop.shutdown_asyncgens()


def in_event_loop() -> bool:
    """True when the calling thread is running an event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
