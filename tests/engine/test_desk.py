"""A bell for a lane that this process runs is answered by another look, and none is lost on the way."""

import threading
from collections.abc import Callable
from typing import Any

from tests import agents  # noqa: F401  (registers the classes)
from think_celery import AgentHandle
from think_celery.core.address import Address
from think_celery.core.submission import Status
from think_celery.engine import presence
from think_celery.engine.desk import Desk, Place
from think_celery.engine.drain import drain
from think_celery.engine.runtime import Runtime
from think_celery.settings import Settings
from think_celery.testing import eventually

A = Address("Scripted", "a")


def test_the_owner_looks_again_when_asked() -> None:
    desk = Desk()
    assert desk.begin(A) is Place.OWNER
    assert desk.begin(A) is Place.ANSWERED
    assert not desk.end(A, for_good=False), "somebody asked"
    assert desk.end(A, for_good=False)
    assert desk.begin(A) is Place.OWNER
    assert desk.begin(A) is Place.ANSWERED
    assert desk.end(A, for_good=True), "another bell was rung for the rest"
    assert desk.begin(A) is Place.OWNER


def test_lanes_do_not_know_each_other() -> None:
    desk = Desk()
    assert desk.begin(A) is Place.OWNER
    assert desk.begin(Address("Scripted", "b")) is Place.OWNER


def test_bells_in_many_threads_leave_nothing_behind(
    make_runtime: Callable[..., Runtime], agent: Address
) -> None:
    """Each row rings once, at any moment of another thread's drain; every one must have run at the end."""
    worker, producer = make_runtime(drain_turns=3), make_runtime()
    handle = AgentHandle(agent.type_name, agent.name, runtime=producer)

    def produce(_: int) -> None:
        for number in range(20):
            handle.submit_messages(f"say {number}")
            while "handed over" in drain(worker, agent):
                pass

    threads = [threading.Thread(target=produce, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert {row.status for row in handle.list_submissions(limit=100)} == {Status.COMPLETED}
    assert len(handle.list_submissions(limit=100)) == 80


class Echo:
    """Answers every bell in a thread of the process that rings it."""

    def __init__(self) -> None:
        self.runtime: Runtime | None = None
        self.threads: list[threading.Thread] = []

    def publish(self, task: str, args: Any, *, task_id: str, queue: str) -> None:
        assert self.runtime is not None
        answer = threading.Thread(target=drain, args=(self.runtime, Address(*args[:2])))
        self.threads.append(answer)
        answer.start()
        answer.join(0.05)  # the bell is answered at once, as by a free slot

    def revoke(self, task_ids: Any) -> None:
        """Nothing to void."""

    def close(self) -> None:
        """Nothing to close."""


def test_a_lane_handed_over_to_its_own_process_goes_on(settings: Settings, agent: Address) -> None:
    echo = Echo()
    runtime = Runtime(settings.model_copy(update={"drain_turns": 3}), echo, pool="test")
    echo.runtime = runtime
    try:
        presence.beat(runtime)
        handle = AgentHandle(agent.type_name, agent.name, runtime=runtime)
        handle.pause()
        for number in range(10):
            handle.submit_messages(f"say {number}")
        handle.resume()
        eventually(lambda: handle.list_submissions(status=["pending", "running"]) == [], timeout=10)
        for thread in list(echo.threads):
            thread.join(10)
    finally:
        runtime.close()
