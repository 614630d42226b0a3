"""Whole lives of a stack: killed and started again, foreign servers, the end."""

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import psycopg
import pytest
import redis

from tests.cli.conftest import AGENTS, Cli, clean_environ, stack_in
from think_celery.cli.exit_code import ExitCode
from think_celery.dev import state
from think_celery.dev.home import Home, holder
from think_celery.dev.program import await_end, leftovers
from think_celery.dev.servers import embedded_servers
from think_celery.testing import eventually

pytestmark = pytest.mark.stack


@pytest.fixture(autouse=True)
def _inside(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "agents.py").write_text(AGENTS)
    monkeypatch.chdir(place)


def forget_servers() -> None:
    """What a command put into this process' environment would lead the next one to the same servers."""
    for name in ("THINK_DATABASE_URL", "THINK_REDIS_URL", "THINK_BROKER_URL"):
        os.environ[name] = ""


def test_a_stack_that_was_killed_and_one_that_goes_down(cli: Cli, place: Path) -> None:
    """A Redis from outside; the kill; the next start with one of its own; `down` with a turn running."""
    home = Home(place / ".think-celery")
    with embedded_servers(place / "outside") as servers:
        first = subprocess.Popen(
            [sys.executable, "-m", "think_celery.cli", "up"],
            cwd=place,
            env=clean_environ(THINK_REDIS_URL=servers.redis_url),
            stdout=subprocess.DEVNULL,
        )
        eventually(lambda: (running := state.running(home)) and running.ready, timeout=90)
        stack = state.running(home)
        assert stack.redis_url == stack.broker_url == servers.redis_url
        assert sorted(stack.pids) == ["beat", "flower", "postgres", "supervisor", "worker"]
        assert cli("submit", "TaskAgent/a", "hello", "--id", "before", "--wait").code == 0
        children = [psutil.Process(pid) for name, pid in stack.pids.items() if name != "supervisor"]
        first.kill()
        first.wait()
        if sys.platform == "linux":
            assert not await_end(children, seconds=15)
        assert holder(home) is None
        with redis.Redis.from_url(servers.redis_url) as client:
            assert client.ping()
    forget_servers()
    gone = cli("list", "TaskAgent/a")
    assert gone.code == ExitCode.UNREACHABLE
    assert "was killed" in gone.err

    started = detached(place)
    assert started.returncode == 0, started.stderr
    assert "supervisor" in started.stdout
    rows = json.loads(cli("list", "TaskAgent/a", "--json").out)
    assert [row["submissionId"] for row in rows] == ["before"]
    assert cli("submit", "TaskAgent/a", "slow").code == 0
    assert_down_ends_everything(cli, home)


def assert_down_ends_everything(cli: Cli, home: Home) -> None:
    processes = [psutil.Process(pid) for pid in state.running(home).pids.values()]
    result = cli("down")
    assert result.code == 0
    assert "stopped the stack" in result.out
    assert "ended leftovers" not in result.out
    assert not await_end(processes, seconds=0)
    assert not leftovers(home.folder)
    assert not home.state_file.exists()
    assert cli("status").code == ExitCode.NEGATIVE


def detached(place: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "think_celery.cli", "up", "--detach"],
        cwd=place,
        env=clean_environ(THINK_REDIS_URL=""),
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )


def test_servers_from_outside_are_used_and_left_running(cli: Cli, place: Path) -> None:
    with embedded_servers(place / "outside") as servers:
        environ = clean_environ(
            THINK_REDIS_URL=servers.redis_url,
            THINK_DATABASE_URL=servers.database_url,
            THINK_BROKER_URL=servers.redis_url.removesuffix("0") + "5",
        )
        with stack_in(place, environ=environ) as stack:
            assert sorted(stack.pids) == ["beat", "flower", "supervisor", "worker"]
            assert stack.database_url == servers.database_url
            assert stack.broker_url.endswith("/5")
            assert cli("submit", "TaskAgent/a", "hello", "--wait").code == 0
        forget_servers()
        assert cli("list", "TaskAgent/a").code == ExitCode.UNREACHABLE
        with redis.Redis.from_url(servers.redis_url) as client:
            assert client.ping()
        with psycopg.connect(servers.database_url) as connection:
            assert connection.execute("SELECT count(*) FROM think.submissions").fetchone() == (1,)


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
