"""When times of day on local dates come, as instants, while clocks are put forward and back (C 1.6).

All arithmetic is done on instants in UTC: a `timedelta` added to a local time moves the hands, not the time.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from itertools import count
from zoneinfo import ZoneInfo

from think_celery.core.zone import instants_of, local_reading

_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True, eq=False)
class Timetable:
    """Times of day on certain local dates of a zone.

    A time in a gap comes when the gap ends, unless that is another date. One in an overlap comes once, first.

    Attributes:
        zone: Whose clocks are read.
        includes: Which dates.
        times: Since midnight on the clock, ascending, whole minutes.
        every_hour: The times are those of every hour of the day. Then they mean hours that pass, not readings
            of a clock: they come again in a repeated hour, and nothing stands for those of a skipped one.
    """

    zone: ZoneInfo
    includes: Callable[[date], bool]
    times: tuple[timedelta, ...]
    every_hour: bool = False

    def after(self, at: datetime) -> datetime:
        """Return the first instant later than `at`; the dates must not end."""
        near = self._near(at)
        place = bisect_right(near, at)
        if place < len(near):
            return near[place]
        following = self._date(at) + 2 * _DAY
        days = (self._on(following + days * _DAY) for days in count())
        return next(instants[0] for instants in days if instants)

    def last(self, since: datetime, until: datetime) -> datetime:
        """Return the last instant between `since` and `until`, or at `until`; `since` if there is none."""
        near = self._near(until)
        place = bisect_right(near, until)
        day = self._date(until) - 2 * _DAY
        while not place and day >= self._date(since):
            near = self._on(day)
            place = len(near)
            day -= _DAY
        return max(since, near[place - 1]) if place else since

    def count(self, since: datetime, until: datetime) -> int:
        """Return how many instants are later than `since` and not later than `until`."""
        first = self._date(since) - _DAY
        days = (self._date(until) - first).days + 2
        instants = (self._on(first + day * _DAY) for day in range(days))
        return sum(bisect_right(each, until) - bisect_right(each, since) for each in instants)

    def _date(self, at: datetime) -> date:
        return local_reading(at, self.zone).date()

    def _near(self, at: datetime) -> Sequence[datetime]:
        """The instants of three dates, in order: clocks put back over midnight make dates come twice."""
        day = self._date(at)
        return sorted(self._on(day - _DAY) + self._on(day) + self._on(day + _DAY))

    def _on(self, day: date) -> list[datetime]:
        """The instants of one date, in order."""
        if not self.includes(day):
            return []
        midnight = datetime.combine(day, time())
        offsets = {
            edge.replace(tzinfo=self.zone, fold=fold).utcoffset()
            for edge in (midnight, midnight + _DAY)
            for fold in (0, 1)
        }
        if len(offsets) == 1:  # no clock is changed on this date, nor put back to it from the next one
            start = midnight.replace(tzinfo=self.zone).astimezone(UTC)
            return [start + each for each in self.times]
        return sorted({at for each in self.times for at in self._at(midnight + each)})

    def _at(self, reading: datetime) -> Iterator[datetime]:
        if self.every_hour:
            yield from instants_of(reading, self.zone)
        else:
            at = first_reading(reading, self.zone)
            if self._date(at) == reading.date():
                yield at


def first_reading(reading: datetime, zone: ZoneInfo) -> datetime:
    """Return the first instant at which a clock shows a naive reading, or has just skipped it.

    >>> from think_celery.core.zone import load_zone
    >>> str(first_reading(datetime(2026, 3, 29, 1, 30), load_zone("Europe/London")))
    '2026-03-29 01:00:00+00:00'
    """
    shown = instants_of(reading, zone)
    if shown:
        return shown[0]
    # Read with the offset from after the gap it is an instant before the gap, and the other way round.
    before, behind = (reading.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (1, 0))
    seconds = range(int((behind - before).total_seconds()) + 1)
    gap = bisect_left(
        seconds, True, key=lambda each: local_reading(before + timedelta(seconds=each), zone) > reading
    )
    return before + timedelta(seconds=gap)
