"""The tasks: three lines each, registered by name into whichever app carries them."""

from typing import Any
from uuid import UUID

from celery import Celery, Task

from think_celery.core.address import Address
from think_celery.dispatch import RUN_TURN
from think_celery.engine.drain import drain
from think_celery.engine.prune import prune as prune_ledger
from think_celery.engine.sweep import sweep as sweep_ledger
from think_celery.errors import ServiceError
from think_celery.worker.beat import PRUNE, SWEEP
from think_celery.worker.process import current_runtime

NAMES = frozenset({RUN_TURN, SWEEP, PRUNE})

_OPTIONS: dict[str, Any] = {
    # Said per task, so that the settings of the app around them do not matter (a team may want late
    # acknowledgement, results, rate limits or another base class for its own tasks).
    "base": Task,
    "shared": False,  # the default puts a task into every app of the process
    "serializer": "json",
    "acks_late": False,
    "reject_on_worker_lost": False,
    "ignore_result": True,
    "store_errors_even_if_ignored": False,
    "track_started": False,
    "send_events": True,
    "rate_limit": 0,
    "max_retries": 0,
    "trail": False,
    "throws": (ServiceError,),  # logged in one line: the sweeper rings again
}


def run_turn(type_name: str, name: str, uid: str | None = None) -> str:
    """Answer a bell: work off the lane of the agent, whichever row rang."""
    runtime = current_runtime()
    return drain(runtime, Address(type_name, name), rang=None if uid is None else UUID(uid))


def sweep() -> str:
    """Run one repair pass over the ledger."""
    runtime = current_runtime()
    return str(sweep_ledger(runtime))


def prune() -> str:
    """Delete records that are older than the retention."""
    runtime = current_runtime()
    return f"{prune_ledger(runtime)} deleted"


def register(app: Celery) -> None:
    """Add the tasks to an app."""
    app.task(run_turn, name=RUN_TURN, **_OPTIONS)
    app.task(sweep, name=SWEEP, **_OPTIONS)
    app.task(prune, name=PRUNE, **_OPTIONS)
