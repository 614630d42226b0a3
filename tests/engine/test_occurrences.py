"""Prompt functions and handlers: run under a lease, repeated as said, given up, given back, taken over."""

import asyncio
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from tests.engine.stage import passed
from tests.engine.timing import Clockwork, handler, prompt
from think_celery import AsyncAgentHandle
from think_celery.core.submission import Status
from think_celery.engine import schedules
from think_celery.engine.runtime import Runtime
from think_celery.errors import OccurrenceOpen
from think_celery.ledger import occurrences
from think_celery.ledger.occurrences import Slot
from think_celery.testing import eventually
from think_celery.worker import tasks

QUICK = {"base_delay_ms": 1, "max_delay_ms": 2}


def due(clockwork: Clockwork, task: Any) -> Slot:
    """Declare a task and let it come due."""
    clockwork.declare(report=task)
    clockwork.late()
    assert clockwork.dispatch() == {"due": 1}
    [row] = clockwork.open()
    return row.slot


@pytest.mark.spec("C65", "C90")
def test_a_prompt_function_is_asked_when_the_occurrence_runs(clockwork: Clockwork) -> None:
    async def words() -> str:
        return "made just now"

    slot = due(clockwork, prompt(words))
    assert clockwork.texts() == []
    assert clockwork.run(slot).startswith("submitted")
    assert clockwork.run(slot) == "nothing to run: it has run, or another worker runs it"
    assert clockwork.texts() == ["made just now"]
    [past] = clockwork.past()
    assert (past.state, past.attempts) == ("submitted", 1)
    clockwork.drain()
    [row] = clockwork.handle.list_submissions()
    assert (row.status, row.kind) == (Status.COMPLETED, "schedule")


@pytest.mark.spec("C66")
def test_a_prompt_function_that_always_raises_ends_that_occurrence_only(clockwork: Clockwork) -> None:
    calls = []

    def words() -> str:
        calls.append(1)
        raise RuntimeError("no figures today")

    slot = due(clockwork, prompt(words, retry=QUICK))
    assert clockwork.run(slot) == "error: no figures today"
    assert len(calls) == 3
    assert clockwork.texts() == []
    [past] = clockwork.past()
    assert (past.state, past.error) == ("error", "no figures today")
    following = clockwork.task().next_run_at
    assert following is not None
    assert following > slot.scheduled_for
    [(error, occurrence)] = clockwork.plan.errors
    assert str(error) == "no figures today"
    assert occurrence.task_id == "report"


@pytest.mark.spec("C67")
def test_a_handler_is_told_of_its_occurrence(clockwork: Clockwork) -> None:
    told: list[Any] = []
    slot = due(clockwork, handler(told.append, metadata={"team": "x"}))
    assert clockwork.run(slot) == "handled"
    [context] = told
    milliseconds = int(slot.scheduled_for.timestamp() * 1000)
    assert context.task_id == "report"
    assert context.scheduled_for == slot.scheduled_for
    assert context.occurrence_key == f"report:{milliseconds}"
    assert context.idempotency_key.startswith("think-schedule:")
    assert context.idempotency_key.endswith(f":report:{milliseconds}")
    assert (context.schedule, context.schedule_kind) == ("every day at 09:00", "wall-clock")
    assert (context.timezone, context.metadata) == ("UTC", {"team": "x"})
    assert context.late_by_ms >= 1000
    assert clockwork.texts() == []
    assert clockwork.past()[0].state == "handled"


@pytest.mark.spec("C68")
def test_a_handler_is_repeated_with_the_same_context(clockwork: Clockwork) -> None:
    told: list[Any] = []

    async def act(context: Any) -> None:
        told.append(context)
        if len(told) == 1:
            raise RuntimeError("once")

    assert clockwork.run(due(clockwork, handler(act, retry={"max_attempts": 2, **QUICK}))) == "handled"
    assert len(told) == 2
    assert told[0] == told[1]


@pytest.mark.spec("C69")
def test_a_handler_has_three_attempts(clockwork: Clockwork) -> None:
    calls: list[Any] = []

    def act(context: Any) -> None:
        calls.append(context)
        raise ValueError("never")

    slot = due(clockwork, handler(act, retry=QUICK))
    assert clockwork.run(slot) == "error: never"
    assert len(calls) == 3
    following = clockwork.task().next_run_at
    assert following is not None
    assert following > slot.scheduled_for


def test_what_will_pass_gives_the_lease_back(clockwork: Clockwork) -> None:
    failures: list[Exception] = [
        psycopg.OperationalError("server closed the connection"),
        ConnectionError("x"),
    ]

    def act(context: Any) -> None:
        if failures and isinstance(failures[0], psycopg.Error):
            raise failures.pop(0)

    slot = due(clockwork, handler(act, retry={"max_attempts": 1}))
    assert clockwork.run(slot).startswith("postponed")
    [past] = clockwork.past()
    assert (past.state, past.attempts) == ("due", 1)
    assert clockwork.run(slot) == "handled"
    assert clockwork.past()[0].attempts == 2


@pytest.mark.spec("C88")
def test_a_lost_worker_leaves_the_occurrence_to_others_twice(clockwork: Clockwork) -> None:
    calls: list[Any] = []
    slot = due(clockwork, handler(calls.append))
    for strikes in (0, 1, 2):
        row = occurrences.take(clockwork.runtime.database, slot, token=uuid4(), lease=timedelta())
        assert row is not None
        assert (row.state, row.strikes, row.slot) == ("running", strikes, slot)
        assert schedules.look(clockwork.runtime).rung == 1
    assert clockwork.run(slot) == "nothing to run: it has run, or another worker runs it"
    assert calls == []
    [past] = clockwork.past()
    assert (past.state, past.error) == ("error", "given up: the process that ran it was lost 3 times")


@pytest.mark.spec("C89")
def test_a_worker_that_slept_past_its_lease_writes_nothing(clockwork: Clockwork) -> None:
    slot = due(clockwork, handler(print))
    sleeper = uuid4()
    assert occurrences.take(clockwork.runtime.database, slot, token=sleeper, lease=timedelta()) is not None
    schedules.look(clockwork.runtime)
    assert clockwork.run(slot) == "handled"
    database = clockwork.runtime.database
    assert not occurrences.finish(database, slot, token=sleeper, error="late")
    assert not occurrences.renew(database, slot, token=sleeper, lease=timedelta(seconds=9))
    assert not occurrences.release(database, slot, token=sleeper, error="late", pause=timedelta())
    assert clockwork.past()[0].state == "handled"


@pytest.mark.spec("C90")
def test_the_lease_is_renewed_while_a_handler_runs(
    make_runtime: Callable[..., Runtime], clockwork: Clockwork
) -> None:
    quick = Clockwork(make_runtime(lease_seconds=0.6), clockwork.address)
    begun, gate = threading.Event(), threading.Event()

    async def act(context: Any) -> None:
        begun.set()
        await passed(gate)

    slot = due(quick, handler(act))
    answers: list[str] = []
    thread = threading.Thread(target=lambda: answers.append(quick.run(slot)))
    thread.start()
    assert begun.wait(10)
    first = quick.sql("SELECT due_at FROM {schema}.occurrences")[0].due_at
    eventually(lambda: quick.sql("SELECT due_at FROM {schema}.occurrences")[0].due_at > first)
    assert quick.run(slot) == "nothing to run: it has run, or another worker runs it"
    gate.set()
    thread.join(10)
    assert answers == ["handled"]


def test_a_handler_ends_when_its_lease_is_lost(
    make_runtime: Callable[..., Runtime], clockwork: Clockwork
) -> None:
    quick = Clockwork(make_runtime(lease_seconds=0.6), clockwork.address)
    ended = threading.Event()

    async def act(context: Any) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    slot = due(quick, handler(act))
    answers: list[str] = []
    thread = threading.Thread(target=lambda: answers.append(quick.run(slot)))
    thread.start()
    eventually(lambda: quick.past()[0].state == "running")
    quick.sql("UPDATE {schema}.occurrences SET lease_token = gen_random_uuid()")
    thread.join(10)
    assert answers == ["lost: the lease ran out meanwhile"]
    assert ended.is_set()


@pytest.mark.spec("C76")
def test_a_handler_may_change_its_own_schedule(clockwork: Clockwork) -> None:
    async def act(context: Any) -> None:
        clockwork.plan.tasks = {"report": handler(act, schedule="every day at 11:00 in UTC")}
        mine = AsyncAgentHandle("Timed", clockwork.address.name, runtime=clockwork.runtime)
        await mine.reconcile_scheduled_tasks()

    assert clockwork.run(due(clockwork, handler(act))) == "handled"
    following = clockwork.task().next_run_at
    assert following is not None
    assert following.hour == 11
    assert clockwork.past()[0].state == "handled"


@pytest.mark.spec("C71")
def test_an_occurrence_of_a_changed_schedule_is_superseded(clockwork: Clockwork) -> None:
    slot = due(clockwork, handler(print))
    clockwork.declare(report=handler(print, schedule="every day at 10:00 in UTC"))
    assert clockwork.past()[0].state == "superseded"
    assert clockwork.run(slot) == "nothing to run: it has run, or another worker runs it"


@pytest.mark.spec("C72")
def test_a_malformed_bell_is_an_error_and_changes_nothing(clockwork: Clockwork) -> None:
    due(clockwork, handler(print))
    with pytest.raises(ValueError, match="isoformat"):
        tasks.slot_of("Timed", clockwork.address.name, "report", "tomorrow")
    assert clockwork.past()[0].state == "due"


@pytest.mark.spec("C99")
def test_a_task_that_this_build_does_not_know_is_given_back(clockwork: Clockwork) -> None:
    slot = due(clockwork, handler(print))
    clockwork.plan.tasks = {}
    assert clockwork.run(slot).startswith("postponed: this build does not know the task")
    [past] = clockwork.past()
    assert (past.state, past.finished_at) == ("due", None)


@pytest.mark.spec("C83")
def test_lost_bells_are_rung_again(clockwork: Clockwork) -> None:
    due(clockwork, handler(print))
    assert schedules.dispatch(clockwork.runtime).rung == 0
    clockwork.sql("UPDATE {schema}.occurrences SET due_at = now()")
    assert schedules.dispatch(clockwork.runtime).rung == 1
    assert schedules.dispatch(clockwork.runtime).rung == 0


def test_a_handler_never_runs_twice_at_once(clockwork: Clockwork) -> None:
    due(clockwork, handler(print, schedule="every 1 minute"))
    clockwork.late()
    assert clockwork.dispatch() == {"held": 1}
    with pytest.raises(OccurrenceOpen, match="never runs twice at once"):
        clockwork.handle.run_schedule("report")
    clockwork.run_open()
    assert clockwork.handle.run_schedule("report") is not None


def test_a_handler_that_waits_for_its_own_agent(clockwork: Clockwork) -> None:
    """A scheduled handler is no turn, so it may start turns of its agent and wait for them."""
    results: list[str] = []

    async def act(context: Any) -> None:
        mine = AsyncAgentHandle("Timed", clockwork.address.name, runtime=clockwork.runtime)
        results.append((await mine.save_messages("from the handler")).status)

    assert clockwork.run(due(clockwork, handler(act))) == "handled"
    assert results == ["completed"]


def test_a_blank_prompt_from_a_function_is_an_error(clockwork: Clockwork) -> None:
    slot = due(clockwork, prompt(lambda: "  ", retry={"max_attempts": 1}))
    assert clockwork.run(slot).startswith("error: prompt")
