"""Wait for a submission's end: hear the agent's channel, believe only the ledger."""

import asyncio
import json
import time
from datetime import timedelta
from functools import partial

from think_celery.core.address import Address
from think_celery.core.duration import seconds
from think_celery.core.message import check_identifier
from think_celery.core.routing import agent_channel
from think_celery.core.submission import Submission
from think_celery.engine import context, near
from think_celery.engine.patience import Wait
from think_celery.engine.runtime import Runtime, in_ledger_pool
from think_celery.ledger import messages, submissions
from think_celery.ledger.rows import Row
from think_celery.stream.hub import LOOK, Subscription

_LAST_WORDS_SECONDS = 0.2
_STILL_SECONDS = 0.1
_LOOK_SECONDS = 1.0
"""A lost wake-up costs at most this."""


def prepare(address: Address, submission_id: str, timeout: float | timedelta | None) -> float | None:
    """Check a wait where it is called, before it moves to another loop; returns the seconds.

    Raises:
        InvalidInput: The id or the timeout cannot be used.
        WrongContext: The wait could never end.
    """
    check_identifier("submission_id", submission_id)
    context.refuse_deadlock(address, submission_id)
    return seconds(timeout)


async def wait(
    runtime: Runtime, address: Address, submission_id: str, *, timeout: float | None
) -> Submission | None:
    """Return the submission once it is terminal, or as it is when the time is up (S 1.6).

    Returns:
        None for an unknown id, and for a row that was deleted before its end was seen.

    The end is seen once the status hook has run, if the class has one. In a worker process the lane is worked
    off meanwhile, so that a pool full of waiting turns does not wait for a slot.

    Raises:
        NestedTurnError: The wait is made in a turn, for which that agent waits in turn.
        AbortError: The wait is made in a turn, which is being stopped.
    """
    end = None if timeout is None else time.monotonic() + timeout
    first = await in_ledger_pool(
        runtime, lambda: submissions.find(runtime.database, address, submission_id=submission_id)
    )
    if first is None or _is_over(first) or timeout == 0:
        return None if first is None else first.submission
    waiting = Wait(runtime, context.here(), address)
    try:
        async with near.attending(runtime, address, first.uid):
            return await _await_end(runtime, first, end, waiting)
    finally:
        await waiting.close()


async def _await_end(runtime: Runtime, first: Row, end: float | None, waiting: Wait) -> Submission | None:
    last: Submission | None = first.submission
    channel = agent_channel(runtime.settings.redis_prefix, first.address)
    async with runtime.streams.subscribe(channel) as heard:
        while True:
            row = await in_ledger_pool(runtime, lambda: submissions.find_by_uid(runtime.database, first.uid))
            if row is None:
                return last if last is not None and last.is_terminal else await _last_words(heard, first)
            last = row.submission
            left = _LOOK_SECONDS if end is None else min(_LOOK_SECONDS, end - time.monotonic())
            if _is_over(row) or left <= 0:
                return last
            await waiting.go_on()
            told = await _heard(heard, first, left)
            last = told or last


async def stable(runtime: Runtime, address: Address, *, timeout: float | None) -> bool:
    """Wait until an agent has no turn and needs no approval; False when the time is up (T 1.10).

    Raises:
        NestedTurnError: The wait is made in a turn, for which that agent waits in turn.
        AbortError: The wait is made in a turn, which is being stopped.
    """
    end = None if timeout is None else time.monotonic() + timeout
    waiting = Wait(runtime, context.here(), address)
    try:
        while not await in_ledger_pool(runtime, partial(messages.is_still, runtime.database, address)):
            if end is not None and time.monotonic() >= end:
                return False
            await waiting.go_on()
            await _await_change(runtime, address, end, waiting)
        return True
    finally:
        await waiting.close()


async def _await_change(runtime: Runtime, address: Address, end: float | None, waiting: Wait) -> None:
    row = await in_ledger_pool(runtime, partial(submissions.youngest_active, runtime.database, address))
    if row is not None:
        async with near.attending(runtime, address, row.uid):
            await _await_end(runtime, row, end, waiting)
    elif (left := _STILL_SECONDS if end is None else min(_STILL_SECONDS, end - time.monotonic())) > 0:
        await asyncio.sleep(left)


def _is_over(row: Row) -> bool:
    return row.submission.is_terminal and not row.hook_due


async def _heard(heard: Subscription, row: Row, patience: float) -> Submission | None:
    """Return when something was said about the submission, or when patience is over.

    Returns:
        The last state of a row that was deleted, None for all other news.
    """
    end = time.monotonic() + patience
    while (left := end - time.monotonic()) > 0:
        payload = await heard.get(left)
        if payload is None or payload == LOOK:
            return None
        news = json.loads(payload)
        if news.get("submissionId") == row.submission.submission_id:
            # By its uid: an earlier submission may have had the same id.
            gone = news.get("uid") == str(row.uid)
            return Submission.model_validate(news["deleted"]) if gone else None
    return None


async def _last_words(heard: Subscription, row: Row) -> Submission | None:
    """The row is gone: its last state may be on its way."""
    last = await _heard(heard, row, _LAST_WORDS_SECONDS)
    return last if last is not None and last.is_terminal else None
