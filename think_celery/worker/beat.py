"""The table of `celery beat`: ticks only. Whoever answers one reads from the ledger what is due."""

from typing import Any

from think_celery.settings import Settings

SWEEP = "think.sweep"
PRUNE = "think.prune"
DISPATCH_DUE = "think.dispatch_due"
RECONCILE = "think.reconcile_schedules"
_PRUNE_SECONDS = 3600.0
MAINTENANCE_QUEUE = "think"


def beat_entries(settings: Settings) -> dict[str, dict[str, Any]]:
    """Return the entries by name; any number of beats may run them.

    A tick expires soon, so that a fleet that was away does not work off old ones.
    """
    entries = {
        SWEEP: _tick(SWEEP, settings.sweep_seconds),
        DISPATCH_DUE: _tick(DISPATCH_DUE, settings.schedule_seconds, expires=settings.schedule_seconds),
        RECONCILE: _tick(RECONCILE, settings.reconcile_seconds),
    }
    if settings.retention_days:
        entries[PRUNE] = _tick(PRUNE, _PRUNE_SECONDS)
    return entries


def _tick(task: str, seconds: float, *, expires: float | None = None) -> dict[str, Any]:
    options = {
        "queue": MAINTENANCE_QUEUE,
        "expires": expires or 2 * seconds,
        "ignore_result": True,
        "retry": False,
    }
    return {"task": task, "schedule": seconds, "options": options}
