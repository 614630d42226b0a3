"""Delete records of submissions and occurrences that ended long ago, when a retention is set."""

from datetime import timedelta
from functools import partial

from think_celery.engine.runtime import Runtime
from think_celery.ledger import endings, occurrences

_LONGER = timedelta(days=7)
"""Occurrences outlast the submissions that they point to."""


def prune(runtime: Runtime) -> int:
    """Delete what is older than the retention, batch by batch, and return how many; messages stay.

    Raises:
        LedgerUnavailable: PostgreSQL is away; the next tick goes on.
    """
    if runtime.settings.retention_days == 0:
        return 0
    older_than = timedelta(days=runtime.settings.retention_days)
    batches = (
        partial(endings.prune, runtime.database, older_than=older_than),
        partial(occurrences.prune, runtime.database, older_than=older_than + _LONGER),
    )
    total = 0
    for batch in batches:
        while not runtime.draining.is_set() and (count := batch()):
            total += count
    return total
