"""Schedules as text: the grammar, the zones, the faults and their order."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from think_celery.core import zone
from think_celery.core.cron import cron
from think_celery.core.schedule import ScheduleKind, digest, parse, restore
from think_celery.core.zone import same_zone
from think_celery.errors import InvalidSchedule

TESTS = Path(__file__).resolve().parents[1]
VECTORS: list[dict[str, Any]] = json.loads((TESTS / "data/schedules/parse.json").read_text("utf-8"))
DEVIATIONS = tomllib.loads((TESTS / "golden-deviations.toml").read_text("utf-8"))["parse"]
WEEK = {"daily": (0, 1, 2, 3, 4, 5, 6), "weekday": (1, 2, 3, 4, 5)}


def fault(text: Any, **zones: Any) -> str:
    with pytest.raises(InvalidSchedule) as caught:
        parse(text, **zones)
    return caught.value.code


def deviation_of(vector: dict[str, Any]) -> dict[str, Any] | None:
    which = (vector["schedule"], vector["task_timezone"])
    return next((each for each in DEVIATIONS if (each["schedule"], each.get("timezone")) == which), None)


@pytest.mark.spec("C22")
@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: ascii(vector["schedule"]))
def test_a_golden_vector(vector: dict[str, Any]) -> None:
    zones = {"timezone": vector["task_timezone"], "default_timezone": vector["default_timezone"]}
    deviation = deviation_of(vector)
    expected = vector.get("error") if deviation is None else deviation["error"]
    if deviation is not None:
        assert vector.get("error") != deviation["error"]
        assert deviation["rule"]
    if expected is not None:
        assert fault(vector["schedule"], **zones) == expected
        return
    found = parse(vector["schedule"], **zones)
    assert (found.kind, found.normalized) == (vector["kind"], vector["normalized"])
    if found.kind is ScheduleKind.INTERVAL:
        assert (found.interval_seconds or 0) * 1000 == vector["interval_ms"]
        assert found.timezone is None
        return
    days = vector["days"]
    assert found.days == (WEEK[days] if isinstance(days, str) else tuple(days))
    assert (found.hour, found.minute) == (vector["hour"], vector["minute"])
    assert found.timezone is not None
    assert same_zone(found.timezone, vector["timezone"])


def test_every_deviation_is_of_a_vector() -> None:
    assert sum(deviation_of(vector) is not None for vector in VECTORS) == len(DEVIATIONS)


@pytest.mark.spec("C1", "C2")
@pytest.mark.parametrize("text", ["every 5 minutes", "EVERY  5\tMinutes ", "\n every 5\u00a0minutes"])
def test_case_and_spaces_do_not_matter(text: str) -> None:
    found = parse(text)
    assert (found.interval_seconds, found.normalized) == (300, "every 5 minutes")


@pytest.mark.spec("C3")
def test_units_agree_with_their_number() -> None:
    assert fault("every 1 minutes") == "UNIT_SINGULAR"
    assert fault("every 2 minute") == "UNIT_PLURAL"
    with pytest.raises(InvalidSchedule, match="singular"):
        parse("every 1 hours")
    with pytest.raises(InvalidSchedule, match="plural"):
        parse("every 24 hour")


@pytest.mark.spec("C4", "C16")
@pytest.mark.parametrize(
    "text",
    [
        "every 0 minutes", "every 05 minutes", "every -1 minutes", "every 1.5 hours", "every 30 seconds",
        "every 2 days", "every hour", "every +5 minutes", "every \u0665 minutes", "0 9 * * *", "in 5 minutes",
        "every monday at 09:00", "every week at 09:00", "every day", "every weekend at 09:00", "", "at 09:00",
        "every 2 weeks on monday at 09:00", "every 5 minutes or so", "constructor", "daily at 09:00",
    ],
)  # fmt: skip
def test_other_text_is_unsupported(text: str) -> None:
    assert fault(text, timezone="UTC") == "UNSUPPORTED"
    assert fault(text) == "UNSUPPORTED"
    with pytest.raises(InvalidSchedule, match="Unsupported schedule DSL"):
        parse(text, timezone="UTC")


@pytest.mark.spec("C5")
def test_an_interval_has_no_zone() -> None:
    assert fault("every 2 hours", timezone="UTC") == "INTERVAL_TIMEZONE"
    assert fault("every 5 minutes in UTC") == "INTERVAL_TIMEZONE"
    assert fault("every 1 minutes in UTC") == "INTERVAL_TIMEZONE"
    assert parse("every 2 hours", default_timezone="UTC").timezone is None
    assert parse("every 2 hours", timezone="").interval_seconds == 7200


@pytest.mark.spec("C5")
def test_an_interval_is_a_year_at_most() -> None:
    assert parse("every 8784 hours").interval_seconds == 366 * 86400
    assert parse("every 527040 minutes").interval_seconds == 366 * 86400
    for text in ("every 8785 hours", "every 527041 minutes", f"every {'9' * 5000} minutes"):
        assert fault(text) == "UNSUPPORTED"


@pytest.mark.spec("C6", "C12", "C13")
def test_wall_clock_schedules() -> None:
    daily = parse("every day at 09:00", timezone="UTC")
    assert (daily.kind, daily.hour, daily.minute, daily.days) == ("wall-clock", 9, 0, WEEK["daily"])
    assert parse("every weekday at 09:00 in Europe/London").days == WEEK["weekday"]
    weekly = parse("every week on mon,wed , fri at 09:00", timezone="UTC")
    assert (weekly.days, weekly.normalized) == ((1, 3, 5), "every week on mon,wed,fri at 09:00")


@pytest.mark.spec("C8")
def test_a_zone_in_the_text() -> None:
    found = parse("Every Day AT 09:00 IN europe/london")
    assert (found.timezone, found.normalized) == ("Europe/London", "every day at 09:00")
    assert parse("every day at 09:00 in utc", timezone="", default_timezone="Asia/Tokyo").timezone == "UTC"


@pytest.mark.spec("C9")
def test_two_zones_must_be_the_same() -> None:
    text = "every day at 09:00 in UTC"
    assert fault(text, timezone="Europe/London") == "TIMEZONE_MISMATCH"
    with pytest.raises(InvalidSchedule, match="does not match"):
        parse(text, timezone="Europe/London")
    assert parse(text, timezone="Etc/UTC").timezone == "UTC"
    assert parse("every day at 09:00 in gmt", timezone="utc").timezone == "GMT"
    assert parse("every day at 09:00 in asia/kolkata", timezone="Asia/Calcutta").timezone == "Asia/Kolkata"


@pytest.mark.spec("C10", "C18")
@pytest.mark.parametrize(
    "name",
    ["Not/A_Zone", "Europe", "../x", "\0", "Europe/London\0", "Factory", "localtime", "posixrules", "PST",
     "posix/Europe/London", "right/UTC", "+01:00", "UTC+1", " UTC", "tzdata.zi", "Europe/", "\u00e9",
     "x" * 999],
)  # fmt: skip
def test_an_unknown_zone_is_named_in_the_fault(name: str) -> None:
    for zones in ({"timezone": name}, {"default_timezone": name}):
        assert fault("every day at 09:00", **zones) == "TIMEZONE_INVALID"
    with pytest.raises(InvalidSchedule, match="Invalid timezone") as caught:
        parse("every day at 09:00", timezone=name)
    assert str(caught.value).isprintable()
    assert str(caught.value).isascii()
    assert len(str(caught.value)) < 300


@pytest.mark.spec("C18")
def test_a_zone_is_needed_for_local_times() -> None:
    for zones in (
        {},
        {"timezone": ""},
        {"timezone": "", "default_timezone": "UTC"},
        {"default_timezone": ""},
    ):
        assert fault("every day at 09:00", **zones) == "TIMEZONE_REQUIRED"
    with pytest.raises(InvalidSchedule, match="requires a timezone"):
        parse("every weekday at 09:00")


def test_faults_come_in_their_order() -> None:
    assert fault("every nonsense", default_timezone="x") == "TIMEZONE_INVALID"
    assert fault("every 5 minutes", default_timezone="x") == "TIMEZONE_INVALID"
    assert fault("every 5 minutes in x", timezone="UTC") == "TIMEZONE_INVALID"
    assert fault("every 5 minutes in UTC", timezone="x") == "TIMEZONE_INVALID"
    assert fault("every 5 minutes in UTC", timezone="Asia/Tokyo") == "TIMEZONE_MISMATCH"
    assert fault("every 5 minutes in x") == "INTERVAL_TIMEZONE"
    assert fault("every week on funday at 25:00") == "TIMEZONE_REQUIRED"
    assert fault("every nonsense in x") == "TIMEZONE_INVALID"
    assert fault("every day at 25:00 in x") == "TIMEZONE_INVALID"
    assert fault("every week on funday at 25:00", timezone="UTC") == "DAY_INVALID"
    assert fault("every week on funday at 9am", timezone="UTC") == "DAY_INVALID"
    assert fault("every week on mon at 9am", timezone="UTC") == "UNSUPPORTED"


@pytest.mark.spec("C11", "C17")
def test_a_time_has_four_digits_and_exists() -> None:
    for time in ("24:00", "25:00", "29:59"):
        assert fault(f"every day at {time}", timezone="UTC") == "TIME_INVALID"
    with pytest.raises(InvalidSchedule, match="Invalid schedule time"):
        parse("every week on mon at 24:00", timezone="UTC")
    for time in ("30:00", "9:00", "09:60", "09:00:00", "9am", "\uff10\uff19:\uff10\uff10", "09:00 utc"):
        assert fault(f"every day at {time}", timezone="UTC") == "UNSUPPORTED"
    assert parse("every day at 09:00\n", timezone="UTC").normalized == "every day at 09:00"


@pytest.mark.spec("C15")
def test_days_are_english_and_named_once() -> None:
    for days in ("monday and friday", "tues", "funday", "mon,", ",", "constructor", "mon,,fri", "mondays"):
        assert fault(f"every week on {days} at 09:00", timezone="UTC") == "DAY_INVALID"
    with pytest.raises(InvalidSchedule, match="Invalid schedule day"):
        parse("every week on thurs at 09:00", timezone="UTC")
    with pytest.raises(InvalidSchedule, match="Duplicate schedule day"):
        parse("every week on mon,monday at 09:00", timezone="UTC")


def test_the_hash_knows_no_spelling() -> None:
    def same(one: Any, other: Any, **zones: str) -> bool:
        return parse(one, **zones).hash == parse(other, **zones).hash

    assert same("every 60 minutes", "every 1 hour")
    assert same("every week on mon,tue at 09:00 in utc", "EVERY week on tuesday, monday at 09:00 in UTC")
    assert same("every weekday at 09:00", "every week on fri,thu,wed,tue,mon at 09:00", timezone="UTC")
    assert same(cron("0 9 * * mon-fri"), cron("00  9 * * 1,2,3,4,5"), timezone="UTC")
    assert same(cron("0 0 * * 0"), cron("0 0 * * 7"), timezone="UTC")
    assert not same("every 60 minutes", "every 2 hours")
    assert not same("every day at 09:00 in utc", "every day at 09:00 in etc/utc")
    assert not same("every day at 09:00", "every weekday at 09:00", timezone="UTC")
    assert not same(cron("0 9 * * *"), cron("0 9 1 * *"), timezone="UTC")
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})


@pytest.mark.spec("C54")
@pytest.mark.parametrize(
    "text",
    ["every 90 minutes", "every week on sun,mon at 23:59 in Asia/Tokyo", cron("*/7 * L * * in asia/tokyo")],
)
def test_what_is_stored_can_be_read_again(text: Any) -> None:
    found = parse(text)
    again = restore(str(found.kind), found.normalized, found.timezone)
    assert (again, again.hash) == (found, found.hash)


def test_every_zone_can_be_loaded_in_any_case() -> None:
    names = {zone.find_zone(name.upper()) for name in zone._names()}
    assert len(names) == len(zone._names()) > 590
    for name in names:
        assert zone.load_zone(name).key == name
        assert same_zone(name, name)
    assert zone.VERSION


def test_a_zone_that_has_gone_is_a_fault() -> None:
    for name in ("Gone/Away", "europe/london", ""):
        with pytest.raises(InvalidSchedule):
            zone.load_zone(name)


FRAGMENTS = st.sampled_from(
    [
        "every",
        "day",
        "week",
        "on",
        "mon",
        ",",
        "at",
        "09:00",
        "in",
        "UTC",
        "5",
        "minutes",
        "*/5",
        "* * * *",
        "L",
    ]
)
ANYTHING = st.text(st.characters(categories=None), max_size=40) | st.lists(FRAGMENTS).map(" ".join)


@given(ANYTHING, st.none() | ANYTHING, st.none() | st.just("UTC"))
def test_any_text_is_read_or_refused(text: str, timezone: str | None, default: str | None) -> None:
    for wanted in (text, cron(text)):
        try:
            found = parse(wanted, timezone=timezone, default_timezone=default)
        except InvalidSchedule as error:
            told = str(error)
            assert (told.isascii(), "\0" in told) == (True, False)
        else:
            assert restore(str(found.kind), found.normalized, found.timezone) == found


@pytest.mark.parametrize("value", [None, 5, b"every 5 minutes", ["every 5 minutes"], cron(None)])
def test_what_is_no_text_is_refused(value: Any) -> None:
    assert fault(value, timezone="UTC") == "UNSUPPORTED"
