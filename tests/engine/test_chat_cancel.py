"""Cancelling a chat turn: by its signal, by its request id, from anywhere, at any time; and what is left."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest

from tests.engine.talking import Notes, Talk, calling, saying
from think_celery import AbortController, AbortSignal, AgentHandle, Turn
from think_celery.core.callback import ChatStart
from think_celery.core.turn import TurnResult
from think_celery.engine.runtime import Runtime
from think_celery.errors import InvalidInput
from think_celery.testing import eventually

WAIT = 20.0
TEN = saying(*(f"{number} " for number in range(10)), pause=0.1)


class Stopping(Notes):
    """Calls something when it has heard two pieces of text."""

    def __init__(self, stop: Callable[[str], Any], order: list[str] | None = None) -> None:
        super().__init__(order, event=self._count)
        self._stop = stop

    def _count(self, _: str) -> None:
        if self.types[-1] == "text-delta" and self.types.count("text-delta") == 2:
            self._stop(self.request_id)


@pytest.mark.spec("T27", "T29", "T30")
@pytest.mark.parametrize("way", ["signal", "cancel_chat", "cancel_all_chats", "cancel_submission"])
def test_a_turn_that_is_cancelled_in_its_middle(talk: Talk, way: str) -> None:
    talk.play.say = TEN
    controller = AbortController()
    ways: dict[str, Callable[[str], Any]] = {
        "signal": lambda _: controller.abort("enough"),
        "cancel_chat": lambda request_id: talk.handle.cancel_chat(request_id, "enough"),
        "cancel_all_chats": lambda _: talk.handle.cancel_all_chats("enough"),
        "cancel_submission": lambda request_id: talk.handle.cancel_submission(request_id, "enough"),
    }
    notes = Stopping(ways[way])
    result = talk.handle.chat("hello", notes, signal=controller.signal)
    assert (result.status, result.error) == ("aborted", "enough")
    assert notes.heard == ["start", "event"]
    assert 2 <= notes.types.count("text-delta") <= 9
    assert "abort" not in notes.types
    assert result.text == talk.texts()[1][1]
    assert result.text.startswith(notes.text)
    assert result.message == talk.handle.get_messages()[1]
    assert all(part.get("state", "done") == "done" for part in result.message["parts"])
    assert [told.status for told in talk.responded()] == ["aborted"]
    assert talk.play.errors == []
    assert controller.signal.listener_count == 0
    talk.play.say = saying("fine")
    assert talk.handle.chat("again").status == "completed"
    assert [role for role, _ in talk.texts()] == ["user", "assistant"] * 2
    talk.leaves_nothing()


@pytest.mark.spec("T27")
def test_a_silent_turn_is_cancelled_at_once(talk: Talk) -> None:
    never = threading.Event()
    begun = threading.Event()

    async def brood(turn: Turn) -> AsyncIterator[str]:
        begun.set()
        while not never.is_set():  # noqa: ASYNC110 - it is never set
            await asyncio.sleep(0.5)
        yield "never said"

    talk.play.say = brood
    notes = Notes()
    with calling(lambda: talk.handle.chat("hello", notes)) as results:
        assert begun.wait(WAIT)
        talk.handle.cancel_chat(notes.request_id)
    assert (results[0].status, results[0].error, results[0].message) == ("aborted", None, None)
    assert talk.texts() == [("user", "hello")]
    assert [(told.status, told.message) for told in talk.responded()] == [("aborted", None)]
    talk.leaves_nothing()


def test_another_process_cancels(talk: Talk, make_runtime: Callable[..., Runtime]) -> None:
    other = AgentHandle(talk.address.type_name, talk.address.name, runtime=make_runtime())
    talk.play.say = TEN
    notes = Stopping(lambda request_id: other.cancel_chat(request_id, "from elsewhere"))
    result = talk.handle.chat("hello", notes)
    assert (result.status, result.error) == ("aborted", "from elsewhere")
    assert result.text.startswith("0 1 ")
    talk.leaves_nothing()


@pytest.mark.spec("T31")
@pytest.mark.parametrize("request_id", ["nobody", "", "a4a1d2bb-0d0c-4a37-8a9e-2a9dc3b4fb12"])
def test_an_unknown_turn_is_not_cancelled(talk: Talk, request_id: str) -> None:
    talk.handle.cancel_chat(request_id, "why not")
    talk.handle.cancel_all_chats()
    assert talk.handle.list_submissions(kind=["chat", "submit"]) == []
    talk.leaves_nothing()
    with pytest.raises(InvalidInput):
        talk.handle.cancel_chat(None)  # type: ignore[arg-type]


@pytest.mark.spec("T31")
def test_a_finished_turn_stays_as_it_is(talk: Talk) -> None:
    controller = AbortController()
    result = talk.handle.chat("hello", signal=controller.signal)
    row = talk.handle.inspect_submission(result.request_id)
    controller.abort()
    talk.handle.cancel_chat(result.request_id, "too late")
    assert talk.handle.inspect_submission(result.request_id) == row
    assert [role for role, _ in talk.texts()] == ["user", "assistant"]
    talk.leaves_nothing()


@pytest.mark.spec("T32")
def test_the_first_reason_stays(talk: Talk) -> None:
    talk.play.say = TEN
    controller = AbortController()

    def stop(request_id: str) -> None:
        talk.handle.cancel_chat(request_id, "first")
        talk.handle.cancel_chat(request_id, "second")
        controller.abort("third")

    result = talk.handle.chat("hello", Stopping(stop), signal=controller.signal)
    assert result.error == "first"
    row = talk.handle.inspect_submission(result.request_id)
    assert row is not None
    assert row.error == "first"


@pytest.mark.spec("T33")
@pytest.mark.parametrize("way", ["signal", "cancel_chat"])
def test_a_waiting_turn_is_cancelled_and_the_next_one_runs(talk: Talk, way: str) -> None:
    gate = threading.Event()

    async def hold(turn: Turn) -> AsyncIterator[str]:
        yield turn.text
        while turn.text == "one" and not gate.is_set():  # noqa: ASYNC110 - the gate is a thread's
            await asyncio.sleep(0.002)

    talk.play.say = hold
    first, second, third, controller = Notes(), Notes(), Notes(), AbortController()
    with ExitStack() as stack:
        stack.callback(gate.set)
        stack.enter_context(calling(lambda: talk.handle.chat("one", first)))
        assert first.begun.wait(WAIT)
        waiting = stack.enter_context(
            calling(lambda: talk.handle.chat("two", second, signal=controller.signal))
        )
        eventually(lambda: second.request_id and talk.handle.inspect_submission(second.request_id))
        last = stack.enter_context(calling(lambda: talk.handle.chat("three", third)))
        eventually(lambda: third.request_id and talk.handle.inspect_submission(third.request_id))
        if way == "signal":
            controller.abort("changed my mind")
        else:
            talk.handle.cancel_chat(second.request_id, "changed my mind")
        eventually(lambda: waiting, describe="it ends although the turn ahead of it goes on")
        assert first.heard == ["start", "event"]
        gate.set()
        eventually(lambda: last)
    assert (waiting[0].status, waiting[0].error) == ("aborted", "changed my mind")
    assert second.heard == ["start"]
    assert last[0].status == "completed"
    assert [text for _, text in talk.texts()] == ["one", "one", "three", "three"]
    assert controller.signal.listener_count == 0
    talk.leaves_nothing()


@pytest.mark.spec("T34")
def test_a_turn_without_a_listener_is_cancelled_the_same_way(talk: Talk) -> None:
    talk.play.say = TEN
    handle = talk.async_handle

    async def use() -> TurnResult:
        saving = asyncio.create_task(handle.save_messages("hello"))
        async with asyncio.timeout(WAIT):
            while not talk.play.turns:  # noqa: ASYNC110 - the other side is a thread
                await asyncio.sleep(0.002)
            await handle.abort_all_requests("stop all")
            return await saving

    result = asyncio.run(use())
    assert (result.status, result.error) == ("aborted", "stop all")
    talk.leaves_nothing()


def test_a_signal_that_has_fired_before_writes_nothing(talk: Talk) -> None:
    controller, notes = AbortController(), Notes()
    controller.abort("never mind")
    result = talk.handle.chat("hello", notes, signal=controller.signal)
    assert (result.status, result.error, result.request_id) == ("aborted", "never mind", notes.request_id)
    assert (notes.heard, talk.texts(), talk.play.turns) == (["start"], [], [])
    assert talk.handle.inspect_submission(result.request_id) is None
    talk.leaves_nothing()


@pytest.mark.parametrize("way", ["signal", "cancel_chat", "cancel_all_chats"])
@pytest.mark.parametrize("is_async", [False, True])
def test_a_turn_may_be_cancelled_in_its_on_start(talk: Talk, way: str, is_async: bool) -> None:
    controller = AbortController()

    def stop(request_id: str) -> None:
        if way == "signal":
            controller.abort("already gone")
        elif way == "cancel_chat":
            talk.handle.cancel_chat(request_id, "already gone")
        else:
            talk.handle.cancel_all_chats("already gone")

    class Plain(Notes):
        def on_start(self, event: ChatStart) -> None:  # type: ignore[override]
            self.heard.append("start")
            stop(event.request_id)

    notes = Plain()
    if is_async:
        result = asyncio.run(talk.async_handle.chat("hello", notes, signal=controller.signal))
    else:
        result = talk.handle.chat("hello", notes, signal=controller.signal)
    assert (result.status, result.error) == ("aborted", "already gone")
    assert (notes.heard, talk.play.turns, talk.texts()) == (["start"], [], [])
    talk.leaves_nothing()


def test_a_cancel_is_never_too_early(talk: Talk) -> None:
    """It comes at any moment around the placing of the row, from the caller's own process."""
    for _ in range(20):
        notes = Notes()
        talk.play.say = TEN
        with calling(partial(talk.handle.chat, "hello", notes)) as results:
            eventually(partial(getattr, notes, "request_id"), interval=0.0005)
            talk.handle.cancel_chat(notes.request_id, "at once")
        assert (results[0].status, results[0].error) == ("aborted", "at once")
    talk.leaves_nothing()


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        (None, None),
        ("a\x00b", "a\ufffdb"),
        ("half \ud83d", "half \ufffd"),
        (TimeoutError(), "TimeoutError"),
        (LookupError("no such user"), "no such user"),
        (404, "404"),
        (Mute(), "Mute"),
    ],
)
def test_any_reason_ends_a_turn(talk: Talk, reason: object, words: str | None) -> None:
    talk.play.say = TEN
    controller = AbortController()
    notes = Stopping(lambda _: controller.abort(reason))
    result = talk.handle.chat("hello", notes, signal=controller.signal)
    assert (result.status, result.error) == ("aborted", words)
    fired = talk.handle.chat("hello", signal=controller.signal)
    assert (fired.status, fired.error) == ("aborted", words)


def test_a_time_limit_is_a_signal(talk: Talk) -> None:
    talk.play.say = TEN
    result = talk.handle.chat("hello", signal=AbortSignal.timeout(0.3))
    assert (result.status, result.error) == ("aborted", "the time limit of 0.3 s is over")
    talk.leaves_nothing()


@pytest.mark.spec("T36")
def test_one_signal_serves_many_turns_and_nothing_is_left(talk: Talk) -> None:
    controller = AbortController()
    plays = [saying("fine"), saying("so far ", RuntimeError("boom")), saying(), None, saying("fine")]
    statuses = []
    for say in plays:
        talk.play.say = say
        statuses.append(talk.handle.chat("hello", Notes(), signal=controller.signal).status)
        assert controller.signal.listener_count == 0
        talk.leaves_nothing()
    assert statuses == ["completed", "error", "completed", "completed", "completed"]
    talk.play.say = TEN
    last = talk.handle.chat("hello", Stopping(lambda _: controller.abort()), signal=controller.signal)
    assert last.status == "aborted"
    assert controller.signal.listener_count == 0
    talk.leaves_nothing()


@pytest.mark.spec("T36")
@pytest.mark.parametrize("conversation", [False, True])
def test_a_skipped_turn_leaves_nothing(talk: Talk, conversation: bool) -> None:
    gate, controller = threading.Event(), AbortController()

    async def hold(turn: Turn) -> AsyncIterator[str]:
        yield turn.text
        while not gate.is_set():  # noqa: ASYNC110 - the gate is a thread's
            await asyncio.sleep(0.002)

    talk.play.say = hold
    first, second = Notes(), Notes()
    with calling(lambda: talk.handle.chat("one", first)) as running:
        assert first.begun.wait(WAIT)
        with calling(lambda: talk.handle.chat("two", second, signal=controller.signal)) as waiting:
            eventually(lambda: second.request_id and talk.handle.inspect_submission(second.request_id))
            if conversation:
                talk.handle.clear_messages()
            else:
                talk.handle.reset_turn_state()
            eventually(lambda: waiting)
        gate.set()
    assert waiting[0].status == "skipped"
    assert second.heard == ["start"]
    assert running[0].status == "aborted"
    assert first.heard == ["start", "event"]
    assert talk.texts() == ([] if conversation else [("user", "one")])
    assert controller.signal.listener_count == 0
    talk.leaves_nothing()
