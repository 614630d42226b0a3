"""Stand-in until the core's own module is there."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from think_celery.core.cron import Cron
from think_celery.core.schedule import Schedule, count_occurrences, last_occurrence, next_occurrence


@dataclass(frozen=True, slots=True)
class Retry:
    max_attempts: int = 3
    base_delay_ms: float = 100
    max_delay_ms: float = 3000


@dataclass(frozen=True, slots=True)
class ScheduledTask:
    schedule: str | Cron
    timezone: str | None = None
    prompt: str | Callable[[], Any] | None = None
    handler: Callable[[Any], Any] | None = None
    retry: Any = Retry()
    metadata: Mapping[str, Any] | None = None
    overlap: str = "hold"
    missed: str = "once"
    misfire_grace_seconds: float = 60.0

    def __post_init__(self) -> None:
        if isinstance(self.retry, dict):
            object.__setattr__(self, "retry", Retry(**self.retry))


@dataclass(frozen=True, slots=True)
class ScheduleContext:
    task_id: str
    scheduled_for: datetime
    occurrence_key: str
    idempotency_key: str
    schedule: str
    schedule_kind: str
    timezone: str | None
    metadata: Mapping[str, Any] | None
    late_by_ms: int
    missed_count: int
    latest_missed_for: datetime | None


@dataclass(frozen=True, slots=True)
class Late:
    scheduled_for: datetime
    runs: bool
    late_ms: int
    missed_count: int
    latest_missed_for: datetime | None
    next_run_at: datetime


def decide_missed(
    schedule: Schedule, *, slot: datetime, now: datetime, policy: str, grace_seconds: float
) -> Late:
    newest = last_occurrence(schedule, since=slot, until=max(now, slot))
    count = count_occurrences(schedule, since=slot, until=max(now, slot))
    chosen = newest if policy == "latest" else slot
    late = max(timedelta(), now - chosen)
    runs = policy != "skip" or late <= timedelta(seconds=grace_seconds)
    following = next_occurrence(schedule, now=max(now, slot), previous=slot)
    return Late(chosen, runs, late // timedelta(milliseconds=1), count, newest if count else None, following)


def retry_delay(retry: Retry, attempt: int, *, share: float) -> float:
    return share * min(2**attempt * retry.base_delay_ms, retry.max_delay_ms) / 1000
