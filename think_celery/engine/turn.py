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
from typing import Any, TypeVar
from uuid import uuid4

from think_celery.agent import Think, registry
from think_celery.core.folding import Folding, final_message
from think_celery.core.speech import Speech
from think_celery.core.submission import Status
from think_celery.core.turn import Chunk, Turn
from think_celery.core.wire import clean_text, json_text
from think_celery.engine import context, hooks
from think_celery.engine.model import UsageSink, run_model
from think_celery.engine.runtime import Runtime
from think_celery.errors import LedgerUnavailable, WrongContext
from think_celery.ledger import lanes
from think_celery.ledger.lanes import Applied, Claim, Ending
from think_celery.stream.writer import TurnWriter

log = logging.getLogger(__name__)
T = TypeVar("T")
_RETRY_SECONDS = 0.5


@dataclass(slots=True)
class Run:
    """One attempt in progress, and what it left when it ended."""

    claim: Claim
    agent: Think
    folding: Folding
    writer: TurnWriter
    usage: UsageSink = field(default_factory=UsageSink)
    started: float = field(default_factory=time.monotonic)
    first_chunk: timedelta | None = None
    failure: BaseException | None = None
    is_aborted: bool = False


class Memory:
    """The conversation as one drain has read it, so that the next turn reads only what is new.

    Kept as JSON text: every turn gets messages of its own, which it may change.
    """

    def __init__(self) -> None:
        self._texts: list[str] = []
        self.last = 0
        self.rewrites = 0

    def take(self, application: lanes.Application) -> list[dict[str, Any]]:
        """Note what was read, and return the whole conversation."""
        texts = [json_text(message) for message in application.transcript]
        self._texts = texts if application.is_whole else self._texts + texts
        self.last, self.rewrites = application.last, application.rewrites
        messages: list[dict[str, Any]] = json.loads(f"[{','.join(self._texts)}]")
        return messages


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an attempt ended; `run` is None when the agent was never asked."""

    ending: Ending
    run: Run | None


def run_turn(runtime: Runtime, claim: Claim, memory: Memory) -> Outcome | None:
    """Answer one claimed row.

    Returns:
        How it ended, or None when this process lost the lane and must not write.

    Raises:
        LedgerUnavailable: The process is closing and PostgreSQL is away; the lease brings the turn back.
    """
    application = persist(
        runtime,
        lambda: lanes.apply(runtime.database, claim, after=memory.last, rewrites=memory.rewrites),
    )
    if application.outcome is Applied.LOST:
        return None
    if application.outcome is Applied.ENDED:
        return Outcome(Ending(Status.ABORTED), None)
    if application.outcome is Applied.UNREADABLE:
        return Outcome(
            Ending(Status.ERROR, error="the stored payload is not a list of messages with ids"), None
        )
    try:
        agent = registry.get(claim.row.address.type_name)(claim.row.address)
    except Exception as error:
        log.exception("turn.setup_failed submission=%s", claim.row.submission.submission_id)
        return Outcome(Ending(Status.ERROR, error=describe(error)), None)
    turn_messages = memory.take(application)
    return runtime.loop.run(_answer(runtime, claim, agent, turn_messages, application.new))


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
    runtime: Runtime, claim: Claim, agent: Think, messages: list[dict[str, Any]], new: list[dict[str, Any]]
) -> Outcome:
    run = Run(
        claim=claim,
        agent=agent,
        folding=Folding(str(uuid4())),
        writer=runtime.streams.writer(claim.row.uid, claim.row.submission.attempt),
    )
    turn = Turn(
        submission=claim.row.submission,
        messages=messages,
        new_messages=new,
        attempt=claim.row.submission.attempt,
        metadata=claim.row.submission.metadata,
        run_model=lambda asking: run_model(asking, turn, run.usage),
    )
    await _speak(runtime, run, turn)
    if (said := _error(run)) is not None:
        await run.writer.write({"type": "error", "errorText": said})
    message = final_message(run.folding, runtime.settings.max_message_bytes)
    return Outcome(_ending(run, message), run)


async def _speak(runtime: Runtime, run: Run, turn: Turn) -> None:
    """Let the agent answer, until it is done, fails, takes too long, or is stopped from outside."""
    uid, submission = run.claim.row.uid, turn.submission
    limit = asyncio.timeout(submission.run_timeout)
    speaking = asyncio.create_task(_stream(run, turn), name=f"turn-{uid}")
    with runtime.running.during(runtime.streams, uid, turn.attempt, speaking):
        try:
            async with limit:
                await speaking
        except asyncio.CancelledError:
            if runtime.running.was_stopped(uid):
                run.is_aborted = True
                await run.writer.write({"type": "abort"})
            elif _is_cancelled():
                raise  # the process is closing
            else:
                given_up = RuntimeError("CancelledError: a task that the turn waited for was cancelled")
                run.failure = await hooks.surfaced(run.agent, given_up)
        except Exception as error:  # whatever a model, a tool or a class raises is the turn's outcome
            log.exception("turn.failed submission=%s", submission.submission_id)
            late = TimeoutError(f"ran longer than its run_timeout of {submission.run_timeout or 0:g} s")
            run.failure = await hooks.surfaced(run.agent, late if limit.expired() else error)


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _stream(run: Run, turn: Turn) -> None:
    with context.inside_turn(run.claim.row.address):
        try:
            await _talk(run, turn)
        except (SystemExit, KeyboardInterrupt) as error:  # they would end the loop of every turn
            raise RuntimeError(f"the agent tried to end the process: {error!r}") from error


async def _talk(run: Run, turn: Turn) -> None:
    speech = Speech()
    spoken = run.agent.on_chat_message(turn)
    if not hasattr(spoken, "__aiter__"):
        raise WrongContext("on_chat_message must be an async generator: write `async def` and use `yield`")
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
        usage=run.usage.value,
        first_chunk=run.first_chunk,
    )


def _error(run: Run) -> str | None:
    """What went wrong: raised by the agent, or said in an `error` chunk of its stream."""
    if run.failure is not None:
        return describe(run.failure)
    return None if run.folding.error is None else clean_text(run.folding.error)


def describe(error: BaseException) -> str:
    """Return an error's text for the ledger: its words and those of its cause, or its kind without words."""
    words = [clean_text(str(each)).strip() for each in (error, error.__cause__) if each is not None]
    told = ": ".join(word for number, word in enumerate(words) if word and word not in words[:number])
    return told or type(error).__name__
