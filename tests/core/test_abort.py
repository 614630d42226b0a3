"""Abort signals: the first abort wins, every listener is called once, and nothing is left behind."""

import asyncio
import copy
import gc
import logging
import pickle
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from think_celery import AbortController, AbortError, AbortSignal
from think_celery.abort import _alarm, _Bell, _Timeout
from think_celery.errors import InvalidInput
from think_celery.testing import eventually

PATIENCE_SECONDS = 20.0
TIMEOUTS = 3000


@pytest.fixture
def controller() -> AbortController:
    return AbortController()


def test_before_the_abort(controller: AbortController) -> None:
    signal = controller.signal
    assert signal is controller.signal
    assert (signal.aborted, signal.reason, signal.listener_count) == (False, None, 0)
    signal.throw_if_aborted()
    assert signal.wait(0) is False
    assert signal.wait(0.01) is False
    assert signal.listener_count == 0


@pytest.mark.spec("T32")
def test_the_first_abort_wins(controller: AbortController) -> None:
    controller.abort("R1")
    controller.abort("R2")
    assert (controller.signal.aborted, controller.signal.reason) == (True, "R1")
    silent = AbortController()
    silent.abort()
    silent.abort("late")
    assert (silent.signal.aborted, silent.signal.reason) == (True, None)


@pytest.mark.parametrize(
    ("reason", "text"), [("enough", "enough"), (None, "aborted"), (404, "404"), (OSError("disk"), "disk")]
)
def test_the_error_says_the_reason(controller: AbortController, reason: object, text: str) -> None:
    controller.abort(reason)
    with pytest.raises(AbortError) as caught:
        controller.signal.throw_if_aborted()
    assert str(caught.value) == text
    assert caught.value.__cause__ is (reason if isinstance(reason, Exception) else None)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.reason) == (text, caught.value.reason)


def test_listeners_are_called_once_in_their_order(controller: AbortController) -> None:
    signal, heard = controller.signal, list[int]()
    removals = [signal.add_listener(partial(heard.append, number)) for number in range(4)]
    assert signal.listener_count == 4
    removals[1]()
    removals[1]()
    assert signal.listener_count == 3
    controller.abort()
    controller.abort()
    assert heard == [0, 2, 3]
    for removal in removals:
        removal()
    assert (signal.listener_count, heard) == (0, [0, 2, 3])


def test_the_same_function_may_listen_twice(controller: AbortController) -> None:
    heard: list[int] = []
    listener = lambda: heard.append(1)  # noqa: E731
    controller.signal.add_listener(listener)()
    controller.signal.add_listener(listener)
    controller.signal.add_listener(listener)
    controller.abort()
    assert heard == [1, 1]


def test_a_late_listener_is_called_at_once(controller: AbortController) -> None:
    controller.abort()
    heard: list[bool] = []
    remove = controller.signal.add_listener(lambda: heard.append(controller.signal.aborted))
    assert heard == [True]
    assert controller.signal.listener_count == 0
    remove()


def test_a_raising_listener_is_logged_and_stops_nobody(
    controller: AbortController, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[str] = []

    def broken() -> None:
        raise RuntimeError("broken listener")

    controller.signal.add_listener(broken)
    controller.signal.add_listener(lambda: heard.append("second"))
    with caplog.at_level(logging.ERROR):
        controller.abort()
        controller.signal.add_listener(broken)
    assert heard == ["second"]
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [RuntimeError] * 2
    assert caplog.text.count("abort.listener_failed") == 2


def test_listeners_may_add_remove_and_abort(controller: AbortController) -> None:
    heard: list[str] = []
    removals: list[Callable[[], None]] = []

    def first() -> None:
        heard.append("first")
        removals[0]()
        controller.signal.add_listener(lambda: heard.append("added"))
        controller.abort("again")

    controller.signal.add_listener(first)
    removals.append(controller.signal.add_listener(lambda: heard.append("removed")))
    controller.signal.add_listener(lambda: heard.append("last"))
    controller.abort("once")
    assert heard == ["first", "added", "last"]
    assert (controller.signal.reason, controller.signal.listener_count) == ("once", 0)


@pytest.mark.parametrize("bad", [-1, float("nan"), "1", True, timedelta(seconds=-1)])
def test_times_that_are_none_are_refused(controller: AbortController, bad: Any) -> None:
    with pytest.raises(InvalidInput, match=r"timeout: .* is not a number of seconds"):
        controller.signal.wait(bad)
    with pytest.raises(InvalidInput, match=r"seconds: .* is not a number of seconds"):
        AbortSignal.timeout(bad)
    assert controller.signal.listener_count == 0


# Coroutines


def test_a_coroutine_is_woken_from_another_thread(controller: AbortController) -> None:
    async def scene() -> None:
        waits = [asyncio.create_task(controller.signal.wait_async()) for _ in range(5)]
        await asyncio.sleep(0)
        assert controller.signal.listener_count == 5
        await asyncio.to_thread(controller.abort, "thread")
        async with asyncio.timeout(PATIENCE_SECONDS):
            await asyncio.gather(*waits)
            await controller.signal.wait_async()
        assert controller.signal.reason == "thread"

    asyncio.run(scene())
    assert controller.signal.listener_count == 0


def test_coroutines_of_several_loops_wait_for_one_signal(controller: AbortController) -> None:
    def serve() -> None:
        asyncio.run(asyncio.wait_for(controller.signal.wait_async(), PATIENCE_SECONDS))

    with ThreadPoolExecutor(4) as pool:
        loops = [pool.submit(serve) for _ in range(4)]
        eventually(lambda: controller.signal.listener_count == 4)
        controller.abort()
        for loop in loops:
            loop.result(PATIENCE_SECONDS)
    assert controller.signal.listener_count == 0


def test_a_cancelled_wait_leaves_no_listener(controller: AbortController) -> None:
    async def scene() -> None:
        for signal in (controller.signal, AbortSignal.any(controller.signal, AbortSignal.timeout(60))):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await signal.wait_async()
            assert signal.listener_count == controller.signal.listener_count == 0
            cancelled = asyncio.create_task(signal.wait_async())
            await asyncio.sleep(0)
            cancelled.cancel()
            controller.signal.add_listener(cancelled.cancel)()
            with pytest.raises(asyncio.CancelledError):
                await cancelled
            assert signal.listener_count == controller.signal.listener_count == 0

    asyncio.run(scene())


def test_a_wait_cancelled_as_it_is_woken_is_cancelled(controller: AbortController) -> None:
    async def scene() -> None:
        wait = asyncio.create_task(controller.signal.wait_async())
        await asyncio.sleep(0)
        controller.abort()
        wait.cancel()
        with pytest.raises(asyncio.CancelledError):
            await wait

    asyncio.run(scene())


def test_a_loop_that_is_gone_harms_nobody(
    controller: AbortController, caplog: pytest.LogCaptureFixture
) -> None:
    loop = asyncio.new_event_loop()
    task = loop.create_task(controller.signal.wait_async())
    loop.run_until_complete(asyncio.sleep(0))
    assert controller.signal.listener_count == 1
    loop.close()
    heard: list[int] = []
    controller.signal.add_listener(lambda: heard.append(1))
    controller.abort()
    assert (heard, caplog.records) == ([1], [])
    task._log_destroy_pending = False  # type: ignore[attr-defined]


# Timeouts


def test_a_timeout_is_seen_by_all_who_look_listen_and_wait() -> None:
    signal = AbortSignal.timeout(timedelta(milliseconds=50))
    heard = threading.Event()
    signal.add_listener(heard.set)
    assert not signal.aborted

    async def scene() -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await signal.wait_async()

    began = time.monotonic()
    asyncio.run(scene())
    assert signal.wait(PATIENCE_SECONDS)
    assert heard.wait(PATIENCE_SECONDS)
    assert time.monotonic() - began < PATIENCE_SECONDS / 2
    assert isinstance(signal.reason, TimeoutError)
    with pytest.raises(AbortError, match=r"the time limit of 0\.05 s is over"):
        signal.throw_if_aborted()
    assert signal.listener_count == 0


def test_a_timeout_of_nothing_is_over_at_once() -> None:
    signal = AbortSignal.timeout(0)
    assert signal.aborted
    assert AbortSignal.timeout(float("inf")).wait(0.001) is False
    assert AbortSignal.timeout(None).wait(0.001) is False


def test_timeouts_ring_in_the_order_of_their_times_from_one_thread() -> None:
    due: list[float] = []
    rung: list[float] = []
    threads: set[int] = set()

    def ring(at: float) -> None:
        rung.append(at)
        threads.add(threading.get_ident())

    for seconds in (1.5, 0.5, 1.0):
        signal = AbortSignal.timeout(seconds)
        assert isinstance(signal, _Timeout)
        due.append(signal._deadline)
        signal.add_listener(partial(ring, due[-1]))
    del signal  # now only their listeners keep them
    gc.collect()
    eventually(lambda: len(rung) == 3)
    assert rung == sorted(due)
    assert threads == {_alarm().ident}
    assert _alarm().daemon


def test_a_timeout_without_listeners_is_garbage_and_one_without_its_listener_too() -> None:
    signal = AbortSignal.timeout(3600)
    combined = AbortSignal.any(signal)
    remove = combined.add_listener(lambda: None)
    assert (signal.listener_count, combined.listener_count) == (1, 1)
    remove()
    assert (signal.listener_count, combined.listener_count) == (0, 0)
    gone = [weakref.ref(signal), weakref.ref(combined)]
    del signal, combined, remove
    eventually(lambda: gc.collect() >= 0 and [each() for each in gone] == [None, None])


def test_cancelled_timeouts_do_not_pile_up() -> None:
    AbortSignal.timeout(1800).add_listener(lambda: None)  # due before the others
    for _ in range(TIMEOUTS):
        AbortSignal.timeout(3600).add_listener(lambda: None)()
    assert AbortSignal.timeout(0.05).wait(PATIENCE_SECONDS)
    assert sum(type(each) is _Bell for each in gc.get_objects()) <= TIMEOUTS // 2


def test_a_listener_that_ends_its_thread_does_not_stop_the_alarm(caplog: pytest.LogCaptureFixture) -> None:
    def leave() -> None:
        raise SystemExit

    AbortSignal.timeout(0.01).add_listener(leave)
    assert AbortSignal.timeout(0.05).wait(PATIENCE_SECONDS)
    assert _alarm().is_alive()
    eventually(lambda: "abort.alarm_failed" in caplog.text)


def test_a_forked_child_has_an_alarm_of_its_own() -> None:
    script = """
import os
import threading
from think_celery.abort import AbortSignal
assert AbortSignal.timeout(0.001).wait(5)
child = os.fork()
if child == 0:
    rung = threading.Event()
    AbortSignal.timeout(0.01).add_listener(rung.set)
    os._exit(0 if rung.wait(5) else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""
    # Python 3.12 and later warn of a fork beside threads, which is what a prefork pool does.
    command = [sys.executable, "-W", "ignore", "-c", script]
    assert subprocess.run(command, timeout=PATIENCE_SECONDS, check=False).returncode == 0


# Combinations


def test_the_first_of_several_aborts_the_combination() -> None:
    one, two = AbortController(), AbortController()
    combined = AbortSignal.any(one.signal, two.signal)
    heard: list[object] = []
    combined.add_listener(lambda: heard.append(combined.reason))
    assert (one.signal.listener_count, two.signal.listener_count) == (1, 1)
    two.abort("two")
    one.abort("one")
    assert heard == ["two"]
    assert (combined.aborted, combined.reason) == (True, "two")
    assert (one.signal.listener_count, two.signal.listener_count) == (0, 0)


def test_without_listeners_the_first_is_known_all_the_same() -> None:
    one, two = AbortController(), AbortController()
    combined = AbortSignal.any(one.signal, AbortSignal.any(two.signal))
    two.abort("two")
    one.abort("one")
    assert combined.reason == "two"
    late = AbortSignal.any(AbortSignal.timeout(0), one.signal)
    assert isinstance(late.reason, str)


def test_a_combination_of_none_never_aborts_and_one_of_the_aborted_has() -> None:
    assert AbortSignal.any().wait(0) is False
    controller = AbortController()
    controller.abort("before")
    combined = AbortSignal.any(AbortController().signal, controller.signal)
    heard: list[int] = []
    combined.add_listener(lambda: heard.append(1))
    assert (combined.aborted, combined.reason, heard) == (True, "before", [1])


def test_a_long_lived_source_keeps_nothing_of_its_combinations(controller: AbortController) -> None:
    gone = []
    for _ in range(100):
        combined = AbortSignal.any(controller.signal, AbortSignal.timeout(3600))
        combined.add_listener(lambda: None)()
        gone.append(weakref.ref(combined))
    del combined
    assert controller.signal.listener_count == 0
    eventually(lambda: gc.collect() >= 0 and not any(each() for each in gone))


def test_a_combination_that_nobody_keeps_still_calls_its_listener(controller: AbortController) -> None:
    heard: list[int] = []
    AbortSignal.any(controller.signal).add_listener(lambda: heard.append(1))
    gc.collect()
    controller.abort()
    assert heard == [1]


def test_a_signal_does_not_leave_its_process(controller: AbortController) -> None:
    for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="its own process only"):
            attempt(controller.signal)
    assert repr(controller.signal) == "<AbortSignal waiting>"
    controller.abort("why")
    assert repr(controller.signal) == "<AbortSignal aborted: 'why'>"
