"""When schedules are due: known instants, intervals, and clock changes."""

import json
import tomllib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from think_celery.core.schedule import next_occurrence, occurrences, parse
from think_celery.errors import InvalidInput

TESTS = Path(__file__).resolve().parents[1]
VECTORS: list[dict[str, Any]] = json.loads((TESTS / "data/schedules/next.json").read_text("utf-8"))
DEVIATIONS = tomllib.loads((TESTS / "golden-deviations.toml").read_text("utf-8"))["next"]
MINUTE = timedelta(minutes=1)
NAIVE = datetime(2026, 1, 1)  # noqa: DTZ001 - what must be refused


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


def following(text: Any, zone: str | None, now: str, previous: str | None = None) -> str:
    schedule = parse(text, timezone=zone)
    found = next_occurrence(schedule, now=at(now), previous=None if previous is None else at(previous))
    assert found.tzinfo is UTC
    return found.isoformat().replace("+00:00", "Z")


def deviation_of(vector: dict[str, Any]) -> dict[str, Any] | None:
    which = (vector["schedule"], vector["timezone"], at(vector["now"]))
    return next(
        (each for each in DEVIATIONS if (each["schedule"], each["timezone"], each["now"]) == which), None
    )


@pytest.mark.spec("C22", "C23", "C24", "C25", "C26", "C27", "C29", "C30", "C31", "C32", "C33", "C34", "C36")
@pytest.mark.spec("C37", "C38", "C39")
def test_the_golden_vectors() -> None:
    wrong = []
    for vector in VECTORS:
        previous = None if vector["previous"] is None else at(vector["previous"])
        schedule = parse(vector["schedule"], timezone=vector["timezone"])
        found = next_occurrence(schedule, now=at(vector["now"]), previous=previous)
        deviation = deviation_of(vector)
        expected = at(vector["expected"]) if deviation is None else deviation["ours"]
        if found != expected or (deviation is not None and expected == at(vector["expected"])):
            wrong.append((vector, found.isoformat()))
    assert wrong == []
    assert len(VECTORS) == 944


def test_every_deviation_is_of_a_vector() -> None:
    assert sum(deviation_of(vector) is not None for vector in VECTORS) == len(DEVIATIONS)
    assert all(each["rule"] for each in DEVIATIONS)


@pytest.mark.spec("C23", "C38", "C39", "C40")
@pytest.mark.parametrize(
    ("text", "previous", "now", "expected"),
    [
        ("every 1 hour", "2026-01-01T08:00:00Z", "2026-01-01T10:30:00Z", "2026-01-01T11:00:00Z"),
        ("every 1 hour", "2026-01-01T08:00:00Z", "2026-01-01T09:00:00Z", "2026-01-01T10:00:00Z"),
        ("every 1 hour", "2026-01-01T08:00:00Z", "2026-01-01T07:00:00Z", "2026-01-01T09:00:00Z"),
        ("every 5 minutes", "2026-01-01T10:02:17Z", "2026-01-01T10:07:31Z", "2026-01-01T10:12:17Z"),
        ("every 24 hours", "2026-03-28T09:00:00Z", "2026-03-29T09:00:00Z", "2026-03-30T09:00:00Z"),
        ("every 1 hour", "2025-12-01T00:20:00Z", "2026-01-01T05:19:59Z", "2026-01-01T05:20:00Z"),
        ("every 1 minute", "1970-01-01T00:00:30Z", "2026-01-01T05:19:59Z", "2026-01-01T05:20:30Z"),
        ("every 90 minutes", None, "2026-01-01T05:19:59Z", "2026-01-01T06:49:59Z"),
    ],
)
def test_an_interval_keeps_its_phase(text: str, previous: str | None, now: str, expected: str) -> None:
    assert following(text, None, now, previous) == expected


@given(
    st.integers(1, 527_040),
    st.integers(946_684_800, 4_102_444_800).map(lambda seconds: datetime.fromtimestamp(seconds, UTC)),
    st.timedeltas(timedelta(days=-3), timedelta(days=3000)),
)
def test_an_interval_by_multiples(minutes: int, previous: datetime, gone: timedelta) -> None:
    schedule = parse(f"every {minutes} minute{'s' * (minutes != 1)}")
    found = next_occurrence(schedule, now=previous + gone, previous=previous)
    steps, rest = divmod(found - previous, minutes * MINUTE)
    assert (rest, steps >= 1) == (timedelta(), True)
    assert found > previous + gone
    assert steps == 1 or found - minutes * MINUTE <= previous + gone


@pytest.mark.parametrize(
    ("text", "zone", "now", "expected"),
    [
        ("01:30", "Europe/London", "2026-03-28T23:00Z", "2026-03-29T01:00:00Z"),
        ("01:30", "Europe/London", "2026-10-24T23:00Z", "2026-10-25T00:30:00Z"),
        ("01:30", "Europe/London", "2026-10-25T00:30Z", "2026-10-26T01:30:00Z"),
        ("01:30", "Europe/London", "2026-10-25T01:10Z", "2026-10-26T01:30:00Z"),
        ("02:30", "America/New_York", "2026-03-08T05:00Z", "2026-03-08T07:00:00Z"),
        ("02:00", "America/New_York", "2026-03-08T05:00Z", "2026-03-08T07:00:00Z"),
        ("02:59", "America/New_York", "2026-03-08T05:00Z", "2026-03-08T07:00:00Z"),
        ("02:30", "America/New_York", "2026-03-08T07:00Z", "2026-03-09T06:30:00Z"),
        ("02:15", "Australia/Lord_Howe", "2026-10-03T15:00Z", "2026-10-03T15:30:00Z"),
        ("00:00", "Africa/Cairo", "2026-04-23T20:00Z", "2026-04-23T22:00:00Z"),
        ("00:30", "Africa/Cairo", "2026-04-23T20:00Z", "2026-04-23T22:00:00Z"),
        ("23:30", "Asia/Beirut", "2026-10-24T20:30Z", "2026-10-25T21:30:00Z"),
        ("09:00", "Pacific/Apia", "2011-12-29T20:00Z", "2011-12-30T19:00:00Z"),
        ("01:30", "Europe/Dublin", "2026-03-29T00:30Z", "2026-03-29T01:00:00Z"),
        ("09:00", "UTC", "2026-06-01T09:00Z", "2026-06-02T09:00:00Z"),
        ("09:00", "UTC", "2026-06-01T08:59:59.999999Z", "2026-06-01T09:00:00Z"),
        ("00:00", "UTC", "2024-02-28T00:00Z", "2024-02-29T00:00:00Z"),
        ("00:00", "UTC", "2024-02-29T00:00Z", "2024-03-01T00:00:00Z"),
        ("23:30", "America/Nuuk", "2026-03-28T20:00Z", "2026-03-30T00:30:00Z"),
        ("00:30", "America/Havana", "2026-11-01T03:00Z", "2026-11-01T04:30:00Z"),
    ],
)  # fmt: skip
@pytest.mark.spec("C24", "C25", "C26", "C27", "C29", "C30", "C31", "C32", "C33", "C36", "C37", "C92")
def test_a_daily_time(text: str, zone: str, now: str, expected: str) -> None:
    assert following(f"every day at {text}", zone, now) == expected


@pytest.mark.spec("C30", "C34")
def test_the_local_weekday_decides() -> None:
    monday = "every week on monday at 08:00"
    assert following(monday, "Asia/Tokyo", "2026-06-07T21:00Z") == "2026-06-07T23:00:00Z"
    friday = "every week on friday at 00:30"
    assert following(friday, "Africa/Cairo", "2026-04-23T20:00Z") == "2026-04-23T22:00:00Z"


@pytest.mark.spec("C41")
def test_an_occurrence_that_ran_early_does_not_come_again() -> None:
    text, slot = "every day at 09:00", "2026-06-01T09:00:00Z"
    assert following(text, "UTC", "2026-06-01T08:59:59Z", slot) == "2026-06-02T09:00:00Z"
    assert following(text, "UTC", "2026-06-05T10:00:00Z", slot) == "2026-06-06T09:00:00Z"


def test_any_offset_will_do_and_none_will_not() -> None:
    daily = parse("every day at 09:00 in UTC")
    assert next_occurrence(daily, now=at("2026-06-01T12:00+05:00")) == at("2026-06-01T09:00Z")
    for times in (
        {"now": NAIVE},
        {"now": at("2026-01-01T00:00Z"), "previous": NAIVE},
    ):
        with pytest.raises(InvalidInput, match="offset"):
            next_occurrence(daily, **times)


def test_the_next_few() -> None:
    found = occurrences(parse("every 5 minutes"), after=at("2026-01-01T00:00:30Z"), count=3)
    assert [each.minute for each in found] == [5, 10, 15]
    found = occurrences(parse("every day at 01:30 in Europe/London"), after=at("2026-03-28T00:00Z"), count=3)
    assert [each.hour for each in found] == [1, 1, 0]
    assert occurrences(parse("every 5 minutes"), after=at("2026-01-01T00:00Z"), count=0) == []
