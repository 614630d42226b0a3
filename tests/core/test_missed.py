"""What runs when a task comes late."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from think_celery.core.cron import cron
from think_celery.core.missed import Late, decide_missed
from think_celery.core.schedule import next_occurrence, occurrences, parse

DAILY = parse("every day at 09:00 in UTC")
FIVE = parse("every 5 minutes")
SCHEDULES = (
    FIVE,
    DAILY,
    parse("every week on mon,thu at 01:30 in Europe/London"),
    parse(cron("*/20 * * * * in America/New_York")),
    parse(cron("*/20 1-3 * * * in America/New_York")),
)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


def late(schedule: Any, slot: str, now: str, policy: str, grace_seconds: float = 60) -> Late:
    return decide_missed(
        schedule,
        slot=at(slot),
        now=at(now),
        policy=policy,
        grace_seconds=grace_seconds,
    )


@pytest.mark.parametrize("policy", ["once", "latest", "skip"])
def test_in_time_it_runs(policy: str) -> None:
    found = late(DAILY, "2026-06-01T09:00Z", "2026-06-01T09:00:03.5Z", policy)
    assert found == Late(
        scheduled_for=at("2026-06-01T09:00Z"),
        runs=True,
        late_ms=3500,
        missed_count=0,
        latest_missed_for=None,
        next_run_at=at("2026-06-02T09:00Z"),
    )


@pytest.mark.spec("C86", "C95")
def test_once_after_five_days() -> None:
    found = late(DAILY, "2026-06-01T09:00Z", "2026-06-05T10:00Z", "once")
    assert (found.runs, found.scheduled_for) == (True, at("2026-06-01T09:00Z"))
    assert (found.missed_count, found.latest_missed_for) == (4, at("2026-06-05T09:00Z"))
    assert found.next_run_at == at("2026-06-06T09:00Z")
    assert found.late_ms == 97 * 3600 * 1000


@pytest.mark.spec("C95")
def test_latest_after_five_days() -> None:
    found = late(DAILY, "2026-06-01T09:00Z", "2026-06-05T10:00Z", "latest")
    assert (found.runs, found.scheduled_for) == (True, at("2026-06-05T09:00Z"))
    assert (found.missed_count, found.latest_missed_for) == (4, at("2026-06-04T09:00Z"))
    assert (found.next_run_at, found.late_ms) == (at("2026-06-06T09:00Z"), 3600 * 1000)
    two = late(DAILY, "2026-06-01T09:00Z", "2026-06-02T10:00Z", "latest")
    assert (two.missed_count, two.latest_missed_for) == (1, at("2026-06-01T09:00Z"))


@pytest.mark.spec("C95")
def test_skip_after_five_days() -> None:
    found = late(DAILY, "2026-06-01T09:00Z", "2026-06-05T10:00Z", "skip")
    assert (found.runs, found.scheduled_for) == (False, at("2026-06-01T09:00Z"))
    assert (found.missed_count, found.latest_missed_for) == (4, at("2026-06-05T09:00Z"))
    assert found.next_run_at == at("2026-06-06T09:00Z")


def test_skip_runs_what_came_within_the_grace_time() -> None:
    found = late(FIVE, "2026-06-01T09:00Z", "2026-06-01T09:10:30Z", "skip")
    assert (found.runs, found.missed_count) == (False, 1)
    assert (found.latest_missed_for, found.next_run_at) == (at("2026-06-01T09:05Z"), at("2026-06-01T09:10Z"))
    then = late(FIVE, "2026-06-01T09:10Z", "2026-06-01T09:10:30Z", "skip")
    assert (then.runs, then.missed_count, then.next_run_at) == (True, 0, at("2026-06-01T09:15Z"))


def test_the_grace_time_is_inclusive() -> None:
    assert late(DAILY, "2026-06-01T09:00Z", "2026-06-01T09:01:00Z", "skip").runs
    assert not late(DAILY, "2026-06-01T09:00Z", "2026-06-01T09:01:00.000001Z", "skip").runs
    assert late(DAILY, "2026-06-01T09:00Z", "2026-06-05T10:00Z", "skip", 1e11).runs


@pytest.mark.spec("C93")
def test_an_outage_over_a_gap() -> None:
    schedule = parse("every day at 02:30 in America/New_York")
    found = late(schedule, "2026-03-08T07:00Z", "2026-03-08T08:10Z", "once")
    assert (found.runs, found.scheduled_for, found.missed_count) == (True, at("2026-03-08T07:00Z"), 0)
    assert found.next_run_at == at("2026-03-09T06:30Z")


@pytest.mark.spec("C92", "C94")
def test_an_outage_over_an_overlap_and_the_next_morning() -> None:
    schedule = parse("every day at 01:30 in Europe/London")
    found = late(schedule, "2026-10-25T00:30Z", "2026-10-26T09:00Z", "once")
    assert (found.scheduled_for, found.missed_count) == (at("2026-10-25T00:30Z"), 1)
    assert found.next_run_at == at("2026-10-27T01:30Z")
    assert late(schedule, "2026-10-25T00:30Z", "2026-10-25T01:30Z", "once").missed_count == 0


@pytest.mark.spec("C41")
def test_run_early_it_counts_as_in_time() -> None:
    found = late(DAILY, "2026-06-01T09:00Z", "2026-06-01T08:59:59Z", "once")
    assert (found.late_ms, found.next_run_at) == (0, at("2026-06-02T09:00Z"))


@given(
    st.sampled_from(SCHEDULES),
    st.integers(1_767_225_600, 1_800_000_000),
    st.timedeltas(timedelta(), timedelta(days=4)),
    st.sampled_from(["once", "latest", "skip"]),
    st.sampled_from([0.0, 60.0, 86400.0]),
)
def test_nothing_is_lost_and_nothing_counted_twice(
    schedule: Any, begin: int, outage: timedelta, policy: str, grace: float
) -> None:
    """However often it is asked, all due instants up to now are run or counted, once each."""
    slot = next_occurrence(schedule, now=datetime.fromtimestamp(begin, UTC))
    now, start = slot + outage, slot
    seen, ran = 0, []
    while slot <= now:
        found = decide_missed(schedule, slot=slot, now=now, policy=policy, grace_seconds=grace)
        assert found.next_run_at > slot
        assert (found.latest_missed_for is None) == (found.missed_count == 0)
        seen += 1 + found.missed_count
        ran += [found.scheduled_for] * found.runs
        slot = found.next_run_at
    everything = [start]
    while everything[-1] <= now:
        everything.append(next_occurrence(schedule, now=everything[-1], previous=everything[-1]))
    assert (slot, seen) == (everything[-1], len(everything) - 1)
    assert len(ran) <= 1
    assert ran or (policy == "skip" and now - everything[-2] > timedelta(seconds=grace))
    assert occurrences(schedule, after=now, count=0) == []
