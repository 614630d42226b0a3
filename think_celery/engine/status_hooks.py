"""`on_submission_status`: told of acceptance, start and end; at least once of the end.

The flag that a hook is due is written with the status and cleared after the call. Whoever holds the right to
an agent's hooks calls them in the order of the lane; the right is a lease, so a process that dies leaves it.
"""

import asyncio
import logging
import threading
from datetime import timedelta
from uuid import uuid4

from think_celery.agent import registry
from think_celery.core.address import Address
from think_celery.core.submission import SUBMITTED, Status, Submission
from think_celery.engine import context, hooks, news
from think_celery.engine.blocking import in_thread
from think_celery.engine.making import agent_of
from think_celery.engine.runtime import Runtime
from think_celery.errors import ThinkError
from think_celery.ledger import classes
from think_celery.ledger.rows import Row

log = logging.getLogger(__name__)
_HOOK = "on_submission_status"
_MARGIN = timedelta(seconds=10)


def declare(runtime: Runtime) -> None:
    """Tell the ledger which of this process' classes override the hook; once per class."""
    new = {name: _is_hooked(name) for name in registry.known() if name not in runtime.declared}
    classes.declare(runtime.database, new)
    runtime.declared.update(new)


def is_loaded(address: Address) -> bool:
    """True when this process can call an agent's hooks itself."""
    return address.type_name in registry


def is_hooked(address: Address) -> bool:
    """True when this process has the class and it overrides the hook."""
    return is_loaded(address) and _is_hooked(address.type_name)


def hold(runtime: Runtime, address: Address) -> timedelta | None:
    """Return how long a row waits at most for its hook to hear of the acceptance; None when it need not."""
    return timedelta(seconds=runtime.settings.hook_seconds) + _MARGIN if is_hooked(address) else None


def tell(runtime: Runtime, address: Address, submission: Submission) -> None:
    """Call the hook for a status that is not the end, if this process has the class; never raises."""
    if submission.kind in SUBMITTED and is_hooked(address):
        runtime.loop.run(_call(runtime, address, submission))


def tell_accepted(runtime: Runtime, row: Row) -> None:
    """Call the hook for the acceptance of a row that has just been claimed, when its producer could not."""
    if is_hooked(row.address):
        changes = {"status": Status.PENDING, "started_at": None, "attempt": row.submission.attempt - 1}
        runtime.loop.run(_call(runtime, row.address, row.submission.model_copy(update=changes)))
    classes.accepted_told(runtime.database, row.uid)


def deliver(runtime: Runtime, address: Address) -> None:
    """Call the hooks that are due for an agent, here if the class is loaded, else ring for a worker."""
    if not is_loaded(address):
        runtime.ring_lane(address)
        return
    holder = uuid4()
    done: Row | None = None
    lease = timedelta(seconds=runtime.settings.hook_seconds) + _MARGIN
    while True:
        row = classes.take_hook(runtime.database, address, holder=holder, lease=lease, done=done)
        if done is not None:
            news.moved(runtime, done)  # who waits for the end looks now, when the hook counts as called
        if row is None:
            return
        if is_hooked(address):
            runtime.loop.run(_call(runtime, address, row.submission))
        done = row


def deliver_beside(runtime: Runtime, address: Address) -> None:
    """The same without waiting for the hooks, of which there may be many; what is left the sweeper brings."""

    def run() -> None:
        try:
            deliver(runtime, address)
        except ThinkError as error:
            log.warning("hook.postponed agent=%s error=%s", address, error)

    threading.Thread(target=run, name="think-hooks", daemon=True).start()


async def _call(runtime: Runtime, address: Address, submission: Submission) -> None:
    try:
        agent = await in_thread(agent_of, runtime, address)
        is_start = submission.status is Status.RUNNING
        with context.inside_hook(address, submission.submission_id, holds_lane=is_start):
            async with asyncio.timeout(runtime.settings.hook_seconds):
                await hooks.call(agent.on_submission_status, submission)
    except Exception:  # a user's hook may raise anything; the submission is not its business
        log.exception("hook.failed hook=%s submission=%s", _HOOK, submission.submission_id)


def _is_hooked(type_name: str) -> bool:
    return hooks.overrides(registry.get(type_name), _HOOK)
