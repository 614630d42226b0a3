"""`wait_until_stable`: what counts as something to do, how long it waits, and where it may not."""

import asyncio
import threading
import time
from collections.abc import Callable
from uuid import uuid4

import pytest

from tests.engine.chained import logs
from tests.engine.family import Handy, works
from tests.engine.stage import Stage, passed
from tests.engine.talking import Gate, Said, Talk, calling, saying
from think_celery import AgentHandle, ChatResponse, NestedTurnError, Think, Turn
from think_celery.core.address import Address
from think_celery.engine.runtime import Runtime
from think_celery.errors import InvalidInput
from think_celery.testing import eventually


def test_an_agent_that_nobody_knows_is_still(talk: Talk) -> None:
    assert talk.handle.wait_until_stable(timeout=0)
    assert talk.handle.wait_until_stable()
    assert asyncio.run(talk.async_handle.wait_until_stable(timeout=5))


def test_one_look_starts_nothing(near: Talk) -> None:
    receipt = near.handle.submit_messages("hi")
    assert not near.handle.wait_until_stable(timeout=0)
    threading.Event().wait(0.2)
    row = near.handle.inspect_submission(receipt.submission_id)
    assert row is not None
    assert (row.status, near.play.turns) == ("pending", [])
    assert near.handle.wait_until_stable(timeout=20), "a longer one works the lane off"
    assert len(near.play.turns) == 1


@pytest.mark.parametrize("timeout", [-1, float("nan"), "soon"])
def test_a_time_that_is_none(talk: Talk, timeout: object) -> None:
    with pytest.raises(InvalidInput, match="timeout"):
        talk.handle.wait_until_stable(timeout=timeout)  # type: ignore[arg-type]


def test_the_time_is_up_while_a_turn_runs_and_while_one_may_not(talk: Talk) -> None:
    gate = Gate()
    talk.play.say = gate.say
    with calling(lambda: talk.handle.save_messages("hi")):
        assert gate.reached.wait(10)
        assert not talk.handle.wait_until_stable(timeout=0.2)
        gate.open()
    talk.handle.pause()
    talk.handle.submit_messages("waits")
    started = time.monotonic()
    assert not talk.handle.wait_until_stable(timeout=0.3)
    assert time.monotonic() - started < 5
    talk.handle.resume()
    talk.play.say = saying("ok")
    assert talk.handle.wait_until_stable(timeout=20)
    talk.leaves_nothing()


def test_a_turn_that_is_stopping_is_something_to_do(stage: Stage) -> None:
    """Its row has ended, and it still holds the lane."""
    begun, gate = threading.Event(), threading.Event()

    async def shield(turn: Turn) -> str:
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            await passed(gate)
        return "never"

    stage.script.act = shield
    stage.handle.submit_messages("act", submission_id="X")
    with stage.draining():
        assert begun.wait(10)
        stage.handle.cancel_submission("X")
        assert stage.row("X").is_terminal
        assert not stage.handle.wait_until_stable(timeout=0.3)
        with calling(lambda: stage.handle.wait_until_stable(timeout=20)) as stable:
            gate.set()
    assert stable == [True]


def test_all_that_comes_while_waiting_is_waited_for(talk: Talk) -> None:
    """There is always one more, until there is none: at no instant between was the agent still."""
    left = list(range(20))

    async def more(turn: Turn) -> Said:
        if left:
            left.pop()
            await talk.async_handle.submit_messages("more")
        yield "ok"

    talk.play.say = more
    talk.handle.submit_messages("go")
    assert talk.handle.wait_until_stable(timeout=30)
    assert len([role for role, _ in talk.texts() if role == "assistant"]) == 21


def test_many_wait_at_once(talk: Talk) -> None:
    gate = Gate()
    talk.play.say = gate.say
    talk.handle.submit_messages("hi")

    async def wait() -> list[bool]:
        waits = [asyncio.create_task(talk.async_handle.wait_until_stable(timeout=20)) for _ in range(20)]
        while not gate.reached.is_set():  # noqa: ASYNC110 - the event is a thread's
            await asyncio.sleep(0.01)
        gate.open()
        return await asyncio.gather(*waits)

    assert asyncio.run(wait()) == [True] * 20
    talk.leaves_nothing()


def test_a_turn_does_not_wait_for_its_own_end(near: Talk) -> None:
    async def wait(turn: Turn) -> Said:
        with pytest.raises(NestedTurnError) as caught:
            await near.async_handle.wait_until_stable()
        yield str(caught.value.chain == (str(near.address), str(near.address)))

    near.play.say = wait
    assert near.handle.save_messages("hi").text == "True"


def test_nor_does_its_tool_in_a_thread(own_runtime: Runtime) -> None:
    address = Address("Handy", f"h-{uuid4()}")
    handle = AgentHandle(address.type_name, address.name, runtime=own_runtime)
    refused: list[str] = []

    def work(agent: Handy) -> str:
        calls: list[Callable[[], object]] = [
            handle.wait_until_stable,
            lambda: handle.save_messages("inner"),
            lambda: handle.chat("inner"),
            handle.continue_last_turn,
        ]
        for call in calls:
            with pytest.raises(NestedTurnError) as caught:
                call()
            refused.append(" > ".join(caught.value.chain))
        assert handle.add_messages("a note") == 1
        assert handle.submit_messages("later").accepted
        return "done"

    works[address] = work
    assert handle.save_messages("go").status == "completed"
    assert refused == [f"{address} > {address}"] * 4
    works[address] = lambda agent: "nothing"
    assert handle.wait_until_stable(timeout=20)
    assert [message["role"] for message in handle.get_messages()][:3] == ["user", "user", "assistant"]


def test_a_response_hook_may_wait_and_is_not_waited_for(runtime: Runtime) -> None:
    """An agent whose hook reports to another one, which waits for it, would never be still."""
    handle = AgentHandle("Chained", f"c-{uuid4()}", runtime=runtime)
    log, gate, still = logs[handle.address.name], threading.Event(), list[bool]()

    async def wait(agent: Think, response: ChatResponse) -> None:
        still.append(await agent.wait_until_stable(timeout=10))
        await passed(gate)

    log.act = wait
    handle.save_messages("hi")
    eventually(lambda: still == [True])
    assert handle.wait_until_stable(timeout=0)
    gate.set()
    eventually(lambda: log.ended)


def test_a_row_without_a_place_is_something_to_do(stage: Stage) -> None:
    """A caller's transaction has committed it, and nobody has placed it yet."""
    stage.handle.submit_messages("say hi")
    stage.sql("UPDATE {schema}.submissions SET position = NULL")
    assert not stage.handle.wait_until_stable(timeout=0)
    stage.drain()
    assert not stage.handle.wait_until_stable(timeout=0.3)
