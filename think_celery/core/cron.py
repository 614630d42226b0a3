"""Cron text, read by cronsim; when its times come is decided here like for every other schedule."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

from cronsim import CronSim, CronSimError

from think_celery.core.failure import shown
from think_celery.errors import InvalidSchedule

_FIELDS = 5
_LENGTH_LIMIT = 200
_START = datetime(2001, 1, 1, tzinfo=UTC)
# After so many years dates fall on the same days of the week again.
_CYCLE_DAYS = 28 * 365 + 7


@dataclass(frozen=True, slots=True)
class Cron:
    """Cron text, to be given where the text of a schedule is expected; made by `cron`."""

    expression: str


def cron(expression: str) -> Cron:
    """Return a schedule in cron's notation, for `ScheduledTask(schedule=...)`.

    Five fields as in Debian's cron: minute, hour, day of the month, month, day of the week; of the days one
    is enough if neither begins with `*`. `L`, `LW`, `fri#2` and `5L` are understood as well. The zone is the
    task's, as for other schedules, or stands at the end: `0 9 * * mon in Europe/London`.

    A time that clocks skip comes when they have been put forward; one that they repeat comes once. Where
    every hour is named, as in `*/15 * * * *`, all hours that pass are meant, repeated ones too.

    Mistakes are found where the task is looked at, so that one bad task harms only itself.
    """
    return Cron(expression)


class CronFields:
    """What a cron text names.

    Args:
        text: Lower case, without a zone.

    Attributes:
        times: Since midnight, ascending.
        every_hour: Times are named for all hours of a day.

    Raises:
        InvalidSchedule: Not five fields, a field that cron does not know, or dates that never come.
    """

    def __init__(self, text: str) -> None:
        if len(text) > _LENGTH_LIMIT or len(text.split()) != _FIELDS:
            raise _bad(text, "five fields are needed: minute, hour, day of the month, month, day of the week")
        try:
            self._read = CronSim(text, _START)
        except CronSimError as error:
            raise _bad(text, str(error)) from None
        minutes, hours = sorted(self._read.minutes), sorted(self._read.hours)
        self.times = tuple(timedelta(hours=hour, minutes=minute) for hour in hours for minute in minutes)
        self.every_hour = len(hours) == 24
        if not any(self.includes(_START.date() + timedelta(days=day)) for day in range(_CYCLE_DAYS)):
            raise _bad(text, "no such date ever comes")

    def includes(self, day: date) -> bool:
        """Return whether a date is one of those named."""
        return day.month in self._read.months and self._read.match_day(day)

    def meaning(self) -> list[Any]:
        """Return what is named, as a JSON value that is the same for every spelling of it."""
        read = self._read
        weekdays = {day % 7 if isinstance(day, int) else (day[0] % 7, day[1]) for day in read.weekdays}
        named: tuple[Iterable[Any], ...] = (read.minutes, read.hours, read.days, read.months, weekdays)
        return [*(sorted(each, key=str) for each in named), read.day_and]


def _bad(text: str, why: str) -> InvalidSchedule:
    return InvalidSchedule("CRON_INVALID", f"Invalid cron schedule {shown(text)}: {why}")
