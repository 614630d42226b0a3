"""The command line, called in this process; and a real local stack for the tests that need one."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.places import short_folder
from tests.processes import environment
from think_celery.cli.main import build
from think_celery.dev import state
from think_celery.dev.home import Home
from think_celery.dev.program import leftovers
from think_celery.settings import Settings
from think_celery.testing import eventually

AGENTS = """
from think_celery import Think
from think_celery.testing import ToolCall, scripted_model


def answer(text):
    if "fail" in text:
        return RuntimeError("the model broke")
    if "slow" in text:
        return [f"word{n} " for n in range(40)]
    return f"You said: {text}"


class TaskAgent(Think):
    def get_model(self):
        return scripted_model(answer, pause_seconds=0.02)


class Adder(Think):
    def get_model(self):
        return scripted_model([ToolCall("add", {"a": 2, "b": 3})], "It is five.")

    def get_tools(self):
        return [add]


def add(a: int, b: int) -> int:
    "Add two numbers."
    return a + b
"""


@dataclass(frozen=True)
class Result:
    """What a command printed and how it ended."""

    code: int
    out: str
    err: str


Cli = Callable[..., Result]


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Call the command line; without THINK_ settings of the caller's shell, and undoing what it sets."""
    for name in [name for name in os.environ if name.startswith(("THINK_", "FLOWER_"))]:
        monkeypatch.delenv(name)
    for name in ("THINK_DATABASE_URL", "THINK_REDIS_URL", "THINK_BROKER_URL", "THINK_HOME"):
        monkeypatch.setenv(name, "")  # so that the end of the test removes what a command put there

    def call(*arguments: str) -> Result:
        capsys.readouterr()
        code = 0
        try:
            build()(list(arguments), prog_name="think-celery")
        except SystemExit as end:
            code = int(end.code or 0)
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return call


def clean_environ(**more: str) -> dict[str, str]:
    """The caller's environment without settings of ours."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("THINK_", "FLOWER_"))}
    return {**kept, **more}


@contextmanager
def stack_in(folder: Path, *options: str, environ: Mapping[str, str] | None = None) -> Iterator[state.Stack]:
    """`think-celery up` in a folder, from readiness to a clean end; its output is in `up.log`."""
    home = Home(folder / ".think-celery")
    with (folder / "up.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "think_celery.cli", "up", *options],
            cwd=folder,
            env=environ or clean_environ(),
            stdout=log,
            stderr=log,
        )

    def ready() -> state.Stack | None:
        assert process.poll() is None or not log, (folder / "up.log").read_text()
        running = state.running(home)
        return running if running is not None and running.ready else None

    try:
        found = eventually(ready, timeout=90, describe="a ready stack")
        assert found is not None
        yield found
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        process.wait(40)
        assert not leftovers(home.folder)


@pytest.fixture(scope="module")
def project() -> Iterator[Path]:
    """A folder with an agents.py whose stack is running, and restarts the worker when the code changes."""
    with short_folder() as folder:
        (folder / "agents.py").write_text(AGENTS)
        with stack_in(folder, "--reload"):
            yield folder


@pytest.fixture
def place() -> Iterator[Path]:
    """A short empty folder of this test alone."""
    with short_folder() as folder:
        yield folder


@pytest.fixture
def on_ledger(cli: Cli, settings: Settings, place: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Call the command line on an empty ledger, without any stack or worker."""
    given = settings.model_dump(exclude_none=True)
    for name, value in environment(settings).items():
        if name.removeprefix("THINK_").lower() in given:
            monkeypatch.setenv(name, value)
    monkeypatch.delenv("COLUMNS", raising=False)  # as in a pipe, whatever terminal runs the tests
    monkeypatch.chdir(place)
    return cli
