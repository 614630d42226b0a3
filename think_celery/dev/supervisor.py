"""Keeps a handful of child processes running, restarts what crashes, and stops everything in order.

One thread starts and stops, because a child's tether is tied to it. It sleeps in `select`; signals, a child's
end (SIGCHLD) and the file watcher wake it. One reader thread per child copies its output.
"""

import contextlib
import os
import select
import signal
import subprocess
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from time import monotonic
from types import FrameType
from typing import Any

from think_celery.core.backoff import delay_seconds
from think_celery.dev import program as programs
from think_celery.dev.console import StackConsole
from think_celery.dev.program import Program
from think_celery.dev.state import ChildState

_BACKOFF_BASE, _BACKOFF_LIMIT = 0.5, 30.0
_HEALTHY_SECONDS = 60.0  # a child that ran for so long starts with a clean slate
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(slots=True)
class Child:
    """One supervised process over its restarts."""

    program: Program
    stage: int
    """Children of a higher stage are stopped first."""
    process: "subprocess.Popen[bytes] | None" = None
    reader: threading.Thread | None = None
    restarts: int = 0
    failures: int = 0
    """Crashes in a row; decides the back-off."""
    started: float = 0.0
    since: datetime = field(default_factory=lambda: datetime.now(UTC))
    due: float | None = None
    """When to start it again (monotonic), while it is down."""

    @property
    def name(self) -> str:
        return self.program.name

    def state(self) -> ChildState:
        """Return what `status` shows."""
        if self.process is not None:
            return ChildState(pid=self.process.pid, state="running", restarts=self.restarts, since=self.since)
        word = "stopped" if self.due is None else "restarting"
        return ChildState(pid=None, state=word, restarts=self.restarts, since=self.since)


class Supervisor:
    """Runs children until it is told to stop; a `with` block owns the signals and ends with all stopped.

    Args:
        console: Where the children's lines and the supervisor's words go.
        on_change: Called in the supervising thread whenever a child started or ended.
    """

    def __init__(self, console: StackConsole, on_change: Callable[[], None]) -> None:
        self.children: list[Child] = []
        self._console = console
        self._on_change = on_change
        self._wake_reader, self._wake_writer = os.pipe()
        for descriptor in (self._wake_reader, self._wake_writer):
            os.set_blocking(descriptor, False)
        self._stops = 0
        self._reload: str | None = None
        self._handlers: dict[signal.Signals, Any] = {}

    def add(self, program: Program, *, stage: int, process: "subprocess.Popen[bytes] | None" = None) -> None:
        """Take a child under supervision; it is started now unless it runs already."""
        child = Child(program, stage=stage)
        self.children.append(child)
        if process is None:
            self._start(child)
        else:
            self._started(child, process)

    def __enter__(self) -> "Supervisor":
        self._handlers = self._install_signals()
        return self

    def __exit__(self, *_: object) -> None:
        self.shut_down()
        signal.set_wakeup_fd(-1)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        os.close(self._wake_reader)
        os.close(self._wake_writer)

    @property
    def is_stopping(self) -> bool:
        """True once a stop was requested."""
        return self._stops > 0

    def run(self, *, is_ready: Callable[[], bool]) -> None:
        """Supervise until a stop is requested; returns with the children still running.

        Args:
            is_ready: Called about twice a second until it returns True.
        """
        ready = False
        while not self._stops:
            self._wait(self._pause() if ready else 0.5)
            for child in self.children:
                self._look(child)
            if self._reload is not None:
                self._restart_worker()
            ready = ready or is_ready()

    def stop(self) -> None:
        """Request the end; the second request makes it quick. May be called from any thread."""
        self._stops += 1
        self._wake()

    def reload(self, reason: str) -> None:
        """Request a restart of the worker; may be called from any thread."""
        self._reload = reason
        self._wake()

    def shut_down(self) -> None:
        """Stop every child, the highest stage first; each stage is bounded by its programs' patience."""
        for stage in sorted({child.stage for child in self.children}, reverse=True):
            self._stop([child for child in self.children if child.stage == stage])

    def _start(self, child: Child) -> None:
        child.due = None
        self._started(child, programs.start(child.program))

    def _started(self, child: Child, process: "subprocess.Popen[bytes]") -> None:
        child.process = process
        child.started = monotonic()
        child.since = datetime.now(UTC)
        if process.stdout is not None:
            child.reader = threading.Thread(target=self._read, args=(child.name, process), daemon=True)
            child.reader.start()
        self._on_change()

    def _read(self, name: str, process: "subprocess.Popen[bytes]") -> None:
        assert process.stdout is not None
        with process.stdout as output:
            for line in output:
                self._console.line(name, line.decode(errors="replace"))

    def _look(self, child: Child) -> None:
        if child.process is not None and child.process.poll() is not None:
            self._crashed(child, child.process)
        elif child.due is not None and monotonic() >= child.due:
            child.restarts += 1
            self._start(child)

    def _crashed(self, child: Child, process: "subprocess.Popen[bytes]") -> None:
        programs.kill_group(process.pid)
        _finish_reading(child)
        healthy = monotonic() - child.started > _HEALTHY_SECONDS
        child.failures = 1 if healthy else child.failures + 1
        wait = delay_seconds(child.failures, base=_BACKOFF_BASE, limit=_BACKOFF_LIMIT)
        child.process, child.due, child.since = None, monotonic() + wait, datetime.now(UTC)
        ending = _ending(process.returncode)
        self._console.say(f"{child.name} ended unexpectedly ({ending}); again in {wait:g} s", level="ERROR")
        if child.program.log_file is not None:
            self._console.say(programs.tail(child.program.log_file, lines=4))
        self._on_change()

    def _restart_worker(self) -> None:
        reason, self._reload = self._reload, None
        self._console.say(f"{reason}; restarting the worker")
        for child in self.children:
            if child.name == "worker":
                self._stop([child])
                if not self._stops:
                    child.failures = 0
                    self._start(child)

    def _stop(self, children: Sequence[Child]) -> None:
        alive = [child for child in children if child.process is not None]
        patience = 0.0
        for step in range(max((len(child.program.stop) for child in alive), default=0)):
            for child in (child for child in alive if step < len(child.program.stop)):
                number, seconds = child.program.stop[step]
                patience = max(patience, seconds)
                assert child.process is not None
                child.process.send_signal(number)
            alive = self._await_end(alive, patience)
        if alive:
            names = ", ".join(child.name for child in alive)
            self._console.say(f"killing {names}: no end after {patience:g} s", level="WARNING")
        for child in children:
            _end(child)
        self._on_change()

    def _await_end(self, alive: list[Child], seconds: float) -> list[Child]:
        end = monotonic() + seconds
        while alive and monotonic() < end:
            if self._stops > 1 and alive[0].stage:  # a second Ctrl-C; the servers need no hurry
                break
            self._wait(min(0.5, max(0.0, end - monotonic())))
            alive = [child for child in alive if child.process is not None and child.process.poll() is None]
        return alive

    def _pause(self) -> float | None:
        dues = [child.due for child in self.children if child.due is not None]
        return max(0.0, min(dues) - monotonic()) if dues else None

    def _wait(self, seconds: float | None) -> None:
        ready, _, _ = select.select([self._wake_reader], [], [], seconds)
        with contextlib.suppress(BlockingIOError):
            while ready and os.read(self._wake_reader, 512):
                pass

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError, OSError):
            os.write(self._wake_writer, b".")

    def _install_signals(self) -> dict[signal.Signals, Any]:
        def asked(_number: int, _frame: FrameType | None) -> None:
            self._stops += 1

        def ended(_number: int, _frame: FrameType | None) -> None:
            """Only its byte in the wake-up pipe matters."""

        signal.set_wakeup_fd(self._wake_writer, warn_on_full_buffer=False)
        handlers = {number: signal.signal(number, asked) for number in _STOP_SIGNALS}
        return {**handlers, signal.SIGCHLD: signal.signal(signal.SIGCHLD, ended)}


def _end(child: Child) -> None:
    child.due = None
    if child.process is not None:
        programs.kill_group(child.process.pid)
        child.process.wait()
        _finish_reading(child)
        child.process = None
        child.since = datetime.now(UTC)


def _finish_reading(child: Child) -> None:
    if child.reader is not None:
        child.reader.join(timeout=2)
        child.reader = None


def _ending(code: int) -> str:
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"killed by {signal.Signals(-code).name}"
    return f"exit status {code}"
