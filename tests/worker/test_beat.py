"""Beat ticks and nothing more: a worker that answers reads from the ledger what is due."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import redis
from sqlalchemy import text

from tests.processes import celery, worker
from tests.scheduled_agents import HOLD_VARIABLE, HOURS_VARIABLE, LOG_VARIABLE
from think_celery import AgentHandle
from think_celery.engine.runtime import Runtime
from think_celery.ledger import ticks
from think_celery.settings import Settings
from think_celery.testing import eventually
from think_celery.worker.beat import DISPATCH_DUE

Make = Callable[..., Settings]
Produce = Callable[[Settings], Runtime]
ZONED = "tests.worker.zoned"
QUICK = {
    "agents": ("tests.scheduled_agents",),
    "schedule_seconds": 0.5,
    "nudge_after_seconds": 0.5,
    "sweep_seconds": 0.5,
    "concurrency": 4,
}


def sql(runtime: Runtime, statement: str) -> list[object]:
    def unit(connection):  # type: ignore[no-untyped-def]
        result = connection.execute(text(runtime.database.sql(statement)))
        return list(result.all()) if result.returns_rows else []

    return runtime.database.run(unit)


def all_due(runtime: Runtime, ago: str = "1 second") -> None:
    sql(
        runtime,
        f"UPDATE {{schema}}.schedules SET next_run_at = date_trunc('second', now()) - interval '{ago}', "
        "due_at = now()",
    )


def states(handle: AgentHandle) -> dict[str, str]:
    return {past.task_id: str(past.state) for past in handle.occurrences()}


@pytest.mark.timeout(120)
def test_beat_and_worker(make_settings: Make, produce: Produce, tmp_path: Path) -> None:
    """The whole way: a class without an agent gets one, is armed, and each kind of task comes due."""
    settings = make_settings(**QUICK)
    runtime = produce(settings)
    handle = AgentHandle("Ticking", "default", runtime=runtime)
    log = tmp_path / "log"
    with (
        worker(settings, tmp_path, **{LOG_VARIABLE: str(log)}),
        celery(settings, tmp_path, "beat", name="beat"),
    ):
        eventually(lambda: len(handle.schedules()) == 3, timeout=30, describe="the class is armed")
        eventually(lambda: ticks.lateness(runtime.database, "dispatch").ticked_at is not None, timeout=30)
        all_due(runtime)
        eventually(lambda: [row.status for row in handle.list_submissions()] == ["completed"] * 2, timeout=30)
        eventually(lambda: states(handle).get("handler") == "handled", timeout=30)
    assert len(log.read_text().splitlines()) == 1
    assert set(states(handle)) == {"prompt", "function", "handler"}


@pytest.mark.timeout(120)
@pytest.mark.spec("C86")
def test_without_any_beat_it_is_late_and_not_never(
    make_settings: Make, produce: Produce, tmp_path: Path
) -> None:
    settings = make_settings(**QUICK)
    runtime = produce(settings)
    handle = AgentHandle("Ticking", "default", runtime=runtime)
    with worker(settings, tmp_path, **{LOG_VARIABLE: str(tmp_path / "log")}):
        eventually(lambda: len(handle.schedules()) == 3, timeout=30)
        all_due(runtime)
        eventually(lambda: len(handle.list_submissions()) == 2, timeout=30)
    late = ticks.lateness(runtime.database, "dispatch")
    assert late.ticked_at is None  # what `doctor` shows


@pytest.mark.timeout(120)
@pytest.mark.spec("C88")
def test_a_worker_killed_inside_a_handler(make_settings: Make, produce: Produce, tmp_path: Path) -> None:
    settings = make_settings(**QUICK, lease_seconds=2.0, heartbeat_seconds=0.5)
    runtime = produce(settings)
    handle = AgentHandle("Ticking", "default", runtime=runtime)
    log, hold = tmp_path / "log", tmp_path / "hold"
    hold.touch()
    told = {LOG_VARIABLE: str(log), HOLD_VARIABLE: str(hold)}
    with worker(settings, tmp_path, name="first", **told) as first:
        eventually(lambda: len(handle.schedules()) == 3, timeout=30)
        all_due(runtime)
        eventually(log.exists, timeout=30)
        first.kill()
    hold.unlink()
    with worker(settings, tmp_path, name="second", **told):
        eventually(lambda: states(handle).get("handler") == "handled", timeout=40)
    [handled] = [past for past in handle.occurrences() if past.task_id == "handler"]
    assert handled.attempts == 2
    keys = [line.split()[1] for line in log.read_text().splitlines()]
    assert len(keys) == 2
    assert len(set(keys)) == 1


@pytest.mark.timeout(120)
@pytest.mark.spec("C85", "C87")
def test_ticks_expire_and_beats_state_is_nothing(
    make_settings: Make, produce: Produce, tmp_path: Path
) -> None:
    """Beat alone, killed and without its state: no worker finds more than a tick, and one run per task."""
    settings = make_settings(**QUICK)
    runtime = produce(settings)
    handle = AgentHandle("Ticking", "default", runtime=runtime)
    told = {LOG_VARIABLE: str(tmp_path / "log")}
    with worker(settings, tmp_path, name="first", **told):
        eventually(lambda: len(handle.schedules()) == 3, timeout=30)
    broker = redis.Redis.from_url(settings.broker_url.get_secret_value())
    with celery(settings, tmp_path, "beat", name="beat") as beat:
        eventually(lambda: int(broker.llen("think")) >= 6, timeout=30)
        beat.kill()
    headers = [json.loads(message)["headers"] for message in broker.lrange("think", 0, -1)]
    expiries = [each["expires"] for each in headers if each["task"] == DISPATCH_DUE]
    assert sum(datetime.fromisoformat(at) > datetime.now(UTC) for at in expiries) <= 1 < len(expiries)
    broker.close()
    all_due(runtime, "5 hours")
    with celery(settings, tmp_path, "beat", name="beat"), worker(settings, tmp_path, name="second", **told):
        eventually(lambda: set(states(handle).values()) <= {"submitted", "done", "handled"}, timeout=30)
        eventually(lambda: len(handle.list_submissions()) == 2, timeout=30)
        eventually(lambda: len(states(handle)) == 3, timeout=30)
    assert len(handle.occurrences()) == 3
    assert {past.missed_count for past in handle.occurrences()} == {5}
    late = [past.late_by_ms for past in handle.occurrences()]
    assert min(late) >= timedelta(hours=5) / timedelta(milliseconds=1)
    assert b"Traceback" not in (tmp_path / "second.log").read_bytes()


@pytest.mark.timeout(120)
@pytest.mark.spec("C86", "C95")
def test_beats_and_workers_down_over_three_due_times(
    make_settings: Make, produce: Produce, tmp_path: Path
) -> None:
    """Field row 51: each policy does what it says."""
    settings = make_settings(**QUICK)
    runtime = produce(settings)
    handle = AgentHandle("Policies", "default", runtime=runtime)
    with worker(settings, tmp_path, name="first"):
        eventually(lambda: len(handle.schedules()) == 3, timeout=30)
    all_due(runtime, "2 hours 30 minutes")
    [oldest] = {view.next_run_at for view in handle.schedules()}
    assert oldest is not None
    with celery(settings, tmp_path, "beat", name="beat"), worker(settings, tmp_path, name="second"):
        eventually(lambda: len(states(handle)) == 3, timeout=30)
        eventually(lambda: [row.status for row in handle.list_submissions()] == ["completed"] * 2, timeout=30)
    found = {past.task_id: past for past in handle.occurrences()}
    youngest = oldest + timedelta(hours=2)
    assert (found["once"].scheduled_for, found["once"].latest_missed_for) == (oldest, youngest)
    assert found["latest"].scheduled_for == youngest
    assert (found["skip"].state, found["skip"].submission_id) == ("missed", None)
    assert {past.missed_count for past in found.values()} == {2}
    assert {view.next_run_at for view in handle.schedules()} == {oldest + timedelta(hours=3)}
    assert len(handle.occurrences()) == 3


@pytest.mark.timeout(180)
@pytest.mark.spec("C87")
def test_beats_state_the_apps_zone_and_a_changed_schedule(
    make_settings: Make, produce: Produce, tmp_path: Path
) -> None:
    """A team's app whose beat keeps a file: killed, without its file, in another zone, another schedule."""
    settings = make_settings(**QUICK)
    runtime = produce(settings)
    handle = AgentHandle("Changing", "default", runtime=runtime)
    broker, state = settings.broker_url.get_secret_value(), tmp_path / "state"

    def following() -> dict[str, datetime | None]:
        return {view.task_id: view.next_run_at for view in handle.schedules()}

    def ticks_in(zone: str, name: str, **told: str) -> None:
        began = sql(runtime, "SELECT now()")[0][0]  # type: ignore[index]
        told |= {"TEAM_BROKER": broker, "TEAM_ZONE": zone, "TEAM_STATE": str(state)}
        with (
            celery(settings, tmp_path, "beat", app=ZONED, name=f"beat-{name}", **told) as beat,
            worker(settings, tmp_path, app=ZONED, name=name, **told),
        ):
            eventually(lambda: len(handle.schedules()) == 2, timeout=30)
            eventually(lambda: _ticked_at(runtime) > began, timeout=30, describe=f"a tick in {zone}")
            eventually(lambda: list(tmp_path.glob("state*")), timeout=30)
            if told.get(HOURS_VARIABLE):
                eventually(lambda: following() != before, timeout=30, describe="the change has come")
            beat.kill()

    before: dict[str, datetime | None] = {}
    ticks_in("UTC", "first")
    before = following()
    ticks_in("America/New_York", "second")
    for file in tmp_path.glob("state*"):
        file.unlink()
    ticks_in("Asia/Tokyo", "third")
    assert following() == before
    assert handle.occurrences() == []
    ticks_in("Asia/Tokyo", "fourth", **{HOURS_VARIABLE: "5"})
    after = following()
    assert after["daily"] == before["daily"]
    assert timedelta(hours=4) < after["hourly"] - datetime.now(UTC) <= timedelta(hours=5)  # type: ignore[operator]
    assert handle.occurrences() == []
    all_due(runtime)
    with worker(settings, tmp_path, name="last", **{HOURS_VARIABLE: "5"}):
        eventually(lambda: len(handle.list_submissions()) == 2, timeout=30)
    assert sorted(past.task_id for past in handle.occurrences()) == ["daily", "hourly"]


def _ticked_at(runtime: Runtime) -> datetime:
    at = ticks.lateness(runtime.database, "dispatch").ticked_at
    return at or datetime.min.replace(tzinfo=UTC)
