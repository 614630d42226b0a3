"""Turns that would wait for themselves: refused at once within a chain, found and broken across chains."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import pairwise

import pytest

from tests.engine.family import (
    ASKS,
    Ask,
    Gate,
    Member,
    acts,
    asking,
    by_chat,
    by_save,
    by_stable,
    by_stream,
    by_wait,
    handle,
    in_gather,
    last_said,
    member,
    ran,
)
from tests.engine.stage import PATIENCE_SECONDS, Stage, beside
from tests.engine.talking import is_clean
from think_celery import NestedTurnError, Turn
from think_celery.core.address import Address
from think_celery.core.submission import Status, Submission
from think_celery.engine import sweep
from think_celery.engine.drain import drain
from think_celery.engine.runtime import Runtime
from think_celery.testing import eventually


@pytest.mark.spec("T53")
@pytest.mark.parametrize("length, ask", [(length, ask) for length in (1, 2) for ask in ASKS] + [(3, by_chat)])
def test_a_chain_that_comes_back_to_itself_is_refused_at_once(
    runtime: Runtime, ask: Ask, length: int
) -> None:
    circle = [member() for _ in range(length)]
    caught: list[NestedTurnError] = []

    async def last(asked: Member, turn: Turn) -> str:
        begun = time.monotonic()
        with pytest.raises(NestedTurnError) as error:
            await ask(runtime, circle[0])
        assert time.monotonic() - begun < 0.9, "without waiting for it to last"
        caught.append(error.value)
        return "refused"

    for this, following in pairwise(circle):
        acts[this] = asking(runtime, by_chat, following)
    acts[circle[-1]] = last
    row = ran(runtime, circle[0])
    assert row.status is Status.COMPLETED, row.error
    chain = tuple(str(each) for each in (*circle, circle[0]))
    assert caught[0].chain == chain
    assert " -> ".join(chain) in str(caught[0])
    for address in circle:
        for pending in handle(runtime, address).list_submissions("pending"):
            handle(runtime, address).cancel_submission(pending.submission_id)


def meeting(
    runtimes: list[Runtime], asks: list[Ask], caught: list[tuple[Address, NestedTurnError]]
) -> list[Address]:
    """Make agents whose first turns all run before each asks the next, the last one the first."""
    circle = [member() for _ in asks]
    begun: set[Address] = set()

    def make(index: int) -> Callable[[Member, Turn], Awaitable[object]]:
        this, following = circle[index], circle[(index + 1) % len(circle)]

        async def act(asked: Member, turn: Turn) -> object:
            if turn.text != "go":
                return "answered"
            begun.add(this)
            async with asyncio.timeout(PATIENCE_SECONDS):
                while len(begun) < len(circle):  # noqa: ASYNC110 - the others may be on other loops
                    await asyncio.sleep(0.005)
            try:
                return await asks[index](runtimes[index], following)
            except NestedTurnError as error:
                caught.append((this, error))
                raise

        return act

    for index, address in enumerate(circle):
        acts[address] = make(index)
    return circle


def run_all(runtimes: list[Runtime], circle: list[Address]) -> list[Submission]:
    """Run the first turn of every agent at once, each in its process, and return how they ended."""
    ids = [
        handle(runtime, address).submit_messages("go").submission_id
        for runtime, address in zip(runtimes, circle, strict=True)
    ]
    with beside(*(partial(drain, runtime, each) for runtime, each in zip(runtimes, circle, strict=True))):
        pass
    rows = []
    for address, submission_id in zip(circle, ids, strict=True):
        row = handle(runtimes[0], address).wait_for_submission(submission_id, timeout=PATIENCE_SECONDS)
        assert row is not None
        rows.append(row)
    return rows


def check_one_gave_way(
    rows: list[Submission], circle: list[Address], caught: list[tuple[Address, NestedTurnError]]
) -> None:
    assert len(caught) == 1, caught
    loser, error = caught[0]
    assert sorted(row.status for row in rows) == sorted(["error"] + ["completed"] * (len(rows) - 1)), rows
    assert rows[circle.index(loser)].error == str(error)
    start = circle.index(loser)
    assert error.chain == tuple(str(each) for each in [*circle[start:], *circle[:start], loser])


CIRCLES: dict[str, list[Ask]] = {
    "chat, chat": [by_chat, by_chat],
    "chat, wait": [by_chat, by_wait],
    "wait, wait": [by_wait, by_wait],
    "chat, stream": [by_chat, by_stream],
    "save, stable": [by_save, by_stable],
    "gather, chat": [in_gather, by_chat],
    "three": [by_chat, by_save, by_wait],
}


@pytest.mark.spec("T53")
@pytest.mark.parametrize("asks", CIRCLES.values(), ids=CIRCLES)
def test_of_a_circle_across_chains_exactly_one_gives_way(runtime: Runtime, asks: list[Ask]) -> None:
    caught: list[tuple[Address, NestedTurnError]] = []
    runtimes = [runtime] * len(asks)
    circle = meeting(runtimes, asks, caught)
    check_one_gave_way(run_all(runtimes, circle), circle, caught)
    eventually(lambda: is_clean(runtime))


@pytest.mark.parametrize("asks", [CIRCLES["chat, chat"], CIRCLES["chat, wait"], CIRCLES["three"]])
def test_also_when_its_turns_run_in_different_processes(
    make_runtime: Callable[..., Runtime], asks: list[Ask]
) -> None:
    caught: list[tuple[Address, NestedTurnError]] = []
    runtimes = [make_runtime() for _ in asks]
    circle = meeting(runtimes, asks, caught)
    check_one_gave_way(run_all(runtimes, circle), circle, caught)
    for runtime in runtimes:
        eventually(partial(is_clean, runtime))


def test_a_circle_closes_through_the_turn_ahead_in_the_line(stage: Stage) -> None:
    """A asks B, runs B's earlier turn for that, and this one asks A."""
    runtime, a, b = stage.runtime, member(), member()
    caught: list[NestedTurnError] = []

    async def ask_back(asked: Member, turn: Turn) -> object:
        if turn.text != "ahead":
            return "answered"
        try:
            return await by_chat(runtime, a)
        except NestedTurnError as error:
            caught.append(error)
            return "gave way"

    acts[a], acts[b] = asking(runtime, by_chat, b), ask_back
    ahead = handle(runtime, b).submit_messages("ahead")
    row = ran(runtime, a)
    first = handle(runtime, b).wait_for_submission(ahead.submission_id, timeout=PATIENCE_SECONDS)
    assert first is not None
    assert first.status is Status.COMPLETED
    assert len(caught) == (row.status is Status.COMPLETED), "the one or the other gave way"
    eventually(lambda: is_clean(runtime))
    assert stage.sql("SELECT * FROM {schema}.waits") == []


def test_the_older_wait_does_not_give_way_even_if_it_could_see_the_circle_first(stage: Stage) -> None:
    """Many circles at once; in each of them one raises, and never both."""
    runtime = stage.runtime
    caught: list[tuple[Address, NestedTurnError]] = []
    circles = [meeting([runtime] * 2, [by_chat, by_wait], caught) for _ in range(8)]
    everybody = [address for circle in circles for address in circle]
    rows = run_all([runtime] * len(everybody), everybody)
    losers = {address for address, _ in caught}
    assert len(caught) == len(losers) == len(circles)
    assert all(len(losers & set(circle)) == 1 for circle in circles)
    assert [row.status for row in rows].count(Status.COMPLETED) == len(circles)
    assert stage.sql("SELECT * FROM {schema}.waits") == []


def test_a_task_that_an_ended_turn_has_left_behind_is_in_no_circle(stage: Stage) -> None:
    runtime, a, b = stage.runtime, member(), member()
    left: list[asyncio.Task[object]] = []
    asked_back = Gate()

    async def leave(asked: Member, turn: Turn) -> object:
        if turn.text != "go":
            return "answered"
        left.append(asyncio.create_task(by_wait(runtime, b)))
        return "left"

    async def ask_back(asked: Member, turn: Turn) -> object:
        if turn.text != "hold":
            return "answered"
        await asked_back.passed()
        return await by_chat(runtime, a)

    acts[a], acts[b] = leave, ask_back
    handle(runtime, b).submit_messages("hold")
    with beside(lambda: drain(runtime, b)):
        assert asked_back.reached.wait(PATIENCE_SECONDS)
        assert ran(runtime, a).status is Status.COMPLETED
        eventually(lambda: stage.sql("SELECT * FROM {schema}.waits"), describe="the wait has lasted")
        handle(runtime, a).pause()  # so that both wait for seconds
        asked_back.open()
        eventually(lambda: len(stage.sql("SELECT * FROM {schema}.waits")) == 2)
        handle(runtime, a).resume()
    eventually(lambda: left[0].done())
    assert left[0].result() is Status.COMPLETED
    assert last_said(runtime, a) == "begun answered"


def test_an_abandoned_wait_is_swept(stage: Stage) -> None:
    stage.sql(
        "INSERT INTO {schema}.waits (wait_id, uid, agent_type, agent_name, for_type, for_name)"
        " VALUES (gen_random_uuid(), gen_random_uuid(), 'A', 'a', 'B', 'b')"
    )
    sweep.sweep(stage.runtime)
    assert stage.sql("SELECT * FROM {schema}.waits") == []
