"""The tasks: three lines each, registered by name into whichever app carries them."""

from datetime import datetime
from typing import Any
from uuid import UUID

from celery import Celery, Task

from think_celery.core.address import Address
from think_celery.dispatch import RUN_OCCURRENCE, RUN_TURN
from think_celery.engine import arming, occurrence, schedules
from think_celery.engine.drain import drain
from think_celery.engine.prune import prune as prune_ledger
from think_celery.engine.sweep import sweep as sweep_ledger
from think_celery.errors import ServiceError
from think_celery.ledger.occurrences import Slot
from think_celery.worker.beat import DISPATCH_DUE, PRUNE, RECONCILE, SWEEP
from think_celery.worker.process import current_runtime

NAMES = frozenset({RUN_TURN, RUN_OCCURRENCE, SWEEP, PRUNE, DISPATCH_DUE, RECONCILE})

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


def dispatch_due() -> str:
    """Give every due instant its occurrence."""
    runtime = current_runtime()
    return str(schedules.answer_tick(runtime))


def reconcile_schedules() -> str:
    """Compare the agents' schedules with what their classes declare."""
    runtime = current_runtime()
    return f"{arming.arm_classes(runtime, at_once=True)} agents compared"


def run_occurrence(type_name: str, name: str, task_id: str, scheduled_for: str) -> str:
    """Answer the bell of an occurrence that is a function or a handler."""
    slot = slot_of(type_name, name, task_id, scheduled_for)
    return occurrence.run(current_runtime(), slot)


def slot_of(type_name: str, name: str, task_id: str, scheduled_for: str) -> Slot:
    """Return the occurrence that a bell names; raises ValueError when it names none."""
    return Slot(Address(type_name, name), task_id, datetime.fromisoformat(scheduled_for))


def register(app: Celery) -> None:
    """Add the tasks to an app."""
    app.task(run_turn, name=RUN_TURN, **_OPTIONS)
    app.task(sweep, name=SWEEP, **_OPTIONS)
    app.task(prune, name=PRUNE, **_OPTIONS)
    app.task(dispatch_due, name=DISPATCH_DUE, **_OPTIONS)
    app.task(reconcile_schedules, name=RECONCILE, **_OPTIONS)
    app.task(run_occurrence, name=RUN_OCCURRENCE, **_OPTIONS)
