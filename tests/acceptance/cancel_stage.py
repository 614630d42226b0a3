"""A worker process, a producer, and what can be asked of both when a turn is cancelled."""

import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.acceptance import cancel_agents
from tests.acceptance.cancel_agents import Note
from tests.processes import Process, alive, worker
from think_celery import AgentHandle
from think_celery.core.submission import CancelResult, Submission
from think_celery.dev.servers import Addresses
from think_celery.engine.runtime import Runtime
from think_celery.ledger import migrate
from think_celery.settings import Settings, load_settings
from think_celery.testing import eventually
from think_celery.worker.app import build_app
from think_celery.worker.publisher import CeleryPublisher

_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Stage:
    """One producer (this process) and one worker (another)."""

    settings: Settings
    runtime: Runtime
    folder: Path
    worker: Process | None

    def handle(self, agent: str, type_name: str = "Racer") -> AgentHandle:
        """Return the producer's handle of an agent."""
        return AgentHandle(type_name, agent, runtime=self.runtime)

    def notes(self, agent: str, what: str | None = None) -> list[Note]:
        """Return what an agent told, in order."""
        return [
            each
            for each in cancel_agents.read(self.folder)
            if each.agent == agent and what in {None, each.what}
        ]

    def told(self, agent: str, what: str, *, submission: str | None = None, count: int = 1) -> list[Note]:
        """Wait until an agent has told something so often."""

        def found() -> list[Note]:
            return [each for each in self.notes(agent, what) if submission in {None, each.submission}]

        eventually(
            lambda: len(found()) >= count, timeout=20, interval=0.005, describe=f"{agent} tells {what}"
        )
        return found()

    def open_gate(self, name: str) -> None:
        """Let those go on who wait at a gate."""
        cancel_agents.open_gate(self.folder, name)


def make_settings(servers: Addresses, **overrides: Any) -> Settings:
    """Settings of an empty ledger, for stages that outlive one test."""
    number = next(_numbers)
    redis = servers.redis_url.rpartition("/")[0]
    own = {
        "database_url": servers.database_url,
        "redis_url": f"{redis}/0",
        "broker_url": f"{redis}/{1 + number % 15}",
        "schema_name": f"cancel{os.getpid()}_{number}",
        "redis_prefix": f"cancel{os.getpid()}-{number}",
        "agents": ("tests.acceptance.cancel_agents",),
        "concurrency": 8,
    }
    settings = load_settings({}, **{**own, **overrides})
    migrate.upgrade(settings)
    return settings


@contextmanager
def producer(settings: Settings, folder: Path) -> Iterator[Stage]:
    """A producer alone; its hooks write to the same file as the workers'."""
    before = os.environ.get(cancel_agents.FOLDER)
    os.environ[cancel_agents.FOLDER] = str(folder)
    runtime = Runtime(settings, CeleryPublisher(build_app(settings), settings))
    try:
        yield Stage(settings, runtime, folder, None)
    finally:
        runtime.close()
        os.environ.pop(cancel_agents.FOLDER)
        if before is not None:
            os.environ[cancel_agents.FOLDER] = before


@contextmanager
def workers(stage: Stage, *arguments: str, name: str = "worker") -> Iterator[Process]:
    """A worker process of the stage."""
    told = {cancel_agents.FOLDER: str(stage.folder), cancel_agents.WORKERS_ONLY: "1"}
    with worker(stage.settings, stage.folder, *arguments, name=name, **told) as process:
        eventually(lambda: alive(stage.settings), describe="the ledger knows the worker and its classes")
        yield process


@contextmanager
def staged(settings: Settings, folder: Path) -> Iterator[Stage]:
    """A producer and a worker."""
    with producer(settings, folder) as stage, workers(stage) as process:
        yield Stage(settings, stage.runtime, folder, process)


def ended(handle: AgentHandle, submission_id: str) -> Submission:
    """Wait for a submission's end, its status hook included."""
    row = handle.wait_for_submission(submission_id, timeout=30)
    assert row is not None
    assert row.is_terminal, row
    return row


def roles(handle: AgentHandle) -> list[tuple[str, str]]:
    """Return the conversation as (role, text)."""
    return [
        (message["role"], "".join(part.get("text", "") for part in message["parts"]))
        for message in handle.get_messages()
    ]


def check_alone(notes: list[Note]) -> None:
    """Never two at once: between a start and its stop no other turn of the agent starts."""
    current: str | None = None
    for each in sorted(notes, key=lambda note: note.at):
        if each.what == "start":
            assert current is None, "\n".join(map(str, notes))
            current = each.submission
        elif each.what == "stop":
            assert current == each.submission, each
            current = None


def is_in_order(found: list[Any], expected: list[Any]) -> bool:
    """True when `found` is `expected` with some left out."""
    left: Iterator[Any] = iter(expected)
    return all(each in left for each in found)


Cancel = Callable[[], CancelResult]
