"""The table of `celery beat`: ticks only. Whoever answers one reads from the ledger what is due."""

from typing import Any

from think_celery.settings import Settings

SWEEP = "think.sweep"
MAINTENANCE_QUEUE = "think"


def beat_entries(settings: Settings) -> dict[str, dict[str, Any]]:
    """Return the entries by name; any number of beats may run them.

    A tick expires after twice its interval, so that a fleet that was away does not work off old ones.
    """
    return {
        SWEEP: {
            "task": SWEEP,
            "schedule": settings.sweep_seconds,
            "options": {
                "queue": MAINTENANCE_QUEUE,
                "expires": 2 * settings.sweep_seconds,
                "ignore_result": True,
                "retry": False,
            },
        }
    }
