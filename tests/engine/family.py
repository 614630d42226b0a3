"""Agents whose turns do what their test says, by address: in the turn itself, or in a tool that may block."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from uuid import uuid4

from tests.engine.stage import PATIENCE_SECONDS, passed
from think_celery import AgentHandle, AsyncAgentHandle, StreamCallback, Think, Turn, message_text
from think_celery.core.address import Address
from think_celery.core.callback import ChatStart
from think_celery.core.submission import Kind, Submission
from think_celery.core.turn import ChatResponse
from think_celery.engine.drain import drain
from think_celery.engine.runtime import Runtime
from think_celery.testing import ToolCall, scripted_model

Act = Callable[["Member", Turn], Awaitable[object]]
Ask = Callable[[Runtime, Address], Awaitable[object]]
"""One way to wait for another agent's turn; says how it ended."""
acts: dict[Address, Act] = {}
"""What a member's turn does; it says what that returns."""
works: dict[Address, Callable[["Handy"], object]] = {}
"""What the tool of a `Handy` does, in a thread."""
responses: dict[Address, Callable[["Member", ChatResponse], Awaitable[object]]] = {}
"""What a member's response hook does."""


class Member(Think):
    """Says "begun", then what its act says; without one it repeats what it was told."""

    async def on_chat_message(self, turn: Turn) -> AsyncIterator[str | dict[str, Any]]:
        act = acts.get(self.address)
        if act is None:
            yield turn.text
        else:
            yield "begun "
            yield str(await act(self, turn))

    async def on_chat_response(self, response: ChatResponse) -> None:
        if (act := responses.get(self.address)) is not None:
            await act(self, response)


class Handy(Think):
    """Calls its tool and says what came of it."""

    def get_model(self) -> Any:
        return scripted_model(ToolCall("work"), "worked")

    def get_tools(self) -> list[Any]:
        return [self.work]

    def work(self) -> str:
        """Do what the test says."""
        return str(works[self.address](self))


class Gate:
    """Something that a test opens and turns wait at."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self._open = threading.Event()

    async def passed(self) -> str:
        self.reached.set()
        await passed(self._open)
        return "passed"

    def open(self) -> None:
        self._open.set()


async def forever(member: Member, turn: Turn) -> str:
    """Act without an end of its own."""
    await asyncio.sleep(10 * PATIENCE_SECONDS)
    return "never said"


class Heard(StreamCallback):
    """Keeps what a caller hears, by a name of its own."""

    def __init__(self) -> None:
        self.request_id = ""
        self.begun = asyncio.Event()
        """Set when something was said."""
        self.closed = ""

    async def on_start(self, event: ChatStart) -> None:
        self.request_id = event.request_id

    async def on_event(self, json_text: str) -> None:
        if json.loads(json_text)["type"] == "text-delta":
            self.begun.set()

    async def on_done(self) -> None:
        self.closed = "done"

    async def on_error(self, message: str) -> None:
        self.closed = f"error: {message}"


def handle(runtime: Runtime, address: Address) -> AgentHandle:
    """Return the blocking handle of an agent in a process."""
    made = AgentHandle(address.type_name, address.name, runtime=runtime)
    made.address = address
    return made


def async_handle(runtime: Runtime, address: Address) -> AsyncAgentHandle:
    """Return the awaitable handle of an agent in a process."""
    return AsyncAgentHandle(address.type_name, address.name, runtime=runtime)


def ran(runtime: Runtime, address: Address, text: str = "go", **options: Any) -> Any:
    """Submit a turn, run it in this thread as the only slot of a worker, and return how it ended."""
    agent = handle(runtime, address)
    receipt = agent.submit_messages(text, **options)
    drain(runtime, address)
    return agent.wait_for_submission(receipt.submission_id, timeout=PATIENCE_SECONDS)


def member() -> Address:
    return Address("Member", f"m-{uuid4()}")


async def by_chat(runtime: Runtime, address: Address) -> object:
    return (await async_handle(runtime, address).chat("x")).status


async def by_save(runtime: Runtime, address: Address) -> object:
    return (await async_handle(runtime, address).save_messages("x")).status


async def by_wait(runtime: Runtime, address: Address) -> object:
    agent = async_handle(runtime, address)
    receipt = await agent.submit_messages("x")
    row = await agent.wait_for_submission(receipt.submission_id)
    return None if row is None else row.status


async def by_stream(runtime: Runtime, address: Address) -> object:
    agent = async_handle(runtime, address)
    receipt = await agent.submit_messages("x")
    last = [event async for event in agent.stream(receipt.submission_id)][-1]
    return last.status


async def by_stable(runtime: Runtime, address: Address) -> object:
    agent = async_handle(runtime, address)
    await agent.submit_messages("x")
    return "completed" if await agent.wait_until_stable() else "unstable"


async def in_gather(runtime: Runtime, address: Address) -> object:
    other = member()
    first, _ = await asyncio.gather(by_chat(runtime, address), by_chat(runtime, other))
    return first


ASKS: list[Ask] = [by_chat, by_save, by_wait, by_stream, by_stable, in_gather]


def asking(runtime: Runtime, ask: Ask, address: Address) -> Callable[[Member, Turn], Awaitable[object]]:
    """Return the act that asks another agent in some way."""

    async def act(member: Member, turn: Turn) -> object:
        return await ask(runtime, address)

    return act


def last_said(runtime: Runtime, address: Address) -> str:
    """Return what an agent said last."""
    return message_text(handle(runtime, address).get_messages()[-1])


def rows(runtime: Runtime, address: Address) -> list[Submission]:
    """Return all turns of an agent, the youngest first."""
    return handle(runtime, address).list_submissions(kind=list(Kind))


def said(runtime: Runtime, address: Address) -> list[tuple[str, str]]:
    return [(each["role"], message_text(each)) for each in handle(runtime, address).get_messages()]
