"""The tables behind schedules: what cannot be, what is found quickly, and what may be forgotten."""

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy.exc import IntegrityError

from tests.engine.timing import Clockwork, handler, prompt
from think_celery.core.address import Address
from think_celery.core.timetable import OccurrenceState
from think_celery.engine.runtime import Runtime
from think_celery.ledger import occurrences, schedules, ticks


@pytest.fixture
def clock(runtime: Runtime) -> Clockwork:
    return Clockwork(runtime, Address("Timed", "ledger"))


@pytest.mark.spec("C100")
def test_a_task_that_holds_cannot_have_two_open(clock: Clockwork) -> None:
    clock.declare(report=handler(print))
    clock.late()
    clock.dispatch()
    again = (
        "INSERT INTO {schema}.occurrences (agent_type, agent_name, task_id, scheduled_for, generation,"
        " overlap, state) VALUES ('Timed', 'ledger', 'report', now() - interval '1 day', 1, 'hold', '%s')"
    )
    for state in ("due", "running", "submitted"):
        with pytest.raises(IntegrityError, match="occurrences_one_open"):
            clock.sql(again % state)
    clock.sql(
        (again % "missed").replace("state)", "state, finished_at)").replace("'missed')", "'missed', now())")
    )


def test_states_are_those_of_the_program(clock: Clockwork) -> None:
    [(definition,)] = clock.sql(
        "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conname = 'occurrences_state' "
        "AND connamespace = '{schema}'::regnamespace"
    )
    assert {state for state in OccurrenceState if f"'{state}'" in definition} == set(OccurrenceState)


def test_a_task_without_a_due_time_must_be_invalid(clock: Clockwork) -> None:
    with pytest.raises(IntegrityError, match="schedules_armed"):
        clock.sql("INSERT INTO {schema}.schedules (agent_type, agent_name, task_id) VALUES ('T', 'a', 't')")


def test_what_is_due_is_read_off_an_index(clock: Clockwork) -> None:
    clock.sql(
        "INSERT INTO {schema}.schedules (agent_type, agent_name, task_id, next_run_at, due_at) "
        "SELECT 'Timed', 'a' || n, 't', now() + n * interval '1 s', now() + n * interval '1 s' "
        "FROM generate_series(1, 20000) n"
    )
    clock.sql("ANALYZE {schema}.schedules")
    statement = clock.runtime.database.sql("EXPLAIN " + schedules._DUE)

    def plan(connection: Any) -> str:
        rows = connection.exec_driver_sql(statement, {"types": ["Timed", "Other"], "limit": 200})
        return "\n".join(row[0] for row in rows)

    assert "Index Scan using schedules_due" in clock.runtime.database.run(plan)


def test_only_occurrences_behind_their_schedule_are_forgotten(clock: Clockwork) -> None:
    clock.declare(report=prompt(schedule="every 1 hour", missed="skip"))
    slot = clock.late(timedelta(hours=30))
    clock.dispatch()
    clock.declare(other=prompt(missed="skip"))  # the task is gone, its record is not
    clock.late(timedelta(hours=30), "other")
    clock.dispatch()
    assert len(clock.past()) == 2
    clock.sql("UPDATE {schema}.occurrences SET finished_at = now() - interval '8 days'")
    clock.move(slot - timedelta(days=9), "other")
    assert occurrences.prune(clock.runtime.database, older_than=timedelta(days=7)) == 1
    assert [past.task_id for past in clock.past()] == ["other"]


def test_the_signs_of_life(clock: Clockwork) -> None:
    before = ticks.lateness(clock.runtime.database, "dispatch")
    assert (before.active, before.ticked_at, before.oldest_due_at) == (False, None, None)
    clock.declare(report=prompt())
    slot = clock.late()
    ticks.tick(clock.runtime.database, "dispatch")
    after = ticks.lateness(clock.runtime.database, "dispatch", type_names=["Timed"])
    assert after.active
    assert after.ticked_at is not None
    assert after.ticked_at >= before.now
    assert after.oldest_due_at == slot
