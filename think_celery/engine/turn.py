"""Run one claimed row: apply its messages, let the agent answer, return how it ended.

Data flows one way: the agent yields text or chunks, `Speech` completes them, `Folding` builds the message
that will be stored, the writer sends the same chunks to observers. Nothing is written to the ledger between
apply and settle.
"""

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar
from uuid import uuid4

from think_celery.abort import AbortController
from think_celery.agent import Think
from think_celery.core.compaction import compact
from think_celery.core.failure import describe
from think_celery.core.folding import Folding, full_message
from think_celery.core.hook import ErrorContext
from think_celery.core.message import structured_output
from think_celery.core.speech import Speech
from think_celery.core.submission import Kind, Status
from think_celery.core.turn import Chunk, Turn
from think_celery.core.wire import clean_text, json_text
from think_celery.engine import context, hooks, news
from think_celery.engine.blocking import contained, is_cancelled
from think_celery.engine.calls import Call
from think_celery.engine.making import agent_of
from think_celery.engine.model import ModelPolicy, UsageSink, run_model
from think_celery.engine.runtime import Runtime
from think_celery.engine.supply import supply
from think_celery.errors import LedgerUnavailable, TurnSetupError, WrongContext
from think_celery.ledger import lanes
from think_celery.ledger.lanes import Applied, Claim, Ending
from think_celery.stream.writer import TurnWriter

log = logging.getLogger(__name__)
T = TypeVar("T")
_RETRY_SECONDS = 0.5
_UNHEARD = {"error", "abort"}
"""Chunks that a caller hears of in another way."""


@dataclass(slots=True)
class Run:
    """One attempt in progress, and what it left when it ended."""

    claim: Claim
    agent: Think
    folding: Folding
    writer: TurnWriter
    call: Call | None = None
    """Who waits for it in this process."""
    stop: AbortController = field(default_factory=AbortController)
    """Tells what the turn has started that it is being stopped."""
    usage: UsageSink = field(default_factory=UsageSink)
    started: float = field(default_factory=time.monotonic)
    first_chunk: timedelta | None = None
    failure: BaseException | None = None
    is_aborted: bool = False
    was_set_up: bool = True


class Memory:
    """The conversation as one drain has read it, so that the next turn reads only what is new.

    Kept as JSON text: every turn gets messages of its own, which it may change.
    """

    def __init__(self) -> None:
        self._texts: list[str] = []
        self.last = 0
        self.rewrites = 0

    def take(self, application: lanes.Application) -> Callable[[], list[dict[str, Any]]]:
        """Note what was read, and return what reads the whole conversation as it is now."""
        if application.is_whole:
            self._texts = []
        self._texts.extend(json_text(message) for message in application.transcript)
        self.last, self.rewrites = application.last, application.rewrites
        return partial(_read, self._texts, len(self._texts))


def _read(texts: list[str], count: int) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = json.loads(f"[{','.join(texts[:count])}]")
    return messages


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an attempt ended."""

    ending: Ending
    run: Run | None = None
    """None when the agent was never asked."""
    full: dict[str, Any] | None = None
    """The assistant message before it was shortened for the ledger."""
    failure: Exception | None = None
    """What a caller in this process is to see raised: it could not even begin."""


def run_turn(runtime: Runtime, claim: Claim, memory: Memory) -> Outcome | None:
    """Answer one claimed row.

    Returns:
        How it ended, or None when this process lost the lane and must not write.

    Raises:
        LedgerUnavailable: The process is closing and PostgreSQL is away; the lease brings the turn back.
    """
    call = runtime.calls.begin(claim.row.uid)
    application = _apply(runtime, claim, memory)
    try:
        if application.outcome is Applied.DEFERRED:
            supplied = runtime.loop.run(supply(runtime, claim.row, call, memory.take(application)()))
            if supplied is None:
                return Outcome(Ending(Status.ABORTED))
            application = _apply(runtime, claim, memory, supplied)
    except Exception as error:  # noqa: BLE001 the caller's function raised it, and will see it
        _log_failure(claim, "messages", error)
        return Outcome(Ending(Status.ERROR, error=describe(error)), failure=error)
    if application.outcome is Applied.LOST:
        runtime.calls.lose(claim.row.uid)
        return None
    if application.outcome is not Applied.APPLIED:
        unapplied = _UNAPPLIED[application.outcome]
        if unapplied.status is Status.ERROR:
            _log_failure(claim, "messages", ValueError(unapplied.error))
        return Outcome(unapplied)
    read = memory.take(application)
    try:
        agent = agent_of(runtime, claim.row.address)
    except Exception as error:  # noqa: BLE001 the class is the application's
        _log_failure(claim, "turn", error)
        text = describe(error)
        return Outcome(Ending(Status.ERROR, error=text), failure=TurnSetupError(text))
    return runtime.loop.run(_answer(runtime, claim, agent, call, read, application))


_UNAPPLIED = {
    Applied.ENDED: Ending(Status.ABORTED),
    Applied.NOTHING: Ending(Status.SKIPPED, error="the conversation does not end with an answer to continue"),
    Applied.UNREADABLE: Ending(Status.ERROR, error="the stored payload is not a list of messages with ids"),
}


def _apply(runtime: Runtime, claim: Claim, memory: Memory, supplied: str | None = None) -> lanes.Application:
    if claim.application is not None and supplied is None:
        return claim.application
    return persist(
        runtime,
        lambda: lanes.apply(
            runtime.database, claim, after=memory.last, rewrites=memory.rewrites, supplied=supplied
        ),
    )


def persist(runtime: Runtime, step: Callable[[], T]) -> T:
    """Repeat a step of the ledger until PostgreSQL answers or this process closes."""
    while True:
        try:
            return step()
        except LedgerUnavailable as error:
            log.warning("ledger.unavailable error=%s", error)
            if runtime.closing.wait(_RETRY_SECONDS):
                raise


async def _answer(
    runtime: Runtime,
    claim: Claim,
    agent: Think,
    call: Call | None,
    read: Callable[[], list[dict[str, Any]]],
    application: lanes.Application,
) -> Outcome:
    submission = claim.row.submission
    continues = submission.kind is Kind.CONTINUE
    run = Run(
        claim=claim,
        agent=agent,
        folding=Folding(str(uuid4()), metadata={"continuation": True} if continues else None),
        writer=runtime.streams.writer(claim.row.uid, submission.attempt),
        call=call,
    )
    turn = Turn(
        submission=submission,
        read=read,
        new_messages=application.new,
        attempt=submission.attempt,
        metadata=submission.metadata,
        run_model=lambda asking: run_model(asking, turn, run.usage, ModelPolicy.of(runtime.settings)),
        body=application.body,
        continuation=continues,
    )
    with context.inside_turn(_here(run)):
        await _speak(runtime, run, turn)
        if run.failure is None and run.folding.error is not None:
            await _fail(run, RuntimeError(clean_text(run.folding.error)))
    if (said := _error(run)) is not None:
        await run.writer.write({"type": "error", "errorText": said})
    return _outcome(runtime, run)


def _here(run: Run) -> context.Here:
    row, call = run.claim.row, run.call
    return context.Here(
        row.address, row.uid, row.root_id, None if call is None else call.caller, run.stop.signal
    )


def _outcome(runtime: Runtime, run: Run) -> Outcome:
    full = full_message(run.folding)
    message = None if full is None else compact(full, max_bytes=runtime.settings.max_message_bytes)
    if message is not full:
        log.warning("message.compacted request=%s", run.claim.row.submission.request_id)
    failure = None if run.was_set_up else TurnSetupError(_error(run))
    return Outcome(_ending(run, message), run, full=full, failure=failure)


async def _speak(runtime: Runtime, run: Run, turn: Turn) -> None:
    """Let the agent answer, until it is done, fails, takes too long, or is stopped from outside."""
    uid, submission = run.claim.row.uid, turn.submission
    limit = asyncio.timeout(submission.run_timeout)
    speaking = asyncio.create_task(_talk(run, turn), name=f"turn-{uid}")
    streams, told = runtime.streams, news.of_status(runtime, run.claim.row)
    with runtime.running.during(streams, uid, turn.attempt, speaking, stop=run.stop, news=told):
        try:
            async with limit:
                await speaking
        except asyncio.CancelledError:
            if runtime.running.was_stopped(uid):
                run.is_aborted = True
                await run.writer.write({"type": "abort"})
            elif is_cancelled():
                raise  # the process is closing
            else:
                await _fail(
                    run, RuntimeError("CancelledError: a task that the turn waited for was cancelled")
                )
        except Exception as error:  # noqa: BLE001 whatever was raised is the turn's outcome
            late = TimeoutError(f"ran longer than its run_timeout of {submission.run_timeout or 0:g} s")
            run.stop.abort(late if limit.expired() else error)  # what it has started is to end, too
            await _fail(run, late if limit.expired() else error)


async def _fail(run: Run, error: Exception) -> None:
    """Note what went wrong, in the words that `on_chat_error` chooses."""
    run.was_set_up = not isinstance(error, TurnSetupError)
    told = ErrorContext(
        request_id=run.claim.row.submission.request_id,
        stage="stream" if run.was_set_up else "turn",
        messages_persisted=True,
    )
    _log_failure(run.claim, told.stage, error)
    run.failure = await hooks.surfaced(run.agent, error, context=told)


def _log_failure(claim: Claim, stage: str, error: Exception) -> None:
    """Say once for each failing turn what went wrong, and where: `messages`, `turn` (set-up) or `stream`."""
    request = claim.row.submission.request_id
    log.error("turn.failed request=%s stage=%s error=%s", request, stage, describe(error), exc_info=error)


async def _talk(run: Run, turn: Turn) -> None:
    speech = Speech()
    with contained():
        spoken = run.agent.on_chat_message(turn)
        if not hasattr(spoken, "__aiter__"):
            raise WrongContext("on_chat_message must be an async generator: write `async def`, use `yield`")
        try:
            async for item in spoken:
                for chunk in speech.say(item):
                    await _emit(run, chunk)
                if run.folding.error is not None:
                    return
            for chunk in speech.close():
                await _emit(run, chunk)
        finally:
            await _close(spoken)


async def _emit(run: Run, chunk: Chunk) -> None:
    forward = run.folding.fold(chunk)
    if forward is not None:
        if run.first_chunk is None and run.folding.has_content:
            run.first_chunk = timedelta(seconds=time.monotonic() - run.started)
        await run.writer.write(forward)
        if run.call is not None and run.call.listens and forward["type"] not in _UNHEARD:
            await run.call.relay.deliver("event", json_text(forward))


async def _close(spoken: AsyncIterator[Any]) -> None:
    close = getattr(spoken, "aclose", None)
    if close is not None:
        await close()


def _ending(run: Run, message: dict[str, Any] | None) -> Ending:
    error = _error(run)
    ended = Status.COMPLETED if error is None else Status.ERROR
    return Ending(
        status=Status.ABORTED if run.is_aborted else ended,
        error=error,
        message=message,
        output=structured_output(message),
        usage=run.usage.value,
        first_chunk=run.first_chunk,
        responds=run.was_set_up and hooks.overrides(type(run.agent), "on_chat_response"),
    )


def _error(run: Run) -> str | None:
    """What went wrong: raised by the agent, or said in an `error` chunk of its stream."""
    if run.failure is not None:
        return describe(run.failure)
    return None if run.folding.error is None else clean_text(run.folding.error)
