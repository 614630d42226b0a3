"""Sub-agents: whose they are, how several work at once, and what they outlive."""

import asyncio
from itertools import pairwise
from uuid import uuid4

import pytest

from tests.engine.family import (
    Gate,
    Handy,
    Heard,
    Member,
    acts,
    forever,
    handle,
    member,
    ran,
    rows,
    said,
)
from tests.engine.stage import PATIENCE_SECONDS, Stage
from tests.engine.talking import is_clean
from think_celery import AgentHandle, AsyncAgentHandle, NestedTurnError, Turn, message_text
from think_celery.core.address import Address
from think_celery.core.submission import Status
from think_celery.core.turn import TurnResult
from think_celery.engine.runtime import Runtime
from think_celery.errors import InvalidInput
from think_celery.testing import eventually


@pytest.fixture
def parent() -> Address:
    return member()


def test_two_customers_child_1_are_two_transcripts(runtime: Runtime) -> None:
    async def delegate(member: Member, turn: Turn) -> str:
        child = await member.sub_agent(Member, "child-1")
        return (await child.chat(turn.text)).text

    customers = [Address("Member", f"customer-{number}-{uuid4()}") for number in (1, 2)]
    for number, customer in enumerate(customers):
        acts[customer] = delegate
        for turn in ("first", "second"):
            row = ran(runtime, customer, f"{turn} of {number}")
            assert row.status is Status.COMPLETED, row.error
    for number, customer in enumerate(customers):
        texts = [f"first of {number}", f"second of {number}"]
        child = customer.child("Member", "child-1")
        assert said(runtime, child) == [(who, text) for text in texts for who in ("user", "assistant")]


def test_a_child_is_the_same_for_every_way_to_it(runtime: Runtime, parent: Address) -> None:
    async def talk(member: Member, turn: Turn) -> str:
        await (await member.sub_agent(Member, "c")).chat("from inside")
        return "done"

    acts[parent] = talk
    ran(runtime, parent)
    from_outside = handle(runtime, parent).sub_agent("Member", "c")
    assert from_outside.chat("from outside").status == "completed"
    by_its_path = AgentHandle("Member", from_outside.address.name, runtime=runtime)
    assert [message_text(each) for each in by_its_path.get_messages() if each["role"] == "user"] == [
        "from inside",
        "from outside",
    ]
    assert handle(runtime, parent).get_messages()[0]["id"] not in {
        each["id"] for each in by_its_path.get_messages()
    }


def test_children_of_different_classes_share_no_name(runtime: Runtime, parent: Address) -> None:
    agent = handle(runtime, parent)
    assert agent.sub_agent(Member, "c").address != agent.sub_agent(Handy, "c").address
    assert agent.sub_agent(Member, "c").address == agent.sub_agent("Member", "c").address


@pytest.mark.parametrize("name", ["", " ", "x" * 201, "a\nb"])
def test_a_childs_name_follows_the_rules_of_names(runtime: Runtime, parent: Address, name: str) -> None:
    with pytest.raises(InvalidInput, match="agent name"):
        handle(runtime, parent).sub_agent(Member, name)


@pytest.mark.parametrize("kind", [3, None, "no class", "Member/x"])
def test_a_child_needs_a_class(runtime: Runtime, parent: Address, kind: object) -> None:
    with pytest.raises(InvalidInput, match="agent type"):
        handle(runtime, parent).sub_agent(kind, "c")  # type: ignore[arg-type]


@pytest.mark.parametrize("how", ["gather", "group"])
def test_several_children_work_at_once(runtime: Runtime, parent: Address, how: str) -> None:
    meeting = asyncio.Barrier(5)

    async def meet(member: Member, turn: Turn) -> str:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await meeting.wait()
        return f"met by {turn.text}"

    async def delegate(member: Member, turn: Turn) -> str:
        async def ask(name: str) -> TurnResult:
            child = await member.sub_agent(Member, name)
            return await child.chat(name, Heard())

        names = [f"c{number}" for number in range(5)]
        if how == "gather":
            results = await asyncio.gather(*(ask(name) for name in names))
        else:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(ask(name)) for name in names]
            results = [task.result() for task in tasks]
        return ", ".join(result.text for result in results)

    acts[parent] = delegate
    for number in range(5):
        acts[parent.child("Member", f"c{number}")] = meet
    row = ran(runtime, parent)
    assert row.status is Status.COMPLETED, row.error
    assert said(runtime, parent)[-1][1] == "begun " + ", ".join(f"begun met by c{n}" for n in range(5))
    eventually(lambda: is_clean(runtime))


def test_several_turns_of_one_child_at_once_run_one_after_the_other(
    runtime: Runtime, parent: Address
) -> None:
    async def delegate(member: Member, turn: Turn) -> str:
        child = await member.sub_agent(Member, "c")
        results = await asyncio.gather(*(child.chat(f"{number}") for number in range(6)))
        return " ".join(result.text for result in results)

    acts[parent] = delegate
    row = ran(runtime, parent)
    assert row.status is Status.COMPLETED, row.error
    assert said(runtime, parent)[-1][1] == "begun 0 1 2 3 4 5"
    turns = rows(runtime, parent.child("Member", "c"))[::-1]
    assert [each.attempt for each in turns] == [1] * 6
    for earlier, later in pairwise(turns):
        assert earlier.completed_at is not None
        assert later.started_at is not None
        assert earlier.completed_at <= later.started_at


def test_a_chain_of_turns_knows_where_it_came_from(stage: Stage, parent: Address) -> None:
    async def ask(member: Member, turn: Turn) -> str:
        return (await (await member.sub_agent(Member, "c")).chat("x")).text

    child = parent.child("Member", "c")
    grandchild = child.child("Member", "c")
    acts[parent] = acts[child] = ask
    row = ran(stage.runtime, parent)
    assert row.status is Status.COMPLETED, row.error
    found = stage.sql(
        "SELECT agent_name, uid, parent_id, root_id, runner FROM {schema}.submissions ORDER BY created_at"
    )
    names, uids, parents, roots, runners = zip(*found, strict=True)
    assert list(names) == [parent.name, child.name, grandchild.name]
    assert list(parents) == [None, uids[0], uids[1]]
    assert set(roots) == {uids[0]}
    assert list(runners) == [None, stage.runtime.worker_id, stage.runtime.worker_id]


def test_one_of_three_is_cancelled_by_its_request_id(runtime: Runtime, parent: Address) -> None:
    results: list[TurnResult] = []

    async def delegate(member: Member, turn: Turn) -> str:
        children = [await member.sub_agent(Member, f"c{number}") for number in range(3)]
        heard = [Heard() for _ in children]
        calls = asyncio.gather(*(child.chat("x", ear) for child, ear in zip(children, heard, strict=True)))
        await heard[1].begun.wait()
        await children[1].cancel_chat(heard[1].request_id, "not needed")
        results.extend(await calls)
        return " ".join(ear.closed or "-" for ear in heard)

    acts[parent] = delegate
    acts[parent.child("Member", "c1")] = forever
    row = ran(runtime, parent)
    assert row.status is Status.COMPLETED, row.error
    assert [result.status for result in results] == ["completed", "aborted", "completed"]
    assert results[1].error == "not needed"
    assert results[1].text == "begun "
    assert said(runtime, parent)[-1][1] == "begun done - done"


def test_a_childs_failure_is_its_parents_to_judge(runtime: Runtime, parent: Address) -> None:
    async def fail(member: Member, turn: Turn) -> str:
        raise ValueError("no luck")

    async def delegate(member: Member, turn: Turn) -> str:
        heard = Heard()
        result = await (await member.sub_agent(Member, "c")).chat("x", heard)
        return f"{result.status}, {result.error}; {heard.closed}"

    acts[parent], acts[parent.child("Member", "c")] = delegate, fail
    assert ran(runtime, parent).status is Status.COMPLETED
    assert said(runtime, parent)[-1][1] == "begun error, no luck; error: no luck"


def test_a_failing_sibling_in_a_task_group_stops_the_others(runtime: Runtime, parent: Address) -> None:
    async def delegate(member: Member, turn: Turn) -> str:
        child = await member.sub_agent(Member, "c")
        heard = Heard()
        async with asyncio.TaskGroup() as group:
            group.create_task(child.chat("x", heard))
            await heard.begun.wait()
            group.create_task(_raise())
        return "not reached"

    async def _raise() -> None:
        raise ValueError("no luck")

    child = parent.child("Member", "c")
    acts[parent], acts[child] = delegate, forever
    assert ran(runtime, parent).status is Status.ERROR
    eventually(lambda: rows(runtime, child)[0].status is Status.ABORTED)
    eventually(lambda: is_clean(runtime))


def test_a_child_that_was_left_running_outlives_its_parents_turn(runtime: Runtime, parent: Address) -> None:
    gate, tasks = Gate(), list["asyncio.Task[TurnResult]"]()

    async def leave(member: Member, turn: Turn) -> str:
        if turn.text != "go":
            return "heard"
        child = await member.sub_agent(Member, "c")
        tasks.append(asyncio.create_task(child.chat("x")))
        await asyncio.to_thread(gate.reached.wait, PATIENCE_SECONDS)
        return "left"

    async def report(member: Member, turn: Turn) -> str:
        await gate.passed()
        boss = AsyncAgentHandle(parent.type_name, parent.name, runtime=runtime)
        return (await boss.chat("here is my report")).status

    acts[parent], acts[parent.child("Member", "c")] = leave, report
    assert ran(runtime, parent).status is Status.COMPLETED
    gate.open()
    eventually(lambda: tasks[0].done())
    assert tasks[0].result().text == "begun completed", "its parent's turn is over, so it may be asked"
    assert said(runtime, parent)[-2:] == [("user", "here is my report"), ("assistant", "begun heard")]
    eventually(lambda: is_clean(runtime))


def test_a_child_that_was_left_running_must_not_ask_a_parent_that_is_still_at_it(
    runtime: Runtime, parent: Address
) -> None:
    async def leave(member: Member, turn: Turn) -> str:
        child = await member.sub_agent(Member, "c")
        return (await asyncio.create_task(child.chat("x"))).text

    async def report(member: Member, turn: Turn) -> str:
        boss = AsyncAgentHandle(parent.type_name, parent.name, runtime=runtime)
        with pytest.raises(NestedTurnError) as caught:
            await boss.chat("here is my report")
        return " ".join(caught.value.chain)

    child = parent.child("Member", "c")
    acts[parent], acts[child] = leave, report
    assert ran(runtime, parent).status is Status.COMPLETED
    assert said(runtime, parent)[-1][1] == f"begun begun {parent} {child} {parent}"
