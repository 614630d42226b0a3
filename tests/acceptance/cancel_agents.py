"""Agents that tell every step in a file of their own, apart from the ledger; and how tests read it.

All processes append to the file; the monotonic clock is the machine's, so times of different processes can be
compared.
"""

import asyncio
import json
import os
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from think_celery import Think, Turn
from think_celery.core.submission import Submission
from think_celery.testing import ToolCall, scripted_model

FOLDER = "CANCEL_FOLDER"
"""Names the folder of the file and of the gates."""
WORKERS_ONLY = "CANCEL_WORKERS_ONLY"
"""Set in workers: they have a class more than their callers."""


@dataclass(frozen=True, slots=True)
class Note:
    """One line of the file."""

    agent: str
    submission: str
    what: str
    data: Any
    at: int
    """Nanoseconds of the machine's monotonic clock."""
    pid: int


def note(agent: str, submission: str, what: str, data: Any = None) -> None:
    """Append a line; one write, so lines of several processes do not mix."""
    line = json.dumps([agent, submission, what, data, time.monotonic_ns(), os.getpid()]) + "\n"
    file = os.open(Path(os.environ[FOLDER]) / "notes", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


def read(folder: Path) -> list[Note]:
    """Return all lines in the order they were written."""
    file = folder / "notes"
    return [Note(*json.loads(line)) for line in file.read_text().splitlines()] if file.exists() else []


def _gate(name: str) -> Path:
    return Path(os.environ[FOLDER]) / f"gate-{name}"


def open_gate(folder: Path, name: str) -> None:
    """Let those go on who wait at a gate."""
    (folder / f"gate-{name}").touch()


async def through(name: str | None) -> None:
    """Wait until a gate is open; without a name there is none."""
    while name is not None and not _gate(name).exists():  # noqa: ASYNC110 - the other side is a process
        await asyncio.sleep(0.005)


class Told(Think, abstract=True):
    """Tells its status hooks; `hook_gate` in the metadata keeps the hook of the start waiting."""

    async def on_submission_status(self, submission: Submission) -> None:
        plan = submission.metadata or {}
        note(self.name, submission.submission_id, "hook", submission.status.value)
        if submission.status == "running":
            await through(plan.get("hook_gate"))
            note(self.name, submission.submission_id, "hook-end", submission.status.value)


class Racer(Told):
    """Says `pieces` numbers with `pause` seconds after each; tells start, each piece that was taken, stop.

    `gate`: waits there after each piece. `stopping`: takes so many seconds to stop.
    """

    async def on_chat_message(self, turn: Turn) -> AsyncIterator[str | dict[str, Any]]:
        plan, own = turn.metadata or {}, turn.submission.submission_id
        note(self.name, own, "start", [message["id"] for message in turn.messages])
        try:
            for number in range(plan.get("pieces", 10)):
                yield f"{number} "
                note(self.name, own, "said", number)
                await through(plan.get("gate"))
                await asyncio.sleep(plan.get("pause", 0.01))
        finally:
            try:
                await asyncio.sleep(plan.get("stopping", 0))
            finally:
                note(self.name, own, "stop")


class Silent(Think):
    """Says nothing and waits; no status hook."""

    async def on_chat_message(self, turn: Turn) -> AsyncIterator[str | dict[str, Any]]:
        own = turn.submission.submission_id
        note(self.name, own, "start")
        try:
            await asyncio.sleep((turn.metadata or {}).get("pause", 60))
            yield "never heard"
        finally:
            note(self.name, own, "stop")


class Streaming(Think):
    """Says a word every few milliseconds; no status hook."""

    async def on_chat_message(self, turn: Turn) -> AsyncIterator[str | dict[str, Any]]:
        own = turn.submission.submission_id
        note(self.name, own, "start")
        try:
            for number in range(100_000):
                yield f"{number} "
                await asyncio.sleep(0.005)
        finally:
            note(self.name, own, "stop")


class Tooled(Told):
    """A model that says "before", uses a tool, and says "after"; the tool waits at the gate `tool-NAME`."""

    def get_model(self) -> Any:
        return scripted_model(["before ", ToolCall(self._tool)], "after")

    def get_tools(self) -> list[Any]:
        return [self.patient, self.stubborn]

    @property
    def _tool(self) -> str:
        return self.name.partition("-")[0]

    async def patient(self) -> str:
        """Wait at the gate; stops when it is told to."""
        note(self.name, "", "tool")
        try:
            await through(f"tool-{self.name}")
        finally:
            note(self.name, "", "tool-end")
        return "worked"

    def stubborn(self) -> str:
        """Wait at the gate in a thread, which nothing can stop."""
        note(self.name, "", "tool")
        while not _gate(f"tool-{self.name}").exists():
            threading.Event().wait(0.005)
        note(self.name, "", "tool-end")
        return "worked"


class Quitter(Told):
    """Raises the cancellation of a task of its own, as code does that gives up on a part of its work."""

    async def on_chat_message(self, turn: Turn) -> AsyncIterator[str | dict[str, Any]]:
        if turn.text == "quit":
            task = asyncio.create_task(asyncio.sleep(60))
            asyncio.get_running_loop().call_soon(task.cancel)
            await task
        if turn.text == "exit":
            raise SystemExit(1)
        yield "stayed"


if os.environ.get(WORKERS_ONLY):

    class Remote(Racer):
        """A `Racer` that the callers' process does not know, so that workers call all its hooks."""
