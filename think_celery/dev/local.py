"""A stack for the length of a block: for demonstrations and examples."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

from think_celery.dev import state
from think_celery.dev.home import Home
from think_celery.dev.state import Stack
from think_celery.engine.runtime import Runtime, use
from think_celery.errors import ServiceError
from think_celery.settings import load_settings
from think_celery.worker.app import default_publisher

_START_SECONDS = 60.0
_STOP_SECONDS = 60.0


@contextmanager
def local_stack(folder: Path, *, agents: Sequence[str] = (), code: Path | None = None) -> Iterator[Stack]:
    """Run `think-celery up` as a user would, and let this process' handles talk to it.

    Args:
        folder: Where its data and its output (`up.log`) go.
        agents: Modules to serve; by default the demonstration agents.
        code: The folder to import them from; by default `folder`.

    Raises:
        ServiceError: It did not start; tells the end of its output.
    """
    home = Home(folder / ".think-celery")
    environ = {name: text for name, text in os.environ.items() if not name.startswith("THINK_")}
    command = [sys.executable, "-m", "think_celery.cli", "--home", str(home.folder), "up"]
    with (folder / "up.log").open("w+") as log:
        process = subprocess.Popen(
            command,
            cwd=code or folder,
            env={**environ, "THINK_AGENTS": ",".join(agents)},
            stdout=log,
            stderr=log,
        )
        try:
            stack = _wait_ready(home, process, folder / "up.log")
            with _connected(folder):
                yield stack
        finally:
            process.terminate()
            process.wait(_STOP_SECONDS)


def _wait_ready(home: Home, process: "subprocess.Popen[bytes]", log: Path) -> Stack:
    end = monotonic() + _START_SECONDS
    pause = threading.Event()
    while monotonic() < end and process.poll() is None:
        stack = state.running(home)
        if stack is not None and stack.ready:
            return stack
        pause.wait(0.1)
    raise ServiceError(f"the stack did not start; the end of its output:\n{log.read_text()[-3000:]}")


@contextmanager
def _connected(folder: Path) -> Iterator[None]:
    settings = load_settings({}, folder=folder)
    runtime = Runtime(settings, default_publisher(settings))
    use(runtime)
    try:
        yield
    finally:
        runtime.close()
