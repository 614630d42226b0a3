"""The ready-made app: its settings, its tasks, its beat table."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from celery.app.defaults import SETTING_KEYS

from tests.processes import ROOT, environment
from think_celery.settings import Settings
from think_celery.worker.app import build_app
from think_celery.worker.beat import beat_entries
from think_celery.worker.config import celery_config


def test_every_setting_exists_in_celery(settings: Settings) -> None:
    assert set(celery_config(settings)) <= SETTING_KEYS


def test_bells_are_early_acknowledged_json_without_results(settings: Settings) -> None:
    app = build_app(settings)
    assert app.conf.accept_content == ["json"]
    assert (app.conf.task_serializer, app.conf.task_ignore_result, app.conf.task_acks_late) == (
        "json",
        True,
        False,
    )
    assert app.backend.as_uri() == "disabled://"
    assert app.conf.worker_disable_prefetch is True
    assert app.conf.worker_cancel_long_running_tasks_on_connection_loss is False
    assert app.conf.worker_send_task_events is True
    ours = {name for name in app.tasks if not name.startswith("celery.")}
    assert ours == {
        "think.run_turn",
        "think.run_occurrence",
        "think.sweep",
        "think.prune",
        "think.dispatch_due",
        "think.reconcile_schedules",
    }


def test_no_wait_on_the_broker_is_without_an_end(settings: Settings) -> None:
    transport = build_app(settings).connection_for_read().transport_options
    assert transport["socket_timeout"] == settings.redis_timeout
    assert transport["socket_connect_timeout"] == settings.redis_timeout
    assert transport["socket_keepalive"] is True
    assert transport["health_check_interval"] == 10
    assert transport["priority_steps"] == [0]


def test_rabbitmq_gets_no_redis_options(make_settings: Callable[..., Settings]) -> None:
    settings = make_settings(broker_url="amqp://guest@localhost//", queue_scope="type")
    assert build_app(settings).conf.broker_transport_options == {}


def test_the_broker_password_is_not_shown(make_settings: Callable[..., Settings]) -> None:
    settings = make_settings(broker_url="redis://:canary@localhost:1/0")
    app = build_app(settings)
    assert "canary" not in repr(app.connection_for_read())
    assert "canary" not in app.connection_for_read().as_uri()
    assert "canary" not in app.conf.humanize(with_defaults=True)


def test_ticks_expire(settings: Settings) -> None:
    entries = beat_entries(settings)
    assert set(entries) == {"think.sweep", "think.dispatch_due", "think.reconcile_schedules"}
    for name, entry in entries.items():
        assert entry["task"] == name
        assert entry["options"]["queue"] == "think"
        assert entry["options"]["ignore_result"] is True
    assert entries["think.sweep"]["options"]["expires"] == 2 * settings.sweep_seconds
    due = entries["think.dispatch_due"]
    assert due["schedule"] == due["options"]["expires"] == settings.schedule_seconds


def test_the_beat_table_at_the_top_is_the_same(settings: Settings) -> None:
    script = (
        "import beat_schedule, workers; assert beat_schedule.beat_schedule == workers.app.conf.beat_schedule"
    )
    subprocess.run(
        [sys.executable, "-c", script], env=environment(settings), cwd=ROOT, check=True, timeout=30
    )


@pytest.mark.parametrize("command", ["worker", "beat"])
def test_a_deployment_without_servers_says_so(command: str, tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "celery", "-A", "workers", command],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert ended.returncode == 1
    assert ended.stderr.strip().startswith("think-celery: no servers")
