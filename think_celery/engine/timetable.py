"""Look at an agent's schedules, run one now, pause and resume: what people and programs do with them."""

from datetime import timedelta
from uuid import uuid4

from think_celery.core.address import Address, check_text
from think_celery.core.schedule import next_occurrence, restore
from think_celery.core.timetable import (
    Degradation,
    LastOccurrence,
    Occurrence,
    OccurrenceState,
    ScheduleStatus,
    ScheduleView,
)
from think_celery.engine.reading import clamped, named
from think_celery.engine.runtime import Runtime
from think_celery.errors import OccurrenceOpen
from think_celery.ledger import occurrences, schedules
from think_celery.ledger.occurrences import OccurrenceRow
from think_celery.ledger.schedules import ScheduleRow

STEP = "scheduled-task-reconcile"
LIST_LIMIT = 1000
_TASK_LIMIT = 500
_TRIES = 5


def listing(
    runtime: Runtime,
    *,
    address: Address | None = None,
    type_name: str | None = None,
    task_id: str | None = None,
    limit: int = LIST_LIMIT,
) -> list[ScheduleView]:
    """Return tasks of one agent, of a class or of all, the next one due first; invalid ones come first."""
    found = schedules.listing(
        runtime.database, address=address, type_name=type_name, task_id=task_id, limit=limit
    )
    return [_view(row, last) for row, last in found]


def history(
    runtime: Runtime, address: Address, *, task: str | None = None, state: object = None, limit: int = 50
) -> list[Occurrence]:
    """Return an agent's occurrences, the youngest first.

    Args:
        task: Only of this task.
        state: One state or several; None gives all.
        limit: Clamped to 1…1000.

    Raises:
        InvalidInput: An unknown state, or a limit that is no whole number.
    """
    states = None if state is None else [str(each) for each in named("state", OccurrenceState, state)]
    bounded = clamped(limit, most=LIST_LIMIT)
    rows = occurrences.listing(runtime.database, address, task_id=task, states=states, limit=bounded)
    return [occurrence_of(row) for row in rows]


def run_now(runtime: Runtime, address: Address, task: str) -> Occurrence | None:
    """Have a task run once, beside its timetable, in a worker; None without such a task.

    Raises:
        OccurrenceOpen: It is a handler, which never runs twice at once, and an occurrence is open.
    """
    task_id = _task_id(task)
    ring = timedelta(seconds=runtime.settings.nudge_after_seconds)
    made = occurrences.run_now(runtime.database, address, task_id, manual_id=uuid4(), ring=ring)
    if made == "open":
        raise OccurrenceOpen(str(address), task_id)
    if isinstance(made, str):
        return None
    slot = made.slot
    runtime.dispatcher.nudge_occurrence(address, task_id, slot.scheduled_for, task_id=str(uuid4()))
    return occurrence_of(made)


def pause(runtime: Runtime, address: Address, task: str, *, paused: bool) -> bool | None:
    """Pause or resume a task; False when it already was so, None without such a task.

    A resumed task goes on with its next due instant: what was due meanwhile is left out.
    """
    task_id = _task_id(task)
    for _ in range(_TRIES):
        now, row = schedules.find(runtime.database, address, task_id)
        if row is None:
            return None
        following = None
        if not paused and row.declared is not None and row.next_run_at is not None:
            following = row.next_run_at
            if following <= now:
                declared = row.declared
                stored = restore(declared.kind, declared.schedule, declared.timezone)
                following = next_occurrence(stored, now=now, previous=row.next_run_at)
        outcome = schedules.switch(runtime.database, row, paused=paused, next_run_at=following)
        if outcome != "moved":
            return None if outcome == "not_found" else outcome == "changed"
    return False


def degradations(runtime: Runtime, address: Address) -> list[Degradation]:
    """Return what an agent's start could not do: read its declarations, or use one of them."""
    error = schedules.degraded(runtime.database, address)
    whole = [] if error is None else [Degradation(step=STEP, error=error)]
    _, found = schedules.of_agents(runtime.database, address.type_name, [address.name])
    rows = sorted(found[address.name], key=lambda row: row.task_id)
    return whole + [
        Degradation(step=STEP, error=row.invalid, task_id=row.task_id)
        for row in rows
        if row.invalid is not None
    ]


def occurrence_of(row: OccurrenceRow) -> Occurrence:
    """Return the public record of an occurrence."""
    return Occurrence(
        agent=str(row.slot.address),
        task_id=row.slot.task_id,
        scheduled_for=row.slot.scheduled_for,
        state=OccurrenceState(row.state),
        manual=row.manual_id is not None,
        late_by_ms=row.late_ms,
        missed_count=row.missed_count,
        latest_missed_for=row.latest_missed_for,
        attempts=row.attempts,
        submission_id=row.submission_id,
        submission_status=row.submission_status,
        error=row.error,
        created_at=row.created_at,
        started_at=row.started_at,
        finished_at=row.finished_at,
    )


def _view(row: ScheduleRow, last: schedules.LastOccurrence | None) -> ScheduleView:
    declared = row.declared
    shown = {} if declared is None else {name: getattr(declared, name) for name in _SHOWN}
    return ScheduleView(
        agent=str(row.address),
        task_id=row.task_id,
        status=_status(row),
        reason=row.invalid,
        next_run_at=row.next_run_at,
        due_at=row.due_at,
        last=None if last is None else _last(last),
        **shown,
    )


_SHOWN = ("kind", "schedule", "timezone", "action", "overlap", "missed", "grace_seconds")


def _last(last: schedules.LastOccurrence) -> LastOccurrence:
    return LastOccurrence(
        scheduled_for=last.scheduled_for,
        state=OccurrenceState(last.state),
        late_by_ms=last.late_ms,
        missed_count=last.missed_count,
        submission_id=last.submission_id,
        submission_status=last.submission_status,
        error=last.error,
    )


def _status(row: ScheduleRow) -> ScheduleStatus:
    if row.invalid is not None:
        return ScheduleStatus.INVALID
    return ScheduleStatus.PAUSED if row.paused else ScheduleStatus.ACTIVE


def _task_id(task: str) -> str:
    return check_text("task", task, limit=_TASK_LIMIT)
