"""Schedules as text: read once to a value, asked for the instants at which they are due (C 1.3 to 1.6).

>>> daily = parse("every day at 09:00 in Europe/London")
>>> str(next_occurrence(daily, now=datetime(2026, 3, 28, 12, tzinfo=UTC)))
'2026-03-29 08:00:00+00:00'
"""

import re
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from hashlib import sha256
from json import dumps
from typing import Any, NoReturn

from think_celery.core.cron import Cron, CronFields
from think_celery.core.failure import shown
from think_celery.core.record import Record
from think_celery.core.wallclock import Timetable
from think_celery.core.zone import find_zone, load_zone, same_zone
from think_celery.errors import InvalidInput, InvalidSchedule, ScheduleFault

LONGEST_INTERVAL = timedelta(days=366)
_DAY_NAMES = ("sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday")
_DAYS = {name[:length]: number for number, name in enumerate(_DAY_NAMES) for length in (3, len(name))}
_DAILY = tuple(range(7))
_WEEKDAYS = tuple(range(1, 6))

_ZONED = re.compile(r"(.+) in ([a-z_][a-z0-9_+/-]*)")
_INTERVAL = re.compile(r"every ([1-9][0-9]*) (minutes?|hours?)")
_WALL = re.compile(r"every (?:(day)|(weekday)|week on (.+)) at ([^ ]+)")
_TIME = re.compile(r"([0-2][0-9]):([0-5][0-9])")


class ScheduleKind(StrEnum):
    """How a schedule says when."""

    INTERVAL = "interval"
    WALL_CLOCK = "wall-clock"
    CRON = "cron"


class Schedule(Record):
    """When a task is due, as `parse` has read it."""

    kind: ScheduleKind
    normalized: str
    """The text in lower case with single spaces and without the zone; days as their author wrote them."""
    timezone: str | None = None
    """A name of the zone database; absent for an interval."""
    interval_seconds: int | None = None
    hour: int | None = None
    minute: int | None = None
    days: tuple[int, ...] | None = None
    """Of a wall-clock schedule, in order: 0 for Sunday to 6 for Saturday."""

    @property
    def hash(self) -> str:
        """Equal for schedules that are due at the same times, however they are written (C 2.1)."""
        meaning = self.to_json() | {"normalized": None}
        if self.kind is ScheduleKind.CRON:
            meaning["cron"] = _fields(self.normalized).meaning()
        return digest(meaning)


def digest(value: Any) -> str:
    """Return 32 hexadecimal digits for a JSON value, whatever the order of its keys."""
    return sha256(dumps(value, sort_keys=True, ensure_ascii=False).encode()).hexdigest()[:32]


def parse(text: str | Cron, *, timezone: str | None = None, default_timezone: str | None = None) -> Schedule:
    """Read the text of a schedule.

    Args:
        text: `every 5 minutes`, `every 2 hours`, `every day at 09:00`, `every weekday at 09:00` or
            `every week on mon,fri at 09:00`, in any case and spacing; all but intervals may end in a zone,
            such as `in Europe/London`. Or what `cron` returned.
        timezone: The task's zone; empty for none, not even the default.
        default_timezone: The zone of tasks that name none; empty or None when there is none.

    Raises:
        InvalidSchedule: The first of the faults of C 1.5, in their order.
    """
    default = find_zone(default_timezone) if default_timezone else None
    body, inline = _split(text)
    if inline and timezone:
        _check_same(inline, timezone)
    interval = None if isinstance(text, Cron) else _INTERVAL.fullmatch(body)
    if interval:
        if inline or timezone:
            problem = "Interval schedules cannot specify a timezone; they count time that passes"
            raise InvalidSchedule("INTERVAL_TIMEZONE", problem)
        return _interval(body, *interval.groups())
    named = inline or (default if timezone is None else timezone)
    if not named:
        _refuse_without_zone(text, body)
    zone = find_zone(named)
    if isinstance(text, Cron):
        _fields(body)
        return Schedule(kind=ScheduleKind.CRON, normalized=body, timezone=zone)
    return _wall_clock(body, zone)


def restore(kind: str, normalized: str, timezone: str | None) -> Schedule:
    """Return a schedule from what is stored of it.

    Raises:
        InvalidSchedule: This version cannot read it.
    """
    return parse(Cron(normalized) if kind == ScheduleKind.CRON else normalized, timezone=timezone)


def next_occurrence(schedule: Schedule, *, now: datetime, previous: datetime | None = None) -> datetime:
    """Return the first due instant later than `now`, in UTC.

    Args:
        schedule: What `parse` returned.
        now: Aware.
        previous: The due instant before, which may lie ahead of `now`. An interval keeps its phase and is due
            one interval from now without it; other schedules are due later than it.

    Raises:
        InvalidInput: A time without an offset.
        InvalidSchedule: The zone is not known here.
    """
    at = _utc("now", now)
    before = None if previous is None else _utc("previous", previous)
    if schedule.interval_seconds is None:
        return _timetable(schedule).after(at if before is None else max(at, before))
    step = timedelta(seconds=schedule.interval_seconds)
    if before is None:
        return at + step
    return before + max(1, (at - before) // step + 1) * step


def occurrences(schedule: Schedule, *, after: datetime, count: int) -> list[datetime]:
    """Return the next `count` due instants, of an interval as if it was first seen at `after`."""
    found: list[datetime] = []
    for _ in range(count):
        found.append(next_occurrence(schedule, now=after, previous=found[-1] if found else None))
    return found


def last_occurrence(schedule: Schedule, *, since: datetime, until: datetime) -> datetime:
    """Return the last due instant not later than `until`; `since` is one, and the answer when alone."""
    if until <= since:
        return since
    if schedule.interval_seconds is None:
        return _timetable(schedule).last(since, until)
    step = timedelta(seconds=schedule.interval_seconds)
    return since + (until - since) // step * step


def count_occurrences(schedule: Schedule, *, since: datetime, until: datetime) -> int:
    """Return how many due instants come after one of them, the last one not later than `until`."""
    if until <= since:
        return 0
    if schedule.interval_seconds is None:
        return _timetable(schedule).count(since, until)
    return (until - since) // timedelta(seconds=schedule.interval_seconds)


def _split(text: object) -> tuple[str, str | None]:
    """Return what is left of a text in lower case with single spaces, and the zone that it ends in."""
    plain = text.expression if isinstance(text, Cron) else text
    if not isinstance(plain, str):
        raise InvalidSchedule("UNSUPPORTED", f"Unsupported schedule DSL: a {type(plain).__name__} is no text")
    body = " ".join(plain.split()).lower()
    zoned = _ZONED.fullmatch(body)
    return (zoned[1], zoned[2]) if zoned else (body, None)


def _check_same(inline: str, timezone: str) -> None:
    if not same_zone(find_zone(inline), find_zone(timezone)):
        problem = f"Schedule timezone {shown(inline)} does not match the task's timezone {shown(timezone)}"
        raise InvalidSchedule("TIMEZONE_MISMATCH", problem)


def _interval(body: str, count: str, unit: str) -> Schedule:
    if count == "1" and unit.endswith("s"):
        raise InvalidSchedule("UNIT_SINGULAR", f"Use the singular unit for 1: every 1 {unit[:-1]}")
    if count != "1" and not unit.endswith("s"):
        raise InvalidSchedule("UNIT_PLURAL", f"Use the plural unit for {shown(count)}: {unit}s")
    length = timedelta(minutes=1) if unit.startswith("minute") else timedelta(hours=1)
    longest = LONGEST_INTERVAL // length
    if len(count) > len(str(longest)) or int(count) > longest:
        _unsupported(
            body, f"an interval is at most {longest:,} {unit}, which are {LONGEST_INTERVAL.days} days"
        )
    seconds = int(count) * int(length.total_seconds())
    return Schedule(kind=ScheduleKind.INTERVAL, normalized=body, interval_seconds=seconds)


def _refuse_without_zone(text: str | Cron, body: str) -> NoReturn:
    if isinstance(text, Cron):
        _fields(body)
    elif not (wall := _WALL.fullmatch(body)) or not _TIME.fullmatch(wall[4]):
        _unsupported(body)
    problem = f"Schedule {shown(body)} requires a timezone: set the task's, a default, or end it in one"
    raise InvalidSchedule("TIMEZONE_REQUIRED", problem)


def _wall_clock(body: str, zone: str) -> Schedule:
    wall = _WALL.fullmatch(body)
    if not wall:
        _unsupported(body)
    daily, weekday, names, at = wall.groups()
    form = f"every {daily or weekday}"
    days = _DAILY if daily else _WEEKDAYS
    if names:
        spelled = [name.strip() for name in names.split(",")]
        form, days = f"every week on {','.join(spelled)}", _week_days(spelled)
    hour, minute = _time_of_day(body, at)
    return Schedule(
        kind=ScheduleKind.WALL_CLOCK,
        normalized=f"{form} at {at}",
        timezone=zone,
        hour=hour,
        minute=minute,
        days=days,
    )


def _week_days(names: list[str]) -> tuple[int, ...]:
    days: set[int] = set()
    for name in names:
        day = _DAYS.get(name)
        if day is None:
            problem = f"Invalid schedule day {shown(name)}; write mon,wed or monday,wednesday"
            raise InvalidSchedule("DAY_INVALID", problem)
        if day in days:
            raise InvalidSchedule("DAY_DUPLICATE", f"Duplicate schedule day {shown(name)}")
        days.add(day)
    return tuple(sorted(days))


def _time_of_day(body: str, at: str) -> tuple[int, int]:
    time = _TIME.fullmatch(at)
    if not time:
        _unsupported(body)
    if int(time[1]) > 23:
        raise InvalidSchedule("TIME_INVALID", f"Invalid schedule time {shown(at)}; it is 00:00 to 23:59")
    return int(time[1]), int(time[2])


def _unsupported(body: str, why: str = "") -> NoReturn:
    code: ScheduleFault = "UNSUPPORTED"
    known = why or (
        "write every 5 minutes, every 2 hours, every day at 09:00, every weekday at 09:00, "
        "or every week on mon,fri at 09:00; cron text goes into cron(...)"
    )
    raise InvalidSchedule(code, f"Unsupported schedule DSL {shown(body)}: {known}")


def _utc(field: str, at: datetime) -> datetime:
    if at.tzinfo is None:
        raise InvalidInput(field, "must have an offset from UTC; use datetime.now(UTC)")
    return at.astimezone(UTC)


@lru_cache(maxsize=1000)
def _fields(body: str) -> CronFields:
    return CronFields(body)


@lru_cache(maxsize=1000)
def _timetable(schedule: Schedule) -> Timetable:
    zone = load_zone(schedule.timezone or "")
    if schedule.kind is ScheduleKind.CRON:
        fields = _fields(schedule.normalized)
        return Timetable(zone, fields.includes, fields.times, every_hour=fields.every_hour)
    days = frozenset(schedule.days or ())

    def includes(day: date) -> bool:
        return day.isoweekday() % 7 in days

    return Timetable(zone, includes, (timedelta(hours=schedule.hour or 0, minutes=schedule.minute or 0),))
