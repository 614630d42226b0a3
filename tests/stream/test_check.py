"""What `doctor` is told of the server."""

from typing import Any

from tests.stream.stage import settings_for
from think_celery.settings import Settings
from think_celery.stream.check import _problems, redis_report
from think_celery.stream.connection import make_sync


def test_a_server_without_disk_log_is_reported(settings: Settings) -> None:
    report = redis_report(settings)
    assert (report.reachable, report.server, report.maxmemory_policy, report.aof_enabled) == (
        True,
        "valkey",
        "noeviction",
        False,
    )
    assert ["appendonly yes" in problem for problem in report.problems] == [True]


def test_a_healthy_server_has_no_problems_and_an_evicting_one_has(own_valkey: Any) -> None:
    settings = settings_for(f"redis://127.0.0.1:{own_valkey.port}/0")
    assert redis_report(settings).problems == ()
    admin = make_sync(settings)
    admin.config_set("maxmemory-policy", "allkeys-lru")
    admin.close()
    (problem,) = redis_report(settings).problems
    assert "allkeys-lru" in problem


def test_an_unreachable_server_is_a_report_not_an_error() -> None:
    report = redis_report(settings_for("redis://:secret@127.0.0.1:1/0"))
    assert not report.reachable
    assert "THINK_REDIS_URL" in report.problems[0]
    assert "secret" not in report.problems[0]


def test_old_versions_are_named() -> None:
    assert [len(_problems(version, "noeviction", 1)) for version in ("5.0.7", "6.2.0", "7.2.4", "9.1.2")] == [
        1,
        0,
        0,
        0,
    ]
