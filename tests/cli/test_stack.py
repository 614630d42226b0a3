"""The commands against a real local stack: what a user sees, what a script reads, and the exit statuses."""

import base64
import contextlib
import io
import json
import os
import re
import signal
import stat
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import psutil
import pytest

from tests.cli.conftest import AGENTS, Cli, clean_environ
from think_celery.cli.exit_code import ExitCode
from think_celery.dev import state
from think_celery.dev.home import Home
from think_celery.testing import eventually

pytestmark = pytest.mark.stack


@pytest.fixture(autouse=True)
def _inside(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)


def running(project: Path) -> state.Stack:
    found = state.running(Home(project / ".think-celery"))
    assert found is not None
    return found


def test_submit_and_wait_prints_the_reply(cli: Cli) -> None:
    result = cli("submit", "TaskAgent/one", "hello there", "--wait", "--timeout", "60")
    assert (result.code, result.out, result.err) == (0, "You said: hello there\n", "")


def test_submit_from_standard_input(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("from a pipe"))
    assert cli("submit", "TaskAgent/stdin", "-", "--wait").out == "You said: from a pipe\n"


def test_the_same_key_is_the_same_submission(cli: Cli) -> None:
    first = cli("submit", "TaskAgent/key", "hello", "--key", "k", "--metadata", '{"a": [1]}', "--json")
    again = cli("submit", "TaskAgent/key", "hello", "--key", "k")
    receipt = json.loads(first.out)
    assert receipt["accepted"] is True
    assert receipt["metadata"] == {"a": [1]}
    assert receipt["submissionId"] in again.out
    assert "known already" in again.out
    other = cli("submit", "TaskAgent/key", "hello", "--key", "k", "--id", "other")
    assert other.code in {0, ExitCode.WRONG_CALL}


def test_a_failed_turn_is_exit_status_1(cli: Cli) -> None:
    result = cli("submit", "TaskAgent/fail", "fail please", "--id", "f", "--wait")
    assert result.code == ExitCode.NEGATIVE
    assert "the model broke" in result.err
    assert cli("wait", "TaskAgent/fail", "f").code == ExitCode.NEGATIVE
    assert cli("wait", "TaskAgent/fail", "f", "--json").code == ExitCode.NEGATIVE
    assert cli("tail", "TaskAgent/fail", "f").code == ExitCode.NEGATIVE
    assert "the model broke" in cli("list", "TaskAgent/fail").out


def test_an_agent_nobody_serves_times_out_and_shows_as_pending(cli: Cli) -> None:
    result = cli("submit", "Ghost/x", "hello", "--id", "g", "--wait", "--timeout", "0.2")
    assert result.code == ExitCode.TIMED_OUT
    assert "still pending" in result.err
    assert cli("wait", "Ghost/x", "g", "--timeout", "0").code == ExitCode.TIMED_OUT
    lane = next(lane for lane in json.loads(cli("agents", "--json").out) if lane["agent"] == "Ghost/x")
    assert lane["pending"] == 1
    assert lane["oldestPendingAt"].endswith("Z")
    assert re.search(r"Ghost/x\s+1\s+\S+ \S+ ago", cli("agents").out)


@pytest.mark.parametrize("command", ["inspect", "wait", "tail"])
@pytest.mark.parametrize("json_option", [[], ["--json"]])
def test_an_unknown_submission_is_exit_status_4(cli: Cli, command: str, json_option: list[str]) -> None:
    assert cli(command, "TaskAgent/one", "nobody", *json_option).code == ExitCode.NOT_FOUND


def test_list_and_inspect(cli: Cli) -> None:
    for number in range(3):
        cli("submit", "TaskAgent/list", f"text {number}", "--id", f"s{number}", "--wait")
    ids = [row["submissionId"] for row in json.loads(cli("list", "TaskAgent/list", "--json").out)]
    assert ids == ["s2", "s1", "s0"]
    limited = cli(
        "list", "TaskAgent/list", "--limit", "1", "--status", "completed", "--status", "pending"
    ).out
    assert limited.count("completed") == 1
    assert json.loads(cli("list", "TaskAgent/list", "--status", "error", "--json").out) == []
    assert cli("list", "TaskAgent/list", "--status", "odd").code == ExitCode.WRONG_CALL
    shown = cli("inspect", "TaskAgent/list", "s1").out
    assert re.search(r"submission id\s+s1", shown)
    assert re.search(r"position\s+2", shown)
    assert json.loads(cli("inspect", "TaskAgent/list", "s1", "--json").out)["status"] == "completed"


def test_messages(cli: Cli) -> None:
    cli("submit", "Adder/m", "two and three?", "--wait")
    shown = cli("messages", "Adder/m").out
    assert [
        word
        for word in ("user", "two and three?", "assistant", "add(", "5", "It is five.")
        if word not in shown
    ] == []
    roles = [message["role"] for message in json.loads(cli("messages", "Adder/m", "--json").out)]
    assert roles == ["user", "assistant"]


def test_tail_shows_a_finished_turn_and_resumes(cli: Cli) -> None:
    cli("submit", "TaskAgent/tail", "slow one", "--id", "t", "--wait")
    words = "".join(f"word{n} " for n in range(40))
    assert cli("tail", "TaskAgent/tail", "t").out == words + "\n"
    events = [json.loads(line) for line in cli("tail", "TaskAgent/tail", "t", "--json").out.splitlines()]
    assert events[-1]["kind"] == "end"
    assert events[-1]["status"] == "completed"
    middle = events[len(events) // 2]["id"]
    rest = [
        json.loads(line)
        for line in cli("tail", "TaskAgent/tail", "t", "--json", "--after", middle).out.splitlines()
    ]
    assert rest == events[len(events) // 2 + 1 :]
    assert cli("tail", "TaskAgent/tail", "t", "--after", "nonsense").code == ExitCode.WRONG_CALL


def test_tail_streams_while_the_turn_runs(project: Path, cli: Cli) -> None:
    cli("submit", "TaskAgent/live", "slow one", "--id", "l")
    with subprocess.Popen(
        [sys.executable, "-m", "think_celery.cli", "tail", "TaskAgent/live", "l", "--json"],
        cwd=project,
        env=clean_environ(),
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        events = [json.loads(line) for line in process.stdout]
    assert process.returncode == 0
    text = "".join(event["chunk"].get("delta", "") for event in events if event["kind"] == "chunk")
    assert text == "".join(f"word{n} " for n in range(40))


def test_chat_with_piped_input(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("hello\n\nslow\n"))
    result = cli("chat", "TaskAgent/chat")
    assert result.code == 0
    assert result.out == "You said: hello\n" + "".join(f"word{n} " for n in range(40)) + "\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO("fail\nhello"))
    result = cli("chat", "TaskAgent/chat")
    assert result.code == ExitCode.NEGATIVE
    assert result.out == "You said: hello\n"


def test_status(project: Path, cli: Cli) -> None:
    shown = cli("status")
    assert shown.code == 0
    for name in ("supervisor", "postgres", "valkey", "worker", "beat", "flower"):
        assert re.search(rf"^{name}\s+running\s+\d+", shown.out, re.MULTILINE)
    data = json.loads(cli("status", "--json").out)
    assert data["running"] is True
    assert data["ready"] is True
    assert data["agent_types"] == ["Adder", "TaskAgent"]
    assert data["pids"]["supervisor"] == running(project).pids["supervisor"]
    assert all(psutil.pid_exists(pid) for pid in data["pids"].values())


def test_a_second_up_finds_the_first(cli: Cli, project: Path) -> None:
    for options in ([], ["--detach"]):
        result = cli("up", *options)
        assert result.code == 0
        assert result.out.startswith("already running\n")
        assert running(project).flower_url in result.out


def test_doctor_is_content(cli: Cli) -> None:
    result = cli("doctor", "--settings")
    assert result.code == 0, result.out
    assert set(line[0] for line in result.out.splitlines() if line[:1] in "✓!✗" and line) == {"✓"}
    assert "Adder, TaskAgent" in result.out
    assert "THINK_POOL " in result.out


def test_migrating_again_changes_nothing(cli: Cli) -> None:
    assert json.loads(cli("migrate", "--json").out)["schema"] == "think"
    assert cli("migrate").code == 0


def test_the_stack_is_found_from_a_folder_below_and_by_home(
    cli: Cli, project: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    below = project / "src" / "deep"
    below.mkdir(parents=True, exist_ok=True)
    monkeypatch.chdir(below)
    assert cli("agents").code == 0
    monkeypatch.chdir(place)
    for name in ("THINK_DATABASE_URL", "THINK_REDIS_URL", "THINK_BROKER_URL"):
        monkeypatch.setenv(name, "")
    assert cli("agents").code == ExitCode.UNREACHABLE
    assert cli("--home", str(project / ".think-celery"), "agents").code == 0


def test_secrets_stay_with_their_owner(project: Path) -> None:
    stack = running(project)
    assert stat.S_IMODE((project / ".think-celery" / "stack.json").stat().st_mode) == 0o600
    secrets = {
        stack.flower_password or "",
        re.findall(r"think:(.+?)@", stack.database_url)[0],
        re.findall(r":(.+?)@", stack.redis_url.removeprefix("redis://"))[0],
    }
    logs = [(project / "up.log").read_text().replace(f"password {stack.flower_password}", "")]
    logs += [file.read_text() for file in (project / ".think-celery" / "logs").iterdir()]
    lines = [" ".join(psutil.Process(pid).cmdline()) for pid in stack.pids.values()]
    for secret in secrets:
        assert len(secret) >= 16
        assert not [text for text in (*logs, *lines) if secret in text]


def test_flower_asks_for_the_password_and_only_shows(project: Path) -> None:
    stack = running(project)
    assert stack.flower_url is not None

    def ask(path: str, *, method: str = "GET", login: bool) -> int:
        request = urllib.request.Request(f"{stack.flower_url}{path}", method=method)
        if login:
            token = base64.b64encode(f"{stack.flower_user}:{stack.flower_password}".encode()).decode()
            request.add_header("Authorization", f"Basic {token}")
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code

    def listens() -> bool:
        with contextlib.suppress(urllib.error.URLError):
            return ask("/workers", login=False) == 401
        return False

    eventually(listens, timeout=60, describe="Flower asking for a password")
    assert ask("/api/workers", login=False) in {401, 403}
    assert ask("/workers", login=True) == 200
    assert ask("/api/worker/shutdown/celery@x", method="POST", login=False) in {401, 403}
    assert ask("/api/worker/shutdown/celery@x", method="POST", login=True) in {403, 405}
    flower = psutil.Process(stack.pids["flower"])
    assert not [name for name in flower.environ() if "UNAUTHENTICATED" in name]
    listening = [c.laddr.ip for c in flower.net_connections("inet") if c.status == psutil.CONN_LISTEN]
    assert listening == ["127.0.0.1"]


def test_output_into_a_closed_pipe_is_no_fault(project: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    run = subprocess.run(
        [sys.executable, "-m", "think_celery.cli", "list", "TaskAgent/list", "--json"],
        cwd=project,
        env=clean_environ(),
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(write)
    assert "Traceback" not in run.stderr
    assert "Exception" not in run.stderr


def log_says(project: Path, text: str, *, since: int) -> None:
    log = project / "up.log"
    eventually(lambda: text in log.read_text()[since:], timeout=60, describe=f"{text!r} in {log.read_text()}")


def test_changed_code_restarts_the_worker_and_broken_code_is_survived(cli: Cli, project: Path) -> None:
    agents, log = project / "agents.py", project / "up.log"
    assert cli("submit", "TaskAgent/code", "news?", "--wait").out == "You said: news?\n"
    begun = len(log.read_text())
    agents.write_text("from think_celery import Think\n1 / 0\n")
    log_says(project, "agents.py changed; restarting the worker", since=begun)
    log_says(project, "worker ended unexpectedly", since=begun)
    begun = len(log.read_text())
    agents.write_text(AGENTS.replace("    return f", "    if 'news' in text: return 'News!'\n    return f"))
    log_says(project, "agents.py changed; restarting the worker", since=begun)
    result = cli("submit", "TaskAgent/code", "news?", "--wait", "--timeout", "60")
    assert result.out == "News!\n"


def test_a_killed_child_is_replaced_and_status_tells(cli: Cli, project: Path) -> None:
    def restarts() -> dict[str, int]:
        children = json.loads(cli("status", "--json").out)["children"]
        return {name: child["restarts"] for name, child in children.items()}

    before = restarts()
    assert sorted(before) == ["beat", "flower", "postgres", "valkey", "worker"]
    expected = dict(before)
    for name in ("valkey", "worker", "postgres"):
        os.kill(running(project).pids[name], signal.SIGKILL)
        expected[name] += 1
        eventually(lambda name=name: restarts()[name] == expected[name], timeout=60, describe=name)
    assert restarts() == expected
    result = cli("submit", "TaskAgent/kill", "hello", "--wait", "--timeout", "60")
    assert result.out == "You said: hello\n"
