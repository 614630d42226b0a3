"""Whole lives of a stack: killed and started again, changed and broken code, foreign servers, the end."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import redis

from tests.cli.conftest import AGENTS, Cli, clean_environ, stack_in
from think_celery.cli.exit_code import ExitCode
from think_celery.dev import state
from think_celery.dev.home import Home, holder
from think_celery.dev.program import leftovers
from think_celery.dev.servers import embedded_servers
from think_celery.testing import eventually

pytestmark = pytest.mark.stack


@pytest.fixture(autouse=True)
def _inside(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "agents.py").write_text(AGENTS)
    monkeypatch.chdir(place)


def log_says(place: Path, text: str, *, times: int = 1) -> None:
    log = place / "up.log"
    eventually(
        lambda: log.read_text().count(text) >= times, timeout=60, describe=f"{text!r} in {log.read_text()}"
    )


def test_a_killed_stack_leaves_nothing_and_goes_on_at_the_next_start(cli: Cli, place: Path) -> None:
    home = Home(place / ".think-celery")
    first = subprocess.Popen(
        [sys.executable, "-m", "think_celery.cli", "up"],
        cwd=place,
        env=clean_environ(),
        stdout=subprocess.DEVNULL,
    )
    eventually(lambda: (running := state.running(home)) and running.ready, timeout=90)
    assert cli("submit", "TaskAgent/a", "hello", "--id", "before", "--wait").code == 0
    children = [psutil.Process(pid) for name, pid in state.running(home).pids.items() if name != "supervisor"]
    first.kill()
    first.wait()
    if sys.platform == "linux":
        _, alive = psutil.wait_procs(children, timeout=15)
        assert not alive
    assert holder(home) is None
    for name in ("THINK_DATABASE_URL", "THINK_REDIS_URL", "THINK_BROKER_URL"):
        os.environ[name] = ""
    gone = cli("list", "TaskAgent/a")
    assert gone.code == ExitCode.UNREACHABLE
    assert "was killed" in gone.err
    with stack_in(place):
        again = cli("list", "TaskAgent/a", "--json")
        assert again.code == 0, again.err
        rows = json.loads(again.out)
        assert [row["submissionId"] for row in rows] == ["before"]
        assert cli("submit", "TaskAgent/a", "hello", "--wait").code == 0


def test_changed_code_restarts_the_worker_and_broken_code_is_survived(cli: Cli, place: Path) -> None:
    with stack_in(place, "--reload"):
        assert cli("submit", "TaskAgent/a", "hello", "--wait").out == "You said: hello\n"
        (place / "agents.py").write_text("from think_celery import Think\n1 / 0\n")
        log_says(place, "agents.py changed; restarting the worker")
        log_says(place, "worker ended unexpectedly")
        (place / "agents.py").write_text(AGENTS.replace("You said", "You now said"))
        log_says(place, "agents.py changed; restarting the worker", times=2)
        result = cli("submit", "TaskAgent/a", "hello", "--wait", "--timeout", "60")
        assert result.out == "You now said: hello\n"


def test_a_killed_child_is_replaced_and_status_tells(cli: Cli, place: Path) -> None:
    home = Home(place / ".think-celery")
    with stack_in(place) as stack:
        for name in ("valkey", "worker", "postgres"):
            os.kill(stack.pids[name], signal.SIGKILL)
            eventually(
                lambda name=name: state.running(home).children[name].restarts == 1, timeout=60, describe=name
            )
        data = json.loads(cli("status", "--json").out)
        assert {name: child["restarts"] for name, child in data["children"].items()} == {
            "postgres": 1, "valkey": 1, "worker": 1, "beat": 0, "flower": 0,
        }  # fmt: skip
        result = cli("submit", "TaskAgent/a", "hello", "--wait", "--timeout", "60")
        assert result.out == "You said: hello\n"


def test_servers_from_outside_are_used_and_left_running(cli: Cli, place: Path) -> None:
    outside = place / "outside"
    with embedded_servers(outside) as servers:
        environ = clean_environ(THINK_REDIS_URL=servers.redis_url)
        with stack_in(place, environ=environ) as stack:
            assert stack.redis_url == stack.broker_url == servers.redis_url
            assert sorted(stack.pids) == ["beat", "flower", "postgres", "supervisor", "worker"]
            assert cli("submit", "TaskAgent/a", "hello", "--wait").code == 0
        environ = clean_environ(
            THINK_REDIS_URL=servers.redis_url,
            THINK_DATABASE_URL=servers.database_url,
            THINK_BROKER_URL=servers.redis_url.removesuffix("0") + "5",
        )
        with stack_in(place, environ=environ) as stack:
            assert sorted(stack.pids) == ["beat", "flower", "supervisor", "worker"]
            assert stack.broker_url.endswith("/5")
            os.environ["THINK_DATABASE_URL"] = ""
            assert json.loads(cli("list", "TaskAgent/a", "--json").out) == []  # another ledger
        with redis.Redis.from_url(servers.redis_url) as client:
            assert client.ping()


def test_down_stops_everything_within_seconds_even_with_a_turn_running(cli: Cli, place: Path) -> None:
    home = Home(place / ".think-celery")
    call = [sys.executable, "-m", "think_celery.cli", "up", "--detach"]
    started = subprocess.run(
        call, cwd=place, env=clean_environ(THINK_REDIS_URL=""), capture_output=True, text=True, timeout=90
    )
    assert started.returncode == 0, started.stderr
    assert "supervisor" in started.stdout
    assert cli("submit", "TaskAgent/a", "slow").code == 0
    pids = state.running(home).pids.values()
    processes = [psutil.Process(pid) for pid in pids]
    result = cli("down")
    assert result.code == 0
    assert "stopped the stack" in result.out
    assert "ended leftovers" not in result.out
    assert not [process for process in processes if process.is_running() and process.status() != "zombie"]
    assert not leftovers(home.folder)
    assert not home.state_file.exists()
    assert cli("status").code == ExitCode.NEGATIVE


def test_up_fails_with_one_line_when_a_server_is_out_of_reach(place: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "think_celery.cli", "up"],
        cwd=place,
        env=clean_environ(THINK_DATABASE_URL="postgresql://x@127.0.0.1:1/x", THINK_DATABASE_TIMEOUT="1"),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.returncode == ExitCode.UNREACHABLE
    assert "PostgreSQL" in run.stderr
    assert "Traceback" not in run.stderr
    assert not leftovers(place / ".think-celery")
