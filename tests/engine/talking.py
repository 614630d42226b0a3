"""An agent that does as its test says, a caller that notes what it hears, and the two ways between them."""

import asyncio
import json
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tests.engine.stage import beside, passed
from think_celery import AgentHandle, AsyncAgentHandle, StreamCallback, Think, Turn, message_text
from think_celery.core.address import Address
from think_celery.core.callback import ChatStart
from think_celery.core.hook import ErrorContext, TurnContext
from think_celery.core.routing import abort_channel
from think_celery.core.turn import ChatResponse
from think_celery.engine.drain import drain
from think_celery.engine.runtime import Runtime
from think_celery.testing import eventually, scripted_model

Said = AsyncIterator[str | dict[str, Any]]


async def greet(turn: Turn) -> Said:
    """Answer in three pieces."""
    for piece in ("You ", "said ", turn.text):
        yield piece


def saying(*items: str | dict[str, Any] | Exception, pause: float = 0.0) -> Callable[[Turn], Said]:
    """Return what says these, and raises what is an exception."""

    async def say(turn: Turn) -> Said:
        for item in items:
            if isinstance(item, Exception):
                raise item
            yield item
            await asyncio.sleep(pause)

    return say


class Gate:
    """Lets a turn say "before", and "after" when it is opened."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self._open = threading.Event()

    def open(self) -> None:
        self._open.set()

    async def say(self, turn: Turn) -> Said:
        yield "before "
        self.reached.set()
        await passed(self._open)
        yield "after"


@dataclass
class Play:
    """What a test and the turns and hooks of its agent share."""

    say: Callable[[Turn], Said] | None = greet
    """What a turn does; None asks the model."""
    order: list[str] = field(default_factory=list)
    """What hooks, and callbacks that share it, heard, one after the other."""
    turns: list[Turn] = field(default_factory=list)
    responses: list[ChatResponse] = field(default_factory=list)
    errors: list[tuple[Exception, ErrorContext]] = field(default_factory=list)
    surfaced: Any = None
    """What `on_chat_error` answers."""
    before: Callable[[TurnContext], None] | None = None
    """What `before_turn` does."""
    on_response: Callable[[ChatResponse], None] | None = None


plays: dict[str, Play] = defaultdict(Play)


class Talker(Think):
    """Does what its play says."""

    async def on_chat_message(self, turn: Turn) -> Said:
        play = plays[self.name]
        play.turns.append(turn)
        spoken = turn.run_model(self) if play.say is None else play.say(turn)
        async with aclosing(spoken) as items:  # type: ignore[type-var]
            async for item in items:
                yield item

    def get_model(self) -> Any:
        return scripted_model("Hello there")

    def before_turn(self, context: TurnContext) -> None:
        if (act := plays[self.name].before) is not None:
            act(context)

    def on_chat_error(self, error: Exception, context: ErrorContext) -> Any:
        play = plays[self.name]
        play.errors.append((error, context))
        play.order.append("on_chat_error")
        return play.surfaced

    async def on_chat_response(self, response: ChatResponse) -> None:
        play = plays[self.name]
        play.responses.append(response)
        play.order.append(f"on_chat_response {response.status}")
        if play.on_response is not None:
            play.on_response(response)


class Notes(StreamCallback):
    """Writes down what it hears; `acts` are called at the method of that name, and may raise."""

    def __init__(self, order: list[str] | None = None, **acts: Callable[[str], Any]) -> None:
        self.heard: list[str] = [] if order is None else order
        self.chunks: list[dict[str, Any]] = []
        self.request_id = ""
        self.begun = threading.Event()
        """Set by the first event."""
        self._acts = acts

    async def on_start(self, event: ChatStart) -> None:
        self.request_id = event.request_id
        self._note("start", event.request_id)

    def on_event(self, json_text: str) -> None:
        self.chunks.append(json.loads(json_text))
        self.begun.set()
        if self.heard[-1] == "event":
            self.heard.pop()
        self._note("event", json_text)

    def on_done(self) -> None:
        self._note("done")

    async def on_error(self, message: str) -> None:
        self._note(f"error: {message}")

    def on_interrupted(self) -> None:
        self._note("interrupted")

    def _note(self, what: str, told: str = "") -> None:
        self.heard.append(what)
        act = self._acts.get(what.partition(":")[0])
        if act is not None:
            act(told)

    @property
    def text(self) -> str:
        return "".join(chunk["delta"] for chunk in self.chunks if chunk["type"] == "text-delta")

    @property
    def types(self) -> list[str]:
        return [chunk["type"] for chunk in self.chunks]


@dataclass
class Talk:
    """An agent, the process that calls it, and the one that runs it."""

    caller: Runtime
    worker: Runtime
    address: Address

    @property
    def is_near(self) -> bool:
        return self.caller is self.worker

    @property
    def handle(self) -> AgentHandle:
        return AgentHandle(self.address.type_name, self.address.name, runtime=self.caller)

    @property
    def async_handle(self) -> AsyncAgentHandle:
        return AsyncAgentHandle(self.address.type_name, self.address.name, runtime=self.caller)

    @property
    def play(self) -> Play:
        return plays[self.address.name]

    def texts(self) -> list[tuple[str, str]]:
        """Role and text of every message."""
        return [(message["role"], message_text(message)) for message in self.handle.get_messages()]

    def responded(self, count: int = 1) -> list[ChatResponse]:
        """Return what the response hook was told, once that was so often."""
        eventually(lambda: len(self.play.responses) >= count)
        return self.play.responses

    def leaves_nothing(self) -> None:
        """Wait until neither process keeps anything of a turn or of a call."""
        for runtime in (self.caller, self.worker):
            eventually(partial(is_clean, runtime))


def is_clean(runtime: Runtime) -> bool:
    """True when nothing is left; fails with its names."""
    left = left_behind(runtime)
    assert not left, left
    return True


def left_behind(runtime: Runtime) -> list[str]:
    """Name what a process has of turns and calls that are not over."""
    left = [f"{len(runtime.calls)} calls"] if len(runtime.calls) else []
    left += ["a running turn"] if runtime.running else []
    left += ["a response hook"] if runtime.responding else []
    return left + runtime.loop.run(_tasks(runtime))


async def _tasks(runtime: Runtime) -> list[str]:
    lasting = {runtime.running._listener, runtime.streams._listener, asyncio.current_task()}
    channels = set(runtime.streams._channels) - {abort_channel(runtime.settings.redis_prefix).encode()}
    tasks = [str(task) for task in asyncio.all_tasks() - lasting]
    # Every bell may look for reports that are due, and `served` rings all the time.
    return [str(channel) for channel in channels] + [task for task in tasks if "webhooks.py" not in task]


@contextmanager
def served(runtime: Runtime, *addresses: Address) -> Iterator[None]:
    """Work off agents' lanes all the time, as a worker does that hears every bell."""
    over = threading.Event()

    def serve() -> None:
        while not over.wait(0.005):
            for address in addresses:
                drain(runtime, address)

    with beside(serve):
        try:
            yield
        finally:
            over.set()


@contextmanager
def calling(call: Callable[[], Any]) -> Iterator[list[Any]]:
    """Make a call in a thread beside the block; its result is in the list at the end."""
    results: list[Any] = []
    with beside(lambda: results.append(call())):
        yield results
