"""Delete records of submissions that ended long ago, when a retention is set."""

from datetime import timedelta

from think_celery.engine.runtime import Runtime
from think_celery.ledger import endings


def prune(runtime: Runtime) -> int:
    """Delete what is older than the retention, batch by batch, and return how many; messages stay.

    Raises:
        LedgerUnavailable: PostgreSQL is away; the next tick goes on.
    """
    if runtime.settings.retention_days == 0:
        return 0
    older_than = timedelta(days=runtime.settings.retention_days)
    total = 0
    while not runtime.draining.is_set() and (count := endings.prune(runtime.database, older_than=older_than)):
        total += count
    return total
