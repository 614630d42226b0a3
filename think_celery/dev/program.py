"""A program to supervise, as data: how it is started and stopped, and how a leftover is found again."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import psutil

MARK = "_THINK_CELERY_STACK"
"""In the environment of every child: the data folder it belongs to."""
_TETHER = Path(__file__).with_name("tether.py")
_LOG_LIMIT = 2_000_000
_LOOK_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Account:
    """A system user."""

    uid: int
    gid: int
    name: str


@dataclass(frozen=True, slots=True)
class Program:
    """What to run and how to end it."""

    name: str
    command: tuple[str, ...]
    """Absolute path of the executable, and its arguments."""
    folder: Path
    """Working directory."""
    environ: Mapping[str, str]
    stop: tuple[tuple[signal.Signals, float], ...] = ((signal.SIGTERM, 10.0),)
    """Signals in order, each with the seconds it gets; after the last comes SIGKILL."""
    death_signal: signal.Signals = signal.SIGKILL
    """What the kernel sends when the supervisor dies unexpectedly (Linux)."""
    log_file: Path | None = None
    """Where the output goes; None is a pipe for the supervisor to read."""
    account: Account | None = None
    """Another user to run as; None is the caller."""
    private: bool = False
    """Files that it makes are for their owner only."""


def start(program: Program) -> "subprocess.Popen[bytes]":
    """Start the program in a process group of its own: Ctrl-C in the terminal is for the supervisor only.

    Call it from a thread that lives as long as the program: the tether is tied to the calling thread.
    """
    account = program.account
    identity = ("-", "-") if account is None else (str(account.uid), str(account.gid))
    tether = (
        sys.executable,
        "-I",
        "-S",
        str(_TETHER),
        str(os.getpid()),
        str(int(program.death_signal)),
        *identity,
    )
    with contextlib.ExitStack() as files:
        output = subprocess.PIPE if program.log_file is None else files.enter_context(_log(program.log_file))
        return subprocess.Popen(
            (*tether, *program.command),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=program.folder,
            env=program.environ,
            start_new_session=True,
            umask=0o077 if program.private else -1,
        )


def stop(process: "subprocess.Popen[bytes]", program: Program) -> bool:
    """Stop the program and what it started.

    Returns:
        True if it went by itself, False if it had to be killed.
    """
    gently = False
    for number, seconds in program.stop:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            continue
        gently = True
        break
    kill_group(process.pid)
    process.wait()
    return gently


def kill_group(pid: int) -> None:
    """Kill whatever is left of the process group that a started program leads."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def tail(file: Path, *, lines: int = 12) -> str:
    """Return the last lines of a log, for an error text."""
    try:
        text = file.read_text(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])


def write_private(file: Path, text: str) -> None:
    """Write a file that only its owner can read, whatever the umask and whoever owned it before."""
    file.unlink(missing_ok=True)
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as stream:
        stream.write(text)


def leftovers(folder: Path) -> list[psutil.Process]:
    """Return the processes that carry a stack's mark; never this one or its parents."""
    mine = {os.getpid(), *(process.pid for process in psutil.Process().parents())}
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid not in mine and process.environ().get(MARK) == str(folder):
                found.append(process)
    return found


def stop_leftovers(processes: list[psutil.Process], *, seconds: float = 8.0) -> None:
    """End leftover processes: servers are asked first, everything else is killed; then the rest is killed."""
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.send_signal(_gentlest(process.name()))
    alive = await_end(processes, seconds=seconds)
    for process in alive:
        with contextlib.suppress(psutil.Error):
            process.kill()
    await_end(alive, seconds=seconds)


def await_end(processes: list[psutil.Process], *, seconds: float) -> list[psutil.Process]:
    """Wait until processes have ended, and return those that have not.

    A zombie has ended: its parent may bury it late or never, and psutil alone would wait for that.
    """
    end = monotonic() + seconds
    alive = [process for process in processes if not _has_ended(process)]
    while alive and (left := end - monotonic()) > 0:
        _, alive = psutil.wait_procs(alive, timeout=min(left, _LOOK_SECONDS))
        alive = [process for process in alive if not _has_ended(process)]
    return alive


def _has_ended(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.status() == psutil.STATUS_ZOMBIE
    return True


def _gentlest(name: str) -> signal.Signals:
    if name.startswith("postgres"):
        return signal.SIGINT  # "fast": ends the sessions and writes a checkpoint
    return signal.SIGTERM if name.startswith("valkey") else signal.SIGKILL


@contextlib.contextmanager
def _log(file: Path) -> Iterator[int]:
    if file.exists() and file.stat().st_size > _LOG_LIMIT:
        file.replace(file.with_suffix(".old.log"))
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
