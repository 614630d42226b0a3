"""A loop that stands still is reported once, with the code that holds it, and nothing else is."""

import asyncio
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from inspect import currentframe
from pathlib import Path
from typing import Any

import pytest

from think_celery.engine.loop import LoopThread
from think_celery.engine.runtime import Runtime
from think_celery.engine.watch import _culprit
from think_celery.testing import eventually

STALL_SECONDS = 0.2
HERE = str(Path(__file__))


@pytest.fixture
def loop(caplog: pytest.LogCaptureFixture) -> Iterator[LoopThread]:
    caplog.set_level(logging.INFO, logger="think_celery.engine.watch")
    thread = LoopThread("watched", stall_seconds=STALL_SECONDS)
    yield thread
    thread.close()


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "think_celery.engine.watch"]


def blocked(caplog: pytest.LogCaptureFixture) -> tuple[str, str, str, float]:
    """Return file, line and function of the one report, and the whole duration told at its end."""
    eventually(lambda: len(told(caplog)) == 2)
    warned, freed = told(caplog)
    match = re.fullmatch(r"loop\.blocked at=(.+):(\d+) (\S+) seconds=\d+\.\d", warned)
    assert match is not None, warned
    ended = re.fullmatch(r"loop\.unblocked at=(.+) seconds=(\d+\.\d)", freed)
    assert ended is not None, freed
    assert warned.startswith(f"loop.blocked at={ended[1]} ")
    assert [record.levelname for record in caplog.records][-2:] == ["WARNING", "INFO"]
    return match[1], match[2], match[3], float(ended[2])


async def calls(blocking: Callable[[], Any]) -> int:
    """Make a blocking call, and return its line."""
    frame = currentframe()
    assert frame is not None
    line = frame.f_lineno + 1
    blocking()
    return line


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate()]


def test_the_blocking_line_is_named_once_with_its_whole_duration(
    loop: LoopThread, caplog: pytest.LogCaptureFixture
) -> None:
    async def culprit() -> None:
        time.sleep(5 * STALL_SECONDS)  # noqa: ASYNC251 - what is looked for

    loop.run(culprit())
    file, line, function, seconds = blocked(caplog)
    assert (file, int(line)) == (HERE, culprit.__code__.co_firstlineno + 1)
    assert function.endswith("<locals>.culprit")
    assert 2 * STALL_SECONDS < seconds < 20 * STALL_SECONDS


@pytest.mark.parametrize(
    "blocking",
    [
        lambda: threading.Event().wait(4 * STALL_SECONDS),
        lambda: subprocess.run(["sleep", str(4 * STALL_SECONDS)], check=True, capture_output=True),
    ],
    ids=["lock", "process"],
)
def test_what_blocks_in_a_library_is_reported_at_the_applications_call(
    loop: LoopThread, caplog: pytest.LogCaptureFixture, blocking: Callable[[], Any]
) -> None:
    loop.run(calls(blocking))
    file, line, function, _ = blocked(caplog)
    assert (file, function, line) == (HERE, "<lambda>", str(blocking.__code__.co_firstlineno))


def test_without_application_code_the_innermost_place_is_named(
    loop: LoopThread, caplog: pytest.LogCaptureFixture
) -> None:
    waits = threading.Event()
    loop.spawn(asyncio.sleep(0))
    loop.loop.call_soon_threadsafe(waits.wait, 4 * STALL_SECONDS)
    file, _, function, _ = blocked(caplog)
    assert (Path(file).name, function) == ("threading.py", "Condition.wait")


def test_code_that_keeps_the_interpreter_to_itself_is_found(
    loop: LoopThread, caplog: pytest.LogCaptureFixture
) -> None:
    """No other thread runs during such a call; the report comes as soon as it is over."""
    text, took = "a" * 18, 0.0
    while took < 5 * STALL_SECONDS:  # of computing, however much else the machine does
        text, began = text + "a", time.thread_time()
        re.match(r"(a+)+$", text + "b")
        took = time.thread_time() - began
    # The report needs the loop's thread to be the one that hands over the interpreter: nearly always.
    for _ in range(10):
        loop.run(calls(lambda: re.match(r"(a+)+$", text + "b")))
        with suppress(AssertionError):
            eventually(lambda: told(caplog), timeout=1)
            break
    file, _, function, _ = blocked(caplog)
    assert file == HERE
    assert function.endswith(("<lambda>", "calls"))


def test_a_loop_that_waits_for_its_next_event_blocks_nothing(loop: LoopThread) -> None:
    """However late it is: the machine has too much to do."""
    entered, gate = threading.Event(), threading.Event()

    async def culprit() -> None:
        entered.set()
        gate.wait(20)

    loop.run(asyncio.sleep(0))
    eventually(lambda: _culprit(loop._thread) is None)
    loop.spawn(culprit())
    assert entered.wait(20)
    assert "culprit" in str(_culprit(loop._thread))
    gate.set()
    eventually(lambda: _culprit(loop._thread) is None)


def test_each_stall_is_reported(loop: LoopThread, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(1, 4):
        loop.run(calls(lambda: time.sleep(4 * STALL_SECONDS)))
        eventually(lambda number=number: len(told(caplog)) == 2 * number)  # type: ignore[misc]
    assert [each.split()[0] for each in told(caplog)] == ["loop.blocked", "loop.unblocked"] * 3


def test_a_busy_loop_that_answers_is_left_alone(loop: LoopThread, caplog: pytest.LogCaptureFixture) -> None:
    async def busy() -> None:
        end = time.monotonic() + 6 * STALL_SECONDS
        while time.monotonic() < end:
            time.sleep(STALL_SECONDS / 20)  # noqa: ASYNC251 - short enough
            await asyncio.sleep(0)

    loop.run(busy())
    assert told(caplog) == []


def test_a_short_call_during_which_the_machine_or_process_stood_still_is_left_alone() -> None:
    script = """
import asyncio, logging, sys, threading
logging.basicConfig(level=logging.INFO, stream=sys.stdout)
from think_celery.engine.loop import LoopThread
from think_celery.testing import eventually
loop = LoopThread(stall_seconds=1.0)
entered = threading.Event()
async def read():
    entered.set()
    sys.stdin.readline()
loop.run(asyncio.sleep(0))
eventually(loop._watch._answered.is_set)
reading = loop.spawn(read())
entered.wait(10)
eventually(lambda: not loop._watch._answered.is_set(), interval=0.001)
print("asked", flush=True)
reading.result()
loop.close()
print("closed", [thread.name for thread in threading.enumerate()], flush=True)
"""
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdin is not None
        assert child.stdout.readline() == "asked\n"
        os.kill(child.pid, signal.SIGSTOP)
        threading.Event().wait(2)
        os.kill(child.pid, signal.SIGCONT)
        output, _ = child.communicate("\n", timeout=20)
    assert output == "closed ['MainThread']\n"


def test_a_blocked_loop_does_not_keep_its_process_alive() -> None:
    script = """
import threading, time
from think_celery.engine.loop import LoopThread
loop = LoopThread(stall_seconds=0.05)
entered = threading.Event()
async def block():
    entered.set()
    time.sleep(60)
loop.spawn(block())
entered.wait(10)
"""
    assert subprocess.run([sys.executable, "-c", script], timeout=20, check=False).returncode == 0


def test_it_ends_with_the_loop(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    loop = LoopThread("ended", stall_seconds=STALL_SECONDS)
    before = threads().count("think-watch")
    loop.run(asyncio.sleep(0))
    assert threads().count("think-watch") == before + 1
    loop.close()
    assert threads().count("think-watch") == before
    threading.Event().wait(3 * STALL_SECONDS)
    assert told(caplog) == []
    unused = LoopThread("unused", stall_seconds=STALL_SECONDS)
    unused.close()
    assert threads().count("think-watch") == before


def test_a_loop_that_blocks_its_own_end_is_reported(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("think_celery.engine.loop._GRACE_SECONDS", 2 * STALL_SECONDS)
    loop = LoopThread("stubborn", stall_seconds=STALL_SECONDS)
    entered, gate = threading.Event(), threading.Event()

    async def culprit() -> None:
        entered.set()
        gate.wait(20)

    loop.spawn(culprit())
    assert entered.wait(10)
    closing = threading.Thread(target=loop.close)
    closing.start()
    eventually(lambda: any("culprit" in each for each in told(caplog)))
    gate.set()
    closing.join(20)
    assert not closing.is_alive()


def test_nothing_is_watched_unless_asked_for(make_runtime: Callable[..., Runtime]) -> None:
    def watched(work: Coroutine[Any, Any, Any], **settings: Any) -> int:
        before = threads().count("think-watch")
        make_runtime(**settings).loop.run(work)
        return threads().count("think-watch") - before

    assert watched(asyncio.sleep(0), loop_stall_seconds=0) == 0
    assert watched(asyncio.sleep(0)) == 1


def test_watching_costs_nothing_to_speak_of() -> None:
    loop = LoopThread("idle", stall_seconds=1.0)
    try:
        loop.run(asyncio.sleep(0))
        began = time.process_time()
        threading.Event().wait(2.5)
        assert time.process_time() - began < 0.1
    finally:
        loop.close()
