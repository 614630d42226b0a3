"""think-celery in an app that a team already has: nothing of theirs changes, both kinds of task run."""

import importlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from celery import Celery
from kombu import pools

from tests.processes import environment, worker
from tests.worker.conftest import OwnValkey
from think_celery import AgentHandle
from think_celery.core.submission import Submission
from think_celery.engine import runtime as runtimes
from think_celery.engine.runtime import Runtime
from think_celery.settings import Settings
from think_celery.testing import eventually
from think_celery.worker.app import build_app, default_app, install
from think_celery.worker.publisher import CeleryPublisher

APP = "tests.worker.foreign"
ENTRIES = ("think.sweep", "think.dispatch_due", "think.reconcile_schedules")
Make = Callable[..., Settings]


@pytest.fixture
def team(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The team's module, imported anew with this test's servers."""
    with imported(settings, monkeypatch) as module:
        yield module


@contextmanager
def imported(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    bound = (runtimes._publisher_factory, runtimes._configured)
    for name, value in environment(settings, TEAM_BROKER=settings.broker_url.get_secret_value()).items():
        monkeypatch.setenv(name, value)
    sys.modules.pop(APP, None)
    try:
        yield importlib.import_module(APP)
    finally:
        sys.modules.pop(APP, None)
        runtimes._publisher_factory, runtimes._configured = bound
        pools.reset()


def test_settings_and_tasks_stay_as_they_were(team: ModuleType) -> None:
    app: Celery = team.app
    after = {name: app.conf[name] for name in team.before}
    schedule = after.pop("beat_schedule")
    before = {name: value for name, value in team.before.items() if name != "beat_schedule"}
    assert after == before
    assert schedule == {**team.before["beat_schedule"], **{name: schedule[name] for name in ENTRIES}}
    assert app.tasks["team.add"].acks_late is True
    assert app.tasks["team.add"].ignore_result is False
    assert {name for name in app.tasks if not name.startswith("celery.")} == {
        "team.add", "team.hold", "think.run_turn", "think.run_occurrence", "think.prune", *ENTRIES,
    }  # fmt: skip


def test_ours_is_said_per_task(team: ModuleType) -> None:
    for name in ("think.run_turn", "think.sweep"):
        task = team.app.tasks[name]
        assert (task.acks_late, task.reject_on_worker_lost) == (False, False)
        assert (task.ignore_result, task.serializer, task.rate_limit) == (True, "json", 0)


def test_installing_needs_no_configured_app_and_may_be_repeated(settings: Settings) -> None:
    bound = (runtimes._publisher_factory, runtimes._configured)
    app = Celery("lazy", set_as_current=False)
    try:
        assert install(app, settings) is app
        assert not app.configured
        install(app, settings)
        app.config_from_object({"task_default_queue": "later", "beat_schedule": {"own": {}}})
        assert app.conf.task_default_queue == "later"
        assert set(app.conf.beat_schedule) == {"own", *ENTRIES}
        assert "think.run_turn" in app.tasks
    finally:
        runtimes._publisher_factory, runtimes._configured = bound


def test_other_apps_of_the_process_get_no_tasks(settings: Settings) -> None:
    build_app(settings).finalize()
    other = Celery("other", set_as_current=False)
    other.finalize()
    assert not [name for name in other.tasks if name.startswith("think.")]


def test_the_producers_app_is_one_per_settings(settings: Settings) -> None:
    assert default_app(settings) is default_app(settings)
    changed = settings.model_copy(update={"queue_scope": "type"})
    assert default_app(changed) is not default_app(settings)


def run_both(module: ModuleType, settings: Settings, folder: Path, pool: str) -> None:
    runtime = Runtime(settings, CeleryPublisher(module.app, settings))
    broker = settings.broker_url.get_secret_value()
    try:
        with worker(settings, folder, "-P", pool, app=APP, TEAM_BROKER=broker) as process:
            results = [module.add.delay(number, 1) for number in range(10)]
            handles = [AgentHandle("Scripted", f"{pool}{n}", runtime=runtime) for n in range(5)]
            receipts = [handle.submit_messages("say hi") for handle in handles]
            assert [result.get(timeout=20) for result in results] == list(range(1, 11))
            for handle, receipt in zip(handles, receipts, strict=True):
                ended = handle.wait_for_submission(receipt.submission_id, timeout=20)
                assert isinstance(ended, Submission)
                assert ended.status == "completed"
            module.app.pool.force_close_all()
            assert process.stop() == 0
        assert "Traceback" not in process.log.read_text()
    finally:
        runtime.close()


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_both_kinds_of_task_run_in_one_worker(
    make_settings: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, pool: str
) -> None:
    settings = make_settings(agents=("tests.agents",))
    with imported(settings, monkeypatch) as module:
        run_both(module, settings, tmp_path, pool)


def test_prefetching_is_theirs_for_theirs_and_bounded_for_ours(
    make_settings: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, own_valkey: OwnValkey
) -> None:
    """Two slots held by the team's tasks: theirs are prefetched as configured, of ours at most two."""
    settings = make_settings(
        agents=("tests.agents",), broker_url=own_valkey.url, redis_url=own_valkey.url, sweep_seconds=3600.0
    )
    gate = tmp_path / "gate"
    with imported(settings, monkeypatch) as module:
        runtime = Runtime(settings, CeleryPublisher(module.app, settings))
        with worker(settings, tmp_path, "-P", "prefork", app=APP, TEAM_BROKER=own_valkey.url):
            held = [module.hold.delay(str(gate)) for _ in range(12)]
            inspect = module.app.control.inspect(timeout=5, limit=1)

            def reserved() -> list[str]:
                kinds: dict[str, list[dict[str, Any]]] = {**(inspect.reserved() or {})}
                return sorted(request["name"] for of in kinds.values() for request in of)

            eventually(lambda: reserved() == ["team.hold"] * 6)  # 2 slots x 4 fetched, 2 of them running
            handles = [AgentHandle("Scripted", f"a{n}", runtime=runtime) for n in range(6)]
            receipts = [handle.submit_messages("say hi") for handle in handles]
            eventually(lambda: reserved().count("think.run_turn") == 2)
            gate.touch()
            for handle, receipt in zip(handles, receipts, strict=True):
                ended = handle.wait_for_submission(receipt.submission_id, timeout=20)
                assert ended is not None
                assert ended.status == "completed"
            assert {result.get(timeout=20) for result in held} == {"released"}
        module.app.pool.force_close_all()
        runtime.close()


def test_a_team_that_refuses_json_is_told(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "pickled.py").write_text(
        "import os\nfrom celery import Celery\nfrom think_celery import install\n"
        "app = Celery('p', broker=os.environ['TEAM_BROKER'], set_as_current=False)\n"
        "app.conf.accept_content = ['yaml']\ninstall(app)\n"
    )
    env = environment(settings, TEAM_BROKER=settings.broker_url.get_secret_value())
    env["PYTHONPATH"] += f":{tmp_path}"
    log = tmp_path / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", "pickled", "worker", "-P", "solo"],
            env=env, stdout=out, stderr=out,
        )  # fmt: skip
    try:
        eventually(lambda: "json_refused" in log.read_text(), timeout=30)
    finally:
        process.terminate()
        process.wait(20)
