"""Abort signals under threads that race, and under a signal handler that interrupts."""

import signal as signals
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from think_celery import AbortController, AbortSignal
from think_celery.testing import eventually

PATIENCE_SECONDS = 20.0
ROUNDS = 3000


@pytest.fixture
def restless() -> Iterator[None]:
    """Threads that take turns all the time, so that they meet at every step."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("restless")
def test_of_aborts_at_once_one_wins() -> None:
    with ThreadPoolExecutor(8) as pool:
        for _ in range(200):
            controller, barrier, heard = AbortController(), threading.Barrier(8), list[object]()

            def note(controller: Any = controller, heard: list[object] = heard) -> None:
                heard.append(controller.signal.reason)

            controller.signal.add_listener(note)

            def abort(number: int, controller: Any = controller, barrier: Any = barrier) -> object:
                barrier.wait(PATIENCE_SECONDS)
                controller.abort(number)
                return controller.signal.reason

            reasons = set(pool.map(abort, range(8)))
            assert len(reasons) == 1
            assert heard == list(reasons)


@pytest.mark.usefixtures("restless")
def test_every_listener_is_called_exactly_once_in_a_race_with_the_abort() -> None:
    """Listeners added before, while and after another thread aborts are all called, each once."""
    with ThreadPoolExecutor(4) as pool:
        for number in range(ROUNDS // 10):
            controller, barrier = AbortController(), threading.Barrier(4)
            counts = [[0] * 20 for _ in range(3)]

            def add(own: list[int], controller: Any = controller, barrier: Any = barrier) -> None:
                def call(place: int) -> None:
                    own[place] += 1

                barrier.wait(PATIENCE_SECONDS)
                for place in range(len(own)):
                    controller.signal.add_listener(partial(call, place))

            adders = [pool.submit(add, own) for own in counts]
            barrier.wait(PATIENCE_SECONDS)
            for _ in range(number % 50):
                pass
            controller.abort(number)
            for adder in adders:
                adder.result(PATIENCE_SECONDS)
            assert counts == [[1] * 20] * 3
            assert controller.signal.listener_count == 0


@pytest.mark.usefixtures("restless")
def test_removing_in_a_race_with_the_abort_leaves_nothing_and_calls_at_most_once() -> None:
    for number in range(ROUNDS):
        controller, calls = AbortController(), list[int]()
        combined = AbortSignal.any(controller.signal, AbortController().signal)
        source = (controller.signal, combined)[number % 2]
        remove = source.add_listener(partial(calls.append, 1))
        gate = threading.Barrier(2)

        def abort(controller: AbortController = controller, gate: threading.Barrier = gate) -> None:
            gate.wait(PATIENCE_SECONDS)
            controller.abort()

        thread = threading.Thread(target=abort)
        thread.start()
        gate.wait(PATIENCE_SECONDS)
        remove()
        thread.join(PATIENCE_SECONDS)
        assert len(calls) <= 1
        assert source.listener_count == controller.signal.listener_count == 0


@pytest.mark.spec("T36")
@pytest.mark.usefixtures("restless")
def test_one_signal_serves_thousands_of_listeners_from_many_threads() -> None:
    """Waits, listeners and combinations come and go in threads; what stays is called, the rest is gone."""
    controller = AbortController()
    kept: list[int] = []

    def churn(number: int) -> None:
        for _ in range(ROUNDS // 8):
            combined = AbortSignal.any(controller.signal, AbortSignal.timeout(60))
            combined.add_listener(lambda: kept.append(-1))()
            assert combined.wait(0) is False
        controller.signal.add_listener(lambda: kept.append(number))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(churn, range(8)))
    assert controller.signal.listener_count == 8
    controller.abort()
    assert sorted(kept) == list(range(8))
    assert controller.signal.listener_count == 0


def test_a_signal_handler_may_abort_at_any_moment() -> None:
    """The handler interrupts the very thread that adds, removes and waits."""
    current = AbortController()
    handled = 0

    def handler(*_: object) -> None:
        nonlocal handled
        handled += 1
        current.abort("handled")

    before = signals.signal(signals.SIGUSR1, handler)
    over, target = threading.Event(), threading.get_ident()

    def interrupt() -> None:
        while not over.wait(0.0005):
            signals.pthread_kill(target, signals.SIGUSR1)

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    try:
        end = time.monotonic() + PATIENCE_SECONDS
        while handled < 300 and time.monotonic() < end:
            current, told = AbortController(), list[int]()
            combined = AbortSignal.any(current.signal, AbortSignal.timeout(60))
            while not current.signal.aborted:
                combined.add_listener(partial(told.append, 1))()
                combined.wait(0.0001)
            kept = combined.add_listener(partial(told.append, 2))
            kept()
            assert told.count(2) == 1
            assert combined.listener_count == current.signal.listener_count == 0
    finally:
        over.set()
        interrupter.join(PATIENCE_SECONDS)
        signals.signal(signals.SIGUSR1, before)
    assert handled >= 300


def test_waiting_threads_are_all_woken() -> None:
    controller = AbortController()
    with ThreadPoolExecutor(10) as pool:
        waits = [pool.submit(controller.signal.wait, PATIENCE_SECONDS) for _ in range(10)]
        eventually(lambda: controller.signal.listener_count == 10)
        controller.abort("now")
        assert [wait.result(PATIENCE_SECONDS) for wait in waits] == [True] * 10
    assert controller.signal.wait() is True
    assert controller.signal.listener_count == 0


def test_an_abort_while_a_listener_is_being_attached_leaves_nothing_with_the_other_sources() -> None:
    first, last = AbortController(), AbortController()

    class Trap(AbortSignal):
        def add_listener(self, listener: Callable[[], object]) -> Callable[[], None]:
            first.abort("meanwhile")
            return super().add_listener(listener)

    trap = Trap()
    combined = AbortSignal.any(first.signal, trap, last.signal)
    heard: list[object] = []
    combined.add_listener(lambda: heard.append(combined.reason))
    assert heard == ["meanwhile"]
    assert [each.listener_count for each in (combined, first.signal, trap, last.signal)] == [0] * 4
