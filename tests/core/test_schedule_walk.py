"""When schedules are due around changes of clocks, compared with a walk over every minute."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime, timedelta
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from think_celery.core.cron import cron
from think_celery.core.schedule import (
    Schedule,
    count_occurrences,
    last_occurrence,
    next_occurrence,
    occurrences,
    parse,
)
from think_celery.core.zone import load_zone, local_reading

MINUTE = timedelta(minutes=1)
DAY = timedelta(days=1)
BEFORE, AFTER = 3 * DAY, 9 * DAY
ZONES = {
    "Africa/Cairo": 2026, "Africa/Casablanca": 2026, "America/Asuncion": 2023, "America/Havana": 2026,
    "America/New_York": 2026, "America/Nuuk": 2026, "America/Santiago": 2026, "America/Sao_Paulo": 2018,
    "America/St_Johns": 2010, "Antarctica/Troll": 2026, "Asia/Amman": 2021, "Asia/Beirut": 2026,
    "Asia/Gaza": 2026, "Asia/Tehran": 2021, "Australia/Lord_Howe": 2026, "Europe/Chisinau": 2026,
    "Europe/Dublin": 2026, "Europe/London": 2026, "Pacific/Apia": 2011, "Pacific/Chatham": 2026,
}  # fmt: skip
"""Zones, and the first of two years in which their clocks are changed."""
DAY_NAMES = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
EVERY_DAY = frozenset(range(7))


@cache
def changes(zone: str) -> list[datetime]:
    """Return the instants at which the clocks of a zone are changed, to the minute."""
    rules, found = load_zone(zone), []
    start = datetime(ZONES[zone], 1, 1, tzinfo=UTC)

    def offset(instant: datetime) -> timedelta | None:
        return instant.astimezone(rules).utcoffset()

    for day in (start + number * DAY for number in range(2 * 365)):
        before = offset(day)
        if before != offset(day + DAY):
            minutes = range(24 * 60 + 1)
            place = bisect_left(minutes, True, key=lambda each: offset(day + each * MINUTE) != before)
            found.append(day + place * MINUTE)
    return found


Clock = dict[int, list[tuple[datetime, int]]]
"""By minutes since midnight: when clocks show that, and on which day of the week, 0 for Sunday."""


@cache
def shown(zone: str, change: datetime) -> Clock:
    """Return what clocks show at every minute of the days around a change."""
    clock: Clock = defaultdict(list)
    for instant, local in _minutes(zone, change):
        _note(clock, instant, local)
    return clock


@cache
def reached(zone: str, change: datetime) -> Clock:
    """Return for each local minute the first minute at which clocks show it, or a later one of the date."""
    clock: Clock = defaultdict(list)
    minutes = list(_minutes(zone, change))
    highest = minutes[0][1] - MINUTE
    for instant, local in minutes:
        while highest < local:
            highest += MINUTE
            if highest.date() == local.date():
                _note(clock, instant, highest)
    return clock


def _minutes(zone: str, change: datetime) -> Iterator[tuple[datetime, datetime]]:
    rules, start = load_zone(zone), change - BEFORE
    for number in range((BEFORE + AFTER) // MINUTE):
        instant = start + number * MINUTE
        yield instant, local_reading(instant, rules)


def _note(clock: Clock, instant: datetime, local: datetime) -> None:
    clock[local.hour * 60 + local.minute].append((instant, local.isoweekday() % 7))


def instants(clock: Clock, minutes: Iterable[int], days: frozenset[int]) -> list[datetime]:
    """Return when minutes of the day come on days of the week, in order and once each."""
    return sorted({instant for each in minutes for instant, day in clock[each] if day in days})


@st.composite
def moments(draw: st.DrawFn) -> tuple[str, datetime, datetime]:
    """A zone, a change of its clocks, and a time near that."""
    zone = draw(st.sampled_from(sorted(ZONES)))
    change = draw(st.sampled_from(changes(zone)))
    near = draw(st.integers(-150, 150) | st.integers(-2000, 2000)) * MINUTE
    return zone, change, change + near + timedelta(seconds=draw(st.sampled_from([0, 0, 1, 59])))


DAYS = st.frozensets(st.integers(0, 6), min_size=1) | st.just(EVERY_DAY)
MINUTES = st.frozensets(st.integers(0, 59), min_size=1, max_size=6)
HOURS = st.frozensets(st.integers(0, 23), min_size=1, max_size=8)


def compare(schedule: Schedule, expected: list[datetime], now: datetime) -> None:
    """Compare what comes next, what came last, and how many came."""
    later = [each for each in expected if each > now]
    assert occurrences(schedule, after=now, count=min(5, len(later))) == later[:5]
    assert not later or next_occurrence(schedule, now=now) == later[0]
    gone = [each for each in expected if each <= now]
    if gone:
        assert last_occurrence(schedule, since=gone[0], until=now) == gone[-1]
        assert count_occurrences(schedule, since=gone[0], until=now) == len(gone) - 1


@settings(max_examples=200, deadline=None)
@given(moments(), DAYS, st.integers(0, 24 * 60 - 1) | st.integers(0, 40).map(lambda five: five * 5))
def test_a_wall_clock_schedule(
    moment: tuple[str, datetime, datetime], days: frozenset[int], minute: int
) -> None:
    zone, change, now = moment
    named = ",".join(DAY_NAMES[day] for day in days)
    schedule = parse(f"every week on {named} at {minute // 60:02}:{minute % 60:02} in {zone}")
    compare(schedule, instants(reached(zone, change), [minute], days), now)


@settings(max_examples=100, deadline=None)
@given(moments(), MINUTES, HOURS)
def test_cron_text_with_certain_hours(
    moment: tuple[str, datetime, datetime], minutes: frozenset[int], hours: frozenset[int]
) -> None:
    zone, change, now = moment
    schedule = parse(cron(f"{','.join(map(str, minutes))} {','.join(map(str, hours))} * * *"), timezone=zone)
    times = [hour * 60 + minute for hour in hours for minute in minutes]
    compare(schedule, instants(reached(zone, change), times, EVERY_DAY), now)


@settings(max_examples=100, deadline=None)
@given(moments(), MINUTES, DAYS)
def test_cron_text_for_every_hour(
    moment: tuple[str, datetime, datetime], minutes: frozenset[int], days: frozenset[int]
) -> None:
    zone, change, now = moment
    schedule = parse(cron(f"{','.join(map(str, minutes))} * * * {','.join(map(str, days))}"), timezone=zone)
    times = [hour * 60 + minute for hour in range(24) for minute in minutes]
    compare(schedule, instants(shown(zone, change), times, days), now)


@pytest.mark.parametrize("zone", sorted(ZONES))
def test_every_minute_around_every_change(zone: str) -> None:
    """Daily times in steps of a quarter of an hour, looked at before and after the change."""
    for change in changes(zone):
        for minute in range(0, 24 * 60, 15):
            schedule = parse(f"every day at {minute // 60:02}:{minute % 60:02} in {zone}")
            expected = instants(reached(zone, change), [minute], EVERY_DAY)
            for now in (change - DAY, change - 31 * MINUTE, change + 31 * MINUTE):
                assert next_occurrence(schedule, now=now) == next(each for each in expected if each > now)


def test_the_zones_have_what_is_hard() -> None:
    assert len(ZONES) == 20
    assert all(len(changes(zone)) >= 2 for zone in ZONES)
    rules = load_zone("Pacific/Apia")
    dates = {
        local_reading(change + number * DAY, rules).date()
        for change in changes("Pacific/Apia")
        for number in (-1, 0, 1)
    }
    assert date(2011, 12, 29) in dates
    assert date(2011, 12, 30) not in dates
