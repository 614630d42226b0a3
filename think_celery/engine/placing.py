"""Rows that came inside a caller's own transaction: written there, placed and rung once it has committed."""

import logging
import threading
from datetime import timedelta
from typing import Any
from uuid import UUID

from think_celery.core.address import Address
from think_celery.core.backoff import delay_seconds
from think_celery.core.routing import nudge_id
from think_celery.engine import status_hooks
from think_celery.engine.blocking import in_thread
from think_celery.engine.runtime import Runtime
from think_celery.errors import ServiceError
from think_celery.ledger import caller, submissions
from think_celery.ledger.submissions import Acceptance, Request

log = logging.getLogger(__name__)
_TRIES = 8
_LEFT_TO_SWEEPER = timedelta(seconds=2)
_BATCH = 500


def reserve(runtime: Runtime, connection: Any, request: Request) -> Acceptance:
    """Write the row through the caller's connection; its place, hook and bell follow the commit."""
    through = caller.connection_of(connection)
    acceptance = submissions.reserve(runtime.database, through, request)
    if acceptance.accepted:
        address, uid = request.address, request.identity.uid
        caller.after_commit(connection, lambda: _soon(runtime, address, uid))
    return acceptance


def place(runtime: Runtime, address: Address, uid: UUID, *, tell_here: bool = True) -> bool:
    """Give a committed row its place and ring; False while it is not visible.

    Args:
        tell_here: Call the status hook; False leaves it to the worker that is rung.
    """
    hold = status_hooks.hold(runtime, address) if tell_here else None
    row = submissions.place(runtime.database, address, uid=uid, tell=not tell_here, hold=hold)
    if row is None:
        return False
    if tell_here:
        status_hooks.tell(runtime, address, row.submission)
    if hold is not None:
        submissions.release(runtime.database, uid)
    runtime.dispatcher.nudge(address, uid, task_id=nudge_id(uid, row.nudges), announce=True)
    return True


def place_forgotten(runtime: Runtime) -> int:
    """Place rows whose producer did not come to it; the net under `reserve`. Returns how many."""
    forgotten = submissions.unplaced(runtime.database, older_than=_LEFT_TO_SWEEPER, limit=_BATCH)
    return sum(place(runtime, address, uid, tell_here=False) for address, uid in forgotten)


def _soon(runtime: Runtime, address: Address, uid: UUID) -> None:
    """In a thread of its own: the commit may come a moment after its event, and the hook takes its time."""
    runtime.loop.send_off(in_thread(_try, runtime, address, uid))


def _try(runtime: Runtime, address: Address, uid: UUID) -> None:
    pause = threading.Event()
    for tries in range(1, _TRIES + 1):
        try:
            if place(runtime, address, uid):
                return
        except ServiceError as error:
            log.warning("submission.not_placed uid=%s error=%s", uid, error)
            return
        if pause.wait(delay_seconds(tries, base=0.005, limit=0.2)) or runtime.closing.is_set():
            return
