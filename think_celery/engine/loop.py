"""One event loop in one thread, for the life of a process.

Clients of model providers keep connections that belong to the loop they were opened in. A loop per turn
would close under them; one loop per process lets every turn share them, and cancelling a turn is cancelling
one task.
"""

import asyncio
import logging
import threading
from collections.abc import AsyncGenerator, Coroutine, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any, Generic, TypeVar

from think_celery.engine.watch import Watch
from think_celery.errors import ProcessClosing, WrongContext

T = TypeVar("T")
log = logging.getLogger(__name__)
_GRACE_SECONDS = 3.0


class LoopThread:
    """An event loop that runs in a thread of its own from the first use on.

    Args:
        name: Of the thread.
        stall_seconds: A loop that stands still for longer is reported; 0 reports nothing.
    """

    def __init__(self, name: str = "think-loop", *, stall_seconds: float = 0.0) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._lock = threading.RLock()  # a signal handler may come in between and send something off
        self._stall_seconds = stall_seconds
        self._watch: Watch | None = None
        self._errands: set[Future[Any]] = set()
        self._closed = False

    def run(self, work: Coroutine[Any, Any, T], *, timeout: float | None = None) -> T:
        """Run a coroutine on the loop and wait for its result.

        Raises:
            WrongContext: Called from a running event loop, which it would block.
            TimeoutError: `timeout` seconds passed; the coroutine is cancelled.
            ProcessClosing: The process' connections were closed meanwhile.
        """
        if in_event_loop():
            work.close()
            raise WrongContext("a blocking call inside an event loop; use the async handle and `await` it")
        future = self.spawn(work)
        try:
            return future.result(timeout)
        except CancelledError:
            raise ProcessClosing("this process is closing; the ledger is not affected, ask again") from None
        except BaseException:
            future.cancel()
            raise

    async def run_async(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and await its result on any other; cancelling it is passed on.

        Raises:
            ProcessClosing: The process' connections were closed meanwhile.
        """
        try:
            return await asyncio.wrap_future(self.spawn(work))
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise ProcessClosing("this process is closing; the ledger is not affected, ask again") from None

    def each(self, items: AsyncGenerator[T]) -> Iterator[T]:
        """Yield what a generator of the loop yields; closes it at the end."""
        steps = Steps(items)
        try:
            with suppress(StopAsyncIteration):
                while True:
                    yield self.run(steps.next())
        finally:
            self.run(steps.close())

    async def each_async(self, items: AsyncGenerator[T]) -> AsyncGenerator[T]:
        """Yield what a generator of the loop yields, on any other loop; closes it at the end."""
        steps = Steps(items)
        try:
            with suppress(StopAsyncIteration):
                while True:
                    yield await self.run_async(steps.next())
        finally:
            await self.run_async(steps.close())

    def spawn(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine on the loop and return at once.

        Raises:
            ProcessClosing: The loop is closed.
        """
        with self._lock:
            if self._closed:
                work.close()
                raise ProcessClosing("this process is closing; the ledger is not affected, ask again")
            if self._thread.ident is None:
                self._thread.start()
                if self._stall_seconds > 0:
                    self._watch = Watch(self.loop, self._thread, stall_seconds=self._stall_seconds)
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def send_off(self, work: Coroutine[Any, Any, None]) -> None:
        """Start a coroutine that nobody waits for; `close` still lets it finish."""
        try:
            future = self.spawn(work)
        except ProcessClosing:
            return
        self._errands.add(future)
        future.add_done_callback(self._errands.discard)

    def close(self, last: Coroutine[Any, Any, None] | None = None) -> None:
        """Let errands finish for a moment, cancel the rest, run `last`, and end the thread."""
        with self._lock:
            self._closed = True
        if self._thread.ident is not None and self._thread.is_alive():
            ending = asyncio.run_coroutine_threadsafe(self._finish(last), self.loop)
            try:
                ending.result(_GRACE_SECONDS * 3)
            except TimeoutError:
                log.warning("loop.close_timed_out")
            if self._watch is not None:
                self._watch.stop()
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(_GRACE_SECONDS)
        elif last is not None:
            last.close()
        if not self.loop.is_running():
            self.loop.close()

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    async def _finish(self, last: Coroutine[Any, Any, None] | None) -> None:
        errands = [asyncio.wrap_future(errand) for errand in list(self._errands)]
        if errands:
            await asyncio.wait(errands, timeout=_GRACE_SECONDS)
        await self._cancel_others()
        if last is not None:
            await last
        await self._cancel_others()
        await self.loop.shutdown_asyncgens()

    async def _cancel_others(self) -> None:
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        if others:
            await asyncio.wait(others, timeout=_GRACE_SECONDS)


class Steps(Generic[T]):
    """An async generator of the process loop, for a consumer in any thread or event loop.

    Its methods run on the process loop, one at a time: when it is closed, a step whose consumer was stopped
    may still be on its way out.
    """

    def __init__(self, items: AsyncGenerator[T]) -> None:
        self._items = items
        self._busy = asyncio.Lock()

    async def next(self) -> T:
        """Return the next item; raises StopAsyncIteration after the last."""
        async with self._busy:
            return await anext(self._items)

    async def fail(self, error: Exception) -> T:
        """Raise in the generator what went wrong with its last item, and return the next one."""
        async with self._busy:
            return await self._items.athrow(error)

    async def close(self) -> None:
        """End the generator, wherever it is."""
        async with self._busy:
            await self._items.aclose()


def in_event_loop() -> bool:
    """True when the calling thread is running an event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
