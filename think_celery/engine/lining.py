"""Decide what an agent's declarations change of its stored schedules (C 2.3)."""

from collections.abc import Sequence
from datetime import datetime

from think_celery.core.schedule import ScheduleKind, next_occurrence
from think_celery.engine.declaring import Reading, Task
from think_celery.ledger.declarations import Change
from think_celery.ledger.schedules import ScheduleRow


def changes(reading: Reading, rows: Sequence[ScheduleRow], *, now: datetime) -> list[Change]:
    """Return what has to be written, nothing for tasks that are stored as they are declared."""
    stored = {row.task_id: row for row in rows}
    found = [_put(task, stored.get(task_id), now) for task_id, task in reading.tasks.items()]
    found += [_bad(task_id, reason, stored.get(task_id)) for task_id, reason in reading.bad.items()]
    gone = stored.keys() - reading.tasks.keys() - reading.bad.keys()
    found += [Change("drop", task_id, stored[task_id].generation) for task_id in sorted(gone)]
    return [change for change in found if change is not None]


def _put(task: Task, row: ScheduleRow | None, now: datetime) -> Change | None:
    generation = None if row is None else row.generation
    following = next_occurrence(task.schedule, now=now.replace(microsecond=0))
    if following <= now:
        following = next_occurrence(task.schedule, now=now)
    stored = None if row is None else row.declared
    if row is None or row.next_run_at is None or stored is None:
        return Change("put", task.task_id, generation, task.declared, following)
    if stored.schedule_hash != task.declared.schedule_hash:
        return Change("put", task.task_id, generation, task.declared, following, fresh=True)
    if stored == task.declared and row.invalid is None:
        return None
    other_rules = stored.tzdata_version != task.declared.tzdata_version
    recomputed = other_rules and task.schedule.kind is not ScheduleKind.INTERVAL and row.next_run_at > now
    return Change("put", task.task_id, generation, task.declared, following if recomputed else None)


def _bad(task_id: str, reason: str, row: ScheduleRow | None) -> Change | None:
    if row is not None and row.invalid == reason:
        return None
    return Change("bad", task_id, None if row is None else row.generation, reason=reason)
