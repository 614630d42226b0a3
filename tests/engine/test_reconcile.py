"""What declarations make of stored schedules: added, changed, removed, renamed, broken; and for whom."""

import logging
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest

from tests.engine.timing import DAILY, Clockwork, handler, named, plans, prompt
from think_celery import AgentHandle
from think_celery.core.address import Address
from think_celery.engine import arming
from think_celery.engine.runtime import Runtime
from think_celery.ledger import declarations
from think_celery.testing import eventually


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """What tests declared for agents with fixed names is not there for the next one."""
    yield
    named.clear()
    plans.clear()


def rows(
    clockwork: Clockwork, columns: str = "*", order: str = "agent_name, task_id"
) -> list[tuple[object, ...]]:
    mine = "agent_type IN ('Timed', 'Everywhere')"  # other tests' classes may be loaded as well
    found = clockwork.sql(f"SELECT {columns} FROM {{schema}}.schedules WHERE {mine} ORDER BY {order}")
    return [tuple(row) for row in found]


def timed(runtime: Runtime, name: str, type_name: str = "Timed") -> Clockwork:
    return Clockwork(runtime, Address(type_name, name))


def pass_over(runtime: Runtime) -> int:
    """Compare all agents, as if nobody had done so lately."""
    runtime.database.run(
        lambda connection: connection.exec_driver_sql(
            runtime.database.sql("UPDATE {schema}.classes SET armed_at = NULL")
        )
    )
    return arming.arm_classes(runtime, at_once=True)


@pytest.mark.spec("C43")
def test_a_new_task_is_armed_and_does_not_run(clockwork: Clockwork) -> None:
    [view] = clockwork.declare(report=prompt())
    assert (view.status, view.kind, view.schedule, view.timezone) == (
        "active", "wall-clock", "every day at 09:00", "UTC",
    )  # fmt: skip
    assert (view.action, view.overlap, view.missed) == ("prompt", "hold", "once")
    assert view.last is None
    assert clockwork.dispatch() == {}
    assert clockwork.past() == []


@pytest.mark.spec("C44")
def test_other_words_keep_the_due_time(clockwork: Clockwork) -> None:
    clockwork.declare(report=prompt(schedule="every 1 hour"))
    columns = "next_run_at, generation, schedule_hash, task_hash"
    [before] = rows(clockwork, columns)
    clockwork.declare(report=prompt("other words", schedule="every 1 hour"))
    [after] = rows(clockwork, columns)
    assert before[:3] == after[:3]
    assert before[3] != after[3]


@pytest.mark.spec("C45")
def test_another_schedule_begins_anew(clockwork: Clockwork) -> None:
    clockwork.declare(report=prompt(schedule="every 1 hour"))
    clockwork.late()
    [before] = rows(clockwork, "generation, schedule_hash")
    clockwork.declare(report=prompt(schedule="every 2 hours"))
    [after] = rows(clockwork, "generation, schedule_hash, next_run_at > now() + interval '1 hour 59 minutes'")
    assert after[0] == 2
    assert before[1] != after[1]
    assert after[2]


def test_the_same_declaration_changes_nothing(clockwork: Clockwork) -> None:
    clockwork.declare(report=prompt(), other=handler(print, schedule="every 60 minutes"))
    clockwork.late()
    before = rows(clockwork)
    clockwork.declare(report=prompt(), other=handler(print, schedule="every 60 minutes"))
    assert rows(clockwork) == before


def test_another_spelling_is_the_same_schedule(clockwork: Clockwork) -> None:
    clockwork.declare(report=prompt(schedule="every 60 minutes"))
    [before] = rows(clockwork, "next_run_at, generation")
    clockwork.declare(report=prompt(schedule="every 1 hour", retry={"max_attempts": 5}))
    assert rows(clockwork, "next_run_at, generation") == [before]


@pytest.mark.spec("C46")
def test_an_empty_map_removes_what_was_there(clockwork: Clockwork) -> None:
    clockwork.declare(report=prompt(), other=prompt())
    bystander = timed(clockwork.runtime, "bystander")
    bystander.declare(own=prompt())
    assert clockwork.declare() == []
    assert [row[0] for row in rows(clockwork, "task_id")] == ["own"]


@pytest.mark.spec("C47")
def test_another_default_zone_is_another_schedule(clockwork: Clockwork) -> None:
    clockwork.plan.zone = "UTC"
    clockwork.declare(report=prompt(schedule="every day at 09:00"))
    [before] = rows(clockwork, "next_run_at, schedule_hash, timezone")
    clockwork.plan.zone = "America/New_York"
    clockwork.handle.reconcile_scheduled_tasks()
    [after] = rows(clockwork, "next_run_at, schedule_hash, timezone")
    assert before[2] == "UTC"
    assert after[2] == "America/New_York"
    assert before[0] != after[0]
    assert before[1] != after[1]


@pytest.mark.spec("C48", "C54")
def test_a_restart_finds_everything_as_it_was(
    make_runtime: Callable[..., Runtime], clockwork: Clockwork
) -> None:
    clockwork.declare(report=prompt(schedule="every 1 hour"))
    before = rows(clockwork)
    restarted = timed(make_runtime(), clockwork.address.name)
    restarted.handle.reconcile_scheduled_tasks()
    assert rows(clockwork) == before
    slot = clockwork.late()
    restarted.dispatch()
    [row] = restarted.handle.list_submissions()
    assert row.idempotency_key is not None
    assert row.idempotency_key.endswith(f":report:{int(slot.timestamp() * 1000)}")


@pytest.mark.spec("C50")
def test_one_bad_task_harms_only_itself(clockwork: Clockwork) -> None:
    """Field row 52: one broken entry among several; the others go on, and it shows."""
    clockwork.declare(one=prompt(), two=prompt(), three=prompt())
    clockwork.late(task="three")
    [kept] = rows(clockwork, "schedule, next_run_at, generation", "task_id DESC OFFSET 1 LIMIT 1")
    views = clockwork.declare(
        one=prompt(), two=prompt("2"), three=prompt(schedule="every day at 25:00 in UTC")
    )
    statuses = {view.task_id: view.status for view in views}
    assert statuses == {"one": "active", "two": "active", "three": "invalid"}
    assert rows(clockwork, "schedule, next_run_at, generation", "task_id DESC OFFSET 1 LIMIT 1") == [kept]
    assert clockwork.dispatch() == {}
    [degradation] = clockwork.handle.get_start_degradations()
    assert degradation.task_id == "three"
    assert degradation.error.startswith("TIME_INVALID: Invalid schedule time")
    clockwork.declare(one=prompt(), two=prompt("2"), three=prompt())
    assert clockwork.handle.get_start_degradations() == []
    assert clockwork.dispatch() == {"submitted": 1}


def test_a_task_that_was_never_good_is_shown(clockwork: Clockwork, caplog: pytest.LogCaptureFixture) -> None:
    [view] = clockwork.declare(report=prompt(schedule="whenever"))
    clockwork.declare(report=prompt(schedule="now and then"))
    [told] = [line for line in caplog.messages if line.startswith("schedules.invalid")]  # once
    assert "task=report: UNSUPPORTED" in told
    assert (view.status, view.next_run_at, view.schedule) == ("invalid", None, None)
    assert view.reason is not None
    assert view.reason.startswith("UNSUPPORTED")
    assert clockwork.handle.run_schedule("report") is None
    [view] = clockwork.declare(report=prompt())
    assert view.status == "active"


def test_a_bad_default_zone_leaves_all_as_they_were(clockwork: Clockwork) -> None:
    clockwork.declare(report=prompt())
    clockwork.plan.zone = "Not/A_Zone"
    with pytest.raises(ValueError, match="Invalid timezone"):
        clockwork.handle.reconcile_scheduled_tasks()
    assert clockwork.task().status == "active"


@pytest.mark.spec("C51")
def test_parent_and_children_have_their_own(runtime: Runtime) -> None:
    parent = timed(runtime, "parent", "Everywhere")
    children = [parent.handle.sub_agent("Everywhere", name) for name in ("alpha", "beta")]
    plans[parent.address.name].tasks = {"shared": prompt()}
    for child in children:
        plans[child.address.name].tasks = {"shared": prompt()}
        child.add_messages("made")
    for handle in (parent.handle, *children):
        handle.reconcile_scheduled_tasks()
    assert len(rows(parent)) == 3
    children[0].delete_agent()
    assert [row[0] for row in rows(parent, "agent_name")] == [children[1].address.name, "parent"]


@pytest.mark.spec("C52")
def test_children_do_not_come_due_by_default(runtime: Runtime, caplog: pytest.LogCaptureFixture) -> None:
    parent = timed(runtime, "parent")
    parent.declare(shared=prompt())
    with caplog.at_level(logging.WARNING):
        for number in range(5):
            child = parent.handle.sub_agent("Timed", f"child-{number}")
            child.add_messages("made")
            plans[child.address.name].tasks = {"shared": prompt()}
            child.reconcile_scheduled_tasks()
    assert [row[0] for row in rows(parent, "agent_name")] == ["parent"]
    assert sum("schedules.ignored" in record.message for record in caplog.records) == 1


@pytest.mark.spec("C58")
def test_a_renamed_task_is_a_new_one(clockwork: Clockwork) -> None:
    clockwork.declare(a=prompt(schedule="every 1 hour"))
    clockwork.late(task="a")
    clockwork.declare(b=prompt(schedule="every 1 hour"))
    assert [row[0] for row in rows(clockwork, "task_id")] == ["b"]
    assert clockwork.dispatch() == {}


@pytest.mark.spec("C60")
def test_two_reconciles_at_once(make_runtime: Callable[..., Runtime], clockwork: Clockwork) -> None:
    clockwork.plan.tasks = {f"t{number}": prompt() for number in range(20)}
    others = [timed(make_runtime(), clockwork.address.name) for _ in range(2)]
    barrier = threading.Barrier(2)

    def compare(other: Clockwork) -> None:
        barrier.wait(10)
        other.handle.reconcile_scheduled_tasks()

    threads = [threading.Thread(target=compare, args=(other,)) for other in others]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert rows(clockwork, "count(*), max(generation)", "1") == [(20, 1)]


@pytest.mark.spec("C61")
def test_the_newer_build_wins_and_stays(make_runtime: Callable[..., Runtime], clockwork: Clockwork) -> None:
    old, new = (timed(make_runtime(build_number=number), clockwork.address.name) for number in (1, 2))
    old.declare(report=prompt(schedule="every 1 hour"), gone=prompt())
    new.declare(report=prompt(schedule="every 2 hours"))
    after = rows(clockwork)
    for _ in range(3):
        old.declare(report=prompt(schedule="every 1 hour"), gone=prompt())
        new.declare(report=prompt(schedule="every 2 hours"))
    assert rows(clockwork) == after
    clockwork.late()
    old.plan.tasks = {"report": prompt(schedule="every 1 hour")}
    assert old.dispatch() == {"compared": 1}  # it leaves the task to the newer build
    new.plan.tasks = {"report": prompt(schedule="every 2 hours")}
    clockwork.late()
    assert new.dispatch() == {"submitted": 1}


@pytest.mark.spec("C62")
def test_dormant_agents_are_armed_by_the_pass(runtime: Runtime) -> None:
    for number in range(5):
        AgentHandle("Timed", f"dormant-{number}", runtime=runtime).add_messages("long ago")
        plans[f"dormant-{number}"].tasks = {"report": prompt()}
    probe = timed(runtime, "default")
    assert pass_over(runtime) >= 5
    assert len(rows(probe)) == 5
    assert pass_over(runtime) == 0


def test_a_class_without_an_agent_gets_one(runtime: Runtime) -> None:
    plans["default"].tasks = {"report": prompt()}
    pass_over(runtime)
    default = timed(runtime, "default")
    assert rows(default, "agent_type, agent_name, task_id") == [
        ("Everywhere", "default", "report"), ("Timed", "default", "report"),
    ]  # fmt: skip
    default.late()
    assert default.dispatch() == {"submitted": 2}
    plans["default"].tasks = {}
    pass_over(runtime)
    assert rows(default) == []


def test_a_class_may_name_its_agents(runtime: Runtime) -> None:
    for name in ("a", "b", "c"):
        plans[name].tasks = {"report": prompt()}
        AgentHandle("Timed", name, runtime=runtime).add_messages("hello")
    named["Timed"] = ["a", "b"]
    pass_over(runtime)
    probe = timed(runtime, "a")
    assert [row[0] for row in rows(probe, "agent_name")] == ["a", "b"]
    named["Timed"] = ["b", "c"]
    pass_over(runtime)
    assert [row[0] for row in rows(probe, "agent_name")] == ["b", "c"]


def test_one_pass_per_period_in_the_fleet(make_runtime: Callable[..., Runtime]) -> None:
    one, other = make_runtime(), make_runtime()
    plans["default"].tasks = {"report": prompt()}
    assert arming.arm_classes(one) >= 1
    assert arming.arm_classes(other) == 0
    assert arming.arm_classes(one) == 0


def test_a_restart_writes_nothing(make_runtime: Callable[..., Runtime], runtime: Runtime) -> None:
    for number in range(3):
        AgentHandle("Timed", f"n-{number}", runtime=runtime).add_messages("hello")
    pass_over(runtime)
    probe = timed(runtime, "n-0")
    before = probe.sql("SELECT agent_name, xmin::text FROM {schema}.agents ORDER BY 1")
    assert pass_over(make_runtime()) == 0
    assert probe.sql("SELECT agent_name, xmin::text FROM {schema}.agents ORDER BY 1") == before
    assert declarations.unarmed(
        runtime.database, "Timed", armed="other", after="", children_too=False, limit=10
    ) == ["n-0", "n-1", "n-2"]


def test_a_class_that_cannot_be_read_keeps_its_schedules(runtime: Runtime) -> None:
    timed(runtime, "x").declare(report=prompt())
    plans["x"].failure = RuntimeError("broken")
    plans["default"].failure = RuntimeError("broken")
    pass_over(runtime)
    assert len(rows(timed(runtime, "x"))) == 1
    [degradation] = timed(runtime, "x").handle.get_start_degradations()
    assert "broken" in degradation.error


def test_a_new_edition_of_the_zone_rules_moves_what_is_to_come(clockwork: Clockwork) -> None:
    clockwork.declare(report=prompt(), hourly=prompt(schedule="every 1 hour"))
    [right] = rows(clockwork, "next_run_at", "task_id DESC LIMIT 1")
    clockwork.sql(
        "UPDATE {schema}.schedules SET tzdata_version = '2020a', "
        "next_run_at = next_run_at + interval '1 hour', due_at = due_at + interval '1 hour'"
    )
    wrong = rows(clockwork, "next_run_at", "task_id")
    clockwork.handle.reconcile_scheduled_tasks()
    assert rows(clockwork, "next_run_at, generation", "task_id") == [(*wrong[0], 1), (*right, 1)]


def test_an_overdue_one_is_left_to_run_by_the_old_rules(clockwork: Clockwork) -> None:
    clockwork.declare(report=prompt())
    slot = clockwork.late(timedelta(minutes=5))
    clockwork.sql("UPDATE {schema}.schedules SET tzdata_version = '2020a'")
    clockwork.handle.reconcile_scheduled_tasks()
    assert clockwork.task().next_run_at == slot
    assert clockwork.dispatch() == {"submitted": 1}


def test_the_claim_of_a_known_agent_compares_nothing(clockwork: Clockwork) -> None:
    clockwork.plan.tasks = {"report": prompt(schedule=DAILY)}
    clockwork.handle.submit_messages("hello")
    clockwork.drain()
    eventually(clockwork.handle.schedules)
    armed = "SELECT armed FROM {schema}.agents WHERE agent_name = :name"
    eventually(lambda: clockwork.sql(armed, name=clockwork.address.name)[0].armed)
    clockwork.plan.failure = AssertionError("asked again")
    clockwork.handle.submit_messages("again")
    clockwork.drain()
    assert clockwork.handle.get_start_degradations() == []
