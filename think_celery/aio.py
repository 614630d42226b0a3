"""The awaitable way to talk to an agent: the same names as `AgentHandle`."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

from think_celery.core.address import Address
from think_celery.core.frame import StreamEvent
from think_celery.core.submission import Receipt, Submission
from think_celery.engine import admit, reading, waiters
from think_celery.engine.runtime import Runtime, default_runtime

T = TypeVar("T")


class AsyncAgentHandle:
    """One agent, for code inside an event loop; arguments, results and errors are those of `AgentHandle`.

    Ledger calls run in the process' own bounded pool of threads, waits and streams on its own event loop, so
    any loop may use this handle.
    """

    def __init__(self, type_name: str, name: str, *, runtime: Runtime | None = None) -> None:
        self.address = Address(type_name, name)
        self._given = runtime

    async def submit_messages(
        self,
        messages: object,
        *,
        submission_id: str | None = None,
        idempotency_key: str | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> Receipt:
        """Accept one turn durably; see `AgentHandle.submit_messages`."""
        call = partial(
            admit.admit,
            self._runtime,
            self.address,
            messages,
            submission_id=submission_id,
            idempotency_key=idempotency_key,
            metadata=metadata,
        )
        return await self._call(call)

    async def inspect_submission(self, submission_id: str) -> Submission | None:
        """Return the submission as it is now, None for an unknown id."""
        return await self._call(partial(reading.inspect, self._runtime, self.address, submission_id))

    async def list_submissions(
        self,
        status: str | Iterable[str] | None = None,
        limit: int = 50,
        *,
        kind: str | Iterable[str] | None = None,
    ) -> list[Submission]:
        """Return the agent's submissions, youngest first; see `AgentHandle.list_submissions`."""
        call = partial(reading.listing, self._runtime, self.address, status=status, limit=limit, kind=kind)
        return await self._call(call)

    async def wait_for_submission(
        self, submission_id: str, timeout: float | timedelta | None = None
    ) -> Submission | None:
        """Return the submission once it has ended; see `AgentHandle.wait_for_submission`."""
        limit = waiters.seconds(timeout)
        waiting = waiters.wait(self._runtime, self.address, submission_id, timeout=limit)
        return await asyncio.wrap_future(self._runtime.loop.spawn(waiting))

    async def stream(self, submission_id: str, after: str | None = None) -> AsyncIterator[StreamEvent]:
        """Yield the turn's events; see `AgentHandle.stream`."""
        loop = self._runtime.loop
        events = reading.follow(self._runtime, self.address, submission_id, after=after)
        try:
            while (event := await asyncio.wrap_future(loop.spawn(reading.next_event(events)))) is not None:
                yield event
        finally:
            await asyncio.wrap_future(loop.spawn(events.aclose()))

    async def get_messages(self) -> list[dict[str, Any]]:
        """Return the conversation in order, as JSON objects (AI SDK `UIMessage`)."""
        return await self._call(partial(reading.transcript, self._runtime, self.address))

    async def get_message(self, message_id: str) -> dict[str, Any] | None:
        """Return one message of the conversation, None when there is none with that id."""
        return await self._call(partial(reading.message, self._runtime, self.address, message_id))

    @property
    def _runtime(self) -> Runtime:
        return self._given or default_runtime()

    async def _call(self, call: Callable[[], T]) -> T:
        return await waiters.in_ledger_pool(self._runtime, call)

    def __repr__(self) -> str:
        return f"AsyncAgentHandle({self.address.type_name!r}, {self.address.name!r})"
