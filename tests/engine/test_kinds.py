"""One lane for turns of every kind: their order, resets between them, and waiting for stillness."""

import logging
import threading
import time

import pytest

from tests.engine.talking import Gate, Talk, calling, saying
from think_celery.core.submission import Kind, Status, Submission
from think_celery.engine.drain import drain
from think_celery.testing import eventually


@pytest.mark.spec("T74", "T47")
def test_one_order_for_all_kinds(talk: Talk) -> None:
    gate = Gate()
    talk.play.say = gate.say
    with calling(lambda: talk.handle.chat("first")):
        assert gate.reached.wait(10)
        calls = [
            lambda: talk.handle.submit_messages("second"),
            lambda: talk.handle.save_messages("third"),
            lambda: talk.handle.chat("fourth"),
        ]
        threads = []
        for number, call in enumerate(calls, 2):
            threads.append(threading.Thread(target=call))
            threads[-1].start()
            eventually(lambda number=number: len(_all(talk)) == number)  # type: ignore[misc]
        talk.play.say = saying("ok")
        gate.open()
        for thread in threads:
            thread.join(20)
    assert talk.handle.wait_until_stable(timeout=20)
    assert [text for role, text in talk.texts() if role == "user"] == ["first", "second", "third", "fourth"]
    rows = sorted(_all(talk), key=lambda row: row.position or 0)
    assert [row.kind for row in rows] == [Kind.CHAT, Kind.SUBMIT, Kind.SAVE, Kind.CHAT]
    assert [row.agent for row in rows] == [str(talk.address)] * 4
    assert [row.kind for row in talk.handle.list_submissions()] == [Kind.SUBMIT]


@pytest.mark.spec("T75")
def test_a_failure_is_its_callers_alone(talk: Talk) -> None:
    talk.play.say = saying(RuntimeError("boom"))
    assert talk.handle.save_messages("a").status == "error"
    talk.play.say = saying("ok")
    assert talk.handle.save_messages("b").status == "completed"


@pytest.mark.spec("T76", "T158")
def test_only_the_newest_generation_runs(talk: Talk) -> None:
    gate = Gate()
    talk.play.say = gate.say
    with calling(lambda: talk.handle.save_messages("now")):
        assert gate.reached.wait(10)
        old = [talk.handle.submit_messages(f"old {number}").submission_id for number in range(2)]
        talk.handle.reset_turn_state()
        old.append(talk.handle.submit_messages("old 2").submission_id)
        talk.handle.reset_turn_state()
        talk.play.say = saying("ok")
        new = talk.handle.submit_messages("new").submission_id
        gate.open()
    if talk.is_near:
        talk.handle.save_messages("last")
    row = talk.handle.wait_for_submission(new, timeout=20)
    assert row is not None
    assert row.status is Status.COMPLETED
    found = [talk.handle.inspect_submission(each) for each in old]
    assert [each is not None and each.status for each in found] == [Status.SKIPPED] * 3
    assert not [text for _, text in talk.texts() if text.startswith("old")]


@pytest.mark.spec("T78")
def test_stillness_covers_what_comes_while_waiting(talk: Talk) -> None:
    assert talk.handle.wait_until_stable(timeout=0)
    gate, second = Gate(), Gate()
    talk.play.say = gate.say
    with calling(lambda: talk.handle.save_messages("one")):
        assert gate.reached.wait(10)
        assert not talk.handle.wait_until_stable(timeout=0.1)
        with calling(lambda: talk.handle.wait_until_stable(timeout=20)) as stable:
            talk.play.say = second.say
            talk.handle.submit_messages("two")
            gate.open()
            assert second.reached.wait(10)
            time.sleep(0.1)
            assert stable == []
            second.open()
    assert stable == [True]


def test_an_open_approval_is_a_pending_interaction(talk: Talk) -> None:
    assert not talk.handle.has_pending_interaction()
    part = {
        "type": "tool-refund",
        "toolCallId": "c1",
        "state": "approval-requested",
        "input": {},
        "approval": {"id": "a1"},
    }
    talk.handle.add_messages([{"id": "m", "role": "assistant", "parts": [part]}])
    assert talk.handle.has_pending_interaction()
    assert not talk.handle.wait_until_stable(timeout=0.2)
    settled = part | {"state": "output-available", "output": 1}
    talk.handle.add_messages([{"id": "m", "role": "assistant", "parts": [settled]}], mode="upsert")
    assert talk.handle.wait_until_stable(timeout=5)


@pytest.mark.spec("T72", "T73")
def test_starts_and_ends_are_logged_in_pairs_when_turns_run(
    near: Talk, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    ids = [near.handle.submit_messages(text).submission_id for text in ("one", "two")]
    assert "submission.claimed" not in caplog.text
    drain(near.worker, near.address)
    events = [record.getMessage().split() for record in caplog.records]
    told = [
        (event[0], event[2]) for event in events if event[0] in ("submission.claimed", "submission.settled")
    ]
    assert told == [
        (event, f"submission={each}")
        for each in ids
        for event in ("submission.claimed", "submission.settled")
    ]


def _all(talk: Talk) -> list[Submission]:
    return talk.handle.list_submissions(kind=["submit", "save", "chat"], limit=50)
