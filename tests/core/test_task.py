"""What may be declared as a scheduled task, what is refused with which words, and its hash."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from think_celery.core.cron import cron
from think_celery.core.task import (
    Retry,
    ScheduledTask,
    check_task,
    check_task_id,
    retry_delay,
    task_hash,
)
from think_celery.errors import InvalidSchedule

TASK = ScheduledTask("every day at 09:00", timezone="UTC", prompt="Generate the daily report.")


def work(context: object) -> None: ...


def fault(task: object, task_id: object = "report", **zones: str) -> InvalidSchedule:
    with pytest.raises(InvalidSchedule) as caught:
        check_task(task_id, task, **zones)
    return caught.value


def made(**options: Any) -> ScheduledTask:
    return ScheduledTask(**options)


def changed(**options: Any) -> ScheduledTask:
    return replace(TASK, **options)


def hash_of(task: ScheduledTask) -> str:
    return task_hash(task, check_task("report", task))


@pytest.mark.spec("C19")
@pytest.mark.parametrize(
    "task_id", ["daily report", "", "a.b", "\u00e9", "a\n", "a\0", None, 5, "x" * 201, "\u0661"]
)
def test_a_bad_task_id(task_id: object) -> None:
    error = fault(TASK, task_id)
    assert error.code == "TASK_ID_INVALID"
    assert "Invalid scheduled task id" in str(error)


@pytest.mark.spec("C19")
@pytest.mark.parametrize("task_id", ["Daily-Report_2", "-", "0", "x" * 200])
def test_a_good_task_id(task_id: str) -> None:
    assert check_task_id(task_id) == task_id


@pytest.mark.spec("C20")
@pytest.mark.parametrize(
    "options",
    [{"handler": work}, {"prompt": None}, {"prompt": "", "handler": work}, {"prompt": work, "handler": work}],
)
def test_a_task_has_exactly_one_action(options: dict[str, Any]) -> None:
    error = fault(changed(**options))
    assert error.code == "ACTION_INVALID"
    assert "exactly one of prompt or handler" in str(error)
    assert "'report'" in str(error)


@pytest.mark.parametrize(
    "options",
    [{"prompt": " \n"}, {"prompt": ""}, {"prompt": 5}, {"prompt": "a\0b"}, {"prompt": "\ud800"},
     {"prompt": None, "handler": "work"}],
)  # fmt: skip
def test_an_action_that_cannot_be_used(options: dict[str, Any]) -> None:
    assert fault(changed(**options)).code == "ACTION_INVALID"


def test_the_three_actions() -> None:
    assert TASK.action == "prompt"
    assert changed(prompt=lambda: "text").action == "function"
    assert changed(prompt=None, handler=work).action == "handler"
    for task in (TASK, changed(prompt=lambda: "text"), changed(prompt=None, handler=work)):
        assert check_task("report", task).normalized == "every day at 09:00"


def test_making_a_task_never_fails() -> None:
    """Otherwise one bad task would take the whole mapping along."""
    bad = made(schedule="every nonsense", timezone="x", prompt="", retry={"attempts": 1}, overlap="?")
    assert fault(bad).code == "TIMEZONE_INVALID"


@pytest.mark.parametrize(
    "task", [None, {"schedule": "every day at 09:00"}, "every day at 09:00", ScheduledTask]
)
def test_it_must_be_a_task(task: object) -> None:
    error = fault(task)
    assert error.code == "TASK_INVALID"
    assert "ScheduledTask" in str(error)


@pytest.mark.spec("C47")
def test_the_zone_comes_from_text_task_or_agent() -> None:
    bare = changed(timezone=None)
    assert fault(bare).code == "TIMEZONE_REQUIRED"
    utc = check_task("report", bare, default_timezone="UTC")
    york = check_task("report", bare, default_timezone="America/New_York")
    assert (utc.timezone, york.timezone) == ("UTC", "America/New_York")
    assert utc.hash != york.hash
    assert check_task("report", changed(schedule=cron("0 9 * * *"))).kind == "cron"


@pytest.mark.parametrize(
    "retry",
    [Retry(max_attempts=0), Retry(max_attempts=1.5), Retry(max_attempts=True), Retry(base_delay_ms=0),
     Retry(base_delay_ms=-1), Retry(base_delay_ms=float("nan")), Retry(max_delay_ms=float("inf")),
     Retry(base_delay_ms=5000), Retry(base_delay_ms=10**400), Retry(max_delay_ms="1"), {"attempts": 3},
     {"max_attempts": 0}, 3, {3: 4}],
)  # fmt: skip
def test_retries_that_cannot_be_used(retry: Any) -> None:
    assert fault(changed(retry=retry)).code == "RETRY_INVALID"


def test_retries_are_filled() -> None:
    assert TASK.retry_policy == changed(retry={}).retry_policy == Retry(3, 100, 3000)
    task = changed(retry={"max_attempts": 7})
    assert check_task("report", task)
    assert task.retry_policy == Retry(7, 100, 3000)


@pytest.mark.spec("C68", "C69")
def test_the_pause_is_a_share_of_a_growing_one() -> None:
    retry = Retry(max_attempts=9, base_delay_ms=50, max_delay_ms=300)
    assert [retry_delay(retry, attempt, share=1.0) for attempt in (1, 2, 3, 4)] == [0.1, 0.2, 0.3, 0.3]
    assert retry_delay(retry, 1, share=0.5) == 0.05
    assert retry_delay(retry, 1, share=0.0) == 0.0
    assert retry_delay(retry, 10**6, share=0.999) == 0.299


@pytest.mark.parametrize(
    "options",
    [{"overlap": "wait"}, {"overlap": None}, {"missed": "all"}, {"missed": []}, {"misfire_grace_seconds": -1},
     {"misfire_grace_seconds": float("nan")}, {"misfire_grace_seconds": True},
     {"misfire_grace_seconds": None}, {"misfire_grace_seconds": timedelta(1)},
     {"misfire_grace_seconds": 1e300}],
)  # fmt: skip
def test_policies_that_do_not_exist(options: dict[str, Any]) -> None:
    assert fault(changed(**options)).code == "POLICY_INVALID"


@pytest.mark.parametrize("metadata", [[], "x", {"a": object()}, {1: 2}, {"a": float("nan")}, {"a": "\0"}])
def test_metadata_is_a_json_object(metadata: Any) -> None:
    assert fault(changed(metadata=metadata)).code == "METADATA_INVALID"


@pytest.mark.spec("C44", "C54")
def test_the_hash_of_a_task_covers_what_is_declared() -> None:
    handler = changed(prompt=None, handler=work)
    same = [TASK, changed(schedule="EVERY day at 09:00 in utc"), changed(retry={}), changed(metadata=None)]
    other = [
        changed(prompt="Other words."), changed(prompt=lambda: "x"), handler, changed(metadata={}),
        changed(metadata={"a": 1}), changed(overlap="skip"), changed(missed="latest"),
        changed(misfire_grace_seconds=5), changed(retry={"max_attempts": 2}),
        changed(schedule="every day at 10:00"),
        changed(schedule="every week on sun,mon,tue,wed,thu,fri,sat at 09:00"),
    ]  # fmt: skip
    assert len({hash_of(task) for task in same}) == 1
    assert len({hash_of(task) for task in [TASK, *other]}) == len(other) + 1
    assert hash_of(handler) == hash_of(changed(prompt=None, handler=print))
    assert hash_of(changed(metadata={"a": 1, "b": 2})) == hash_of(changed(metadata={"b": 2, "a": 1}))


@pytest.mark.spec("C45")
def test_only_other_times_change_the_hash_of_the_schedule() -> None:
    schedule = check_task("report", TASK).hash
    for task in (
        changed(prompt="Other words."),
        changed(retry={"max_attempts": 2}),
        changed(overlap="queue"),
    ):
        assert check_task("report", task).hash == schedule
    assert check_task("report", changed(schedule="every day at 09:01")).hash != schedule
