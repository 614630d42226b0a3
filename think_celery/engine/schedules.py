"""Give due instants their occurrences: the tick of beat, and of every worker when ticks stay away.

Safe to run anywhere, any number of times, at once: the step that fires an instant states what it expects to
find. Celery's beat knows no task's times; it only asks, and losing or repeating that is harmless.
"""

import logging
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from uuid import uuid4

from think_celery.agent import registry
from think_celery.core.address import Address
from think_celery.core.missed import decide_missed
from think_celery.engine import admit, arming, declaring, prompting, status_hooks
from think_celery.engine.declaring import Reading, Task
from think_celery.engine.prompting import Facts
from think_celery.engine.runtime import Runtime
from think_celery.errors import InvalidInput
from think_celery.ledger import occurrences, schedules, ticks
from think_celery.ledger.occurrences import Slot
from think_celery.ledger.schedules import Firing, ScheduleRow
from think_celery.ledger.submissions import Request
from think_celery.stream import witness

log = logging.getLogger(__name__)
TICK = "dispatch"
_BATCH = 200
_SECONDS = 4.0
_THREADS = 4
"""At work on one batch: most of the time is spent waiting for the servers."""
_GONE_BACK = timedelta(minutes=1)
"""A ledger whose last tick is so much older than the last that was seen has forgotten what was done since."""
_PAUSE = timedelta(seconds=5)
_LONG_PAUSE = timedelta(seconds=60)
_QUEUED = 10
"""Open occurrences of a task that lets them queue, at which it is held nevertheless."""


class DispatchReport:
    """What one dispatch did: outcomes of the instants that were due, and bells rung again."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.rung = 0

    def __str__(self) -> str:
        told = ", ".join(f"{count} {outcome}" for outcome, count in sorted(self.counts.items()))
        return f"{told or 'nothing due'}; {self.rung} rung again"


def answer_tick(runtime: Runtime) -> DispatchReport:
    """Dispatch, and note that the tick of a beat has come this far.

    Raises:
        LedgerUnavailable: PostgreSQL is away; the next tick tries again.
    """
    if not _stands_still(runtime):
        witness.note(runtime.settings, ticks.tick(runtime.database, TICK))
    return dispatch(runtime)


def look(runtime: Runtime) -> DispatchReport:
    """Dispatch if nobody has for two ticks' time; and ring where a bell or a worker was lost.

    Raises:
        LedgerUnavailable: PostgreSQL is away.
    """
    by = timedelta(seconds=2 * runtime.settings.schedule_seconds)
    if ticks.is_overdue(runtime.database, registry.known(), by=by):
        return dispatch(runtime)
    report = DispatchReport()
    report.rung = 0 if _stands_still(runtime) else _ring_again(runtime)
    return report


def dispatch(runtime: Runtime, *, now: datetime | None = None, seconds: float = _SECONDS) -> DispatchReport:
    """Fire what is due for the classes of this process, and ring again for occurrences that nobody runs.

    Nothing is fired while the ledger seems to be a restored backup, until somebody confirms it.

    Args:
        now: Instead of the database's time, to decide which due instants were missed.
        seconds: Stop after so long; the next tick goes on.
    """
    report, end = DispatchReport(), time.monotonic() + seconds
    if _stands_still(runtime):
        report.counts["halted"] = 1
        return report
    status_hooks.declare(runtime)
    while not runtime.draining.is_set() and time.monotonic() < end:
        at, rows = schedules.due(runtime.database, registry.known(), limit=_BATCH)
        counts = _fire_all(runtime, rows, now or at, end)
        report.counts.update(counts)
        if len(rows) < _BATCH or not counts:
            break
    report.rung = _ring_again(runtime)
    return report


def go_on(runtime: Runtime) -> bool:
    """Let schedules go on after the ledger has gone back in time; False when they did not stand still."""
    if not ticks.resume(runtime.database):
        return False
    witness.note(runtime.settings, ticks.tick(runtime.database, TICK))
    return True


def _stands_still(runtime: Runtime) -> bool:
    """True while the ledger seems to be a restored backup and nobody has confirmed that."""
    at = ticks.ticked(runtime.database)
    if ticks.HALTED in at:
        return True
    if TICK not in at:
        return False
    seen = witness.seen(runtime.settings)
    if seen is None or seen - at[TICK] <= _GONE_BACK:
        return False
    log.error("schedules.halted ledger_at=%s seen_at=%s: restored from a backup?", at[TICK], seen)
    ticks.tick(runtime.database, ticks.HALTED)
    return True


def _fire_all(runtime: Runtime, rows: Sequence[ScheduleRow], now: datetime, end: float) -> "Counter[str]":
    agents: dict[Address, list[ScheduleRow]] = defaultdict(list)
    for row in rows:
        agents[row.address].append(row)
    readings = runtime.loop.run(declaring.read_all(runtime, agents)) if rows else {}

    def fire(address: Address) -> list[str]:
        # One agent's tasks in the order in which they were due.
        due = (row for row in agents[address] if time.monotonic() < end)
        return [_fire(runtime, row, readings[address], now) for row in due]

    with ThreadPoolExecutor(_THREADS, thread_name_prefix="think-dispatch") as pool:
        return Counter(outcome for outcomes in pool.map(fire, agents) for outcome in outcomes)


def _fire(runtime: Runtime, row: ScheduleRow, reading: Reading, now: datetime) -> str:
    task = reading.tasks.get(row.task_id)
    if task is None or row.declared is None or task.declared.schedule_hash != row.declared.schedule_hash:
        return _bring_in_line(runtime, row, reading)
    firing = _firing(runtime, row, task, now)
    fired = schedules.fire(
        runtime.database,
        row,
        firing,
        pause=_PAUSE,
        ring=timedelta(seconds=runtime.settings.nudge_after_seconds),
    )
    if fired.acceptance is not None:
        admit.ring(runtime, fired.acceptance)
    elif fired.outcome == "due":
        _ring(runtime, Slot(row.address, row.task_id, firing.scheduled_for))
    return fired.outcome


def _firing(runtime: Runtime, row: ScheduleRow, task: Task, now: datetime) -> Firing:
    assert row.next_run_at is not None, "a task that is due has its instant"
    late = decide_missed(
        task.schedule,
        slot=row.next_run_at,
        now=now,
        policy=task.declared.missed,
        grace_seconds=task.declared.grace_seconds,
    )
    facts = Facts(row.address, late.scheduled_for, late.late_ms, late.missed_count, late.latest_missed_for)
    return Firing(
        scheduled_for=late.scheduled_for,
        state="due" if late.runs else "missed",
        late_ms=late.late_ms,
        missed_count=late.missed_count,
        latest_missed_for=late.latest_missed_for,
        next_run_at=late.next_run_at,
        overlap=task.declared.overlap,
        most=_QUEUED if task.declared.overlap == "queue" else 1,
        request=_literal(runtime, task, facts) if late.runs else None,
    )


def _literal(runtime: Runtime, task: Task, facts: Facts) -> Request | None:
    """Return the submission of a literal prompt; None for what has to be run first."""
    if not isinstance(task.task.prompt, str):
        return None
    try:
        return prompting.request_of(runtime, task, facts, task.task.prompt)
    except InvalidInput:
        return None  # the occurrence is run, fails, and shows why


def _bring_in_line(runtime: Runtime, row: ScheduleRow, reading: Reading) -> str:
    """The row is not as the code of now declares it: compare the agent, and look again if that is no help."""
    if reading.error is not None:
        log.warning("schedules.unreadable agent=%s error=%s", row.address, reading.error)
    arming.bring_in_line(runtime, row.address, reading)
    schedules.hold(runtime.database, row, pause=_LONG_PAUSE if reading.error is not None else _PAUSE)
    return "compared"


def _ring_again(runtime: Runtime) -> int:
    ring = timedelta(seconds=runtime.settings.nudge_after_seconds)
    found = occurrences.due(runtime.database, registry.known(), ring=ring, limit=_BATCH)
    for slot, given_up in found:
        if given_up:
            log.error("occurrence.given_up agent=%s task=%s", slot.address, slot.task_id)
        else:
            _ring(runtime, slot)
    return len(found)


def _ring(runtime: Runtime, slot: Slot) -> None:
    runtime.dispatcher.nudge_occurrence(slot.address, slot.task_id, slot.scheduled_for, task_id=str(uuid4()))
