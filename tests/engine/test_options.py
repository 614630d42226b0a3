"""What a caller may ask of one submission beyond its turn: make way, hurry, wait, run again."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
import redis

from tests.engine.stage import Stage, beside
from think_celery import AgentHandle
from think_celery.core.address import Address
from think_celery.core.submission import Status
from think_celery.engine import ending
from think_celery.engine.reading import survey
from think_celery.engine.runtime import Runtime
from think_celery.engine.sweep import sweep
from think_celery.errors import AgentBusy, IdentityConflict, LaneFull, PayloadMismatch
from think_celery.ledger import lanes
from think_celery.testing import eventually


def soon(**delta: float) -> datetime:
    return datetime.now(UTC) + timedelta(**delta)


def with_settings(stage: Stage, make_runtime: Callable[..., Runtime], **settings: object) -> Stage:
    return Stage(make_runtime(**settings), stage.address)


def test_reject_refuses_while_a_row_waits_or_runs(stage: Stage) -> None:
    first = stage.handle.submit_messages("say free", if_busy="reject")
    assert first.accepted
    with pytest.raises(AgentBusy, match=r'busy and if_busy is "reject"'):
        stage.handle.submit_messages("say no", if_busy="reject", submission_id="no")
    stage.drain()
    with stage.holding():
        with pytest.raises(AgentBusy):
            stage.handle.submit_messages("say no", if_busy="reject", submission_id="no")
        again = stage.handle.submit_messages("say x", submission_id=first.submission_id, if_busy="reject")
        assert not again.accepted, "a known id is answered, whoever is busy"
    assert stage.handle.inspect_submission("no") is None
    assert stage.handle.submit_messages("say free", if_busy="reject").accepted
    assert stage.script.statuses().count("pending") == 3


def test_a_cancelled_turn_that_is_still_stopping_does_not_make_busy(stage: Stage) -> None:
    with stage.holding() as row:
        stage.handle.cancel_submission(row.submission_id)
        following = stage.handle.submit_messages("say next", if_busy="reject")
        assert following.accepted
    stage.drain()
    assert stage.wait(following.submission_id).status is Status.COMPLETED


def test_interrupt_cancels_what_is_ahead_and_keeps_what_was_said(stage: Stage) -> None:
    with stage.holding() as running:
        waiting = stage.handle.submit_messages("say waiting")
        newest = stage.handle.submit_messages("say newest", if_busy="interrupt")
        ahead = [stage.row(receipt.submission_id) for receipt in (running, waiting)]
        assert [row.status for row in ahead] == ["aborted", "aborted"]
        assert {row.error for row in ahead} == {"a newer submission took its place"}
    assert stage.wait(newest.submission_id).status is Status.COMPLETED
    assert stage.texts() == ["hold", "say newest"]
    assert stage.texts("assistant") == ["begun ", "newest "]
    assert stage.script.statuses(running.submission_id) == ["pending", "running", "aborted"]
    assert stage.script.statuses(waiting.submission_id) == ["pending", "aborted"]


def test_rollback_also_takes_back_what_the_running_turn_brought(stage: Stage) -> None:
    stage.handle.submit_messages("say before")
    stage.drain()
    with stage.holding() as running:
        newest = stage.handle.submit_messages("say newest", if_busy="rollback")
        assert "hold" not in stage.texts()
    assert stage.wait(newest.submission_id).status is Status.COMPLETED
    rolled_back = stage.row(running.submission_id)
    assert (rolled_back.status, rolled_back.message_id) == (Status.ABORTED, None)
    assert stage.texts() == ["say before", "say newest"]
    assert stage.texts("assistant") == ["before ", "newest "]


@pytest.mark.parametrize("if_busy", ["interrupt", "rollback"])
def test_making_way_on_a_free_agent_does_nothing(stage: Stage, if_busy: str) -> None:
    stage.handle.submit_messages("say before")
    stage.drain()
    stage.handle.submit_messages("say after", if_busy=if_busy)  # type: ignore[arg-type]
    stage.drain()
    assert [row.status for row in stage.handle.list_submissions()] == ["completed", "completed"]
    assert stage.texts() == ["say before", "say after"]


def test_a_retry_with_interrupt_interrupts_nothing(stage: Stage) -> None:
    with stage.holding() as running:
        known = stage.handle.submit_messages("hold", submission_id=running.submission_id, if_busy="interrupt")
        assert (known.accepted, known.status) == (False, Status.RUNNING)
        stage.handle.submit_messages("say x", idempotency_key="K", submission_id="A")
        with pytest.raises(IdentityConflict):
            stage.handle.submit_messages("say x", idempotency_key="K", if_busy="interrupt", submission_id="B")
    assert stage.wait(running.submission_id).status is Status.COMPLETED


def test_a_turn_longer_than_its_time_ends_in_error(stage: Stage) -> None:
    receipt = stage.handle.submit_messages("hold", run_timeout=0.05)
    following = stage.handle.submit_messages("say next", run_timeout=timedelta(seconds=30))
    assert stage.drain() == "1 error, 1 completed; lane is idle"
    row = stage.wait(receipt.submission_id)
    assert (row.status, row.error) == (Status.ERROR, "ran longer than its run_timeout of 0.05 s")
    assert row.run_timeout == pytest.approx(0.05)
    assert stage.handle.get_message(row.message_id or "") is not None, "what was said is kept"
    assert stage.wait(following.submission_id).status is Status.COMPLETED


def test_a_turn_of_its_own_timeout_error_is_told_apart(stage: Stage) -> None:
    async def act(_: object) -> str:
        raise TimeoutError("the model took too long")

    stage.script.act = act
    receipt = stage.handle.submit_messages("act", run_timeout=30)
    stage.drain()
    assert stage.wait(receipt.submission_id).error == "the model took too long"


def test_not_started_in_time_ends_in_error(stage: Stage) -> None:
    late = soon(seconds=-1)
    receipt = stage.handle.submit_messages("say late", not_after=late)
    intime = stage.handle.submit_messages("say now", not_after=soon(hours=1))
    assert receipt.status is Status.PENDING
    stage.drain()
    row = stage.wait(receipt.submission_id)
    assert (row.status, row.started_at, row.attempt) == (Status.ERROR, None, 0)
    assert row.error == f"not started in time: it was not to start after {late:%Y-%m-%dT%H:%M:%SZ}"
    assert row.not_after == late
    assert stage.wait(intime.submission_id).status is Status.COMPLETED
    assert stage.texts() == ["say now"]
    assert stage.script.statuses(receipt.submission_id) == ["pending", "error"]


@pytest.mark.parametrize("obstacle", ["pause", "an early head", "a running turn"])
def test_what_may_not_start_any_more_ends_although_its_lane_stands_still(
    stage: Stage, make_runtime: Callable[..., Runtime], obstacle: str
) -> None:
    if obstacle == "pause":
        stage.handle.pause()
    elif obstacle == "an early head":
        stage.handle.submit_messages("say later", not_before=soon(hours=1))
    else:
        stage.handle.submit_messages("say running")
        stage.claim()
    receipt = stage.handle.submit_messages("say late", not_after=soon(seconds=-1))
    sweep(make_runtime())
    row = stage.row(receipt.submission_id)
    assert row.status is Status.ERROR
    assert "not started in time" in (row.error or "")
    stage.drain()
    assert stage.wait(receipt.submission_id) == row
    assert stage.script.statuses(receipt.submission_id) == ["pending", "error"]


def test_a_head_that_waits_for_its_time_keeps_only_its_own_agent_waiting(
    stage: Stage, make_runtime: Callable[..., Runtime]
) -> None:
    other = Stage(stage.runtime, Address("Witness", stage.address.name + "-other"))
    start = soon(seconds=0.5)
    early = stage.handle.submit_messages("say early", not_before=start)
    behind = stage.handle.submit_messages("say behind")
    other.handle.submit_messages("say free")
    assert stage.drain() == "nothing ran; the next submission waits for its time"
    assert other.drain() == "1 completed; lane is idle"
    watcher = make_runtime()
    report = sweep(watcher)
    assert report.rung == 0
    assert report.next_due_seconds is not None
    assert 0 < report.next_due_seconds <= 0.5, "the sweeper comes back in time"
    eventually(lambda: sweep(watcher).rung == 1, describe="the bell at the due time")
    assert stage.drain() == "2 completed; lane is idle"
    row = stage.wait(early.submission_id)
    assert row.started_at is not None
    assert row.started_at >= start
    assert row.not_before == start
    assert stage.wait(behind.submission_id).status is Status.COMPLETED
    assert stage.texts("assistant") == ["early ", "behind "]


def test_a_paused_agent_starts_nothing_and_goes_on_when_resumed(stage: Stage) -> None:
    assert stage.handle.pause() is True
    assert stage.handle.pause() is False
    stage.handle.submit_messages("say one")
    assert stage.drain() == "nothing ran; the agent or its class is paused"
    assert [lane.paused for lane in survey(stage.runtime)] == [True]
    with redis.Redis.from_url(stage.runtime.settings.broker_url.get_secret_value()) as broker:
        broker.flushdb()
        assert stage.handle.resume() is True
        assert broker.keys(f"*{stage.address.name}*"), "resuming rings"
    assert stage.drain() == "1 completed; lane is idle"
    assert stage.handle.resume() is False


def test_a_pause_lets_the_running_turn_end_and_the_next_one_wait(
    stage: Stage, make_runtime: Callable[..., Runtime]
) -> None:
    with stage.holding() as running:
        behind = stage.handle.submit_messages("say behind")
        stage.handle.pause()
    assert stage.wait(running.submission_id).status is Status.COMPLETED
    assert stage.row(behind.submission_id).status is Status.PENDING
    sweeper = make_runtime(nudge_after_seconds=0.001)
    assert sweep(sweeper).rung == 0, "no bell wakes a paused agent"
    assert stage.handle.cancel_submission(behind.submission_id).outcome == "cancelled"
    stage.handle.resume()
    assert stage.drain() == "nothing ran; lane is idle"


def test_a_paused_class_holds_all_its_agents_and_no_other(
    stage: Stage, make_runtime: Callable[..., Runtime]
) -> None:
    other = Stage(stage.runtime, Address("Witness", stage.address.name + "-other"))
    foreign = AgentHandle("Scripted", "x", runtime=stage.runtime)
    assert ending.pause_class(stage.runtime, "Witness", paused=True) is True
    assert ending.pause_class(stage.runtime, "Witness", paused=True) is False
    for each in (stage, other):
        each.handle.submit_messages("say x")
        assert each.drain() == "nothing ran; the agent or its class is paused"
    foreign.submit_messages("say x")
    assert Stage(stage.runtime, foreign.address).drain() == "1 completed; lane is idle"
    assert ending.pause_class(stage.runtime, "Witness", paused=False) is True
    sweeper = make_runtime(nudge_after_seconds=0.001)
    assert sweep(sweeper).rung == 2, "the sweeper rings what waited"
    for each in (stage, other):
        assert each.drain() == "1 completed; lane is idle"


def test_rerun_makes_a_new_linked_submission(stage: Stage) -> None:
    first = stage.handle.submit_messages("error no", metadata={"a": 1}, run_timeout=9, idempotency_key="K")
    stage.drain()
    again = stage.handle.rerun(first.submission_id)
    assert again is not None
    assert again.accepted
    assert again.submission_id != first.submission_id
    assert (again.rerun_of, again.metadata, again.run_timeout) == (first.submission_id, {"a": 1}, 9)
    assert again.idempotency_key is None
    stage.drain()
    assert stage.wait(again.submission_id).error == "no"
    assert stage.wait(first.submission_id).error == "no"
    assert stage.texts() == ["error no", "error no"], "new message ids, so both are in the conversation"
    once = stage.handle.rerun(first.submission_id, idempotency_key="R")
    twice = stage.handle.rerun(first.submission_id, idempotency_key="R")
    assert once is not None
    assert twice is not None
    assert (twice.accepted, twice.submission_id) == (False, once.submission_id)
    assert stage.handle.rerun("unknown") is None


def test_a_full_lane_refuses_and_writes_nothing(stage: Stage, make_runtime: Callable[..., Runtime]) -> None:
    small = with_settings(stage, make_runtime, max_pending=2)
    receipts = [small.handle.submit_messages("say x") for _ in range(2)]
    with pytest.raises(LaneFull, match="has 2 waiting submissions, the most that THINK_MAX_PENDING allows"):
        small.handle.submit_messages("say no", submission_id="no")
    assert small.handle.inspect_submission("no") is None
    known = small.handle.submit_messages("say x", submission_id=receipts[0].submission_id)
    assert not known.accepted, "a retry is answered in a full lane, too"
    other = Stage(small.runtime, Address("Witness", stage.address.name + "-other"))
    assert other.handle.submit_messages("say x").accepted
    small.handle.cancel_submission(receipts[0].submission_id)
    assert small.handle.submit_messages("say fits").accepted
    assert small.handle.submit_messages("say newest", if_busy="interrupt").accepted
    small.drain()
    assert small.texts() == ["say newest"]


def test_the_receipt_says_whether_the_messages_are_the_first_calls(
    stage: Stage, make_runtime: Callable[..., Runtime]
) -> None:
    message = {"id": "m1", "role": "user", "parts": [{"type": "text", "text": "say hi"}]}
    first = stage.handle.submit_messages([message], idempotency_key="K")
    same = stage.handle.submit_messages([{**message, "id": "m2"}], idempotency_key="K")
    other = stage.handle.submit_messages("say else", idempotency_key="K")
    unreadable = stage.handle.submit_messages(lambda: None, idempotency_key="K")
    assert [each.payload_matches for each in (first, same, other, unreadable)] == [True, True, False, False]
    assert [each.accepted for each in (first, same, other, unreadable)] == [True, False, False, False]
    strict = with_settings(stage, make_runtime, strict_idempotency=True)
    assert strict.handle.submit_messages([{**message, "id": "m3"}], idempotency_key="K").payload_matches
    for bad in ("say else", lambda: None):
        with pytest.raises(PayloadMismatch, match="was accepted with other messages"):
            strict.handle.submit_messages(bad, idempotency_key="K")
    assert len(stage.handle.list_submissions()) == 1


@pytest.mark.spec("S38")
def test_an_idle_agent_is_never_rung(stage: Stage, make_runtime: Callable[..., Runtime]) -> None:
    stage.handle.submit_messages("say hi")
    stage.drain()
    sweeper = make_runtime(nudge_after_seconds=0.001)
    assert sweep(sweeper).rung == 0
    assert lanes.next_due(sweeper.database) is None


@pytest.mark.spec("S39")
def test_a_bell_without_a_ledger_is_rung_again(stage: Stage, make_runtime: Callable[..., Runtime]) -> None:
    lost = stage.runtime.settings.model_copy(
        update={
            "database_url": type(stage.runtime.settings.database_url)("postgresql://x@127.0.0.1:1/x"),
            "database_timeout": 0.1,
        }
    )
    from think_celery.worker.app import build_app
    from think_celery.worker.publisher import CeleryPublisher

    receipt = stage.handle.submit_messages("say hi")
    blind = Runtime(lost, CeleryPublisher(build_app(lost), lost), pool="test")
    try:
        assert Stage(blind, stage.address).drain() == "ledger unavailable: the sweeper rings again"
    finally:
        blind.close()
    assert stage.row(receipt.submission_id).status is Status.PENDING
    sweeper = make_runtime(nudge_after_seconds=0.001)
    assert eventually(lambda: sweep(sweeper).rung) == 1
    with beside(stage.drain):
        assert stage.wait(receipt.submission_id).status is Status.COMPLETED
