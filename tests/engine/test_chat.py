"""`chat`: what its caller hears, how it ends, and what it leaves, where the turn runs and from afar."""

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.engine.talking import Notes, Talk, calling, saying
from think_celery import AgentHandle, StreamCallback, Turn, message_text
from think_celery.errors import InvalidInput, WrongContext
from think_celery.testing import eventually

WAIT = 20.0


@pytest.mark.spec("T1", "T4")
def test_a_turn_and_what_is_heard(talk: Talk) -> None:
    notes = Notes()
    result = talk.handle.chat("hello", notes)
    assert (result.status, result.error, result.request_id) == ("completed", None, notes.request_id)
    assert notes.heard == ["start", "event", "done"]
    first, second = talk.handle.get_messages()
    assert (first["role"], first["parts"]) == ("user", [{"type": "text", "text": "hello"}])
    assert first["id"] != second["id"]
    assert notes.text == message_text(second) == result.text == "You said hello"
    assert notes.types.count("text-delta") == 3
    assert (notes.types[0], notes.types[-1]) == ("start", "finish")
    assert (result.message, result.message_id) == (second, second["id"])
    row = talk.handle.inspect_submission(result.request_id)
    assert row is not None
    assert (row.kind, row.status, row.message_id) == ("chat", "completed", second["id"])
    talk.leaves_nothing()


@pytest.mark.spec("T2")
def test_turns_add_up(talk: Talk) -> None:
    talk.handle.chat("one")
    talk.handle.chat("two")
    assert talk.texts() == [
        ("user", "one"),
        ("assistant", "You said one"),
        ("user", "two"),
        ("assistant", "You said two"),
    ]
    assert [message_text(message) for message in talk.play.turns[1].messages] == [
        "one",
        "You said one",
        "two",
    ]


@pytest.mark.spec("T3")
def test_an_observer_sees_the_same(talk: Talk) -> None:
    gate = threading.Event()

    async def say(turn: Turn) -> AsyncIterator[str]:
        yield "one "
        while not gate.is_set():  # noqa: ASYNC110 - the gate is a thread's
            await asyncio.sleep(0.002)
        yield "two"

    talk.play.say = say
    notes = Notes()
    with calling(lambda: talk.handle.chat("hello", notes)):
        assert notes.begun.wait(WAIT)
        observer = AgentHandle(talk.address.type_name, talk.address.name, runtime=talk.worker)
        events = observer.stream(notes.request_id)
        seen = [next(events) for _ in range(3)]
        assert talk.texts() == [("user", "hello")]
        gate.set()
        seen += list(events)
    assert [event.chunk for event in seen if event.kind == "chunk"] == notes.chunks
    ends = [event for event in seen if event.kind == "end"]
    assert [(event.status, event.message_id) for event in ends] == [
        ("completed", talk.handle.get_messages()[1]["id"])
    ]


@pytest.mark.spec("T5")
def test_an_empty_text_is_a_turn(talk: Talk) -> None:
    assert talk.handle.chat("", Notes()).status == "completed"
    assert len(talk.play.turns) == 1
    first, _ = talk.handle.get_messages()
    assert first["parts"] == [{"type": "text", "text": ""}]


@pytest.mark.spec("T6")
def test_tools_of_a_caller_are_warned_about_and_ignored(talk: Talk, caplog: pytest.LogCaptureFixture) -> None:
    talk.play.say = None
    seen: list[list[Any]] = []
    talk.play.before = lambda context: seen.append(context.tools)
    assert talk.handle.chat("hi", tools={"steal": print}).text == "Hello there"
    assert seen == [[]]
    warnings = [record for record in caplog.records if "chat.tools_ignored" in record.getMessage()]
    assert len(warnings) == 1
    talk.handle.chat("hi", tools={})
    talk.handle.chat("hi", tools=None)
    assert len([record for record in caplog.records if "chat.tools_ignored" in record.getMessage()]) == 1


@pytest.mark.spec("T8")
def test_a_message_that_is_known_is_not_stored_again_and_the_turn_runs(talk: Talk) -> None:
    def message(text: str) -> dict[str, Any]:
        return {"id": "m1", "role": "user", "parts": [{"type": "text", "text": text}]}

    assert talk.handle.chat(message("first")).status == "completed"
    assert talk.handle.chat(message("second")).status == "completed"
    assert [role for role, _ in talk.texts()] == ["user", "assistant", "assistant"]
    assert talk.texts()[0] == ("user", "first")
    assert len(talk.play.turns) == 2


def test_what_may_be_said(talk: Talk) -> None:
    parts = [{"type": "text", "text": "look "}, {"type": "text", "text": "here"}]
    one = {"id": "m1", "role": "user", "parts": parts}
    two = {"id": "m2", "role": "user", "parts": [{"type": "text", "text": "there"}]}
    assert talk.handle.chat(one).text == "You said look here"
    assert talk.handle.chat([{**one, "id": "m3"}, two], metadata={"from": "test"}).text == "You said there"
    assert [message["id"] for message in talk.handle.get_messages() if message["role"] == "user"] == [
        "m1",
        "m3",
        "m2",
    ]
    assert talk.handle.get_messages()[0]["parts"] == parts
    assert [turn.metadata for turn in talk.play.turns] == [None, {"from": "test"}]


@pytest.mark.spec("T9")
def test_what_is_read_is_a_copy(talk: Talk) -> None:
    talk.handle.chat("hello")
    stored = talk.texts()
    read = talk.handle.get_messages()
    read[0]["parts"][0]["text"] = "changed"
    read.clear()
    assert talk.texts() == stored


@pytest.mark.spec("T10")
def test_a_call_on_a_busy_agent_starts_at_once_and_runs_in_its_turn(talk: Talk) -> None:
    gate = threading.Event()

    async def hold(turn: Turn) -> AsyncIterator[str]:
        yield turn.text
        while not gate.is_set():  # noqa: ASYNC110 - the gate is a thread's
            await asyncio.sleep(0.002)

    talk.play.say = hold
    first, second = Notes(), Notes()
    started = threading.Event()
    second._acts["start"] = lambda _: started.set()
    with calling(lambda: talk.handle.chat("one", first)):
        assert first.begun.wait(WAIT)
        with calling(lambda: talk.handle.chat("two", second)) as results:
            assert started.wait(WAIT)
            eventually(lambda: talk.handle.inspect_submission(second.request_id))
            assert talk.texts() == [("user", "one")]
            assert second.heard == ["start"]
            gate.set()
    assert results[0].status == "completed"
    assert [text for _, text in talk.texts()] == ["one", "one", "two", "two"]
    assert second.heard == ["start", "event", "done"]
    talk.leaves_nothing()


@pytest.mark.spec("T11")
def test_a_raising_on_start_ends_the_call_before_anything(talk: Talk) -> None:
    def refuse(request_id: str) -> None:
        raise LookupError("nobody is there")

    notes = Notes(start=refuse)
    with pytest.raises(LookupError, match="nobody is there"):
        talk.handle.chat("hello", notes)
    assert (talk.handle.get_messages(), notes.heard) == ([], ["start"])
    assert talk.handle.inspect_submission(notes.request_id) is None
    assert talk.handle.chat("again").status == "completed"
    assert talk.play.errors == []
    talk.leaves_nothing()


@pytest.mark.spec("T12")
def test_a_raising_on_event_fails_a_turn_that_runs_here(near: Talk) -> None:
    notes = Notes(near.play.order, event=lambda _: _fourth(notes))
    result = near.handle.chat("hello", notes)
    assert (result.status, result.error) == ("error", "the pipe is broken")
    assert near.texts() == [("user", "hello"), ("assistant", "You ")]
    assert [str(error) for error, _ in near.play.errors] == ["the pipe is broken"]
    assert near.play.order == [
        "start",
        "event",
        "on_chat_error",
        "on_chat_response error",
        "error: the pipe is broken",
    ]
    assert near.handle.chat("again").status == "completed"
    near.leaves_nothing()


@pytest.mark.spec("T12")
def test_a_raising_on_event_from_afar_cancels_the_turn_and_is_raised(far: Talk) -> None:
    far.play.say = saying(*["word "] * 500, pause=0.01)
    notes = Notes(event=lambda _: _fourth(notes))
    with pytest.raises(ConnectionError, match="the pipe is broken"):
        far.handle.chat("hello", notes)
    row = far.handle.wait_for_submission(notes.request_id, timeout=WAIT)
    assert row is not None
    assert (row.status, row.error) == ("aborted", "the caller failed to take an event")
    assert far.responded()[0].status == "aborted"
    assert [role for role, _ in far.texts()] == ["user", "assistant"]
    assert far.play.errors == []
    far.leaves_nothing()


def _fourth(notes: Notes) -> None:
    if len(notes.chunks) == 4:  # start, start-step, text-start, the first delta
        raise ConnectionError("the pipe is broken")


@pytest.mark.parametrize("error", [StopIteration("over"), TimeoutError("late"), RuntimeError("closed")])
def test_whatever_on_event_raises_fails_the_turn(near: Talk, error: Exception) -> None:
    def fail(_: str) -> None:
        raise error

    result = near.handle.chat("hello", Notes(event=fail))
    assert result.status == "error"
    assert str(error) in (result.error or "")
    near.leaves_nothing()


@pytest.mark.spec("T13")
@pytest.mark.parametrize("pieces", [(), ("",)])
def test_a_turn_that_says_nothing_is_completed(talk: Talk, pieces: tuple[str, ...]) -> None:
    talk.play.say = saying(*pieces)
    notes = Notes(talk.play.order)
    result = talk.handle.chat("hello", notes)
    assert (result.status, result.message, result.message_id, result.text) == ("completed", None, None, "")
    assert [(told.status, told.message) for told in talk.responded()] == [("completed", None)]
    assert [role for role, _ in talk.texts()] == ["user"]
    assert "done" in talk.play.order
    talk.leaves_nothing()


@pytest.mark.spec("T15")
def test_the_hook_comes_after_on_done_and_before_on_error(near: Talk) -> None:
    near.handle.chat("hello", Notes(near.play.order))
    near.responded()
    assert near.play.order == ["start", "event", "done", "on_chat_response completed"]
    near.play.order.clear()
    near.play.say = saying("so far ", RuntimeError("boom"))
    near.handle.chat("hello", Notes(near.play.order))
    assert near.play.order == [
        "start",
        "event",
        "on_chat_error",
        "on_chat_response error",
        "error: boom",
    ]


def test_a_raising_on_done_goes_through_and_the_turn_stays_completed(talk: Talk) -> None:
    def fail(_: str) -> None:
        raise LookupError("no room for it")

    notes = Notes(done=fail)
    with pytest.raises(LookupError, match="no room for it"):
        talk.handle.chat("hello", notes)
    assert [told.status for told in talk.responded()] == ["completed"]
    row = talk.handle.inspect_submission(notes.request_id)
    assert row is not None
    assert row.status == "completed"
    assert talk.play.errors == []
    assert talk.handle.chat("again").status == "completed"
    talk.leaves_nothing()


def test_a_raising_on_error_goes_through_and_no_hook_is_called_twice(talk: Talk) -> None:
    def fail(_: str) -> None:
        raise LookupError("no room for it")

    talk.play.say = saying("so far ", RuntimeError("boom"))
    with pytest.raises(LookupError, match="no room for it"):
        talk.handle.chat("hello", Notes(error=fail))
    assert [told.status for told in talk.responded()] == ["error"]
    talk.leaves_nothing()
    assert (len(talk.play.responses), len(talk.play.errors)) == (1, 1)


def test_the_callers_own_function_makes_the_messages_when_the_turn_starts(near: Talk) -> None:
    near.handle.chat("one")

    def make(transcript: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [*transcript, {"id": "m9", "role": "user", "parts": [{"type": "text", "text": "two"}]}]

    assert near.handle.chat(make).text == "You said two"
    assert [text for _, text in near.texts()] == ["one", "You said one", "two", "You said two"]


def test_a_function_that_raises_is_raised_and_nothing_else_is_heard(near: Talk) -> None:
    def make(transcript: list[dict[str, Any]]) -> object:
        raise LookupError("no such customer")

    notes = Notes()
    with pytest.raises(LookupError, match="no such customer"):
        near.handle.chat(make, notes)
    assert (notes.heard, near.handle.get_messages(), near.play.responses) == (["start"], [], [])
    assert near.handle.chat("again").status == "completed"
    near.leaves_nothing()


def test_a_function_cannot_be_called_from_afar(far: Talk) -> None:
    notes = Notes()
    with pytest.raises(WrongContext, match="hand over a list"):
        far.handle.chat(lambda transcript: transcript, notes)
    assert notes.heard == []


def test_what_is_no_callback_or_signal_is_refused(talk: Talk) -> None:
    class Duck:
        def on_event(self, json: str) -> None: ...

    with pytest.raises(InvalidInput, match="callback: must be an object of a class derived from"):
        talk.handle.chat("hello", Duck())  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="callback"):
        talk.handle.chat("hello", Notes)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="signal: must be an AbortSignal"):
        talk.handle.chat("hello", signal=threading.Event())  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="timeout"):
        talk.handle.chat("hello", timeout=-1)
    with pytest.raises(InvalidInput, match="messages"):
        talk.handle.chat([])
    assert talk.handle.list_submissions(kind="chat") == []


def test_without_a_callback_the_result_is_all(talk: Talk) -> None:
    assert talk.handle.chat("hello").text == "You said hello"
    talk.leaves_nothing()


def test_a_callback_that_overrides_nothing_hears_nothing(talk: Talk) -> None:
    assert talk.handle.chat("hello", StreamCallback()).text == "You said hello"
