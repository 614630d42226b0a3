"""A bell for a lane that this process runs is answered by another look, and none is lost on the way."""

import threading
from collections.abc import Callable

from tests import agents  # noqa: F401  (registers the classes)
from think_celery import AgentHandle
from think_celery.core.address import Address
from think_celery.core.submission import Status
from think_celery.engine.desk import Desk, Place
from think_celery.engine.drain import drain
from think_celery.engine.runtime import Runtime

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
