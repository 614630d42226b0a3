"""Cron text: what it names, what is refused, and the one exception at changes of clocks."""

from datetime import datetime, timedelta

import pytest

from think_celery.core.cron import CronFields, cron
from think_celery.core.schedule import next_occurrence, occurrences, parse
from think_celery.errors import InvalidSchedule


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


def fault(expression: str, **zones: str) -> InvalidSchedule:
    with pytest.raises(InvalidSchedule) as caught:
        parse(cron(expression), **zones)
    return caught.value


def due(expression: str, zone: str, after: str, count: int) -> list[str]:
    found = occurrences(parse(cron(expression), timezone=zone), after=at(after), count=count)
    return [f"{each:%d %H:%M}" for each in found]


def test_it_is_read_like_other_schedules() -> None:
    found = parse(cron(" */15  8-18 * * MON-Fri in europe/london"))
    assert (found.kind, found.normalized, found.timezone) == (
        "cron",
        "*/15 8-18 * * mon-fri",
        "Europe/London",
    )
    assert parse(cron("0 9 * * *"), default_timezone="utc").timezone == "UTC"
    assert found.hash == parse(cron("0,15,30,45 8-18 * * 1-5"), timezone="Europe/London").hash


def test_zones_are_looked_at_as_for_other_schedules() -> None:
    assert fault("0 9 * * *").code == "TIMEZONE_REQUIRED"
    assert fault("0 9 * * *", timezone="").code == "TIMEZONE_REQUIRED"
    assert fault("0 9 * * *", timezone="x").code == "TIMEZONE_INVALID"
    assert fault("0 9 * * * in UTC", timezone="Asia/Tokyo").code == "TIMEZONE_MISMATCH"
    assert fault("nonsense").code == "CRON_INVALID"


@pytest.mark.parametrize(
    "expression",
    [
        "", "* * * *", "0 * * * * *", "60 * * * *", "0 24 * * *", "0 0 0 * *", "0 0 * 13 *", "0 0 * * 8",
        "@daily", "0 0 * * tues", "*/0 * * * *", "5-1 * * * *", "a * * * *", "? * * * *", "h * * * *",
        "0 0 31 2 *", "0 0 30 feb *", "0 0 31 4,6,9,11 *", "0 0 */20 * 1l", "1/2/3 * * * *",
        "every 5 minutes", "\u0665 * * * *", "* * * * mon#1/2", "* * * * 5l/2", "* * * * \u00b2l",
        "0," * 150 + "0 * * * *",
    ],
)  # fmt: skip
def test_what_cron_does_not_know_or_never_comes_is_refused(expression: str) -> None:
    error = fault(expression, timezone="UTC")
    assert error.code == "CRON_INVALID"
    assert str(error).startswith("Invalid cron schedule ")
    assert len(str(error)) < 250


@pytest.mark.parametrize(
    ("expression", "after", "expected"),
    [
        ("*/15 8-18 * * mon-fri", "2026-06-05T18:20Z", ["05 18:30", "05 18:45", "08 08:00"]),
        ("0 0 29 2 *", "2026-01-01T00:00Z", ["29 00:00"]),
        ("0 0 l * *", "2026-01-01T00:00Z", ["31 00:00", "28 00:00", "31 00:00", "30 00:00"]),
        ("0 0 * * fri#2", "2026-01-01T00:00Z", ["09 00:00", "13 00:00"]),
        ("0 0 13 * fri", "2026-02-01T00:00Z", ["06 00:00", "13 00:00", "20 00:00", "27 00:00"]),
        ("30 23 31 dec *", "2026-01-01T00:00Z", ["31 23:30", "31 23:30"]),
        ("59 23 lw * *", "2026-02-01T00:00Z", ["27 23:59"]),
    ],
)  # fmt: skip
def test_what_it_names(expression: str, after: str, expected: list[str]) -> None:
    assert due(expression, "UTC", after, len(expected)) == expected


def test_a_rare_date_far_away() -> None:
    schedule = parse(cron("0 0 * 2 mon#5"), timezone="UTC")
    assert next_occurrence(schedule, now=at("2044-03-01T00:00Z")) == at("2072-02-29T00:00Z")


@pytest.mark.spec("C92")
def test_certain_hours_follow_the_rule_for_local_times() -> None:
    assert due("30 1 * * *", "Europe/London", "2026-03-28T23:00Z", 2) == ["29 01:00", "30 00:30"]
    assert due("30 1 * * *", "Europe/London", "2026-10-24T23:00Z", 2) == ["25 00:30", "26 01:30"]
    assert due("*/20 0-6 * * *", "Europe/London", "2026-10-25T00:30Z", 2) == ["25 00:40", "25 02:00"]
    # Three local times that do not exist are one instant.
    assert due("*/20 2 * * *", "America/New_York", "2026-03-08T00:00Z", 2) == ["08 07:00", "09 06:00"]


def test_every_hour_means_hours_that_pass() -> None:
    autumn = due("0,30 * * * *", "America/New_York", "2026-11-01T05:00Z", 4)
    assert autumn == ["01 05:30", "01 06:00", "01 06:30", "01 07:00"]
    spring = due("30 * * * *", "America/New_York", "2026-03-08T06:00Z", 2)
    assert spring == ["08 06:30", "08 07:30"]
    assert due("0 * * * *", "Australia/Lord_Howe", "2026-10-03T14:30Z", 2) == ["03 16:00", "03 17:00"]
    assert CronFields("0 */1 * * *").every_hour
    assert not CronFields("0 */2 * * *").every_hour


def test_times_are_ascending_and_once_each() -> None:
    times = CronFields("30,0,*/30 5,1-2 * * *").times
    assert times == tuple(timedelta(minutes=each) for each in (60, 90, 120, 150, 300, 330))
