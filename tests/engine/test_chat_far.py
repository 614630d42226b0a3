"""`chat` for callers of every sort: in other loops, in threads, many at once, slow ones, impatient ones."""

import asyncio
import contextvars
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any
from uuid import uuid4

import pytest
from anyio import to_thread

from tests.engine.talking import Gate, Notes, Talk, calling, saying, served
from think_celery import AgentHandle, AsyncAgentHandle, StreamCallback, Turn
from think_celery.core.address import Address
from think_celery.core.callback import ChatStart
from think_celery.core.frame import StreamEvent
from think_celery.core.turn import TurnResult
from think_celery.engine.runtime import Runtime
from think_celery.errors import ProcessClosing, WrongContext
from think_celery.settings import Settings
from think_celery.testing import eventually

WAIT = 20.0
who: contextvars.ContextVar[str] = contextvars.ContextVar("who", default="nobody")


class Own(StreamCallback):
    """Half plain, half awaitable; notes thread, loop and context of each call."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[str] = asyncio.Queue()
        self.seen: list[tuple[str, threading.Thread, str]] = []

    def _see(self, what: str) -> None:
        self.seen.append((what, threading.current_thread(), who.get()))

    def on_start(self, event: ChatStart) -> None:
        self._see("start")

    async def on_event(self, json: str) -> None:
        self._see("event")
        await self.queue.put(json)

    async def on_done(self) -> None:
        self._see("done")
        await self.queue.join()


def test_an_event_loop_of_the_callers_own(talk: Talk) -> None:
    """Awaitable methods run on it, plain ones beside it in threads, all in the caller's context."""

    async def use() -> None:
        who.set("caller")
        own = Own()
        limit = to_thread.current_default_thread_limiter().total_tokens

        async def consume() -> int:
            count = 0
            while True:
                if '"finish"' in await own.queue.get():
                    own.queue.task_done()
                    return count
                own.queue.task_done()
                count += 1

        consumer = asyncio.create_task(consume())
        result = await talk.async_handle.chat("hello", own)
        assert (result.status, result.text) == ("completed", "You said hello")
        assert await consumer > 3
        assert [what for what, _, _ in own.seen if what != "event"] == ["start", "done"]
        assert {user for _, _, user in own.seen} == {"caller"}
        threads = {what: thread for what, thread, _ in own.seen}
        assert threads["start"] is not threading.current_thread()
        assert threads["event"] is threads["done"] is threading.current_thread()
        assert to_thread.current_default_thread_limiter().total_tokens == limit

    asyncio.run(use())
    asyncio.run(use())  # another loop, the same process
    talk.leaves_nothing()


def test_a_blocking_handle_in_a_thread_of_an_event_loop(talk: Talk) -> None:
    async def use() -> None:
        with pytest.raises(WrongContext, match="AsyncAgentHandle"):
            talk.handle.chat("hello")
        notes = Notes()
        result = await asyncio.to_thread(talk.handle.chat, "hello", notes)
        assert (result.status, notes.heard) == ("completed", ["start", "event", "done"])

    asyncio.run(use())


def test_awaitable_methods_of_a_blocking_caller(talk: Talk) -> None:
    class Awaited(StreamCallback):
        heard: list[str] = []

        async def on_start(self, event: ChatStart) -> None:
            await asyncio.sleep(0.001)
            self.heard.append("start")

        def on_event(self, json: str) -> Any:
            async def later() -> None:
                self.heard.append("event")

            return later()

        async def on_done(self) -> None:
            self.heard.append("done")

    assert talk.handle.chat("hello", Awaited()).status == "completed"
    assert (Awaited.heard[0], Awaited.heard[-1]) == ("start", "done")
    assert len(Awaited.heard) > 5


def test_the_time_is_up_and_the_turn_goes_on(talk: Talk) -> None:
    gate, notes, waiting = Gate(), Notes(), Notes()
    talk.play.say = gate.say
    with ExitStack() as stack:
        stack.callback(gate.open)
        result = talk.handle.chat("hello", notes, timeout=0.5)
        assert (result.status, result.error, result.message) == ("running", None, None)
        assert (notes.heard, notes.text) == (["start", "event"], "before ")
        behind = talk.handle.chat("more", waiting, timeout=0)
        assert (behind.status, waiting.heard) == ("pending", ["start"])
    for request_id in (result.request_id, behind.request_id):
        row = talk.handle.wait_for_submission(request_id, timeout=WAIT)
        assert row is not None
        assert row.status == "completed"
    assert [text for _, text in talk.texts()] == ["hello", "before after", "more", "before after"]
    assert (notes.heard, waiting.heard) == (["start", "event"], ["start"])
    talk.responded(2)
    talk.leaves_nothing()


def test_enough_time_is_no_limit(talk: Talk) -> None:
    notes = Notes()
    assert talk.handle.chat("hello", notes, timeout=WAIT).status == "completed"
    assert notes.heard == ["start", "event", "done"]


def counting(said: list[int], count: int = 400) -> Callable[[Turn], AsyncIterator[str]]:
    async def say(turn: Turn) -> AsyncIterator[str]:
        for number in range(count):
            said.append(number)
            yield f"{number} "

    return say


def test_a_slow_caller_holds_back_a_turn_that_runs_here(near: Talk) -> None:
    said: list[int] = []
    near.play.say = counting(said, 30)
    lead: list[int] = []
    notes = Notes(event=lambda _: lead.append(len(said) - notes.types.count("text-delta")))
    near.handle.chat("hello", notes)
    assert max(lead) <= 1
    assert len(said) == 30


def test_a_slow_caller_from_afar_holds_nobody_back(far: Talk) -> None:
    said: list[int] = []
    far.play.say = counting(said)
    gate = threading.Event()
    notes = Notes(event=lambda _: gate.wait(WAIT))
    with calling(lambda: far.handle.chat("hello", notes)) as results:
        assert notes.begun.wait(WAIT)
        eventually(lambda: far.play.responses)
        assert len(said) == 400
        gate.set()
    assert results[0].status == "completed"
    assert notes.text == results[0].text


@pytest.mark.parametrize("is_plain", [False, True])
def test_a_method_that_never_returns_is_bounded_by_its_caller(talk: Talk, is_plain: bool) -> None:
    talk.play.say = saying(*["word "] * 5, pause=0.05)
    gate = threading.Event()

    class Stuck(Notes):
        async def on_event(self, json_text: str) -> None:  # type: ignore[override]
            await asyncio.Event().wait()

    notes = Notes(event=lambda _: gate.wait(WAIT)) if is_plain else Stuck()

    async def use() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await talk.async_handle.chat("hello", notes)
        gate.set()
        row = await talk.async_handle.wait_for_submission(notes.request_id, timeout=WAIT)
        assert row is not None
        assert row.status == ("aborted" if talk.is_near else "completed")
        assert (await talk.async_handle.chat("again", timeout=WAIT)).status == "completed"

    asyncio.run(use())
    talk.leaves_nothing()


@pytest.mark.parametrize("is_async", [False, True])
def test_fifty_agents_at_once(talk: Talk, is_async: bool) -> None:
    names = [f"t-{uuid4()}" for _ in range(50)]
    addresses = [Address("Talker", name) for name in names]
    notes = [Notes() for _ in names]

    async def all_of_them() -> list[TurnResult]:
        handles = [AsyncAgentHandle("Talker", name, runtime=talk.caller) for name in names]
        return await asyncio.gather(*(handle.chat(f"n{i}", notes[i]) for i, handle in enumerate(handles)))

    def one(number: int) -> TurnResult:
        return AgentHandle("Talker", names[number], runtime=talk.caller).chat(f"n{number}", notes[number])

    with ExitStack() as stack:
        if not talk.is_near:
            stack.enter_context(served(talk.worker, *addresses))
        if is_async:
            results = asyncio.run(all_of_them())
        else:
            with ThreadPoolExecutor(50) as pool:
                results = list(pool.map(one, range(50)))
    assert [result.text for result in results] == [f"You said n{number}" for number in range(50)]
    assert [each.text for each in notes] == [result.text for result in results]
    assert all(each.heard == ["start", "event", "done"] for each in notes)
    talk.leaves_nothing()


def test_fifty_chats_with_one_agent_run_one_after_the_other(talk: Talk) -> None:
    running: list[int] = []
    most: list[int] = []

    async def say(turn: Turn) -> AsyncIterator[str]:
        running.append(1)
        most.append(len(running))
        yield turn.text
        await asyncio.sleep(0.001)
        running.pop()

    talk.play.say = say

    async def all_of_them() -> list[TurnResult]:
        return await asyncio.gather(*(talk.async_handle.chat(f"n{i}", Notes()) for i in range(50)))

    results = asyncio.run(all_of_them())
    assert [result.text for result in results] == [f"n{number}" for number in range(50)]
    assert max(most) == 1
    texts = [text for _, text in talk.texts()]
    assert texts[::2] == texts[1::2]
    talk.leaves_nothing()


@pytest.mark.parametrize("is_async", [False, True])
def test_a_process_that_closes_tells_its_callers(
    talk: Talk, make_runtime: Callable[..., Runtime], settings: Settings, is_async: bool
) -> None:
    gate, notes = Gate(), Notes()
    talk.play.say = gate.say
    closing = make_runtime() if talk.is_near else Runtime(settings, talk.caller.dispatcher._publisher)
    other = Talk(closing, talk.worker, talk.address)

    def call() -> str:
        try:
            if is_async:
                asyncio.run(other.async_handle.chat("hello", notes))
            else:
                other.handle.chat("hello", notes)
        except ProcessClosing:
            return "closing"
        return "ended"

    with calling(call) as results:
        assert gate.reached.wait(WAIT)
        eventually(lambda: notes.text)
        closing.close()
        gate.open()
    assert results == ["closing"]


def test_leaving_a_stream_in_its_middle_is_no_error(far: Talk) -> None:
    """Of the same make as a chat: a step that was interrupted is let out before the stream is closed."""
    gate, notes = Gate(), Notes()
    far.play.say = gate.say

    async def rest(stream: AsyncIterator[StreamEvent]) -> None:
        async for _ in stream:
            pass

    with calling(lambda: far.handle.chat("hello", notes)):
        assert gate.reached.wait(WAIT)

        async def use() -> None:
            stream = far.async_handle.stream(notes.request_id)
            first = await anext(stream)
            assert first.kind in {"status", "chunk"}
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(rest(stream), 0.3)

        asyncio.run(use())
        events = far.handle.stream(notes.request_id)
        next(events)
        events.close()  # type: ignore[attr-defined]
        gate.open()
    far.leaves_nothing()
