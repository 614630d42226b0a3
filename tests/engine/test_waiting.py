"""Waiting, inspecting and listing through the handles, blocking and async."""

import asyncio
import logging
import threading
from collections.abc import Callable
from datetime import timedelta

import pytest
from sqlalchemy import text

from tests import agents  # noqa: F401  (registers the classes)
from think_celery import AgentHandle, AsyncAgentHandle
from think_celery.core.address import Address
from think_celery.core.submission import Status
from think_celery.engine.drain import drain
from think_celery.engine.runtime import Runtime
from think_celery.errors import InvalidInput, ThinkError, WrongContext
from think_celery.settings import Settings
from think_celery.testing import eventually


@pytest.fixture
def handle(runtime: Runtime, agent: Address) -> AgentHandle:
    return AgentHandle(agent.type_name, agent.name, runtime=runtime)


@pytest.mark.spec("S71")
def test_a_wait_ends_with_the_turn_and_again_at_once(runtime: Runtime, handle: AgentHandle) -> None:
    receipt = handle.submit_messages("sleep 0.3")
    worker = threading.Thread(target=drain, args=(runtime, handle.address))
    worker.start()
    ended = handle.wait_for_submission(receipt.submission_id, timeout=20)
    worker.join(20)
    assert ended is not None
    assert ended.status is Status.COMPLETED
    assert ended.message_id is not None
    assert handle.wait_for_submission(receipt.submission_id) == ended
    assert handle.wait_for_submission("unknown") is None


@pytest.mark.spec("S73")
def test_the_time_is_up(agent: Address, settings: Settings, produce: Callable[[Settings], Runtime]) -> None:
    handle = AgentHandle(agent.type_name, agent.name, runtime=produce(settings))
    receipt = handle.submit_messages("hi")
    for timeout in (0, 0.05, timedelta(milliseconds=50)):
        row = handle.wait_for_submission(receipt.submission_id, timeout=timeout)
        assert row is not None
        assert row.status is Status.PENDING
    for bad in (-1, float("nan"), "5", True):
        with pytest.raises(InvalidInput, match="timeout"):
            handle.wait_for_submission(receipt.submission_id, timeout=bad)  # type: ignore[arg-type]


@pytest.mark.spec("S81")
def test_an_error_resolves(runtime: Runtime, handle: AgentHandle) -> None:
    receipt = handle.submit_messages("error boom")
    drain(runtime, handle.address)
    row = handle.wait_for_submission(receipt.submission_id, timeout=5)
    assert row is not None
    assert (row.status, row.error) == (Status.ERROR, "boom")


@pytest.mark.spec("S82")
def test_a_row_that_is_deleted_while_waited_for(runtime: Runtime, handle: AgentHandle) -> None:
    receipt = handle.submit_messages("hi")
    answers: list[object] = []
    waiter = threading.Thread(
        target=lambda: answers.append(handle.wait_for_submission(receipt.submission_id, timeout=20))
    )
    waiter.start()
    statement = text(runtime.database.sql("DELETE FROM {schema}.submissions"))
    runtime.database.run(lambda connection: connection.execute(statement))
    waiter.join(20)
    assert answers == [None]


@pytest.mark.spec("S83")
def test_a_wait_that_its_process_cuts_off_raises_and_may_be_repeated(
    make_runtime: Callable[..., Runtime], agent: Address
) -> None:
    waiting, other = make_runtime(), make_runtime()
    handle = AgentHandle(agent.type_name, agent.name, runtime=waiting)
    receipt = handle.submit_messages("hi")
    failures: list[BaseException] = []

    def wait() -> None:
        try:
            handle.wait_for_submission(receipt.submission_id, timeout=60)
        except BaseException as error:  # whatever it is, it must not hang
            failures.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    eventually(lambda: waiting.streams is not None)
    waiting.close()
    waiter.join(20)
    assert not waiter.is_alive()
    assert failures
    drain(other, agent)
    again = AgentHandle(agent.type_name, agent.name, runtime=other).wait_for_submission(receipt.submission_id)
    assert again is not None
    assert again.status is Status.COMPLETED


@pytest.mark.spec("S94")
def test_inspection_shows_documented_fields_only(runtime: Runtime, handle: AgentHandle) -> None:
    done = handle.submit_messages("say hi", idempotency_key="K", metadata={"a": 1})
    failed = handle.submit_messages("error boom")
    drain(runtime, handle.address)
    pending = handle.submit_messages("later")
    always = {
        "submissionId", "agent", "kind", "status", "requestId", "position", "attempt", "createdAt",
    }  # fmt: skip
    ended = {"startedAt", "firstChunkAt", "completedAt", "messageId"}

    def fields(submission_id: str) -> set[str]:
        row = handle.inspect_submission(submission_id)
        assert row is not None
        return set(row.to_json())

    assert fields(done.submission_id) == always | ended | {"idempotencyKey", "metadata"}
    assert fields(failed.submission_id) == always | ended | {"error"}
    assert fields(pending.submission_id) == always
    assert handle.inspect_submission("unknown") is None


@pytest.mark.spec("S12")
def test_turn_events_appear_when_it_runs_not_when_it_is_accepted(
    runtime: Runtime, handle: AgentHandle, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "think_celery")
    handle.submit_messages("say secret-words")
    assert "submission.claimed" not in caplog.text
    drain(runtime, handle.address)
    assert "submission.claimed" in caplog.text
    assert "submission.settled" in caplog.text
    assert "secret-words" not in caplog.text


@pytest.mark.spec("S37")
def test_a_row_that_arrives_as_the_lane_is_released_is_not_forgotten(
    make_runtime: Callable[..., Runtime], agent: Address
) -> None:
    """Settle looks for the next row under the lane's lock, so a row is seen by it or finds the lane free."""
    worker, producer = make_runtime(drain_turns=1_000_000), make_runtime()
    handle = AgentHandle(agent.type_name, agent.name, runtime=producer)
    stop = threading.Event()

    def serve() -> None:
        while not stop.is_set():
            drain(worker, agent)

    server = threading.Thread(target=serve)
    server.start()
    for number in range(100):
        receipt = handle.submit_messages(f"say {number}")
        row = handle.wait_for_submission(receipt.submission_id, timeout=20)
        assert row is not None
        assert row.status is Status.COMPLETED
    stop.set()
    server.join(20)


def test_the_async_handle_does_the_same(runtime: Runtime, agent: Address) -> None:
    async def use() -> None:
        handle = AsyncAgentHandle(agent.type_name, agent.name, runtime=runtime)
        receipt = await handle.submit_messages("say a b", idempotency_key="K")
        worker = asyncio.create_task(asyncio.to_thread(drain, runtime, agent))
        events = [event async for event in handle.stream(receipt.submission_id)]
        assert (events[-1].kind, events[-1].status) == ("end", "completed")
        ended = await handle.wait_for_submission(receipt.submission_id, timeout=20)
        await worker
        assert ended is not None
        assert await handle.inspect_submission(receipt.submission_id) == ended
        assert await handle.list_submissions(status="completed") == [ended]
        assert len(await handle.get_messages()) == 2
        assert (await handle.get_message(ended.message_id or "")) is not None
        again = await handle.submit_messages("say a b", idempotency_key="K")
        assert not again.accepted

    asyncio.run(use())


def test_a_blocking_handle_in_an_event_loop_names_the_async_one(handle: AgentHandle) -> None:
    async def use() -> None:
        with pytest.raises(WrongContext, match="AsyncAgentHandle"):
            handle.get_messages()

    asyncio.run(use())


def test_an_unknown_submission_streams_its_absence(handle: AgentHandle) -> None:
    events = list(handle.stream("unknown"))
    assert [(event.kind, event.status) for event in events] == [("end", None)]
    receipt = handle.submit_messages("hi")
    with pytest.raises(InvalidInput, match="after"):
        next(handle.stream(receipt.submission_id, after="nonsense"))


def test_every_error_is_ours(handle: AgentHandle) -> None:
    with pytest.raises(ThinkError):
        handle.submit_messages(lambda messages: messages)
