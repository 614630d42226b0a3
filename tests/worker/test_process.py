"""A worker process from its start to its end: agents, heartbeats, warm and cold shutdown."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.agents import LOG_VARIABLE
from tests.processes import alive, celery, environment, worker
from think_celery import AgentHandle
from think_celery.engine.runtime import Runtime
from think_celery.errors import WrongContext
from think_celery.settings import Settings
from think_celery.testing import eventually
from think_celery.worker import process as processes

Make = Callable[..., Settings]
Produce = Callable[[Settings], Runtime]


@pytest.mark.parametrize(
    ("agents", "text"),
    [
        (("no_such_module",), "the agent module 'no_such_module' cannot be imported"),
        (("tests.agents", "tests.worker.broken"), "ZeroDivisionError"),
    ],
)
def test_agents_that_cannot_be_loaded_are_named(
    make_settings: Make, tmp_path: Path, agents: tuple[str, ...], text: str
) -> None:
    settings = make_settings(agents=agents)
    with celery(settings, tmp_path, "worker") as process:
        assert process.popen.wait(30) == 1
        log = process.log.read_text()
    assert "think-celery: " in log
    assert text in log
    assert "Traceback" not in log


def test_agents_are_found_in_the_folder_where_the_worker_starts(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "my_agents.py").write_text("from think_celery import Think\nclass Mine(Think): pass\n")
    script = (
        "from think_celery.agent import registry; from workers import app; app.Worker(pool_cls='solo');"
        "print(registry.known())"
    )
    env = environment(settings, THINK_AGENTS="my_agents")
    # As the `celery` program, which has its own folder in the path and not the current one.
    ended = subprocess.run(
        [sys.executable, "-P", "-c", script],
        env=env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert "'Mine'" in ended.stdout, ended.stderr


@pytest.mark.parametrize(("pool", "processes_"), [("threads", 1), ("solo", 1), ("prefork", 3)])
def test_each_process_that_runs_turns_has_a_heartbeat(
    make_settings: Make, tmp_path: Path, pool: str, processes_: int
) -> None:
    settings = make_settings(agents=("tests.agents",), pool=pool, concurrency=3)
    with worker(settings, tmp_path) as process:
        eventually(lambda: alive(settings) == processes_)
        assert process.stop() == 0
    assert alive(settings) == 0  # gone in order, not presumed dead


def test_a_killed_child_is_followed_by_another(make_settings: Make, produce: Produce, tmp_path: Path) -> None:
    settings = make_settings(agents=("tests.agents",), pool="prefork", concurrency=1, lease_seconds=4.0)
    runtime = produce(settings)
    log = tmp_path / "turns"
    handle = AgentHandle("Recorder", "a", runtime=runtime)
    with worker(settings, tmp_path, **{LOG_VARIABLE: str(log)}):
        first = handle.submit_messages("one")
        assert handle.wait_for_submission(first.submission_id, timeout=20)
        os.kill(int(log.read_text().split("\t")[4]), signal.SIGKILL)
        second = handle.submit_messages("two")
        ended = handle.wait_for_submission(second.submission_id, timeout=40)
        assert ended is not None
        assert ended.status == "completed"
    pids = [line.split("\t")[4] for line in log.read_text().splitlines()]
    assert len(set(pids)) == 2


@pytest.mark.parametrize("pool", ["threads", "prefork"])
def test_a_warm_shutdown_lets_the_turn_finish(
    make_settings: Make, produce: Produce, tmp_path: Path, pool: str
) -> None:
    settings = make_settings(agents=("tests.agents",), pool=pool, concurrency=2)
    handle = AgentHandle("Recorder", "a", runtime=produce(settings))
    with worker(settings, tmp_path, **{LOG_VARIABLE: str(tmp_path / "turns")}) as process:
        receipt = handle.submit_messages("x", metadata={"seconds": 2})
        eventually(lambda: _status(handle, receipt.submission_id) == "running")
        assert process.stop() == 0
    assert _status(handle, receipt.submission_id) == "completed"


@pytest.mark.parametrize("pool", ["threads", "prefork", "solo"])
def test_a_cold_shutdown_ends_in_seconds(
    make_settings: Make, produce: Produce, tmp_path: Path, pool: str
) -> None:
    settings = make_settings(agents=("tests.agents",), pool=pool, concurrency=2)
    handle = AgentHandle("Recorder", "a", runtime=produce(settings))
    with worker(settings, tmp_path, **{LOG_VARIABLE: str(tmp_path / "turns")}) as process:
        receipt = handle.submit_messages("x", metadata={"seconds": 60})
        eventually(lambda: _status(handle, receipt.submission_id) == "running")
        start = time.monotonic()
        process.popen.send_signal(signal.SIGQUIT)
        process.popen.wait(20)
        assert time.monotonic() - start < 15
    assert _status(handle, receipt.submission_id) in {"running", "pending"}  # for another worker to rescue


def test_a_worker_stops_while_the_ledger_is_gone(make_settings: Make, tmp_path: Path) -> None:
    from think_celery.ledger.database import Database

    settings = make_settings(agents=("tests.agents",))
    with worker(settings, tmp_path) as process:
        database = Database(settings)
        database.run(
            lambda connection: connection.exec_driver_sql(f"DROP SCHEMA {settings.schema_name} CASCADE")
        )
        database.close()
        start = time.monotonic()
        assert process.stop() == 0
        assert time.monotonic() - start < 10


def test_outside_a_worker_the_app_must_carry_think_celery() -> None:
    with pytest.raises(WrongContext, match="install"):
        processes.current_process()


def _status(handle: AgentHandle, submission_id: str) -> str:
    found = handle.inspect_submission(submission_id)
    assert found is not None
    return str(found.status)
