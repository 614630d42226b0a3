"""Times as people type them."""

from datetime import UTC, datetime, timedelta

import pytest

from think_celery.cli.moment import earlier, later, length
from think_celery.errors import InvalidInput

SOON = timedelta(minutes=1)


@pytest.mark.parametrize(
    ("text", "distance"),
    [
        ("90s", timedelta(seconds=90)),
        ("10m", timedelta(minutes=10)),
        ("1h30m", timedelta(minutes=90)),
        ("1.5d", timedelta(hours=36)),
        ("2w", timedelta(days=14)),
        ("0s", timedelta()),
    ],
)
def test_a_length_counts_from_now(text: str, distance: timedelta) -> None:
    now = datetime.now(UTC)
    ahead, back = later("--not-before", text), earlier("--before", text)
    assert ahead is not None
    assert back is not None
    assert distance <= ahead - now < distance + SOON
    assert distance - SOON < now - back <= distance
    assert length("--run-timeout", text) == distance


@pytest.mark.parametrize(
    "text", ["2030-01-31T09:00:00Z", "2030-01-31T10:00+01:00", "2030-01-31 09:00:00.000+00:00"]
)
def test_an_instant_with_its_zone(text: str) -> None:
    assert later("--not-before", text) == datetime(2030, 1, 31, 9, tzinfo=UTC)
    assert earlier("--before", text) == datetime(2030, 1, 31, 9, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("2030-01-31T09:00:00", "no time zone"),
        ("2030-01-31", "no time zone"),
        ("tomorrow", "is no time"),
        ("", "is no time"),
        ("10", "is no time"),
        ("-10m", "is no time"),
        ("10m ", "is no time"),
        ("١m", "is no time"),
        ("99999999999w", "beyond the calendar"),
        ("999999w", "beyond the calendar"),
        ("0001-01-01T00:00+02:00", "beyond the calendar"),
    ],
)
def test_what_is_no_time_is_named(text: str, problem: str) -> None:
    for read in (later, earlier):
        with pytest.raises(InvalidInput, match=problem) as caught:
            read("--not-before", text)
        assert str(caught.value).startswith(f"--not-before: {text!r}")


@pytest.mark.parametrize("text", ["", "long", "1y", "-5", "1e3", "nan", "99999999999999d"])
def test_what_is_no_length_is_named(text: str) -> None:
    with pytest.raises(InvalidInput, match="--run-timeout"):
        length("--run-timeout", text)


def test_nothing_is_nothing() -> None:
    assert later("x", None) is earlier("x", None) is length("x", None) is None
