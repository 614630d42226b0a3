"""`stack.json`: how other commands reach the running stack, and what runs in it. For its owner only."""

import os
from datetime import datetime
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from think_celery.dev.home import Home, holder


class ChildState(BaseModel):
    """One supervised process."""

    model_config = ConfigDict(frozen=True)

    pid: int | None
    """None while it waits to be started again."""
    state: str
    """`running`, `restarting` or `stopped`."""
    restarts: int
    since: datetime
    """Start of the present process, or of the wait."""


class Stack(BaseModel):
    """What `stack.json` holds; `think_celery.settings` reads the addresses from it."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    database_url: str
    redis_url: str
    broker_url: str
    flower_url: str | None = None
    flower_user: str | None = None
    flower_password: str | None = None
    agents: tuple[str, ...] = ()
    """Modules that the worker serves."""
    folder: str
    """Where `up` was called; agent modules are imported from there."""
    agent_types: tuple[str, ...] = ()
    """Agent classes that the worker has loaded; empty until it is ready."""
    ready: bool = False
    """The worker takes turns."""
    pids: dict[str, int]
    """`supervisor` and every running child."""
    children: dict[str, ChildState]
    started_at: datetime


def write(home: Home, stack: Stack) -> None:
    """Replace the state file at once, so that a reader sees the old or the new one."""
    fresh = home.state_file.with_suffix(".new")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(stack.model_dump_json(indent=2) + "\n")
    fresh.replace(home.state_file)


def read(home: Home) -> Stack | None:
    """Return what the state file says, or None when there is none or it cannot be read.

    It may be the leftover of a stack that was killed; ask `home.holder` whether one lives.
    """
    return _read(home.state_file)


def running(home: Home) -> Stack | None:
    """Return the state of the living stack in this folder; None as well while it is still starting."""
    pid, stack = holder(home), read(home)
    if pid is None or stack is None:
        return None
    return (
        stack if stack.pids.get("supervisor") == pid else None
    )  # else of a killed one: a new one is starting


def forget(home: Home) -> None:
    """Remove the state file."""
    home.state_file.unlink(missing_ok=True)


def _read(file: Path) -> Stack | None:
    try:
        return Stack.model_validate_json(file.read_bytes())
    except (OSError, ValidationError):
        return None
