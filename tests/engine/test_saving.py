"""`save_messages` and `add_messages`: one turn to its end, or none, in view of the conversation."""

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import pytest

from tests.engine.stage import kill
from tests.engine.talking import Gate, Said, Talk, calling, saying
from think_celery import (
    AbortController,
    AgentHandle,
    NestedTurnError,
    Think,
    Turn,
    TurnSetupError,
    user_message,
)
from think_celery.core.hook import ErrorContext, TurnContext
from think_celery.core.submission import Status
from think_celery.engine.drain import drain
from think_celery.engine.runtime import Runtime
from think_celery.errors import InvalidInput, WrongContext
from think_celery.testing import eventually

Make = Callable[..., Runtime]


@pytest.mark.spec("T37")
def test_a_message_is_saved_and_answered(talk: Talk) -> None:
    result = talk.handle.save_messages([user_message("hi")])
    assert (result.status, result.error, result.text) == ("completed", None, "You said hi")
    assert result.request_id
    assert talk.texts() == [("user", "hi"), ("assistant", "You said hi")]
    talk.leaves_nothing()


@pytest.mark.spec("T38")
def test_a_function_adds_only_what_is_new(near: Talk) -> None:
    near.handle.save_messages("one")
    seen: list[int] = []

    def more(current: list[dict[str, Any]]) -> list[Any]:
        seen.append(len(current))
        return [*current, user_message("two")]

    assert near.handle.save_messages(more).status == "completed"
    assert seen == [2]
    assert [role for role, _ in near.texts()] == ["user", "assistant"] * 2


@pytest.mark.spec("T39")
def test_a_function_is_called_when_its_turn_starts(near: Talk) -> None:
    gate = Gate()
    near.play.say = gate.say
    seen: list[list[str]] = []

    async def more(current: list[dict[str, Any]]) -> list[Any]:
        seen.append([message["role"] for message in current])
        return [user_message("second")]

    with calling(lambda: near.handle.save_messages("first")):
        assert gate.reached.wait(10)
        with calling(lambda: near.handle.save_messages(more)) as results:
            eventually(lambda: near.handle.list_submissions(kind="save", status="pending"))
            assert seen == []
            gate.open()
    assert results[0].status == "completed"
    assert seen == [["user", "assistant"]]


@pytest.mark.spec("T40")
@pytest.mark.parametrize("given", [ValueError("no more"), None, "words", [1], 7])
def test_a_function_that_fails_is_the_callers(near: Talk, given: Any) -> None:
    def more(_: object) -> Any:
        if isinstance(given, Exception):
            raise given
        return given

    if given == "words":
        assert near.handle.save_messages(more).status == "completed"
        return
    with pytest.raises(ValueError if isinstance(given, Exception) else InvalidInput):
        near.handle.save_messages(more)
    assert near.texts() == []
    (row,) = near.handle.list_submissions(kind="save")
    assert row.status is Status.ERROR
    assert near.handle.save_messages("after").status == "completed"


@pytest.mark.spec("T41")
def test_an_error_chunk_is_a_result(talk: Talk) -> None:
    talk.play.say = saying("so far", {"type": "error", "errorText": "overloaded"})
    result = talk.handle.save_messages("hi")
    assert (result.status, result.error, result.text) == ("error", "overloaded", "so far")


@pytest.mark.spec("T23")
def test_a_turn_that_cannot_be_prepared_is_refused_where_it_runs(near: Talk) -> None:
    def fail(_: TurnContext) -> None:
        raise RuntimeError("no plan")

    near.play.say, near.play.before = None, fail
    with pytest.raises(TurnSetupError, match="no plan"):
        near.handle.save_messages("hi")
    assert near.texts() == [("user", "hi")]
    near.play.before = None
    assert near.handle.save_messages("again").status == "completed"


@pytest.mark.spec("T43")
def test_a_signal_stops_the_turn_and_keeps_what_was_said(talk: Talk) -> None:
    gate, controller = Gate(), AbortController()
    talk.play.say = gate.say
    with calling(lambda: talk.handle.save_messages("hi", signal=controller.signal)) as results:
        assert gate.reached.wait(10)
        controller.abort("enough")
    assert (results[0].status, results[0].error) == ("aborted", "enough")
    eventually(lambda: ("assistant", "before ") in talk.texts())
    assert controller.signal.listener_count == 0


@pytest.mark.spec("T56")
def test_a_stopped_agent_is_closed_at_once(talk: Talk) -> None:
    begun, closed = threading.Event(), threading.Event()

    async def hold(turn: Turn) -> Said:
        try:
            yield "so far"
            begun.set()
            await asyncio.sleep(60)
        finally:
            closed.set()

    talk.play.say = hold
    controller = AbortController()
    with calling(lambda: talk.handle.save_messages("hi", signal=controller.signal)):
        assert begun.wait(10)
        controller.abort()
        assert closed.wait(5)


@pytest.mark.spec("T44", "T45", "T36")
def test_one_signal_serves_many_turns(talk: Talk) -> None:
    controller = AbortController()
    for _ in range(3):
        assert talk.handle.save_messages("hi", signal=controller.signal).status == "completed"
    assert controller.signal.listener_count == 0
    controller.abort("too late")
    assert [role for role, _ in talk.texts()] == ["user", "assistant"] * 3
    assert talk.handle.save_messages("hi", signal=controller.signal).status == "aborted"
    assert talk.handle.save_messages("and on").status == "completed"
    talk.leaves_nothing()


@pytest.mark.spec("T46", "T64")
def test_a_reset_skips_what_waits(talk: Talk) -> None:
    gate = Gate()
    talk.play.say = gate.say
    with calling(lambda: talk.handle.save_messages("first")) as first:
        assert gate.reached.wait(10)
        with calling(lambda: talk.handle.save_messages("second")) as second:
            eventually(lambda: talk.handle.list_submissions(kind="save", status="pending"))
            talk.handle.reset_turn_state()
    assert second[0].status == "skipped"
    assert first[0].status == "aborted"
    assert ("user", "second") not in talk.texts()
    talk.play.say = saying("ok")
    assert talk.handle.save_messages("third").status == "completed"
    assert [response.request_id for response in talk.responded()][-1:] != [second[0].request_id]


def test_a_conversation_is_answered_again_without_new_messages(talk: Talk) -> None:
    talk.handle.save_messages("hi")
    assert talk.handle.save_messages([]).status == "completed"
    assert [role for role, _ in talk.texts()] == ["user", "assistant", "assistant"]


def test_only_a_worker_can_call_a_function(far: Talk) -> None:
    with pytest.raises(WrongContext, match="hand over a list"):
        far.handle.save_messages(lambda current: current)


def test_a_turn_does_not_wait_for_itself(near: Talk) -> None:
    async def nest(turn: Turn) -> Said:
        here = near.async_handle
        with pytest.raises(NestedTurnError) as caught:
            await here.save_messages("inner")
        assert caught.value.chain == (str(near.address), str(near.address))
        blocking = await asyncio.to_thread(_refused, near.handle)
        assert (await here.submit_messages("later")).accepted
        assert await here.add_messages([user_message("a note")]) == 1
        yield blocking

    def _refused(handle: AgentHandle) -> str:
        with pytest.raises(NestedTurnError):
            handle.wait_until_stable()
        return "refused"

    near.play.say = nest
    result = near.handle.save_messages("outer")
    assert (result.status, result.text) == ("completed", "refused")


@pytest.mark.spec("T74", "T71", "T82")
def test_many_at_once_keep_their_order_and_all_run(talk: Talk) -> None:
    inside: list[int] = []

    async def count(turn: Turn) -> Said:
        inside.append(1)
        assert len(inside) == 1
        await asyncio.sleep(0.002)
        inside.pop()
        yield turn.text

    talk.play.say = count

    async def save_all() -> list[Any]:
        return await asyncio.gather(*(talk.async_handle.save_messages(str(n)) for n in range(20)))

    results = asyncio.run(save_all())
    assert {result.status for result in results} == {"completed"}
    rows = talk.handle.list_submissions(kind="save", limit=50)
    starts = [row.started_at for row in sorted(rows, key=lambda row: row.position or 0)]
    assert starts == sorted(start for start in starts if start is not None)


def test_what_a_dead_process_was_to_run(make_runtime: Make, near: Talk) -> None:
    """A list runs as a row like any other; what only that process could supply ends in error."""
    dead, heir = make_runtime(), near.worker
    talk = Talk(dead, dead, near.address)
    near.handle.pause()
    stuck = threading.Event()
    for count, given in enumerate(("a list", lambda current: [user_message("never")]), 1):
        threading.Thread(target=_stuck, args=(talk, given, stuck), daemon=True).start()
        eventually(partial(_waits, near, count))
    kill(dead)
    dead.close()
    near.handle.resume()
    drain(heir, near.address)
    function, listed = near.handle.list_submissions(kind="save")
    assert (listed.status, near.texts()) == (
        Status.COMPLETED,
        [("user", "a list"), ("assistant", "You said a list")],
    )
    assert (function.status, function.error) == (
        Status.ERROR,
        "the process that was to supply the messages has ended",
    )


def _waits(talk: Talk, count: int) -> bool:
    return len(talk.handle.list_submissions(kind="save")) == count


def _stuck(talk: Talk, given: Any, stuck: threading.Event) -> None:
    try:
        talk.handle.save_messages(given)
    except Exception:
        stuck.set()


@pytest.mark.spec("T47")
def test_added_messages_start_no_turn_and_are_seen_by_the_next(talk: Talk) -> None:
    note = {"id": "n", "role": "assistant", "parts": [{"type": "text", "text": "noted"}]}
    assert talk.handle.add_messages([user_message("a", message_id="a"), note]) == 2
    assert talk.handle.add_messages([{**note, "parts": []} | {"parts": note["parts"]}]) == 0
    assert talk.handle.add_messages([]) == 0
    assert talk.handle.list_submissions(kind=["submit", "save", "chat"]) == []
    talk.handle.save_messages("b")
    assert [len(turn.messages) for turn in talk.play.turns] == [3]


def test_messages_are_replaced_where_they_stand(near: Talk) -> None:
    near.handle.save_messages([user_message("old", message_id="m")])
    assert near.handle.add_messages([user_message("new", message_id="m")], mode="upsert") == 0
    near.handle.add_messages(lambda current: [user_message(f"{len(current)} so far")])
    assert [text for _, text in near.texts()] == ["new", "You said old", "2 so far"]
    with pytest.raises(InvalidInput, match="mode"):
        near.handle.add_messages([], mode="both")  # type: ignore[arg-type]


@pytest.mark.spec("T50")
def test_messages_may_be_added_in_the_middle_of_a_turn(near: Talk) -> None:
    async def note(turn: Turn) -> Said:
        yield "one "
        await near.async_handle.add_messages([user_message("meanwhile")])
        yield "two"

    near.play.say = note
    assert near.handle.save_messages("go").text == "one two"
    assert near.texts() == [("user", "go"), ("user", "meanwhile"), ("assistant", "one two")]


class Complaining(Think):
    """Fails, and asks itself what to do about it."""

    refused: ClassVar[list[str]] = []

    async def on_chat_message(self, turn: Turn) -> Said:
        raise RuntimeError("boom")
        yield "never"

    async def on_chat_error(self, error: Exception, context: ErrorContext) -> None:
        with pytest.raises(NestedTurnError) as caught:
            await self.save_messages("inner")
        self.refused.extend(caught.value.chain)


def test_the_error_hook_is_part_of_the_turn_that_failed(runtime: Runtime) -> None:
    """The lane is still at work, so the hook cannot wait for a turn of its own agent."""
    result = AgentHandle("Complaining", "a", runtime=runtime).save_messages("outer")
    assert (result.status, result.error) == ("error", "boom")
    assert Complaining.refused == ["Complaining/a"] * 2
