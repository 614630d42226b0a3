"""Wait for a submission's end: hear the agent's channel, believe only the ledger."""

import asyncio
import json
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

from think_celery.core.address import Address
from think_celery.core.message import check_identifier
from think_celery.core.routing import agent_channel
from think_celery.core.submission import Submission
from think_celery.engine import context
from think_celery.engine.runtime import Runtime
from think_celery.errors import InvalidInput
from think_celery.ledger import submissions
from think_celery.ledger.rows import Row
from think_celery.stream.hub import LOOK, Subscription

T = TypeVar("T")
_LAST_WORDS_SECONDS = 0.2
_LOOK_SECONDS = 1.0
"""A lost wake-up costs at most this."""


def seconds(timeout: float | timedelta | None, *, field: str = "timeout") -> float | None:
    """Return a public timeout in seconds, None for no limit.

    Raises:
        InvalidInput: Negative or not a number.
    """
    if timeout is None:
        return None
    value = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise InvalidInput(field, f"{timeout!r} is not a number of seconds from 0 on; None means no limit")
    return float(min(value, sys.float_info.max))


def prepare(address: Address, submission_id: str, timeout: float | timedelta | None) -> float | None:
    """Check a wait where it is called, before it moves to another loop; returns the seconds.

    Raises:
        InvalidInput: The id or the timeout cannot be used.
        WrongContext: The wait could never end.
    """
    check_identifier("submission_id", submission_id)
    context.refuse_deadlock(address, submission_id)
    return seconds(timeout)


async def in_ledger_pool(runtime: Runtime, call: Callable[[], T]) -> T:
    """Run a blocking ledger call from a coroutine, in the pool that is there for it."""
    return await asyncio.wrap_future(runtime.ledger_pool.submit(call))


async def wait(
    runtime: Runtime, address: Address, submission_id: str, *, timeout: float | None
) -> Submission | None:
    """Return the submission once it is terminal, or as it is when the time is up (S 1.6).

    Returns:
        None for an unknown id, and for a row that was deleted before its end was seen.

    The end is seen once the status hook has run, if the class has one.
    """
    end = None if timeout is None else time.monotonic() + timeout
    first = await in_ledger_pool(
        runtime, lambda: submissions.find(runtime.database, address, submission_id=submission_id)
    )
    if first is None or _is_over(first) or timeout == 0:
        return None if first is None else first.submission
    last: Submission | None = first.submission
    async with runtime.streams.subscribe(agent_channel(runtime.settings.redis_prefix, address)) as heard:
        while True:
            row = await in_ledger_pool(runtime, lambda: submissions.find_by_uid(runtime.database, first.uid))
            if row is None:
                return last if last is not None and last.is_terminal else await _last_words(heard, first)
            last = row.submission
            left = _LOOK_SECONDS if end is None else min(_LOOK_SECONDS, end - time.monotonic())
            if _is_over(row) or left <= 0:
                return last
            told = await _heard(heard, first, left)
            last = told or last


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
