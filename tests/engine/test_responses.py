"""`on_chat_response`: in order, outside of the lane, and at least once over a crash."""

import threading
from collections.abc import AsyncIterator, Callable
from typing import Any
from uuid import uuid4

import pytest

from tests.engine.chained import logs
from tests.engine.stage import passed
from tests.engine.talking import Gate, Talk, calling, saying
from think_celery import AgentHandle, ChatResponse, Think, Turn, message_text
from think_celery.core.address import Address
from think_celery.engine.drain import drain
from think_celery.engine.runtime import Runtime
from think_celery.testing import eventually

Make = Callable[..., Runtime]


@pytest.fixture
def handle(runtime: Runtime) -> AgentHandle:
    return AgentHandle("Chained", f"c-{uuid4()}", runtime=runtime)


@pytest.mark.spec("T58")
@pytest.mark.parametrize("end", ["completed", "error", "aborted"])
def test_every_end_is_told_once(talk: Talk, end: str) -> None:
    gate = Gate()
    talk.play.say = {"completed": saying("ok"), "error": saying(RuntimeError("boom")), "aborted": gate.say}[
        end
    ]
    receipt = talk.handle.submit_messages("hi")
    with calling(lambda: talk.is_near and drain(talk.worker, talk.address)):
        if end == "aborted":
            assert gate.reached.wait(10)
            talk.handle.cancel_submission(receipt.submission_id)
    (response,) = talk.responded()
    assert (response.status, response.request_id) == (end, receipt.request_id)
    talk.leaves_nothing()
    assert len(talk.play.responses) == 1


@pytest.mark.spec("T59")
def test_none_is_lost_in_quick_succession(talk: Talk) -> None:
    ids = [talk.handle.save_messages(str(number)).request_id for number in range(5)]
    assert [response.request_id for response in talk.responded(5)] == ids


@pytest.mark.spec("T60")
def test_hooks_follow_each_other_while_turns_go_on(runtime: Runtime, handle: AgentHandle) -> None:
    log, gate = logs[handle.address.name], threading.Event()

    async def wait(_: Think, response: ChatResponse) -> None:
        await passed(gate)

    log.act = wait
    for number in range(3):
        handle.save_messages(str(number))  # returns, though no hook has
    assert (log.begun, log.ended) == (["0:1"], [])
    gate.set()
    eventually(lambda: len(log.ended) == 3)
    assert (log.begun, log.most) == (["0:1", "1:3", "2:5"], 1)


@pytest.mark.spec("T61", "T62")
@pytest.mark.parametrize("links", [1, 3])
def test_a_hook_may_start_turns_of_its_own_agent(handle: AgentHandle, links: int) -> None:
    log = logs[handle.address.name]

    async def follow(agent: Think, response: ChatResponse) -> None:
        if len(log.begun) <= links:
            result = await agent.save_messages("more")
            assert result.status == "completed"

    log.act = follow
    assert handle.save_messages("go").status == "completed"
    eventually(lambda: len(log.ended) == links + 1)
    assert log.most == 1
    assert log.begun == ["go:1"] + [f"more:{2 * number + 1}" for number in range(1, links + 1)]
    assert [message["role"] for message in handle.get_messages()] == ["user", "assistant"] * (links + 1)
    assert handle.save_messages("still well").status == "completed"


def test_an_outsider_keeps_its_place_before_what_a_hook_asks_for(handle: AgentHandle) -> None:
    log, outside = logs[handle.address.name], threading.Event()

    async def follow(agent: Think, response: ChatResponse) -> None:
        if len(log.begun) == 1:
            await passed(outside)
            await agent.save_messages("inside")

    log.act = follow
    handle.save_messages("go")
    handle.submit_messages("outside")
    outside.set()
    eventually(lambda: len(log.ended) == 3)
    assert log.begun == ["go:1", "outside:3", "inside:5"]


@pytest.mark.spec("T26")
def test_a_hook_that_raises_harms_nobody(handle: AgentHandle, caplog: pytest.LogCaptureFixture) -> None:
    async def fail(agent: Think, response: ChatResponse) -> None:
        raise RuntimeError("no luck")

    logs[handle.address.name].act = fail
    assert [handle.save_messages("a").status for _ in range(2)] == ["completed"] * 2
    eventually(lambda: len(logs[handle.address.name].ended) == 2)
    assert "hook.failed hook=on_chat_response" in caplog.text


@pytest.mark.spec("T64")
def test_what_never_ran_is_not_told(talk: Talk) -> None:
    talk.handle.pause()
    receipt = talk.handle.submit_messages("never")
    talk.handle.cancel_submission(receipt.submission_id)
    talk.handle.submit_messages("skipped")
    talk.handle.reset_turn_state()
    talk.handle.resume()
    talk.handle.save_messages("hi")
    talk.responded()
    talk.leaves_nothing()
    assert [response.status for response in talk.play.responses] == ["completed"]


@pytest.mark.spec("T93")
def test_the_hook_has_the_whole_message(make_runtime: Make) -> None:
    runtime = make_runtime(max_message_bytes=20_000)
    talk = Talk(runtime, runtime, Address("Talker", f"t-{uuid4()}"))
    talk.play.say = saying("x" * 50_000)
    result = talk.handle.chat("hi")
    (response,) = talk.responded()
    assert len(message_text(response.message or {})) == len(result.text) == 50_000
    assert len(message_text(talk.handle.get_messages()[-1])) < 20_000


@pytest.mark.spec("T157")
def test_nothing_comes_back_after_a_clear(talk: Talk) -> None:
    gate = Gate()
    talk.play.say = gate.say
    with calling(lambda: talk.handle.save_messages("hi")) as results:
        assert gate.reached.wait(10)
        talk.handle.clear_messages()
    assert results[0].status == "aborted"
    talk.leaves_nothing()
    assert (talk.texts(), talk.play.responses) == ([], [])


def test_a_plain_hook_runs_in_a_thread(runtime: Runtime) -> None:
    told: list[str] = []

    class Plain(Think):
        async def on_chat_message(self, turn: Turn) -> AsyncIterator[str | dict[str, Any]]:
            yield "ok"

        def on_chat_response(self, response: ChatResponse) -> None:
            told.append(threading.current_thread().name)

    AgentHandle("Plain", f"p-{uuid4()}", runtime=runtime).save_messages("hi")
    eventually(lambda: told)
    assert told != [runtime.loop._thread.name]
