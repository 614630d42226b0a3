"""An agent that does what its test says and reports what its status hook heard, and one process around it."""

import asyncio
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import redis
from sqlalchemy import text

from tests.agents import Scripted
from think_celery import AgentHandle, AsyncAgentHandle, Turn
from think_celery.core.address import Address
from think_celery.core.routing import agent_channel
from think_celery.core.submission import Status, Submission
from think_celery.engine.drain import drain
from think_celery.engine.runtime import Runtime
from think_celery.ledger import lanes, workers
from think_celery.ledger.lanes import Claim
from think_celery.testing import eventually

PATIENCE_SECONDS = 20.0


@dataclass
class Script:
    """What a test and the turns and hooks of its agent share."""

    heard: list[Submission] = field(default_factory=list)
    """What the status hook was given, in order."""
    begun: threading.Event = field(default_factory=threading.Event)
    """Set by a turn `hold` once it has said something."""
    gate: threading.Event = field(default_factory=threading.Event)
    """A turn `hold` goes on when it is set."""
    act: Callable[[Turn], Awaitable[Any]] | None = None
    """What a turn `act` does."""
    hook: Callable[[Submission], Awaitable[Any]] | None = None
    """What the status hook does after it was noted."""

    def statuses(self, submission_id: str | None = None) -> list[str]:
        """What was heard (of one submission)."""
        return [str(told.status) for told in self.heard if submission_id in {None, told.submission_id}]


scripts: dict[str, Script] = defaultdict(Script)


class Witness(Scripted):
    """`hold` says "begun", waits for the gate and says "ended"; `act` runs the script's; else as Scripted."""

    async def on_chat_message(self, turn: Turn) -> AsyncIterator[str | dict[str, Any]]:
        script = scripts[self.name]
        if turn.text == "hold":
            yield "begun "
            script.begun.set()
            await passed(script.gate)
            yield "ended"
        elif turn.text == "act":
            assert script.act is not None
            yield str(await script.act(turn))
        else:
            async for item in super().on_chat_message(turn):
                yield item

    async def on_submission_status(self, submission: Submission) -> None:
        script = scripts[self.name]
        script.heard.append(submission)
        if script.hook is not None:
            await script.hook(submission)


async def passed(gate: threading.Event) -> None:
    """Wait for a gate without blocking the loop."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not gate.is_set():  # noqa: ASYNC110 - the gate is a thread's
            await asyncio.sleep(0.002)


@dataclass
class Stage:
    """One process, one agent, its script."""

    runtime: Runtime
    address: Address

    @property
    def handle(self) -> AgentHandle:
        return AgentHandle(self.address.type_name, self.address.name, runtime=self.runtime)

    @property
    def async_handle(self) -> AsyncAgentHandle:
        return AsyncAgentHandle(self.address.type_name, self.address.name, runtime=self.runtime)

    @property
    def script(self) -> Script:
        return scripts[self.address.name]

    def drain(self) -> str:
        """Answer a bell."""
        return drain(self.runtime, self.address)

    @contextmanager
    def draining(self) -> Iterator[threading.Thread]:
        """Answer a bell beside the block, and be done with it at its end."""
        with beside(self.drain) as thread:
            yield thread

    @contextmanager
    def holding(self, submission_id: str | None = None) -> Iterator[Submission]:
        """Run a turn up to its middle; it goes on after the block."""
        receipt = self.handle.submit_messages("hold", submission_id=submission_id)
        try:
            with self.draining():
                assert self.script.begun.wait(PATIENCE_SECONDS)
                try:
                    yield self.row(receipt.submission_id)
                finally:
                    self.script.gate.set()
        finally:
            self.script.gate.clear()
            self.script.begun.clear()

    def claim(self, runtime: Runtime | None = None) -> Claim:
        """Take the lane as a worker does, and no further."""
        worker = runtime or self.runtime
        claim = lanes.claim(worker.database, self.address, worker=worker.worker_id, claim_id=uuid4())
        assert isinstance(claim, Claim)
        return claim

    def row(self, submission_id: str) -> Submission:
        row = self.handle.inspect_submission(submission_id)
        assert row is not None
        return row

    def wait(self, submission_id: str) -> Submission:
        row = self.handle.wait_for_submission(submission_id, timeout=PATIENCE_SECONDS)
        assert row is not None
        assert row.is_terminal
        return row

    def texts(self, role: str = "user") -> list[str]:
        """The conversation's texts of one role."""
        return [
            "".join(part.get("text", "") for part in message["parts"])
            for message in self.handle.get_messages()
            if message["role"] == role
        ]

    def is_heard(self) -> bool:
        """True when somebody listens to the agent's channel."""
        channel = agent_channel(self.runtime.settings.redis_prefix, self.address)
        with redis.Redis.from_url(self.runtime.settings.redis_url.get_secret_value()) as client:
            return bool(client.pubsub_numsub(channel)[0][1])

    def sql(self, statement: str, **parameters: Any) -> list[Any]:
        """Run a statement on the ledger, with `{schema}` in it, and return its rows."""

        def unit(connection: Any) -> list[Any]:
            result = connection.execute(text(self.runtime.database.sql(statement)), parameters)
            return list(result.all()) if result.returns_rows else []

        return self.runtime.database.run(unit)


def kill(runtime: Runtime) -> None:
    """Make a process look dead to the ledger."""
    workers.leave(runtime.database, runtime.worker_id)


@contextmanager
def beside(*actions: Callable[[], Any], seconds: float = PATIENCE_SECONDS) -> Iterator[threading.Thread]:
    """Run actions in threads beside the block, and be done with them at its end."""
    failures: list[BaseException] = []

    def run(action: Callable[[], Any]) -> None:
        try:
            action()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(action,), daemon=True) for action in actions]
    for thread in threads:
        thread.start()
    try:
        yield threads[0]
    finally:
        for thread in threads:
            thread.join(seconds)
    assert not any(thread.is_alive() for thread in threads)
    if failures:
        raise failures[0]


def reaches(stage: Stage, submission_id: str, status: Status) -> None:
    """Wait until a submission has a status."""
    eventually(lambda: stage.row(submission_id).status is status, describe=f"status {status}")
