"""Follow a turn's stream; in a worker process the turn runs meanwhile, if no other worker has it."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial

from think_celery.core.address import Address
from think_celery.core.frame import StreamEvent
from think_celery.core.message import check_identifier
from think_celery.core.turn import TurnView
from think_celery.engine import context, near, reading
from think_celery.engine.patience import Wait
from think_celery.engine.runtime import Runtime, in_ledger_pool
from think_celery.ledger import submissions
from think_celery.stream.reader import read_turn


async def follow(
    runtime: Runtime, address: Address, submission_id: str, *, after: str | None
) -> AsyncGenerator[StreamEvent]:
    """Yield a turn's events: what happened so far, then live, then its end.

    An unknown submission gives one `end` event without status.

    Raises:
        NestedTurnError: Called in a turn for which that agent waits, of a turn that has not ended.
        AbortError: Called in a turn, which is being stopped.
        WrongContext: Called in the status hook of that submission, before its end.
    """
    check_identifier("submission_id", submission_id)
    find = partial(submissions.find, runtime.database, address, submission_id=submission_id)
    row = await in_ledger_pool(runtime, find)
    if row is None:
        yield StreamEvent(kind="end")
        return
    here = context.here() if row.submission.is_terminal else context.refuse_deadlock(address, submission_id)
    wait = Wait(runtime, here, address)

    async def look() -> TurnView | None:
        await wait.go_on()
        return await in_ledger_pool(runtime, partial(reading.view, runtime, row))

    try:
        async with (
            near.attending(runtime, address, row.uid),
            aclosing(read_turn(runtime.streams, uid=row.uid, after=after, look=look)) as events,
        ):
            async for event in events:
                yield event
    finally:
        await wait.close()
