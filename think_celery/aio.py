"""The awaitable way to talk to an agent: the same names as `AgentHandle`."""

from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import aclosing
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from think_celery.abort import AbortSignal
from think_celery.core.address import Address
from think_celery.core.callback import StreamCallback
from think_celery.core.duration import seconds
from think_celery.core.frame import StreamEvent
from think_celery.core.submission import CancelResult, Receipt, Submission
from think_celery.core.turn import TurnResult
from think_celery.engine import (
    admit,
    asking,
    chat,
    context,
    conversation,
    ending,
    following,
    reading,
    saving,
    waiters,
)
from think_celery.engine.admit import IfBusy, Wish
from think_celery.engine.runtime import Runtime, default_runtime, in_ledger_pool
from think_celery.engine.saving import Mode
from think_celery.handle_schedules import AsyncScheduleNames

if TYPE_CHECKING:
    from think_celery.agent import Think

T = TypeVar("T")


class AsyncAgentHandle(AsyncScheduleNames):
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
        body: Any = None,
        if_busy: IfBusy = "enqueue",
        run_timeout: float | timedelta | None = None,
        not_before: datetime | None = None,
        not_after: datetime | None = None,
        webhook_url: str | None = None,
    ) -> Receipt:
        """Accept one turn durably; see `AgentHandle.submit_messages`."""
        wish = Wish(
            submission_id=submission_id,
            idempotency_key=idempotency_key,
            metadata=metadata,
            body=body,
            if_busy=if_busy,
            run_timeout=run_timeout,
            not_before=not_before,
            not_after=not_after,
            webhook_url=webhook_url,
        )
        return await self._call(partial(admit.admit, self._runtime, self.address, messages, wish))

    async def cancel_submission(self, submission_id: str, reason: object = None) -> CancelResult:
        """Abort a submission that waits or runs; see `AgentHandle.cancel_submission`."""
        return await self._call(partial(ending.cancel, self._runtime, self.address, submission_id, reason))

    async def cancel_all(
        self, reason: object = None, *, metadata: dict[str, Any] | None = None
    ) -> list[CancelResult]:
        """Abort every submission that waits or runs; see `AgentHandle.cancel_all`."""
        call = partial(ending.cancel_all, self._runtime, self.address, metadata=metadata, reason=reason)
        return await self._call(call)

    async def clear_messages(self) -> None:
        """Empty the conversation; see `AgentHandle.clear_messages`."""
        await self._call(partial(ending.reset, self._runtime, self.address, messages=True))

    async def reset_turn_state(self) -> None:
        """Skip what waits and end what runs; the conversation stays."""
        await self._call(partial(ending.reset, self._runtime, self.address, messages=False))

    async def delete_submission(self, submission_id: str) -> bool:
        """Delete the record of an ended submission; see `AgentHandle.delete_submission`."""
        return await self._call(partial(ending.delete_one, self._runtime, self.address, submission_id))

    async def delete_submissions(
        self,
        status: str | Iterable[str] | None = None,
        completed_before: datetime | None = None,
        limit: int = 100,
    ) -> int:
        """Delete records of ended submissions; see `AgentHandle.delete_submissions`."""
        call = partial(
            ending.delete_many,
            self._runtime,
            self.address,
            status=status,
            completed_before=completed_before,
            limit=limit,
        )
        return await self._call(call)

    async def delete_agent(self) -> bool:
        """Delete everything about this agent; see `AgentHandle.delete_agent`."""
        return await self._call(partial(ending.delete_agent, self._runtime, self.address))

    async def pause(self) -> bool:
        """Let no further turn start; see `AgentHandle.pause`."""
        return await self._call(partial(ending.pause, self._runtime, self.address, paused=True))

    async def resume(self) -> bool:
        """Let turns start again; see `AgentHandle.resume`."""
        return await self._call(partial(ending.pause, self._runtime, self.address, paused=False))

    async def rerun(self, submission_id: str, *, idempotency_key: str | None = None) -> Receipt | None:
        """Submit the same messages again; see `AgentHandle.rerun`."""
        call = partial(
            ending.rerun, self._runtime, self.address, submission_id, idempotency_key=idempotency_key
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
        metadata: dict[str, Any] | None = None,
    ) -> list[Submission]:
        """Return the agent's submissions, youngest first; see `AgentHandle.list_submissions`."""
        call = partial(
            reading.listing,
            self._runtime,
            self.address,
            status=status,
            limit=limit,
            kind=kind,
            metadata=metadata,
        )
        return await self._call(call)

    async def wait_for_submission(
        self, submission_id: str, timeout: float | timedelta | None = None
    ) -> Submission | None:
        """Return the submission once it has ended; see `AgentHandle.wait_for_submission`."""
        limit = waiters.prepare(self.address, submission_id, timeout)
        return await self._on_loop(waiters.wait(self._runtime, self.address, submission_id, timeout=limit))

    async def stream(self, submission_id: str, after: str | None = None) -> AsyncIterator[StreamEvent]:
        """Yield the turn's events; see `AgentHandle.stream`."""
        loop = self._runtime.loop
        follow = following.follow(self._runtime, self.address, submission_id, after=after)
        async with aclosing(loop.each_async(follow)) as events:
            async for event in events:
                yield event

    async def chat(
        self,
        message: object,
        callback: StreamCallback | None = None,
        *,
        signal: AbortSignal | None = None,
        timeout: float | timedelta | None = None,
        metadata: dict[str, Any] | None = None,
        tools: object = None,
    ) -> TurnResult:
        """Run one turn and hear it while it runs; see `AgentHandle.chat`.

        Cancelling this call inside a worker process cancels the turn; from anywhere else the turn goes on.
        """
        conversation.check(callback, tools)
        ask = asking.chatting(
            self._runtime,
            self.address,
            message,
            metadata=metadata,
            signal=signal,
            timeout=timeout,
            listens=callback is not None,
        )
        heard = chat.converse(self._runtime, ask)
        return await conversation.hear_async(self._runtime, heard, callback or StreamCallback())

    async def cancel_chat(self, request_id: str, reason: object = None) -> None:
        """Abort a turn of any kind; see `AgentHandle.cancel_chat`."""
        await self._call(partial(chat.cancel, self._runtime, self.address, request_id, reason))

    async def cancel_all_chats(self, reason: object = None) -> None:
        """Abort every turn of the agent that waits or runs."""
        await self._call(partial(chat.cancel_all, self._runtime, self.address, reason))

    async def abort_request(self, request_id: str, reason: object = None) -> None:
        """Abort a turn of any kind, by the name that an agent uses of itself; see `cancel_chat`."""
        await self.cancel_chat(request_id, reason)

    async def abort_all_requests(self, reason: object = None) -> None:
        """Abort every turn of the agent, the one that asks for it included."""
        await self.cancel_all_chats(reason)

    async def save_messages(self, messages: object, *, signal: AbortSignal | None = None) -> TurnResult:
        """Append messages and run a turn; see `AgentHandle.save_messages`."""
        ask = asking.saving(self._runtime, self.address, messages, signal=signal)
        return await self._on_loop(saving.save(self._runtime, ask))

    async def continue_last_turn(self, body: Any = None, *, signal: AbortSignal | None = None) -> TurnResult:
        """Let the assistant go on after its own last message; see `AgentHandle.continue_last_turn`."""
        ask = asking.continuing(self._runtime, self.address, body, signal=signal)
        return await self._on_loop(saving.continue_last(self._runtime, ask))

    async def add_messages(self, messages: object, *, mode: Mode = "append") -> int:
        """Append messages at once, without a turn; see `AgentHandle.add_messages`."""
        return await self._on_loop(saving.add(self._runtime, self.address, messages, mode=mode))

    async def wait_until_stable(self, timeout: float | timedelta | None = None) -> bool:
        """Wait until the agent has nothing to do; see `AgentHandle.wait_until_stable`."""
        context.refuse_nesting(self.address)
        return await self._on_loop(waiters.stable(self._runtime, self.address, timeout=seconds(timeout)))

    async def has_pending_interaction(self) -> bool:
        """True when a tool call of the conversation waits for somebody's approval."""
        return await self._call(partial(reading.has_pending_interaction, self._runtime, self.address))

    async def sub_agent(self, agent: "type[Think] | str", name: str) -> "AsyncAgentHandle":
        """Return the handle of an agent that belongs to this one; see `AgentHandle.sub_agent`."""
        child = self.address.child(agent, name)
        handle = AsyncAgentHandle(child.type_name, child.name, runtime=self._given)
        handle.address = child  # it knows its parent
        return handle

    async def get_messages(self) -> list[dict[str, Any]]:
        """Return the conversation in order, as JSON objects (AI SDK `UIMessage`)."""
        return await self._call(partial(reading.transcript, self._runtime, self.address))

    async def get_message(self, message_id: str) -> dict[str, Any] | None:
        """Return one message of the conversation, None when there is none with that id."""
        return await self._call(partial(reading.message, self._runtime, self.address, message_id))

    @property
    def _runtime(self) -> Runtime:
        return self._given or default_runtime()

    async def _on_loop(self, work: Coroutine[Any, Any, T]) -> T:
        return await self._runtime.loop.run_async(work)

    async def _call(self, call: Callable[[], T]) -> T:
        return await in_ledger_pool(self._runtime, call)

    def __repr__(self) -> str:
        return f"AsyncAgentHandle({self.address.type_name!r}, {self.address.name!r})"
