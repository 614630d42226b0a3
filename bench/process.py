"""Processes of a measurement: real workers, and producers apart from the process that reports."""

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import ParamSpec, TypeVar

from bench import record
from bench.site import Site
from think_celery.testing import eventually

ROOT = Path(__file__).resolve().parent.parent
_READY_SECONDS = 60.0
_PRODUCER_SECONDS = 180.0

P = ParamSpec("P")
T = TypeVar("T")


def apart(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a module's function in a new process, which starts without connections, and return its answer.

    Raises:
        multiprocessing.TimeoutError: It took more than three minutes; the process is ended.
    """
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply_async(function, args, kwargs).get(_PRODUCER_SECONDS)


@contextmanager
def workers(site: Site, app: str, *options: str, count: int = 1) -> Iterator[None]:
    """Run worker processes for the length of the block; it begins when all of them consume."""
    with ExitStack() as running:
        processes = [
            running.enter_context(_worker(site, app, f"{number}", options)) for number in range(count)
        ]
        eventually(
            lambda: _all_ready(site, processes), timeout=_READY_SECONDS, describe="the workers are ready"
        )
        yield


@contextmanager
def _worker(site: Site, app: str, name: str, options: tuple[str, ...]) -> "Iterator[subprocess.Popen[bytes]]":
    given = {key: value for key, value in os.environ.items() if not key.startswith("THINK_")}
    with (site.folder / f"worker-{name}.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", app, "worker", "-l", "WARNING", "-n", f"{name}@bench",
             *options],
            env={**given, **site.environment(), "PYTHONPATH": str(ROOT), "TMPDIR": str(site.folder)},
            cwd=ROOT,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
    try:
        yield process
    finally:
        # What it leaves is thrown away with the schema and the broker, so nobody waits for a warm shutdown.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)


def _all_ready(site: Site, processes: "list[subprocess.Popen[bytes]]") -> bool:
    if any(process.poll() is not None for process in processes):
        logs = sorted(site.folder.glob("worker-*.log"))
        raise RuntimeError("a worker ended:\n" + "\n".join(log.read_text()[-2000:] for log in logs))
    return record.ready(site.folder) >= len(processes)
