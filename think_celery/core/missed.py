"""Which of several due instants is run when a task comes late (C 4.5); never all of them."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from think_celery.core.schedule import Schedule, count_occurrences, last_occurrence, next_occurrence

_MOMENT = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Late:
    """What to do with a due instant, and with those that came after it in the meantime.

    Attributes:
        scheduled_for: The due instant to record.
        runs: False when it is only recorded, as missed.
        late_ms: How long ago it was.
        missed_count: How many others it stands for.
        latest_missed_for: The youngest of those, None without any.
        next_run_at: The due instant to look at next. It is one that has come already when the slot was missed
            by too much and this one was not.
    """

    scheduled_for: datetime
    runs: bool
    late_ms: int
    missed_count: int
    latest_missed_for: datetime | None
    next_run_at: datetime


def decide_missed(
    schedule: Schedule, *, slot: datetime, now: datetime, policy: str, grace_seconds: float
) -> Late:
    """Decide what a task that is due does.

    Args:
        slot: The instant for which it was armed.
        now: Not before that; an earlier time counts as the slot's own.
        policy: `once` runs the slot, `latest` the youngest due instant instead, `skip` nothing that is late
            by more than the grace time.
        grace_seconds: For `skip`.
    """
    now = max(now, slot)
    newest, following = slot, next_occurrence(schedule, now=slot, previous=slot)
    if following <= now:
        newest = last_occurrence(schedule, since=slot, until=now)
        following = next_occurrence(schedule, now=now, previous=newest)
    grace = timedelta(seconds=grace_seconds)
    chosen, runs, until = slot, True, newest
    if policy == "latest":
        chosen, until = newest, max(slot, newest - _MOMENT)
    elif policy == "skip" and now - slot > grace:
        runs = False
        if now - newest <= grace:
            following, until = newest, newest - _MOMENT
    youngest = last_occurrence(schedule, since=slot, until=until)
    return Late(
        scheduled_for=chosen,
        runs=runs,
        late_ms=(now - chosen) // timedelta(milliseconds=1),
        missed_count=count_occurrences(schedule, since=slot, until=until) + (chosen != slot),
        latest_missed_for=None if youngest == chosen else youngest,
        next_run_at=following,
    )
