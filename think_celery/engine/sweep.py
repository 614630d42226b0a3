"""The periodic repair: rescue lanes of dead workers, ring lost bells, let idle queues go.

Safe to run anywhere, any number of times, at once: every repair states what it expects to find.
"""

import logging
import time
from dataclasses import dataclass

from think_celery.core.recovery import GiveUp, decide
from think_celery.engine import news, placing, webhooks
from think_celery.engine.runtime import Runtime
from think_celery.errors import ServiceError
from think_celery.ledger import endings, lanes, waits, workers
from think_celery.ledger.lanes import Orphan

log = logging.getLogger(__name__)
_BATCH = 500


@dataclass(frozen=True, slots=True)
class SweepReport:
    """What one pass did."""

    rescued: int
    rung: int
    dropped: int
    next_due_seconds: float | None = None
    """Until the next head that waits for its time may start; None when none waits."""

    def __str__(self) -> str:
        return f"{self.rescued} rescued, {self.rung} rung, {self.dropped} queues let go"


def sweep(runtime: Runtime) -> SweepReport:
    """Run one repair pass.

    Raises:
        LedgerUnavailable: PostgreSQL is away; the next pass tries again.
    """
    try:
        found = lanes.orphans(runtime.database)
    except ServiceError:
        runtime.view.lose()
        raise
    judge = runtime.view.gain(time.monotonic(), gap=_longest_gap(runtime)) >= runtime.settings.lease_seconds
    rescued = sum(_rescue(runtime, orphan) for orphan in found) if judge else 0
    placing.place_forgotten(runtime)
    _expire(runtime)
    webhooks.poke_if_due(runtime)
    due = lanes.due_bells(runtime.database, limit=_BATCH)
    for address in due:
        runtime.ring_lane(address)
    dropped = lanes.drop_idle(runtime.database)
    workers.forget_dead(runtime.database)
    waits.end_lost(runtime.database)
    return SweepReport(rescued, len(due), dropped, lanes.next_due(runtime.database))


def _longest_gap(runtime: Runtime) -> float:
    return max(3 * runtime.settings.sweep_seconds, runtime.settings.lease_seconds)


def _rescue(runtime: Runtime, orphan: Orphan) -> bool:
    decision = decide(applied=orphan.applied, starts=orphan.starts, max_starts=runtime.settings.max_starts)
    error = decision.error if isinstance(decision, GiveUp) else None
    row = lanes.rescue(runtime.database, orphan, error=error)
    if row is None:
        return False
    submission = row.submission
    log.warning("submission.rescued submission=%s status=%s", submission.submission_id, submission.status)
    news.ended_elsewhere(runtime, row)
    # Also for its status hook, which could be slow: repair must not wait for it.
    runtime.ring_lane(orphan.address)
    return True


def _expire(runtime: Runtime) -> None:
    """End what may not start any more in lanes that stand still: paused, waiting, or long at work."""
    for address in endings.late(runtime.database, limit=_BATCH):
        ended = endings.expire(runtime.database, address)
        news.ended(runtime, ended)
        if any(end.row.hook_due for end in ended):
            runtime.ring_lane(address)
