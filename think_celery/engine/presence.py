"""This process' sign of life in the ledger."""

import logging

from think_celery.engine import status_hooks
from think_celery.engine.runtime import Runtime
from think_celery.errors import ServiceError
from think_celery.ledger import lanes, workers

log = logging.getLogger(__name__)


def beat(runtime: Runtime) -> None:
    """Renew this process' lease, and stop turns that the ledger no longer runs here.

    Must have succeeded once before the first claim.

    Raises:
        LedgerUnavailable: PostgreSQL is away; the next beat tries again.
    """
    status_hooks.declare(runtime)
    consumed = runtime.consumed.is_set()
    runtime.consumed.clear()
    workers.beat(runtime.database, runtime.worker, consumed=consumed)
    if runtime.running:
        held = lanes.held(runtime.database, runtime.worker_id)
        runtime.loop.loop.call_soon_threadsafe(runtime.running.compare, held)


def draining(runtime: Runtime) -> None:
    """Say that this process takes no further turns."""
    try:
        workers.drain(runtime.database, runtime.worker_id)
    except ServiceError as error:
        log.warning("worker.drain_failed error=%s", error)


def leave(runtime: Runtime) -> None:
    """Take this process off the ledger at an orderly end."""
    try:
        workers.leave(runtime.database, runtime.worker_id)
    except ServiceError as error:
        log.warning("worker.leave_failed error=%s", error)
