"""Messages that a function of the conversation makes when its turn starts: where it runs, how it fails."""

import asyncio
import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from typing import Any
from uuid import uuid4

import pytest

from tests.engine.stage import passed
from tests.engine.talking import Notes, Said, Talk, calling
from think_celery import AbortController, NestedTurnError, Turn, user_message
from think_celery.core.address import Address
from think_celery.core.submission import Status
from think_celery.errors import InvalidInput
from think_celery.testing import eventually

Messages = list[dict[str, Any]]
here: ContextVar[str] = ContextVar("here", default="nowhere")


def roles(talk: Talk) -> list[str]:
    return [role for role, _ in talk.texts()]


def test_what_a_function_changes_in_place_counts(near: Talk) -> None:
    """Appending to what it was given is the same as returning a longer list."""

    def grow(current: Messages) -> Messages:
        current.append({"role": "user", "parts": [{"type": "text", "text": "without an id"}]})
        current.append({"id": "known", "role": "user", "parts": [{"type": "text", "text": "with one"}]})
        return current

    near.handle.save_messages("hi")
    assert near.handle.save_messages(grow).text == "You said with one"
    assert roles(near) == ["user", "assistant", "user", "user", "assistant"]


def test_what_a_function_leaves_out_or_changes_stays_as_it_is(near: Talk) -> None:
    near.handle.save_messages("hi")
    before = near.handle.get_messages()

    def change(current: Messages) -> Messages:
        current[0]["parts"][0]["text"] = "ho"
        return [current[0], user_message("more").to_json()]

    near.handle.save_messages(change)
    assert near.handle.get_messages()[:2] == before
    assert roles(near) == ["user", "assistant"] * 2


def test_a_function_may_return_more_than_a_call_may_hand_in(make_runtime: Callable[..., Any]) -> None:
    """What the conversation has already is not checked again."""
    runtime = make_runtime(max_messages_bytes=3_000)
    talk = Talk(runtime, runtime, Address("Talker", f"t-{uuid4()}"))
    for text in ("a" * 2_000, "b" * 2_000):
        talk.handle.save_messages(text)
    assert talk.handle.save_messages(lambda current: [*current, user_message("c")]).status == "completed"
    assert talk.handle.add_messages(lambda current: [*current, user_message("d")]) == 1
    assert talk.handle.add_messages(lambda current: [*current, user_message("e")], mode="upsert") == 1


@pytest.mark.parametrize("given", ["", [], "words", user_message("one")])
def test_a_function_may_return_what_a_call_may_hand_in(near: Talk, given: Any) -> None:
    assert near.handle.save_messages("first").status == "completed"
    assert near.handle.save_messages(lambda _: given).status == "completed"
    assert near.handle.chat(lambda _: given).status == "completed"


@pytest.mark.parametrize(
    "given",
    [None, 7, [1], [None], {"id": "m"}, [{"id": ["m"]}], [{"id": "m", "role": "nobody", "parts": []}]],
)
def test_a_function_that_returns_no_messages(near: Talk, given: Any) -> None:
    with pytest.raises(InvalidInput, match="messages"):
        near.handle.save_messages(lambda _: given)
    (row,) = near.handle.list_submissions(kind="save")
    assert row.status is Status.ERROR
    assert (row.error or "").startswith("messages")
    assert near.texts() == []
    near.leaves_nothing()


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, asyncio.CancelledError])
@pytest.mark.parametrize("is_async", [False, True])
def test_a_function_cannot_end_the_process(near: Talk, error: type[BaseException], is_async: bool) -> None:
    def end(_: Messages) -> Messages:
        raise error

    async def end_async(_: Messages) -> Messages:
        raise error

    with pytest.raises(RuntimeError, match=error.__name__):
        near.handle.save_messages(end_async if is_async else end)
    assert near.handle.save_messages("and on").status == "completed"


def test_a_plain_function_runs_in_a_thread_and_both_see_their_callers_context(near: Talk) -> None:
    seen: list[tuple[str, bool]] = []
    loop = near.worker.loop._thread.name

    def plain(_: Messages) -> str:
        seen.append((here.get(), threading.current_thread().name == loop))
        return "plain"

    async def awaited(_: Messages) -> str:
        seen.append((here.get(), threading.current_thread().name == loop))
        return "awaited"

    here.set("at the caller's")
    near.handle.save_messages(plain)
    near.handle.save_messages(awaited)
    near.handle.add_messages(awaited)
    assert seen == [("at the caller's", False), ("at the caller's", True), ("at the caller's", True)]


def test_a_turn_is_stopped_while_its_function_is_at_work(near: Talk) -> None:
    """At once, whether it awaits or blocks; nothing of it is stored, and the lane goes on."""
    begun, gate = threading.Event(), threading.Event()

    async def slow(_: Messages) -> str:
        begun.set()
        await asyncio.sleep(60)
        return "never"

    def blocking(_: Messages) -> str:
        begun.set()
        gate.wait(60)
        return "never"

    for make in (slow, blocking):
        begun.clear()
        stop = AbortController()
        with calling(partial(near.handle.save_messages, make, signal=stop.signal)) as done:
            assert begun.wait(10)
            started = time.monotonic()
            stop.abort("enough")
        assert time.monotonic() - started < 5
        assert (done[0].status, done[0].error) == ("aborted", "enough")
    assert near.texts() == []
    assert near.handle.save_messages("next").status == "completed"
    gate.set()
    assert near.play.responses[:-1] == []


def test_a_call_that_is_cancelled_while_its_function_is_at_work(near: Talk) -> None:
    begun = threading.Event()

    async def slow(_: Messages) -> str:
        begun.set()
        await asyncio.sleep(60)
        return "never"

    async def give_up() -> None:
        task = asyncio.create_task(near.async_handle.save_messages(slow))
        while not begun.is_set():  # noqa: ASYNC110 - the event is a thread's
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    asyncio.run(give_up())
    near.leaves_nothing()
    (row,) = near.handle.list_submissions(kind="save")
    assert row.status is Status.ABORTED
    assert near.handle.save_messages("next").status == "completed"


def test_a_function_does_not_wait_for_the_lane_that_waits_for_it(near: Talk) -> None:
    async def nest(_: Messages) -> str:
        with pytest.raises(NestedTurnError):
            await near.async_handle.save_messages("inner")
        with pytest.raises(NestedTurnError):
            await near.async_handle.wait_until_stable()
        await near.async_handle.add_messages("a note")
        await near.async_handle.submit_messages("later")
        return "outer"

    assert near.handle.save_messages(nest).status == "completed"
    assert near.texts()[:2] == [("user", "a note"), ("user", "outer")]


def test_a_function_that_raises_is_heard_of_by_its_caller_alone(near: Talk) -> None:
    """`chat` raises it, too; no method of the callback closes it (T 1.4, row 12)."""
    notes = Notes()

    def fail(_: Messages) -> str:
        raise LookupError("no such customer")

    with pytest.raises(LookupError, match="no such customer"):
        near.handle.chat(fail, notes)
    assert notes.heard == ["start"]
    assert (near.texts(), near.play.errors, near.play.responses) == ([], [], [])


def test_messages_added_while_a_function_is_at_work_come_before_its_own(near: Talk) -> None:
    begun, gate = threading.Event(), threading.Event()

    async def slow(current: Messages) -> Messages:
        begun.set()
        await passed(gate)
        return [*current, user_message("mine").to_json()]

    seen: list[int] = []

    async def count(turn: Turn) -> Said:
        seen.append(len(turn.messages))
        yield "ok"

    near.play.say = count
    with calling(lambda: near.handle.save_messages(slow)):
        assert begun.wait(10)
        near.handle.add_messages("theirs")
        gate.set()
    assert [text for _, text in near.texts()] == ["theirs", "mine", "ok"]
    assert seen == [2]


def test_functions_that_add_messages_may_do_so_themselves(near: Talk) -> None:
    """However many at once: none of them holds what another needs."""

    def nested(current: Messages) -> str:
        near.handle.add_messages("inner")
        return "outer"

    async def all_at_once() -> None:
        await asyncio.gather(*(near.async_handle.add_messages(nested) for _ in range(40)))

    asyncio.run(asyncio.wait_for(all_at_once(), 20))
    assert len(near.texts()) == 80


def test_a_function_that_replaces_messages_writes_what_it_has_changed(near: Talk) -> None:
    near.handle.add_messages([user_message("a"), user_message("b")])

    def change(current: Messages) -> Messages:
        current[1]["parts"][0]["text"] = "c"
        return current

    assert near.handle.add_messages(change) == 0
    assert [text for _, text in near.texts()] == ["a", "b"]
    assert near.handle.add_messages(change, mode="upsert") == 0
    assert [text for _, text in near.texts()] == ["a", "c"]


def test_many_calls_of_one_process_are_placed_in_their_order(talk: Talk) -> None:
    async def say(turn: Turn) -> Said:
        yield "ok"

    talk.play.say = say

    async def save_all() -> None:
        await asyncio.gather(*(talk.async_handle.save_messages(str(number)) for number in range(30)))

    asyncio.run(save_all())
    assert [text for role, text in talk.texts() if role == "user"] == [str(number) for number in range(30)]
    eventually(lambda: len(talk.play.responses) == 30)
    told = [response.submission.position for response in talk.play.responses]
    assert told == sorted(told, key=lambda position: position or 0)
