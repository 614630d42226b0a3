"""Turns that fail: what their caller hears, what is stored, and who is told; near, from afar, by any call."""

import logging
from typing import Any

import pytest

from tests.engine.talking import Notes, Talk, saying
from think_celery import AgentHandle
from think_celery.core.hook import TurnContext
from think_celery.core.turn import ChatResponse
from think_celery.errors import TurnSetupError

WAIT = 20.0
BOOM = RuntimeError("boom")
IN_BAND = {"type": "error", "errorText": "the quota is used up"}


@pytest.mark.spec("T16")
def test_what_was_said_before_a_failure_is_kept(talk: Talk) -> None:
    talk.play.say = saying("one ", "two ", BOOM, "three")
    notes = Notes()
    result = talk.handle.chat("hello", notes)
    assert (result.status, result.error, result.text) == ("error", "boom", "one two ")
    assert notes.heard == ["start", "event", "error: boom"]
    assert notes.text == "one two "
    assert talk.texts() == [("user", "hello"), ("assistant", "one two ")]
    assert result.message == talk.handle.get_messages()[1]
    talk.leaves_nothing()


@pytest.mark.spec("T17")
@pytest.mark.parametrize("surfaced", [LookupError("we are sorry"), "we are sorry"])
def test_the_words_that_on_chat_error_chooses_are_what_everybody_gets(talk: Talk, surfaced: Any) -> None:
    talk.play.say = saying("one ", BOOM)
    talk.play.surfaced = surfaced
    notes = Notes()
    result = talk.handle.chat("hello", notes)
    assert (result.error, notes.heard[-1]) == ("we are sorry", "error: we are sorry")
    events = list(talk.handle.stream(result.request_id))
    assert [e.chunk["errorText"] for e in events if e.chunk and e.chunk["type"] == "error"] == [
        "we are sorry"
    ]
    assert (events[-1].status, events[-1].error) == ("error", "we are sorry")
    ((error, context),) = talk.play.errors
    assert (error, context.request_id, context.stage) == (BOOM, result.request_id, "stream")
    assert talk.responded()[0].error == "we are sorry"


@pytest.mark.spec("T18")
def test_an_error_chunk_may_come_first(talk: Talk) -> None:
    talk.play.say = saying(IN_BAND)
    notes = Notes()
    assert talk.handle.chat("hello", notes).error == "the quota is used up"
    assert notes.heard[-1] == "error: the quota is used up"
    assert [(told.status, told.message) for told in talk.responded()] == [("error", None)]
    assert talk.texts() == [("user", "hello")]
    talk.leaves_nothing()


@pytest.mark.spec("T19", "T20")
def test_nothing_after_an_error_chunk_is_said_or_stored(talk: Talk) -> None:
    talk.play.say = saying("before", IN_BAND, "after", IN_BAND)
    notes = Notes()
    result = talk.handle.chat("hello", notes)
    assert (result.status, result.error) == ("error", "the quota is used up")
    assert notes.heard == ["start", "event", "error: the quota is used up"]
    assert notes.text == "before"
    assert "error" not in notes.types
    assert talk.texts() == [("user", "hello"), ("assistant", "before")]
    events = list(talk.handle.stream(result.request_id))
    assert [e.chunk["type"] for e in events if e.chunk][-1] == "error"


@pytest.mark.spec("T22")
@pytest.mark.parametrize(
    ("failing", "stage", "words"),
    [(BOOM, "stream", "boom"), (IN_BAND, "stream", "the quota is used up"), (None, "turn", "no budget")],
)
@pytest.mark.parametrize("way", ["chat", "save", "submit"])
def test_each_failing_turn_is_one_event_in_the_log(
    near: Talk, caplog: pytest.LogCaptureFixture, failing: Any, stage: str, words: str, way: str
) -> None:
    near.play.say = None if failing is None else saying("so far ", failing)
    near.play.before = refuse
    request_id = run(near, way)
    told = [record.getMessage() for record in caplog.records if "turn.failed" in record.getMessage()]
    assert len(told) == 1
    assert told[0] == f"turn.failed request={request_id} stage={stage} error={words}"
    assert [record.levelno for record in caplog.records if "turn.failed" in record.getMessage()] == [
        logging.ERROR
    ]
    assert len(near.play.errors) == 1


def run(talk: Talk, way: str) -> str:
    """Run a turn that fails and return its request id."""
    if way == "chat":
        return talk.handle.chat("hello").request_id
    if way == "submit":
        receipt = talk.handle.submit_messages("hello")
        assert talk.handle.wait_for_submission(receipt.submission_id, timeout=WAIT)
        return receipt.submission_id
    try:
        return talk.handle.save_messages("hello").request_id
    except TurnSetupError:
        (row,) = talk.handle.list_submissions(kind="save")
        return row.request_id


def refuse(context: TurnContext) -> None:
    raise LookupError("no budget")


@pytest.mark.spec("T23")
def test_a_turn_that_cannot_be_prepared_is_told_in_the_way_of_its_call(talk: Talk) -> None:
    talk.play.say, talk.play.before = None, refuse
    notes = Notes()
    result = talk.handle.chat("hello", notes)
    assert (result.status, result.error) == ("error", "no budget")
    assert notes.heard[0] == "start"
    assert notes.heard[-1] == "error: no budget"
    assert notes.text == ""
    if talk.is_near:
        with pytest.raises(TurnSetupError, match="no budget"):
            talk.handle.save_messages("hello")
    else:
        saved = talk.handle.save_messages("hello")
        assert (saved.status, saved.error) == ("error", "no budget")
    receipt = talk.handle.submit_messages("hello")
    row = talk.handle.wait_for_submission(receipt.submission_id, timeout=WAIT)
    assert row is not None
    assert (row.status, row.error) == ("error", "no budget")
    assert talk.texts() == [("user", "hello")] * 3
    assert [context.stage for _, context in talk.play.errors] == ["turn"] * 3
    talk.play.before = None
    for answer in (talk.handle.chat("again"), talk.handle.save_messages("again")):
        assert answer.text == "Hello there"
    again = talk.handle.submit_messages("again")
    done = talk.handle.wait_for_submission(again.submission_id, timeout=WAIT)
    assert done is not None
    assert done.status == "completed"
    assert [told.status for told in talk.responded(3)] == ["completed"] * 3
    talk.leaves_nothing()


@pytest.mark.spec("T24")
def test_a_missing_model_is_named(talk: Talk) -> None:
    notes = Notes()
    other = Talk(talk.caller, talk.worker, talk.address.child("NoModel", "n"))
    handle = AgentHandle("NoModel", other.address.name, runtime=talk.worker)
    result = handle.chat("hello", notes)
    assert result.status == "error"
    assert "override get_model()" in (result.error or "")
    assert notes.heard[-1] == f"error: {result.error}"


@pytest.mark.spec("T25")
def test_the_turn_after_a_failure_completes(talk: Talk) -> None:
    talk.play.say = saying("so far ", BOOM)
    assert talk.handle.chat("one").status == "error"
    talk.play.say = saying("fine")
    assert talk.handle.chat("two").status == "completed"
    assert talk.texts() == [
        ("user", "one"),
        ("assistant", "so far "),
        ("user", "two"),
        ("assistant", "fine"),
    ]


@pytest.mark.spec("T26")
@pytest.mark.parametrize("failing", [False, True])
def test_a_raising_response_hook_harms_nobody(
    talk: Talk, caplog: pytest.LogCaptureFixture, failing: bool
) -> None:
    def fail(response: ChatResponse) -> None:
        raise LookupError("no such hook")

    talk.play.on_response = fail
    talk.play.say = saying("so far ", BOOM) if failing else saying("fine")
    notes = Notes()
    result = talk.handle.chat("hello", notes)
    assert (result.status, result.error) == (("error", "boom") if failing else ("completed", None))
    assert notes.heard[-1] == ("error: boom" if failing else "done")
    talk.responded()
    talk.leaves_nothing()
    assert len(talk.play.responses) == 1
    failures = [record for record in caplog.records if "hook.failed" in record.getMessage()]
    assert len(failures) == 1
    assert talk.handle.chat("again").status == result.status
