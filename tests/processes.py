"""Real worker processes for tests: started from the repository, and stopped for certain."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from think_celery.ledger import workers
from think_celery.ledger.database import Database
from think_celery.settings import Settings
from think_celery.testing import eventually

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True, slots=True)
class Process:
    """A Celery process and where its log goes."""

    popen: "subprocess.Popen[bytes]"
    log: Path

    def kill(self) -> None:
        """End the whole process group at once, as an out-of-memory kill or a power cut would."""
        os.killpg(self.popen.pid, signal.SIGKILL)
        self.popen.wait(10)

    def stop(self, seconds: float = 20) -> int:
        """Ask for a warm shutdown and return the exit status; what does not end in time is killed."""
        if self.popen.poll() is None:
            self.popen.terminate()
            try:
                self.popen.wait(seconds)
            except subprocess.TimeoutExpired:
                self.kill()
        return self.popen.returncode


def environment(settings: Settings, **extra: str) -> dict[str, str]:
    """Return the environment that gives a process these settings."""
    given = {name: value for name, value in os.environ.items() if not name.startswith("THINK_")}
    for name in type(settings).model_fields:
        value = getattr(settings, name)
        if hasattr(value, "get_secret_value"):
            value = value.get_secret_value()
        if value is None:
            continue
        given[f"THINK_{name.upper()}"] = ",".join(value) if isinstance(value, tuple) else str(value)
    given = {name: value for name, value in given.items() if value != ""}
    return {**given, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", **extra}


@contextmanager
def celery(
    settings: Settings,
    folder: Path,
    *arguments: str,
    app: str = "workers",
    name: str = "worker",
    **extra: str,
) -> Iterator[Process]:
    """Run `celery -A APP ARGUMENTS` for the length of the block."""
    log = folder / f"{name}.log"
    with log.open("ab") as out:
        popen = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", app, *arguments],
            env=environment(settings, **extra),
            cwd=ROOT,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    process = Process(popen, log)
    try:
        yield process
    finally:
        process.stop()


@contextmanager
def worker(
    settings: Settings,
    folder: Path,
    *arguments: str,
    app: str = "workers",
    name: str = "worker",
    **extra: str,
) -> Iterator[Process]:
    """Run a worker and wait until the ledger knows it and it consumes."""
    options = ["worker", "-n", f"{name}@test", "-l", "INFO", *arguments]
    with celery(settings, folder, *options, app=app, name=name, **extra) as process:
        eventually(lambda: _is_ready(process), timeout=40, describe=f"worker {name} is ready")
        yield process


def _is_ready(process: Process) -> bool:
    if process.popen.poll() is not None:
        raise RuntimeError(process.log.read_text())
    return f"{process.log.stem}@test ready" in process.log.read_text()


def alive(settings: Settings) -> int:
    """Return how many worker processes the ledger believes alive."""
    database = Database(settings)
    try:
        return sum(presence.alive for presence in workers.present(database))
    finally:
        database.close()
