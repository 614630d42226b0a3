"""Callers that are stopped, wait too long, or go away, while their turn goes on or not."""

import asyncio
import os
import signal
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import pytest

from tests.engine.stage import beside
from tests.engine.talking import Notes, Talk, calling, saying
from think_celery import Turn

WAIT = 20.0
TEN = saying(*(f"{number} " for number in range(10)), pause=0.1)


@contextmanager
def interrupting(notes: Notes) -> Iterator[None]:
    """Press Ctrl-C when the caller waits for its next event."""

    def press() -> None:
        assert notes.begun.wait(WAIT)
        threading.Event().wait(0.3)
        os.kill(os.getpid(), signal.SIGINT)

    with beside(press):
        yield


def test_a_task_that_is_cancelled_stops_a_turn_that_runs_here(near: Talk) -> None:
    near.play.say = TEN

    async def use() -> None:
        notes = Notes()
        task = asyncio.create_task(near.async_handle.chat("hello", notes))
        async with asyncio.timeout(WAIT):
            while not notes.begun.is_set():  # noqa: ASYNC110 - set by a thread
                await asyncio.sleep(0.002)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        row = await near.async_handle.wait_for_submission(notes.request_id, timeout=WAIT)
        assert row is not None
        assert (row.status, row.error) == ("aborted", "the call was cancelled")

    asyncio.run(use())
    near.leaves_nothing()


def test_a_task_that_is_cancelled_leaves_a_turn_elsewhere_alone(far: Talk) -> None:
    far.play.say = TEN

    async def use() -> None:
        notes = Notes()
        task = asyncio.create_task(far.async_handle.chat("hello", notes))
        async with asyncio.timeout(WAIT):
            while not notes.begun.is_set():  # noqa: ASYNC110 - set by a thread
                await asyncio.sleep(0.002)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        row = await far.async_handle.wait_for_submission(notes.request_id, timeout=WAIT)
        assert row is not None
        assert row.status == "completed"

    asyncio.run(use())
    far.leaves_nothing()


@pytest.mark.parametrize("tries", range(5))
def test_a_caller_that_is_cancelled_while_its_row_is_written_does_not_block_the_lane(
    near: Talk, tries: int
) -> None:
    async def say(turn: Turn) -> AsyncIterator[str]:
        yield "well "
        await asyncio.sleep(0 if turn.text == "again" else WAIT)

    near.play.say = say

    async def use() -> None:
        notes = Notes()
        task = asyncio.create_task(near.async_handle.chat("hello", notes))
        async with asyncio.timeout(WAIT):
            while not notes.request_id:  # noqa: ASYNC110 - set by a task of the same loop
                await asyncio.sleep(0)
        await asyncio.sleep(0.0005 * tries)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        after = await near.async_handle.chat("again", timeout=WAIT)
        assert after.status == "completed"
        row = await near.async_handle.inspect_submission(notes.request_id)
        assert row is None or row.status == "aborted"

    asyncio.run(use())
    near.leaves_nothing()


def test_a_stuck_caller_keeps_no_cancelled_turn_and_no_lane(near: Talk) -> None:
    gate = threading.Event()
    notes = Notes(event=lambda _: gate.wait(WAIT))
    with calling(lambda: near.handle.chat("hello", notes)) as results:
        assert notes.begun.wait(WAIT)
        near.handle.cancel_chat(notes.request_id, "nobody listens")
        assert near.handle.chat("again").status == "completed"
        assert not results
        gate.set()
    assert (results[0].status, results[0].error) == ("aborted", "nobody listens")
    near.leaves_nothing()


@pytest.mark.parametrize("where", ["in the callback", "between two events"])
def test_an_interrupt_from_the_keyboard_is_what_the_caller_sees(talk: Talk, where: str) -> None:
    talk.play.say = TEN if where == "in the callback" else saying("one ", pause=1.0)
    notes = Notes()

    def interrupt(_: str) -> None:
        if "text-delta" in notes.types:
            raise KeyboardInterrupt

    if where == "in the callback":
        notes._acts["event"] = interrupt
        with pytest.raises(KeyboardInterrupt):
            talk.handle.chat("hello", notes)
    else:
        with interrupting(notes), pytest.raises(KeyboardInterrupt):
            talk.handle.chat("hello", notes)
    row = talk.handle.wait_for_submission(notes.request_id, timeout=WAIT)
    assert row is not None
    assert row.status == ("aborted" if talk.is_near else "completed")
    talk.leaves_nothing()
