"""Turns that wait for turns on one slot: all of them end, and a wait ends when its turn is stopped.

A lane is worked off here by the thread of the test alone, like in a worker with one slot: whatever a turn
waits for has to be run by who waits.
"""

import threading
from collections.abc import Callable
from functools import partial
from uuid import uuid4

import pytest

from tests.engine.family import (
    ASKS,
    Ask,
    Handy,
    Member,
    acts,
    asking,
    async_handle,
    forever,
    handle,
    last_said,
    member,
    ran,
    responses,
    said,
    works,
)
from tests.engine.stage import PATIENCE_SECONDS, Stage, beside
from tests.engine.talking import calling, is_clean
from think_celery import AbortSignal, NestedTurnError, Turn, message_text
from think_celery.core.address import Address
from think_celery.core.submission import Status, Submission
from think_celery.core.turn import ChatResponse
from think_celery.engine.drain import drain
from think_celery.engine.runtime import Runtime
from think_celery.errors import AbortError, WrongContext
from think_celery.testing import eventually


@pytest.mark.spec("T52")
@pytest.mark.parametrize("ask", ASKS)
def test_a_turn_runs_what_it_waits_for(runtime: Runtime, ask: Ask) -> None:
    parent, child, grandchild = member(), member(), member()
    acts[parent], acts[child] = asking(runtime, ask, child), asking(runtime, ask, grandchild)
    assert ran(runtime, parent).status is Status.COMPLETED
    assert last_said(runtime, parent) == last_said(runtime, child) == "begun completed"
    eventually(lambda: is_clean(runtime))


def _waits(runtime: Runtime, address: Address) -> dict[str, Callable[[], object]]:
    """The same from a tool's thread."""
    agent = handle(runtime, address)

    def by_stream() -> object:
        receipt = agent.submit_messages("x")
        return list(agent.stream(receipt.submission_id))[-1].status

    def by_wait() -> object:
        receipt = agent.submit_messages("x")
        row = agent.wait_for_submission(receipt.submission_id)
        return None if row is None else row.status

    def by_stable() -> object:
        agent.submit_messages("x")
        return agent.wait_until_stable()

    return {
        "chat": lambda: agent.chat("x").status,
        "save": lambda: agent.save_messages("x").status,
        "wait": by_wait,
        "stream": by_stream,
        "stable": by_stable,
    }


@pytest.mark.spec("T52")
@pytest.mark.parametrize("how", ["chat", "save", "wait", "stream", "stable"])
def test_a_tool_runs_what_it_waits_for(runtime: Runtime, how: str) -> None:
    parent, child = (Address("Handy", f"t-{uuid4()}") for _ in range(2))
    grandchild = member()
    works[parent] = lambda tooled: _waits(runtime, child)[how]()
    works[child] = lambda tooled: _waits(runtime, grandchild)[how]()
    row = ran(runtime, parent)
    assert row.status is Status.COMPLETED, row.error
    (part,) = (
        part for part in handle(runtime, parent).get_messages()[-1]["parts"] if part["type"] == "tool-work"
    )
    assert part["output"] in {"completed", "True"}
    assert last_said(runtime, grandchild) == "x"
    eventually(lambda: is_clean(runtime))


@pytest.mark.spec("T52")
@pytest.mark.timeout(180)
def test_sixty_parents_in_tools_ask_a_child_with_a_tool_each(make_runtime: Callable[..., Runtime]) -> None:
    runtime = make_runtime()
    parents = [Address("Handy", f"t-{uuid4()}") for _ in range(60)]
    together = threading.Barrier(len(parents))

    def ask(tooled: Handy) -> object:
        together.wait(PATIENCE_SECONDS * 3)  # all of them are in their tools before the first asks
        return handle(runtime, tooled.address).sub_agent(Handy, "c").chat("go").status

    for parent in parents:
        works[parent] = ask
        works[parent.child("Handy", "c")] = lambda tooled: "found it"
        handle(runtime, parent).submit_messages("go")
    with beside(*(partial(drain, runtime, parent) for parent in parents), seconds=150):
        pass
    for parent in parents:
        (row,) = handle(runtime, parent).list_submissions()
        assert row.status is Status.COMPLETED, row.error
        for address in (parent, parent.child("Handy", "c")):
            assert last_said(runtime, address) == "worked"
    eventually(lambda: is_clean(runtime))


@pytest.mark.spec("T61", "T62")
def test_the_response_hook_starts_turns_without_a_slot(runtime: Runtime) -> None:
    agent = member()
    calls: list[str] = []

    async def follow_up(hooked: Member, response: ChatResponse) -> None:
        calls.append("begins")
        if len(calls) < 7:
            result = await hooked.save_messages(f"follow-up {len(calls)}")
            assert result.status == "completed"
        calls.append("ends")

    responses[agent] = follow_up
    assert ran(runtime, agent).status is Status.COMPLETED
    eventually(lambda: len(calls) == 8)
    assert calls == ["begins", "ends"] * 4, "never two at once"
    assert [role for role, _ in said(runtime, agent)] == ["user", "assistant"] * 4
    assert ran(runtime, agent).status is Status.COMPLETED, "it takes further turns"
    eventually(lambda: is_clean(runtime))


def test_a_response_hook_may_ask_the_agent_that_its_turn_has_failed(runtime: Runtime) -> None:
    """The caller of a failed turn waits for the hook; a hook that waits for the caller is not waited for."""
    parent, child = member(), member()
    told: list[str] = []

    async def fail(member: Member, turn: Turn) -> str:
        raise ValueError("no luck")

    async def complain(hooked: Member, response: ChatResponse) -> None:
        told.append((await async_handle(runtime, parent).chat("it failed")).status)

    async def ask(member: Member, turn: Turn) -> object:
        if turn.text != "go":
            return "sorry"
        results = [await async_handle(runtime, child).chat("x") for _ in range(2)]
        return [result.status for result in results]

    acts[parent], acts[child], responses[child] = ask, fail, complain
    assert ran(runtime, parent).status is Status.COMPLETED
    assert message_text(handle(runtime, parent).get_messages()[1]) == "begun ['error', 'error']"
    eventually(lambda: told == ["completed", "completed"])
    eventually(lambda: is_clean(runtime))


@pytest.mark.parametrize("how", ["wait", "stream", "stable"])
def test_a_wait_in_a_tools_thread_ends_with_its_turn(runtime: Runtime, how: str) -> None:
    parent, other = Address("Handy", f"t-{uuid4()}"), member()
    ended: list[object] = []
    waits, gate = threading.Event(), threading.Event()

    def wait(tooled: Handy) -> object:
        waits.set()
        try:
            return _waits(runtime, other)[how]()
        except BaseException as error:
            ended.append(error)
            raise
        finally:
            gate.set()

    works[parent] = wait
    handle(runtime, other).pause()
    agent = handle(runtime, parent)
    receipt = agent.submit_messages("go")
    with beside(lambda: drain(runtime, parent)):
        assert waits.wait(PATIENCE_SECONDS)
        eventually(lambda: handle(runtime, other).list_submissions("pending"))
        agent.cancel_submission(receipt.submission_id, "enough")
        assert gate.wait(PATIENCE_SECONDS)
    (error,) = ended
    assert isinstance(error, AbortError), error
    assert handle(runtime, other).list_submissions("pending"), "a submission is not the turn's own"
    eventually(lambda: is_clean(runtime))


def test_a_stream_of_the_own_agent_is_refused_unless_the_turn_is_over(runtime: Runtime) -> None:
    agent = member()

    async def look(asked: Member, turn: Turn) -> object:
        if turn.text != "look":
            return "first"
        mine = async_handle(runtime, agent)
        rows = await mine.list_submissions()
        events = [event async for event in mine.stream(rows[1].submission_id)]
        with pytest.raises(NestedTurnError):
            async for _ in mine.stream(turn.submission.submission_id):
                pass
        return events[-1].status

    acts[agent] = look
    ran(runtime, agent, "first")
    assert ran(runtime, agent, "look").status is Status.COMPLETED
    assert last_said(runtime, agent) == "begun completed"


def test_a_status_hook_must_not_follow_its_own_submission(stage: Stage) -> None:
    refused: list[BaseException] = []

    async def follow(told: Submission) -> None:
        if told.status is Status.PENDING:
            try:
                async for _ in stage.async_handle.stream(told.submission_id):
                    pass
            except WrongContext as error:
                refused.append(error)

    stage.script.hook = follow
    receipt = stage.handle.submit_messages("say x")
    stage.drain()
    assert stage.wait(receipt.submission_id).status is Status.COMPLETED
    assert len(refused) == 1


def test_a_signal_ends_a_call_that_could_wait_for_ever(runtime: Runtime) -> None:
    child = member()
    acts[child] = forever
    result = handle(runtime, child).chat("x", signal=AbortSignal.timeout(0.3))
    assert (result.status, result.error) == ("aborted", "the time limit of 0.3 s is over")
    eventually(lambda: is_clean(runtime))


def test_a_call_goes_on_when_the_ledger_works_again(stage: Stage) -> None:
    """Its row is reserved for this process, so what works off the lane for it must not give up."""
    child = handle(stage.runtime, member())
    stage.sql("ALTER FUNCTION {schema}.claim RENAME TO claim_away")
    with calling(lambda: child.chat("x")) as results:
        eventually(lambda: child.list_submissions("pending", kind="chat"))
        assert child.wait_for_submission(child.list_submissions(kind="chat")[0].submission_id, timeout=0.5)
        stage.sql("ALTER FUNCTION {schema}.claim_away RENAME TO claim")
    assert results[0].text == "x"
