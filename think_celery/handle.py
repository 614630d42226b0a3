"""The blocking way to talk to an agent; each method is one call of the engine."""

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

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
from think_celery.engine.loop import in_event_loop
from think_celery.engine.runtime import Runtime, default_runtime
from think_celery.engine.saving import Mode
from think_celery.errors import WrongContext
from think_celery.handle_schedules import ScheduleNames

if TYPE_CHECKING:
    from think_celery.agent import Think


class AgentHandle(ScheduleNames):
    """One agent, addressed by class name and own name; making a handle does no I/O.

    Args:
        type_name: The agent class' `type_name` (by default its class name).
        name: The agent's own name, 1–200 characters without control characters.
        runtime: The process' connections; by default those that the settings name.

    Raises:
        InvalidInput: A name cannot be accepted.
    """

    def __init__(self, type_name: str, name: str, *, runtime: Runtime | None = None) -> None:
        self.address = Address(type_name, name)
        self._runtime = runtime

    def submit_messages(
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
        connection: Any = None,
    ) -> Receipt:
        """Accept one turn durably and return before any model runs.

        Args:
            messages: A list of messages (`UIMessage` or AI SDK JSON objects), one message, or one text.
            submission_id: Your own id, unique per agent; by default a random one.
            idempotency_key: A key of your own: a repeated call returns the first call's submission.
            metadata: A JSON object kept with the submission.
            body: Any JSON value for the agent's own use, `turn.body`; continuations get the last one again.
            if_busy: What to do when the agent runs or has waiting submissions: `enqueue` behind them,
                `reject` the
                call, `interrupt` (cancel them, keep what they said), or `rollback` (also take the running
                one's messages out of the conversation).
            run_timeout: Seconds of running, or a timedelta; a longer turn ends in `error`.
            not_before: Start no earlier; the agent's later submissions wait behind it.
            not_after: Not started by then, it ends in `error`.
            webhook_url: Where to report its end; by default the setting's.
            connection: Your SQLAlchemy Connection or Session on the same database: the submission commits or
                rolls back with your own data, and starts after your commit.

        Returns:
            The submission as accepted; `accepted` is False when id or key were known.

        Raises:
            InvalidInput: A value cannot be accepted; nothing was written.
            IdentityConflict: Id and key belong to different submissions; nothing was written.
            AgentBusy: The agent is busy and `if_busy` is `reject`; nothing was written.
            LaneFull: Too many submissions of the agent wait; nothing was written.
            LedgerUnavailable: PostgreSQL did not answer; repeat the call with the same id or key.

        Source: S 1.2.
        """
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
            connection=connection,
        )
        return admit.admit(self._connected(), self.address, messages, wish)

    def cancel_submission(self, submission_id: str, reason: object = None) -> CancelResult:
        """Abort a submission that waits or runs, and return what was done.

        A running turn stops in a moment; what a tool has started may still finish, and what was said so far
        stays in the conversation.

        Args:
            reason: Becomes the submission's `error`: a text, or an exception's words; None for none.
        """
        return ending.cancel(self._connected(), self.address, submission_id, reason)

    def cancel_all(
        self, reason: object = None, *, metadata: dict[str, Any] | None = None
    ) -> list[CancelResult]:
        """Abort every submission that waits or runs; each with what was done.

        Args:
            metadata: Only those whose metadata contains this.
        """
        return ending.cancel_all(self._connected(), self.address, metadata=metadata, reason=reason)

    def clear_messages(self) -> None:
        """Empty the conversation: what waits is skipped, what runs is ended and leaves nothing behind."""
        ending.reset(self._connected(), self.address, messages=True)

    def reset_turn_state(self) -> None:
        """Skip what waits and end what runs, without any response hook; the conversation stays."""
        ending.reset(self._connected(), self.address, messages=False)

    def delete_submission(self, submission_id: str) -> bool:
        """Delete the record of an ended submission; False when it is unknown or has not ended.

        Its id and key are free again. The messages stay in the conversation. A response hook that was not
        called yet is not called any more.
        """
        return ending.delete_one(self._connected(), self.address, submission_id)

    def delete_submissions(
        self,
        status: str | Iterable[str] | None = None,
        completed_before: datetime | None = None,
        limit: int = 100,
    ) -> int:
        """Delete records of ended submissions, the oldest first, and return how many.

        Args:
            status: One status or several; by default every terminal one. Active ones never go.
            completed_before: Only those that ended earlier; with a time zone.
            limit: At most so many, clamped to 1…500; call again until it returns 0.
        """
        return ending.delete_many(
            self._connected(), self.address, status=status, completed_before=completed_before, limit=limit
        )

    def delete_agent(self) -> bool:
        """Delete everything about this agent and its sub-agents; False when there was nothing."""
        return ending.delete_agent(self._connected(), self.address)

    def pause(self) -> bool:
        """Let no further turn start; the running one goes on. False when it already was so."""
        return ending.pause(self._connected(), self.address, paused=True)

    def resume(self) -> bool:
        """Let turns start again. False when it already was so."""
        return ending.pause(self._connected(), self.address, paused=False)

    def rerun(self, submission_id: str, *, idempotency_key: str | None = None) -> Receipt | None:
        """Submit the same messages again; the new submission's `rerun_of` names this one. None if unknown."""
        return ending.rerun(self._connected(), self.address, submission_id, idempotency_key=idempotency_key)

    def inspect_submission(self, submission_id: str) -> Submission | None:
        """Return the submission as it is now, None for an unknown id."""
        return reading.inspect(self._connected(), self.address, submission_id)

    def list_submissions(
        self,
        status: str | Iterable[str] | None = None,
        limit: int = 50,
        *,
        kind: str | Iterable[str] | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> list[Submission]:
        """Return the agent's submissions, youngest first.

        Args:
            status: One status or several; an empty collection gives nothing, None gives all.
            limit: At most so many, clamped to 1…100.
            kind: One kind or several; by default submissions and schedules.
            metadata: Only those whose metadata contains this.
        """
        return reading.listing(
            self._connected(), self.address, status=status, limit=limit, kind=kind, metadata=metadata
        )

    def wait_for_submission(
        self, submission_id: str, timeout: float | timedelta | None = None
    ) -> Submission | None:
        """Return the submission once it has ended, or as it is when the time is up.

        Args:
            timeout: Seconds or a timedelta; 0 is one look, None waits without limit.

        Returns:
            None for an unknown id.

        Raises:
            InvalidInput: The timeout is negative or not a number.
            WrongContext: Called inside an event loop; use `async_handle`.
            NestedTurnError, AbortError: In a turn that the agent waits for, or that is stopped; as `stream`.
            LedgerUnavailable: PostgreSQL went away; the submission goes on, wait again.
        """
        runtime = self._connected()
        limit = waiters.prepare(self.address, submission_id, timeout)
        return runtime.loop.run(waiters.wait(runtime, self.address, submission_id, timeout=limit))

    def stream(self, submission_id: str, after: str | None = None) -> Iterator[StreamEvent]:
        """Yield the turn's events: what happened so far, then live, and last its end.

        Leaving the loop early never cancels the turn.

        Args:
            after: `id` of the last event seen; by default everything is replayed.

        Raises:
            InvalidInput: `after` is not an event id.
            WrongContext: Called inside an event loop; use `async_handle`.
        """
        runtime = self._connected()
        yield from runtime.loop.each(following.follow(runtime, self.address, submission_id, after=after))

    def chat(
        self,
        message: object,
        callback: StreamCallback | None = None,
        *,
        signal: AbortSignal | None = None,
        timeout: float | timedelta | None = None,
        metadata: dict[str, Any] | None = None,
        tools: object = None,
    ) -> TurnResult:
        """Run one turn, hear it while it runs, and return how it ended.

        Inside a worker process the turn runs right here, without a slot of the pool; from anywhere else its
        stream is followed. A plain return is no success: look at `status`.

        Args:
            message: A text (also an empty one), a message, a list of messages, or inside a worker a function
                of the conversation that returns the messages when the turn starts.
            callback: What is to be heard; called in this thread.
            signal: Cancels the turn when it fires; what was said by then is kept.
            timeout: Seconds to follow the turn, which goes on afterwards; the result then says `running`.
            metadata: A JSON object kept with the turn.
            tools: Not used: tools belong to the agent, see `Think.get_tools`. A value gives a warning.

        Raises:
            NestedTurnError: The agent waits for the turn that this is called in.
            InvalidInput: A value cannot be accepted; nothing was written.
            LaneFull: Too many turns of the agent wait; nothing was written.
            LedgerUnavailable: PostgreSQL did not answer; the turn may have been accepted.
            Exception: What `on_start`, `on_done` or `on_error` raised; outside of a worker `on_event`, too.

        Source: T 1.2 to 1.4.
        """
        runtime = self._connected()
        conversation.check(callback, tools)
        ask = asking.chatting(
            runtime,
            self.address,
            message,
            metadata=metadata,
            signal=signal,
            timeout=timeout,
            listens=callback is not None,
        )
        return conversation.hear(runtime, chat.converse(runtime, ask), callback or StreamCallback())

    def cancel_chat(self, request_id: str, reason: object = None) -> None:
        """Abort a turn of any kind; nothing happens when it has ended or is unknown.

        What was said so far stays in the conversation. Another process than the caller's knows the turn once
        `on_start` has returned.
        """
        chat.cancel(self._connected(), self.address, request_id, reason)

    def cancel_all_chats(self, reason: object = None) -> None:
        """Abort every turn of the agent that waits or runs."""
        chat.cancel_all(self._connected(), self.address, reason)

    def save_messages(
        self,
        messages: object,
        *,
        signal: AbortSignal | None = None,
    ) -> TurnResult:
        """Append messages, run a turn, and return how it ended.

        Args:
            messages: A list of messages, one message or one text; an empty list runs a turn on what there is.
                Inside a worker also a function: it gets the conversation as it is when the turn starts, and
                returns the messages, those that are there already included or not.
            signal: Cancels the turn when it fires.

        Raises:
            TurnSetupError: The agent could not prepare the turn; the messages are stored. Only where the turn
                runs; from outside of a worker the result's status is `error`.
            NestedTurnError: The agent waits for the turn that this is called in.
            WrongContext: A function, outside of a worker.
            Exception: What the function raised; nothing was stored.

        Source: T 1.6.
        """
        runtime = self._connected()
        ask = asking.saving(runtime, self.address, messages, signal=signal)
        return runtime.loop.run(saving.save(runtime, ask))

    def continue_last_turn(self, body: Any = None, *, signal: AbortSignal | None = None) -> TurnResult:
        """Let the assistant go on after its own last message, in a new message.

        Args:
            body: Any JSON value for the agent, `turn.body`; by default what came with its last submission.
            signal: Cancels the turn when it fires.

        Returns:
            `skipped`, with an empty request id, when the conversation does not end with the assistant.

        Source: T 1.7.
        """
        runtime = self._connected()
        ask = asking.continuing(runtime, self.address, body, signal=signal)
        return runtime.loop.run(saving.continue_last(runtime, ask))

    def add_messages(self, messages: object, *, mode: Mode = "append") -> int:
        """Append messages at once, without a turn, and return how many were new.

        Args:
            messages: A list of messages of any role, or a function of the conversation that returns one, in
                any process. A message whose id is known already is left as it is.
            mode: `upsert` replaces those with a known id instead, where they stand.
        """
        runtime = self._connected()
        return runtime.loop.run(saving.add(runtime, self.address, messages, mode=mode))

    def wait_until_stable(self, timeout: float | timedelta | None = None) -> bool:
        """Wait until no turn waits or runs, nor a tool call for approval; False when the time is up.

        A response hook is not waited for; the turns that it has started by then are.

        Raises:
            NestedTurnError: Called inside a turn of this agent, or of one that waits for it.
        """
        runtime = self._connected()
        context.refuse_nesting(self.address)
        return runtime.loop.run(waiters.stable(runtime, self.address, timeout=seconds(timeout)))

    def has_pending_interaction(self) -> bool:
        """True when a tool call of the conversation waits for somebody's approval."""
        return reading.has_pending_interaction(self._connected(), self.address)

    def sub_agent(self, agent: "type[Think] | str", name: str) -> "AgentHandle":
        """Return the handle of an agent that belongs to this one: nobody else's agent has its conversation.

        Args:
            agent: The class, or its type name.
            name: Its own name, unique for this agent and class.
        """
        child = self.address.child(agent, name)
        handle = AgentHandle(child.type_name, child.name, runtime=self._runtime)
        handle.address = child  # it knows its parent
        return handle

    def get_messages(self) -> list[dict[str, Any]]:
        """Return the conversation in order, as JSON objects (AI SDK `UIMessage`)."""
        return reading.transcript(self._connected(), self.address)

    def get_message(self, message_id: str) -> dict[str, Any] | None:
        """Return one message of the conversation, None when there is none with that id."""
        return reading.message(self._connected(), self.address, message_id)

    def _connected(self) -> Runtime:
        if in_event_loop():
            given = f"{self.address.type_name!r}, {self.address.name!r}"
            raise WrongContext(
                f"AgentHandle blocks and this is an event loop; await AsyncAgentHandle({given}) instead"
            )
        return self._runtime or default_runtime()

    def __repr__(self) -> str:
        return f"AgentHandle({self.address.type_name!r}, {self.address.name!r})"
