"""Run one occurrence of a task whose prompt is a function, or that is a handler.

Who runs it holds a lease on it. Within one run the action is repeated as the task's retry policy says; an
error that will pass, such as a database that is away, gives the lease back, and the occurrence runs again
later; a lost process leaves the lease to run out. The idempotency key is the same every time.
"""

import asyncio
import logging
import random
from collections.abc import Coroutine
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID, uuid4

from think_celery.agent import registry
from think_celery.core.address import Address
from think_celery.core.task import retry_delay
from think_celery.engine import admit, declaring, hooks, prompting
from think_celery.engine.declaring import Task
from think_celery.engine.making import agent_of
from think_celery.engine.runtime import Runtime, in_ledger_pool
from think_celery.engine.turn import persist
from think_celery.errors import LaneFull, ServiceError, ThinkError
from think_celery.ledger import occurrences
from think_celery.ledger.database import is_passing
from think_celery.ledger.occurrences import OccurrenceRow, Slot
from think_celery.stream.connection import is_away

log = logging.getLogger(__name__)
_PAUSE = timedelta(seconds=5)
_SHARE = 0.8
"""Of the lease without a renewal, after which a run is given up."""


class _LeaseLost(Exception):
    """Somebody else may run the occurrence by now."""


class _NotNow(Exception):
    """The occurrence cannot run at the moment, or not here."""


@dataclass(frozen=True, slots=True)
class _Run:
    runtime: Runtime
    row: OccurrenceRow
    token: UUID

    @property
    def address(self) -> Address:
        return self.row.slot.address


def run(runtime: Runtime, slot: Slot) -> str:
    """Answer the bell of an occurrence: take it and run it, if nobody else does.

    Returns:
        What happened, in words that Flower shows.
    """
    if slot.address.type_name not in registry:
        return f"left: class {slot.address.type_name} is not loaded in this worker"
    token = uuid4()
    row = occurrences.take(runtime.database, slot, token=token, lease=runtime.settings.lease)
    if row is None:
        return "nothing to run: it has run, or another worker runs it"
    if row.state != "running":
        log.warning("occurrence.ended %s state=%s error=%s", _name(slot), row.state, row.error)
        return f"{row.state}: {row.error}"
    return _finish(_Run(runtime, row, token))


def _finish(run: _Run) -> str:
    slot, token, database = run.row.slot, run.token, run.runtime.database
    try:
        done = run.runtime.loop.run(_kept(run, _act(run)))
    except _LeaseLost:
        log.warning("occurrence.lost %s", _name(slot))
        return "lost: the lease ran out meanwhile"
    except Exception as error:  # whatever the task's code raises
        passes = isinstance(error, _NotNow | LaneFull) or _is_passing(error)
        text = str(error) or type(error).__name__
        if passes:
            log.warning("occurrence.released %s error=%s", _name(slot), text)
            release = partial(
                occurrences.release, database, slot, token=token, error=text, pause=_pause(run.row)
            )
            return f"postponed: {text}" if persist(run.runtime, release) else "lost the lease"
        log.error("occurrence.failed %s error=%s", _name(slot), text, exc_info=error)
        run.runtime.loop.run(_tell(run, error))
        persist(run.runtime, partial(occurrences.finish, database, slot, token=token, error=text))
        return f"error: {text}"
    log.info("occurrence.done %s as=%s", _name(slot), done)
    return done


async def _kept(run: _Run, work: Coroutine[Any, Any, str]) -> str:
    """Do the work and renew the lease meanwhile; end the work when that fails for too long."""
    lease, loop = run.runtime.settings.lease_seconds, asyncio.get_running_loop()
    task = asyncio.create_task(work)
    renewed = loop.time()
    try:
        while not (await asyncio.wait({task}, timeout=lease / 3))[0]:
            if await _renew(run, before=renewed + _SHARE * lease):
                renewed = loop.time()
            elif loop.time() >= renewed + _SHARE * lease:
                raise _LeaseLost
        return await task
    finally:
        task.cancel()


async def _renew(run: _Run, *, before: float) -> bool:
    renew = partial(
        occurrences.renew,
        run.runtime.database,
        run.row.slot,
        token=run.token,
        lease=run.runtime.settings.lease,
    )
    try:
        async with asyncio.timeout_at(before):
            kept = await in_ledger_pool(run.runtime, renew)
    except (ServiceError, TimeoutError):
        return False
    if not kept:
        raise _LeaseLost
    return True


async def _act(run: _Run) -> str:
    task = await _task_of(run)
    attempt = 0
    while True:
        attempt += 1
        try:
            return await (_submit(run, task) if task.declared.action != "handler" else _handle(run, task))
        except Exception as error:
            if (
                _is_passing(error)
                or isinstance(error, LaneFull | _LeaseLost)
                or attempt >= task.task.retry_policy.max_attempts
            ):
                raise
            log.warning("occurrence.attempt_failed %s attempt=%d", _name(run.row.slot), attempt)
            await asyncio.sleep(retry_delay(task.task.retry_policy, attempt, share=random.random()))


async def _task_of(run: _Run) -> Task:
    reading = await declaring.read(run.runtime, run.address)
    task = reading.tasks.get(run.row.slot.task_id)
    if reading.error is not None:
        raise _NotNow(f"its declaration cannot be read: {reading.error}")
    if task is None:
        raise _NotNow("this build does not know the task, or cannot use its declaration")
    return task


async def _submit(run: _Run, task: Task) -> str:
    text = await prompting.text_of(task)
    request = prompting.request_of(run.runtime, task, prompting.facts_of(run.row), text)
    submit = partial(occurrences.submit, run.runtime.database, run.row.slot, request, token=run.token)
    acceptance = await in_ledger_pool(run.runtime, submit)
    if acceptance is None:
        raise _LeaseLost
    await in_ledger_pool(run.runtime, partial(admit.ring, run.runtime, acceptance))
    return f"submitted {acceptance.row.submission.submission_id}"


async def _handle(run: _Run, task: Task) -> str:
    assert task.task.handler is not None, "that is what the task's action says"
    await hooks.call(task.task.handler, prompting.context_of(task, prompting.facts_of(run.row)))
    finish = partial(occurrences.finish, run.runtime.database, run.row.slot, token=run.token, error=None)
    if not await in_ledger_pool(run.runtime, partial(persist, run.runtime, finish)):
        raise _LeaseLost
    return "handled"


async def _tell(run: _Run, error: Exception) -> None:
    try:
        agent = agent_of(run.runtime, run.address)
        task = await _task_of(run)
    except (ThinkError, _NotNow):
        return
    await hooks.tell(
        agent, "on_schedule_error", error, prompting.context_of(task, prompting.facts_of(run.row))
    )


def _pause(row: OccurrenceRow) -> timedelta:
    return min(_PAUSE * (1 << min(row.attempts - 1, 6)), timedelta(minutes=5))


def _is_passing(error: BaseException) -> bool:
    if isinstance(error, ServiceError):
        return error.retryable
    return is_passing(error) or is_away(error)


def _name(slot: Slot) -> str:
    return f"agent={slot.address} task={slot.task_id} scheduled_for={slot.scheduled_for:%Y-%m-%dT%H:%M:%SZ}"
