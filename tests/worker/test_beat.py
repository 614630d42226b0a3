"""Beat ticks and nothing more: a worker that answers reads from the ledger what is due."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import redis
from sqlalchemy import text

from tests.processes import celery, worker
from tests.scheduled_agents import HOLD_VARIABLE, LOG_VARIABLE
from think_celery import AgentHandle
from think_celery.engine.runtime import Runtime
from think_celery.ledger import ticks
from think_celery.settings import Settings
from think_celery.testing import eventually

Make = Callable[..., Settings]
Produce = Callable[[Settings], Runtime]
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
