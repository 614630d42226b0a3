"""`on_chat_response` when something goes wrong: failing hooks, dead processes, resets, an absent ledger."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from uuid import uuid4

import pytest
from pydantic import SecretStr
from sqlalchemy import text

from tests.engine.chained import Log, logs
from tests.engine.outage import Line
from tests.engine.stage import kill, passed
from tests.engine.talking import Notes, calling, is_clean, served
from think_celery import AgentHandle, ChatResponse, Think, message_text
from think_celery.core.submission import Status
from think_celery.engine import presence
from think_celery.engine.drain import drain
from think_celery.engine.prune import prune
from think_celery.engine.runtime import Runtime
from think_celery.engine.sweep import sweep
from think_celery.ledger import lanes, responses
from think_celery.ledger.lanes import Claim, Ending
from think_celery.settings import Settings
from think_celery.testing import eventually

Make = Callable[..., Runtime]


@pytest.fixture
def handle(runtime: Runtime) -> AgentHandle:
    return AgentHandle("Chained", f"c-{uuid4()}", runtime=runtime)


@pytest.fixture
def log(handle: AgentHandle) -> Log:
    return logs[handle.address.name]


def through(runtime: Runtime, handle: AgentHandle) -> AgentHandle:
    """Return the same agent's handle in another process."""
    return AgentHandle(handle.address.type_name, handle.address.name, runtime=runtime)


def hold_the_first(log: Log) -> threading.Event:
    """Let the first hook wait for a gate."""
    gate = threading.Event()

    async def wait(_: Think, response: ChatResponse) -> None:
        if len(log.begun) == 1:
            await passed(gate)

    log.act = wait
    return gate


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, asyncio.CancelledError, RuntimeError])
def test_a_hook_that_ends_badly_is_called_once_and_followed_by_the_next(
    runtime: Runtime, handle: AgentHandle, log: Log, error: type[BaseException]
) -> None:
    async def end(_: Think, response: ChatResponse) -> None:
        if len(log.begun) == 1:
            raise error

    log.act = end
    for number in range(3):
        assert handle.save_messages(str(number)).status == "completed"
    eventually(partial(is_clean, runtime))
    assert log.begun == ["0:1", "1:3", "2:5"]


@pytest.mark.parametrize("how", ["save", "chat"])
def test_a_hook_is_told_at_once_that_its_follow_up_has_failed(
    handle: AgentHandle, log: Log, how: str
) -> None:
    """Although the hook of that one can only come after this has returned."""
    notes, ended = Notes(), []

    async def follow(agent: Think, response: ChatResponse) -> None:
        if len(log.begun) == 1:
            call = agent.chat("fail", notes) if how == "chat" else agent.save_messages("fail")
            ended.append((await call).status)

    log.act = follow
    handle.save_messages("go")
    eventually(lambda: len(log.ended) == 2)
    assert (ended, log.begun, log.most) == (["error"], ["go:1", "fail:3"], 1)
    assert how == "save" or notes.heard == ["start", "event", "error: as asked"]


def test_a_caller_without_a_callback_does_not_wait_for_the_hook(handle: AgentHandle, log: Log) -> None:
    gate = hold_the_first(log)
    assert [handle.save_messages("fail").status for _ in range(2)] == ["error"] * 2
    assert (log.begun, log.ended) == (["fail:1"], [])
    gate.set()
    eventually(lambda: len(log.ended) == 2)


@pytest.mark.parametrize("call", ["reset_turn_state", "clear_messages"])
def test_a_reset_empties_what_is_to_be_told(
    runtime: Runtime, handle: AgentHandle, log: Log, call: str
) -> None:
    gate = hold_the_first(log)
    for number in range(3):
        handle.save_messages(str(number))
    getattr(handle, call)()
    assert handle.save_messages("after").status == "completed"
    gate.set()
    eventually(partial(is_clean, runtime))
    assert log.begun[0] == "0:1"
    assert [said.partition(":")[0] for said in log.begun[1:]] == ["after"]


def test_a_deleted_record_is_not_told_of(runtime: Runtime, handle: AgentHandle, log: Log) -> None:
    gate = hold_the_first(log)
    ids = [handle.save_messages(str(number)).request_id for number in range(3)]
    assert handle.delete_submission(ids[1])
    assert handle.delete_submission(ids[0]), "its hook is at it, and may go on"
    gate.set()
    eventually(partial(is_clean, runtime))
    assert log.begun == ["0:1", "2:5"]


def test_records_are_not_pruned_before_they_were_told_of(
    make_runtime: Make, handle: AgentHandle, log: Log
) -> None:
    runtime = make_runtime(retention_days=1e-9)
    gate = hold_the_first(log)
    for number in range(2):
        through(runtime, handle).save_messages(str(number))
    assert prune(runtime) == 0
    gate.set()
    eventually(partial(is_clean, runtime))
    assert (len(log.ended), prune(runtime)) == (2, 2)


def test_processes_take_turns_but_never_call_an_agents_hooks_at_once(
    make_runtime: Make, handle: AgentHandle, log: Log
) -> None:
    """Each process runs one turn and lets go, so that they settle in a mixed order of processes."""

    async def wait(_: Think, response: ChatResponse) -> None:
        await asyncio.sleep(0.005)

    log.act = wait
    processes = [make_runtime(drain_turns=1) for _ in range(3)]
    ids = [handle.submit_messages(str(number)).submission_id for number in range(20)]
    with ExitStack() as stack:
        for process in processes:
            stack.enter_context(served(process, handle.address))
        eventually(lambda: len(log.ended) == 20, timeout=30)
    assert log.most == 1
    assert [response.request_id for response in log.responses] == ids


def test_what_a_dead_process_has_settled_is_told_by_another(
    make_runtime: Make, handle: AgentHandle, log: Log
) -> None:
    """It died between the turn's end and the hook: once elsewhere, with what is stored."""
    dead, heir = make_runtime(), make_runtime(nudge_after_seconds=0.01)
    handle.submit_messages("hi", submission_id="X")
    claim = lanes.claim(dead.database, handle.address, worker=dead.worker_id, claim_id=uuid4())
    assert isinstance(claim, Claim)
    lanes.apply(dead.database, claim)
    said = {"id": "m", "role": "assistant", "parts": [{"type": "text", "text": "stored"}]}
    ending = Ending(Status.COMPLETED, message=said, responds=True)
    lanes.settle(dead.database, claim, ending, worker=dead.worker_id, next_claim=None)
    assert responses.take(dead.database, handle.address, holder=dead.worker_id, done=None)
    age(dead)
    eventually(lambda: sweep(heir).rung)
    drain(heir, handle.address)
    eventually(lambda: log.ended == ["stored"])
    (response,) = log.responses
    assert (response.request_id, response.status, response.message) == ("X", "completed", said)
    eventually(partial(is_clean, heir))
    assert all(sweep(heir).rung == 0 for _ in range(3))
    drain(heir, handle.address)
    assert log.begun == ["stored"]


def age(runtime: Runtime) -> None:
    """Let a process' last sign of life be old."""
    statement = (
        "UPDATE {schema}.workers SET heartbeat_at = heartbeat_at - interval '1 hour' WHERE worker_id = :id"
    )
    runtime.database.run(
        lambda connection: connection.execute(
            text(runtime.database.sql(statement)), {"id": runtime.worker_id}
        )
    )


def test_a_hook_whose_process_dies_in_it_is_called_again_elsewhere(
    make_runtime: Make, handle: AgentHandle, log: Log
) -> None:
    gate = hold_the_first(log)
    dead, heir = make_runtime(), make_runtime(nudge_after_seconds=0.01)
    through(dead, handle).save_messages("hi")
    eventually(lambda: log.begun == ["hi:1"])
    drain(heir, handle.address)
    eventually(partial(is_clean, heir))
    assert log.begun == ["hi:1"], "a living process is calling it"
    kill(dead)
    presence.beat(heir)
    eventually(lambda: sweep(heir).rung)
    drain(heir, handle.address)
    eventually(lambda: log.begun == ["hi:1"] * 2)
    eventually(partial(is_clean, heir))
    assert responses.take(heir.database, handle.address, holder=heir.worker_id, done=None) is None
    gate.set()


@pytest.fixture
def line(settings: Settings) -> Iterator[Line]:
    """A way to the ledger that can be cut."""
    made = Line(settings.database_url.get_secret_value())
    yield made
    made.close()


def test_hooks_go_on_when_the_ledger_is_back(
    make_runtime: Make, line: Line, handle: AgentHandle, log: Log
) -> None:
    """No bell would help: their process lives, so nobody else calls them."""
    gate = hold_the_first(log)
    runtime = make_runtime(database_url=SecretStr(line.url), database_timeout=0.5)
    here = through(runtime, handle)
    for number in range(2):
        here.save_messages(str(number))
    notes = Notes()
    with calling(lambda: here.chat("fail", notes)) as results:
        eventually(lambda: len(handle.list_submissions(kind="chat", status="error")) == 1)
        with line.cut():
            gate.set()
            eventually(lambda: notes.heard[-1] == "error: as asked")  # who waits for the hook waits no longer
            assert len(log.begun) == 1
    assert results[0].status == "error"
    eventually(lambda: len(log.ended) == 3)
    assert log.begun == ["0:1", "1:3", "fail:5"]
    eventually(partial(is_clean, runtime))


def test_a_hook_of_another_process_has_the_stored_message(
    make_runtime: Make, handle: AgentHandle, log: Log
) -> None:
    """Only where the turn ran is the message known as it was before it was shortened."""
    gate = hold_the_first(log)
    first, second = (make_runtime(max_message_bytes=20_000) for _ in range(2))
    through(first, handle).save_messages("x" * 15_000)
    through(second, handle).save_messages("y" * 25_000)
    gate.set()
    eventually(lambda: len(log.ended) == 2)
    assert log.responses[1].message == handle.get_messages()[-1]
    assert len(message_text(handle.get_messages()[-1])) < 20_000
