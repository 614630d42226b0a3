"""What ends sub-agents' turns, and sub-agents, together with their parent: abort, time, crash, deletion."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from uuid import uuid4

import pytest

from tests.engine.family import (
    Gate,
    Handy,
    Heard,
    Member,
    acts,
    async_handle,
    forever,
    handle,
    member,
    ran,
    rows,
    said,
    works,
)
from tests.engine.stage import PATIENCE_SECONDS, Stage, beside, kill
from tests.engine.talking import calling, is_clean
from think_celery import AbortController, AgentHandle, Settings, Turn
from think_celery.core.address import Address
from think_celery.core.submission import Status
from think_celery.core.turn import TurnResult
from think_celery.engine import model
from think_celery.engine.context import Here, inside_turn
from think_celery.engine.drain import drain
from think_celery.engine.runtime import Runtime
from think_celery.testing import eventually


@pytest.fixture
def parent() -> Address:
    return member()


async def _chat(member: Member, turn: Turn) -> object:
    return await (await member.sub_agent(Member, "c")).chat("x")


async def _gather(member: Member, turn: Turn) -> object:
    children = [await member.sub_agent(Member, name) for name in ("c", "d")]
    return await asyncio.gather(*(child.chat("x") for child in children))


async def _save(member: Member, turn: Turn) -> object:
    return await (await member.sub_agent(Member, "c")).save_messages("x")


async def _shielded(member: Member, turn: Turn) -> object:
    child = await member.sub_agent(Member, "c")
    return await asyncio.shield(asyncio.ensure_future(child.chat("x")))


def _in_a_tool(tooled: Handy) -> object:
    return Handy.handle(tooled.name).sub_agent(Member, "c").chat("x").status


WAYS: dict[str, Callable[[Member, Turn], Awaitable[object]] | None] = {
    "chat": _chat,
    "gather": _gather,
    "save": _save,
    "shielded": _shielded,
    "a tool's thread": None,
}


def descending(how: str, parent: Address, gate: Gate) -> tuple[Address, list[Address]]:
    """Make a parent that asks a child in some way, which asks a grandchild, which waits; returns them."""

    async def wait(member: Member, turn: Turn) -> object:
        return await gate.passed()

    act = WAYS[how]
    if act is None:
        parent = Address("Handy", parent.name)
        works[parent] = _in_a_tool
    else:
        acts[parent] = act
    child = parent.child("Member", "c")
    grandchild = child.child("Member", "c")
    acts[child], acts[grandchild] = _chat, wait
    if how == "gather":
        acts[parent.child("Member", "d")] = forever
    return parent, [child, grandchild]


@pytest.mark.parametrize("how", WAYS)
def test_a_parents_abort_reaches_children_and_grandchildren(
    own_runtime: Runtime, parent: Address, how: str
) -> None:
    gate = Gate()
    parent, below = descending(how, parent, gate)
    agent = handle(own_runtime, parent)
    receipt = agent.submit_messages("go")
    with beside(lambda: drain(own_runtime, parent)):
        assert gate.reached.wait(PATIENCE_SECONDS)
        assert agent.cancel_submission(receipt.submission_id, "enough").outcome == "cancelled"
        for each in below:
            eventually(lambda each=each: rows(own_runtime, each)[0].status is Status.ABORTED)
    assert rows(own_runtime, parent)[0].error == "enough"
    eventually(lambda: said(own_runtime, below[1])[-1] == ("assistant", "begun "), describe="it is kept")
    eventually(lambda: is_clean(own_runtime))


@pytest.mark.parametrize("how", WAYS)
def test_a_parents_time_limit_ends_its_children_too(own_runtime: Runtime, parent: Address, how: str) -> None:
    model.load()
    gate = Gate()
    parent, below = descending(how, parent, gate)
    row = ran(own_runtime, parent, run_timeout=1.5)
    assert gate.reached.is_set()
    assert (row.status, row.error) == (Status.ERROR, "ran longer than its run_timeout of 1.5 s")
    for each in below:
        eventually(lambda each=each: rows(own_runtime, each)[0].status is Status.ABORTED)
    eventually(lambda: is_clean(own_runtime))


def test_a_paused_child_is_waited_for(runtime: Runtime, parent: Address) -> None:
    acts[parent] = _chat
    child = handle(runtime, parent).sub_agent(Member, "c")
    child.pause()
    agent = handle(runtime, parent)
    receipt = agent.submit_messages("go")
    with beside(lambda: drain(runtime, parent)):
        eventually(lambda: rows(runtime, child.address))
        waited = agent.wait_for_submission(receipt.submission_id, timeout=0.5)
        assert waited is not None
        assert waited.status is Status.RUNNING
        assert rows(runtime, child.address)[0].status is Status.PENDING
        child.resume()
    assert agent.inspect_submission(receipt.submission_id).status is Status.COMPLETED  # type: ignore[union-attr]


def test_a_paused_child_can_be_given_up(runtime: Runtime, parent: Address) -> None:
    acts[parent] = _chat
    child = handle(runtime, parent).sub_agent(Member, "c")
    child.pause()
    agent = handle(runtime, parent)
    receipt = agent.submit_messages("go")
    with beside(lambda: drain(runtime, parent)):
        eventually(lambda: rows(runtime, child.address))
        agent.cancel_submission(receipt.submission_id)
    assert rows(runtime, child.address)[0].status is Status.ABORTED
    assert said(runtime, child.address) == []
    eventually(lambda: is_clean(runtime))


@pytest.mark.parametrize("by", ["its parent", "somebody else"])
def test_a_call_that_waits_in_line_ends_when_it_is_cancelled(
    runtime: Runtime, parent: Address, by: str
) -> None:
    """Also while the thread that works towards it is busy with the turn ahead."""
    gate, heard, results = Gate(), Heard(), list[TurnResult]()
    child = handle(runtime, parent).sub_agent(Member, "c")

    async def wait(member: Member, turn: Turn) -> object:
        return await gate.passed()

    async def delegate(member: Member, turn: Turn) -> str:
        asked = await member.sub_agent(Member, "c")
        call = asyncio.create_task(asked.chat("x", heard))
        await asyncio.to_thread(gate.reached.wait, PATIENCE_SECONDS)
        if by == "its parent":
            await asked.cancel_chat(heard.request_id, "no more")
        results.append(await call)
        return "done"

    acts[parent], acts[child.address] = delegate, wait
    ahead = child.submit_messages("ahead")
    with beside(lambda: ran(runtime, parent)):
        assert gate.reached.wait(PATIENCE_SECONDS)
        if by != "its parent":
            eventually(lambda: len(rows(runtime, child.address)) == 2)
            child.cancel_chat(heard.request_id, "no more")
        eventually(lambda: results, timeout=3)
    assert (results[0].status, results[0].error) == ("aborted", "no more")
    assert child.inspect_submission(ahead.submission_id).status is Status.RUNNING  # type: ignore[union-attr]
    gate.open()
    assert child.wait_for_submission(ahead.submission_id, timeout=PATIENCE_SECONDS).status is Status.COMPLETED  # type: ignore[union-attr]
    eventually(lambda: is_clean(runtime))


@pytest.mark.parametrize("how", ["chat", "save"])
@pytest.mark.parametrize("in_a_turn", [True, False])
def test_a_call_that_is_given_up_takes_a_child_elsewhere_along(
    runtime: Runtime,
    settings: Settings,
    produce: Callable[[Settings], Runtime],
    parent: Address,
    how: str,
    in_a_turn: bool,
) -> None:
    """As in a worker that has the parent's class only; a caller outside of any turn may come back for it."""
    caller, child = produce(settings), parent.child("Member", "c")
    here = Here(parent, uuid4(), uuid4(), None, AbortController().signal)

    async def give_up() -> None:
        agent = async_handle(caller, child)
        with inside_turn(here) if in_a_turn else nullcontext():
            call = asyncio.create_task(agent.chat("x") if how == "chat" else agent.save_messages("x"))
        await asyncio.to_thread(lambda: eventually(lambda: rows(runtime, child)))
        call.cancel()
        await asyncio.wait([call])

    asyncio.run(give_up())
    if in_a_turn:
        eventually(lambda: rows(runtime, child)[0].status is Status.ABORTED)
    else:
        drain(runtime, child)
        assert rows(runtime, child)[0].status is Status.COMPLETED
    eventually(lambda: is_clean(caller))


@pytest.mark.parametrize("form", ["list", "function"])
def test_a_waiting_call_of_a_lost_process_ends(
    make_runtime: Callable[..., Runtime], parent: Address, form: str
) -> None:
    """Another one runs it like any turn; but what was to make its messages is lost."""
    lost, other = make_runtime(), make_runtime()
    child, gate = handle(lost, parent).sub_agent(Member, "c"), Gate()

    async def wait(member: Member, turn: Turn) -> object:
        return await gate.passed() if turn.text == "ahead" else turn.text

    acts[child.address] = wait
    child.submit_messages("ahead")
    given = "x" if form == "list" else lambda messages: messages
    with beside(lambda: drain(other, child.address)), calling(lambda: child.save_messages(given)) as results:
        assert gate.reached.wait(PATIENCE_SECONDS)
        eventually(lambda: len(rows(other, child.address)) == 2)
        kill(lost)
        gate.open()
    row = rows(other, child.address)[0]
    assert results[0].status == row.status == ("completed" if form == "list" else "error")
    assert row.error == (None if form == "list" else "the process that was to supply the messages has ended")


def test_a_parents_deletion_takes_its_sub_agents_along(stage: Stage, parent: Address) -> None:
    runtime = stage.runtime

    async def ask(member: Member, turn: Turn) -> str:
        return (await (await member.sub_agent(Member, "c")).chat("x")).text

    agent = handle(runtime, parent)
    child = agent.sub_agent(Member, "c")
    acts[parent] = acts[child.address] = ask
    assert ran(runtime, parent).status is Status.COMPLETED
    agent.sub_agent(Member, "submitted").submit_messages("waits")
    agent.sub_agent(Member, "told").add_messages("hello")
    agent.sub_agent(Member, "paused").pause()
    deep = agent.sub_agent(Member, "x" * 200).sub_agent(Member, "y" * 200)
    deep.save_messages("deep")
    agent.sub_agent(Member, "x" * 200).save_messages("above")
    stranger = handle(runtime, Address("Member", parent.name + "-other")).sub_agent(Member, "c")
    stranger.save_messages("mine")
    assert agent.delete_agent() is True
    for table in ("agents", "submissions", "messages"):
        left = {name for (name,) in stage.sql("SELECT agent_name FROM {schema}." + table)}
        assert left == {stranger.address.name}, table
    assert agent.delete_agent() is False


def test_a_child_whose_first_user_did_not_know_its_parent_goes_along_too(
    stage: Stage, parent: Address
) -> None:
    child = handle(stage.runtime, parent).sub_agent(Member, "c")
    AgentHandle("Member", child.address.name, runtime=stage.runtime).submit_messages("by its path")
    child.submit_messages("as a child")
    assert handle(stage.runtime, parent).delete_agent() is True, "also of a parent that never ran"
    assert stage.sql("SELECT * FROM {schema}.agents") == []


def test_a_parent_is_deleted_while_its_children_work(stage: Stage, parent: Address) -> None:
    gate = Gate()
    parent, _ = descending("gather", parent, gate)
    agent = handle(stage.runtime, parent)
    agent.submit_messages("go")
    with beside(lambda: drain(stage.runtime, parent)):
        assert gate.reached.wait(PATIENCE_SECONDS)
        assert agent.delete_agent() is True
    for table in ("submissions", "messages"):
        assert stage.sql("SELECT * FROM {schema}." + table) == [], table
    eventually(lambda: is_clean(stage.runtime))
    eventually(lambda: stage.sql("SELECT * FROM {schema}.agents") == [])


def test_whenever_a_parent_is_deleted_nothing_is_left(stage: Stage) -> None:
    """Also of children that it is about to ask."""
    runtime = stage.runtime

    async def ask(member: Member, turn: Turn) -> object:
        children = [await member.sub_agent(Member, f"c{number}") for number in range(5)]
        return await asyncio.gather(*(child.chat("x") for child in children))

    for number in range(20):
        parent = member()
        acts[parent] = ask
        agent = handle(runtime, parent)
        agent.submit_messages("go")
        with beside(lambda parent=parent: drain(runtime, parent)):
            threading.Event().wait(number * 0.002)
            agent.delete_agent()
        eventually(lambda: is_clean(runtime))
    for table in ("submissions", "messages", "agents"):
        eventually(lambda table=table: stage.sql("SELECT * FROM {schema}." + table) == [], describe=table)
