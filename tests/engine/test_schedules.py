"""A declared task comes due: one occurrence, one submission, and the next due time; whatever else is said."""

import asyncio
import threading
from datetime import UTC, datetime, timedelta

import pytest

from tests.engine.timing import Clockwork, handler, prompt
from think_celery import AgentHandle, AsyncAgentHandle
from think_celery.core.submission import Status
from think_celery.engine import schedules
from think_celery.engine.making import agent_of
from think_celery.errors import UnknownAgentType
from think_celery.testing import eventually

MINUTE = timedelta(minutes=1)


@pytest.mark.spec("C43", "C65")
def test_a_literal_prompt_is_submitted_once(clockwork: Clockwork) -> None:
    clockwork.declare(report=prompt(metadata={"team": "x", "source": "mine"}))
    assert clockwork.dispatch() == {}
    slot = clockwork.late()
    assert clockwork.dispatch() == {"submitted": 1}
    assert clockwork.dispatch() == {}
    [row] = clockwork.handle.list_submissions()
    milliseconds = int(slot.timestamp() * 1000)
    assert row.kind == "schedule"
    assert row.idempotency_key is not None
    assert row.idempotency_key.startswith("think-schedule:")
    assert row.idempotency_key.endswith(f":report:{milliseconds}")
    assert row.metadata is not None
    assert row.metadata["source"] == "scheduled-task"
    assert row.metadata["team"] == "x"
    assert row.metadata["taskId"] == "report"
    assert row.metadata["scheduledFor"] == milliseconds
    assert row.metadata["schedule"] == "every day at 09:00"
    assert len(row.metadata["ownerKey"]) == 32
    assert clockwork.texts() == ["write the report"]
    [past] = clockwork.past()
    assert (past.state, past.scheduled_for, past.submission_id) == ("submitted", slot, row.submission_id)
    following = clockwork.task().next_run_at
    assert following is not None
    assert following > slot
    assert (following.hour, following.minute) == (9, 0)


@pytest.mark.spec("C65")
def test_the_submission_runs_like_any_other(clockwork: Clockwork) -> None:
    clockwork.declare(report=prompt())
    clockwork.late()
    clockwork.dispatch()
    clockwork.drain()
    [row] = clockwork.handle.list_submissions()
    assert row.status is Status.COMPLETED
    last = clockwork.task().last
    assert last is not None
    assert last.submission_status == "completed"


@pytest.mark.spec("C57")
def test_the_words_are_those_of_the_code_that_runs(clockwork: Clockwork) -> None:
    clockwork.declare(report=prompt("old words"))
    clockwork.late(timedelta(hours=30))
    clockwork.plan.tasks = {"report": prompt("new words")}
    assert clockwork.dispatch() == {"submitted": 1}
    assert clockwork.texts() == ["new words"]
    [past] = clockwork.past()
    assert past.late_by_ms >= 30 * 3_600_000


@pytest.mark.spec("C64")
def test_nothing_due_writes_nothing(clockwork: Clockwork) -> None:
    report = schedules.dispatch(clockwork.runtime)
    assert str(report) == "nothing due; 0 rung again"
    assert clockwork.sql("SELECT 1 FROM {schema}.agents") == []
    assert clockwork.sql("SELECT 1 FROM {schema}.occurrences") == []


@pytest.mark.spec("C71", "C74", "C82", "C90")
def test_an_instant_that_had_its_occurrence_has_no_other(clockwork: Clockwork) -> None:
    """Field row 49: the schedule is set back, time and again; the record of the submission is gone, too."""
    clockwork.declare(report=prompt())
    slot = clockwork.late()
    clockwork.dispatch()
    clockwork.drain()
    assert clockwork.handle.delete_submissions() == 1
    clockwork.move(slot)
    assert clockwork.dispatch() == {"known": 1}
    assert clockwork.handle.list_submissions() == []
    assert len(clockwork.past()) == 1


@pytest.mark.spec("C73")
def test_a_cleared_conversation_skips_and_does_not_repeat(clockwork: Clockwork) -> None:
    clockwork.declare(report=prompt())
    clockwork.late()
    clockwork.dispatch()
    clockwork.handle.clear_messages()
    assert clockwork.dispatch() == {}
    [row] = clockwork.handle.list_submissions()
    assert row.status is Status.SKIPPED


@pytest.mark.spec("C59")
def test_a_removed_task_leaves_what_it_submitted(clockwork: Clockwork) -> None:
    clockwork.declare(report=prompt())
    clockwork.late()
    clockwork.dispatch()
    assert clockwork.declare() == []
    clockwork.drain()
    [row] = clockwork.handle.list_submissions()
    assert row.status is Status.COMPLETED


@pytest.mark.spec("C75", "C100")
def test_held_until_the_earlier_one_has_ended(clockwork: Clockwork) -> None:
    clockwork.declare(report=prompt(schedule="every 1 minute"))
    first = clockwork.late()
    assert clockwork.dispatch() == {"submitted": 1}
    clockwork.late(5 * MINUTE)
    assert clockwork.dispatch() == {"held": 1}
    assert clockwork.dispatch() == {}  # looked at again in a while
    clockwork.drain()
    slot = clockwork.late(5 * MINUTE)
    assert clockwork.dispatch() == {"submitted": 1}
    earlier, later = sorted(clockwork.past(), key=lambda past: past.created_at)
    assert (earlier.state, earlier.scheduled_for) == ("done", first)
    assert (later.scheduled_for, later.missed_count) == (slot, 5)
    assert later.latest_missed_for == slot + 5 * MINUTE


def test_those_that_queue_do_so_up_to_a_bound(clockwork: Clockwork) -> None:
    clockwork.declare(report=prompt(schedule="every 1 minute", overlap="queue"))
    outcomes = []
    for number in range(12):
        clockwork.late((13 - number) * MINUTE)
        outcomes += clockwork.dispatch()
    assert outcomes == ["submitted"] * 10 + ["held"] * 2
    assert len(clockwork.texts()) == 10


def test_those_that_skip_say_so(clockwork: Clockwork) -> None:
    clockwork.declare(report=prompt(schedule="every 1 minute", overlap="skip"))
    clockwork.late(3 * MINUTE)
    assert clockwork.dispatch() == {"submitted": 1}
    clockwork.late(timedelta(seconds=5))
    assert clockwork.dispatch() == {"skipped": 1}
    assert [past.state for past in clockwork.past()] == ["submitted", "skipped"]
    assert len(clockwork.texts()) == 1


@pytest.mark.spec("C86", "C95")
@pytest.mark.parametrize("policy", ["once", "latest", "skip"])
def test_five_days_down(clockwork: Clockwork, policy: str) -> None:
    """Field row 51: beat down over several due times; each policy does what it says, and shows it."""
    clockwork.declare(report=prompt(missed=policy))
    clockwork.move(datetime(2026, 6, 1, 9, tzinfo=UTC))
    now = datetime(2026, 6, 5, 10, 30, tzinfo=UTC)
    outcome = clockwork.dispatch(now=now)
    assert clockwork.task().next_run_at == datetime(2026, 6, 6, 9, tzinfo=UTC)
    [past] = clockwork.past()
    if policy == "skip":
        assert outcome == {"missed": 1}
        assert past.state == "missed"
        assert clockwork.texts() == []
        return
    assert outcome == {"submitted": 1}
    assert past.missed_count == 4
    day = 1 if policy == "once" else 5
    assert past.scheduled_for == datetime(2026, 6, day, 9, tzinfo=UTC)
    [row] = clockwork.handle.list_submissions()
    assert row.metadata is not None
    assert row.metadata["missedCount"] == 4
    assert row.metadata["scheduledFor"] == int(past.scheduled_for.timestamp() * 1000)
    youngest = datetime(2026, 6, 5 if policy == "once" else 4, 9, tzinfo=UTC)  # beside its own
    assert row.metadata["latestMissedFor"] == int(youngest.timestamp() * 1000)


def test_skip_runs_what_is_hardly_late(clockwork: Clockwork) -> None:
    clockwork.declare(report=prompt(missed="skip"))
    clockwork.late(timedelta(seconds=30))
    assert clockwork.dispatch() == {"submitted": 1}


@pytest.mark.spec("C92")
def test_the_repeated_hour_of_london_runs_once(clockwork: Clockwork) -> None:
    clockwork.declare(report=prompt(schedule="every day at 01:30 in Europe/London"))
    first = datetime(2026, 10, 25, 0, 30, tzinfo=UTC)
    clockwork.move(first)
    assert clockwork.dispatch(now=first) == {"submitted": 1}
    assert clockwork.task().next_run_at == datetime(2026, 10, 26, 1, 30, tzinfo=UTC)


@pytest.mark.spec("C93")
def test_an_outage_over_the_skipped_hour_of_new_york(clockwork: Clockwork) -> None:
    clockwork.declare(report=prompt(schedule="every day at 02:30 in America/New_York"))
    clockwork.move(datetime(2026, 3, 8, 7, 0, tzinfo=UTC))
    assert clockwork.dispatch(now=datetime(2026, 3, 8, 8, 10, tzinfo=UTC)) == {"submitted": 1}
    [past] = clockwork.past()
    assert past.scheduled_for == datetime(2026, 3, 8, 7, 0, tzinfo=UTC)
    assert clockwork.task().next_run_at == datetime(2026, 3, 9, 6, 30, tzinfo=UTC)


@pytest.mark.spec("C94")
def test_an_outage_over_the_overlap_night_and_the_morning_after(clockwork: Clockwork) -> None:
    clockwork.declare(report=prompt(schedule="every day at 01:30 in Europe/London"))
    clockwork.move(datetime(2026, 10, 25, 0, 30, tzinfo=UTC))
    assert clockwork.dispatch(now=datetime(2026, 10, 26, 2, 0, tzinfo=UTC)) == {"submitted": 1}
    assert len(clockwork.past()) == 1
    assert clockwork.task().next_run_at == datetime(2026, 10, 27, 1, 30, tzinfo=UTC)


@pytest.mark.spec("C41")
def test_a_run_before_its_time_is_not_repeated(clockwork: Clockwork) -> None:
    """A dispatcher whose idea of the time is behind: after this due time comes the next, not this one."""
    clockwork.declare(report=prompt())
    slot = datetime(2026, 6, 1, 9, tzinfo=UTC)
    clockwork.move(slot)
    clockwork.dispatch(now=slot - timedelta(seconds=1))
    assert clockwork.task().next_run_at == datetime(2026, 6, 2, 9, tzinfo=UTC)
    assert clockwork.past()[0].late_by_ms == 0


@pytest.mark.spec("C79")
def test_four_dispatchers_at_once(clockwork: Clockwork) -> None:
    """Field rows 47 and 48: no lock around the tick, and still one submission per due time."""
    tasks = {f"task{number}": prompt(f"number {number}") for number in range(40)}
    clockwork.declare(**tasks)
    for task in tasks:
        clockwork.late(task=task)
    barrier = threading.Barrier(4)
    counts: list[dict[str, int]] = []

    def tick() -> None:
        barrier.wait(10)
        counts.append(clockwork.dispatch())

    threads = [threading.Thread(target=tick) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sum(count.get("submitted", 0) for count in counts) == 40
    assert sorted(clockwork.texts()) == sorted(f"number {number}" for number in range(40))


def test_a_full_agent_is_looked_at_again(clockwork: Clockwork) -> None:
    clockwork.declare(report=prompt())
    full = clockwork.runtime.settings.model_copy(update={"max_pending": 1})
    clockwork.runtime.database.settings = full
    clockwork.handle.submit_messages("first")
    slot = clockwork.late()
    assert clockwork.dispatch() == {"held": 1}
    assert clockwork.past() == []
    clockwork.drain()
    clockwork.move(slot)
    assert clockwork.dispatch() == {"submitted": 1}


def test_only_what_is_overdue_is_dispatched_without_a_tick(clockwork: Clockwork) -> None:
    clockwork.declare(report=prompt())
    clockwork.late(timedelta(seconds=3))
    assert schedules.look(clockwork.runtime).counts == {}
    clockwork.late(timedelta(seconds=30))
    assert schedules.look(clockwork.runtime).counts == {"submitted": 1}


def test_an_unreadable_declaration_postpones_and_loses_nothing(clockwork: Clockwork) -> None:
    clockwork.declare(report=prompt(), other=prompt("other"))
    slot = clockwork.late()
    clockwork.plan.failure = RuntimeError("no such customer")
    assert clockwork.dispatch() == {"compared": 1}
    assert {view.task_id for view in clockwork.handle.schedules()} == {"report", "other"}
    [degradation] = clockwork.handle.get_start_degradations()
    assert (degradation.step, degradation.task_id) == ("scheduled-task-reconcile", None)
    assert "no such customer" in degradation.error
    clockwork.plan.failure = None
    clockwork.move(slot)
    assert clockwork.dispatch() == {"submitted": 1}
    clockwork.handle.reconcile_scheduled_tasks()
    assert clockwork.handle.get_start_degradations() == []


@pytest.mark.spec("C45")
def test_a_changed_schedule_neither_fires_nor_loses(clockwork: Clockwork) -> None:
    """Field row 53: the overdue time of the old schedule is dropped; the new one begins in the future."""
    clockwork.declare(report=prompt())
    clockwork.late()
    clockwork.plan.tasks = {"report": prompt(schedule="every day at 10:00 in UTC")}
    assert clockwork.dispatch() == {"compared": 1}
    assert clockwork.dispatch() == {}
    assert clockwork.past() == []
    following = clockwork.task().next_run_at
    assert following is not None
    assert following.hour == 10


def test_a_pause_leaves_out_what_was_due_meanwhile(clockwork: Clockwork) -> None:
    clockwork.declare(report=prompt(schedule="every 1 hour"))
    assert clockwork.handle.pause_schedule("report") is True
    assert clockwork.handle.pause_schedule("report") is False
    assert clockwork.handle.pause_schedule("unknown") is None
    slot = clockwork.late(timedelta(hours=5))
    assert clockwork.dispatch() == {}
    clockwork.declare(report=prompt("other words", schedule="every 1 hour"))
    assert clockwork.task().status == "paused"
    assert clockwork.handle.resume_schedule("report") is True
    assert clockwork.dispatch() == {}
    assert clockwork.task().next_run_at == slot + timedelta(hours=6)  # the interval keeps its phase


def test_a_run_by_hand_is_extra(clockwork: Clockwork) -> None:
    clockwork.declare(report=prompt())
    before = clockwork.task().next_run_at
    made = clockwork.handle.run_schedule("report")
    assert made is not None
    assert made.manual
    assert clockwork.run_open()[0].startswith("submitted")
    [row] = clockwork.handle.list_submissions()
    assert row.idempotency_key is not None
    assert ":report:manual:" in row.idempotency_key
    assert clockwork.task().next_run_at == before
    assert clockwork.handle.run_schedule("unknown") is None


@pytest.mark.spec("C53")
def test_a_deleted_agent_takes_its_schedules_along(clockwork: Clockwork) -> None:
    clockwork.declare(report=prompt(), other=handler(print))
    clockwork.late(task="other")
    clockwork.dispatch()
    clockwork.handle.delete_agent()
    assert clockwork.handle.schedules() == []
    assert clockwork.past() == []
    assert clockwork.dispatch() == {}


@pytest.mark.spec("C55")
def test_the_first_claim_arms(clockwork: Clockwork) -> None:
    clockwork.plan.tasks = {"report": prompt()}
    clockwork.handle.submit_messages("hello")
    clockwork.drain()
    views = eventually(clockwork.handle.schedules, describe="the task is armed")
    assert [view.task_id for view in views] == ["report"]


def test_the_awaitable_names(clockwork: Clockwork) -> None:
    handle = AsyncAgentHandle("Timed", clockwork.address.name, runtime=clockwork.runtime)
    clockwork.plan.tasks = {"report": prompt(), "broken": prompt(schedule="never")}

    async def use() -> None:
        views = await handle.reconcile_scheduled_tasks()
        assert {view.task_id for view in views} == {"report", "broken"}
        assert [each.task_id for each in await handle.get_start_degradations()] == ["broken"]
        assert await handle.pause_schedule("report") is True
        assert await handle.resume_schedule("report") is True
        made = await handle.run_schedule("report")
        assert made is not None
        assert [past.state for past in await handle.occurrences("report", state="due")] == ["due"]
        assert len(await handle.schedules()) == 2

    asyncio.run(use())


def test_an_agent_reconciles_itself_inside_a_turn(clockwork: Clockwork) -> None:
    """An agent speaks to itself by the same names: what its data changes takes effect at once."""
    agent = agent_of(clockwork.runtime, clockwork.address)
    clockwork.plan.tasks = {"report": prompt()}
    views = clockwork.runtime.loop.run(agent.reconcile_scheduled_tasks())
    assert [view.task_id for view in views] == ["report"]


def test_a_class_that_is_not_loaded_cannot_be_compared(clockwork: Clockwork) -> None:
    handle = AgentHandle("Elsewhere", "a", runtime=clockwork.runtime)
    with pytest.raises(UnknownAgentType):
        handle.reconcile_scheduled_tasks()
    assert handle.schedules() == []
