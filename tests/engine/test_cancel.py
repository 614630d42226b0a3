"""Cancelling: the answer, the row, the conversation and the hooks tell the same story."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
import redis

from tests.engine.stage import PATIENCE_SECONDS, Stage, beside, passed
from think_celery.core.address import Address
from think_celery.core.submission import Status, Submission
from think_celery.engine.runtime import Runtime
from think_celery.engine.sweep import sweep
from think_celery.ledger import lanes
from think_celery.ledger.lanes import Applied
from think_celery.testing import eventually


@pytest.mark.spec("S54")
def test_an_unknown_id_is_reported_with_nothing_else(stage: Stage) -> None:
    found = stage.handle.cancel_submission("nobody")
    assert found.to_json() == {"outcome": "not_found", "submissionId": "nobody"}


@pytest.mark.spec("S55")
def test_a_waiting_row_is_cancelled_once_and_leaves_no_message(stage: Stage) -> None:
    receipt = stage.handle.submit_messages("say never")
    first = stage.handle.cancel_submission(receipt.submission_id, "no longer needed")
    assert (first.outcome, first.previous_status, first.messages_applied) == ("cancelled", "pending", False)
    assert first.submission == stage.row(receipt.submission_id)
    assert (first.submission.status, first.submission.error) == (Status.ABORTED, "no longer needed")
    second = stage.handle.cancel_submission(receipt.submission_id)
    assert (second.outcome, second.submission) == ("already_terminal", first.submission)
    assert (second.previous_status, second.messages_applied) == (None, None)
    assert stage.drain() == "nothing ran; lane is idle"
    assert stage.handle.get_messages() == []
    assert stage.row(receipt.submission_id) == first.submission


@pytest.mark.spec("S57")
def test_a_finished_row_keeps_its_end(stage: Stage) -> None:
    receipt = stage.handle.submit_messages("say hi")
    stage.drain()
    done = stage.row(receipt.submission_id)
    found = stage.handle.cancel_submission(receipt.submission_id, "too late")
    assert (found.outcome, found.submission) == ("already_terminal", done)
    assert stage.row(receipt.submission_id) == done
    assert done.status is Status.COMPLETED


@pytest.mark.spec("S58", "S59", "S60")
def test_messages_applied_is_what_the_ledger_did_for_this_row(
    stage: Stage, make_runtime: Callable[..., Runtime]
) -> None:
    """A row's messages are applied in one step, with a marker; an id that was there is not its own."""
    message = {"id": "m1", "role": "user", "parts": [{"type": "text", "text": "say hi"}]}
    stage.handle.submit_messages([message])
    stage.drain()
    unapplied = stage.handle.submit_messages([message, {**message, "id": "m2"}])
    worker = make_runtime()
    held = stage.claim(worker)
    found = stage.handle.cancel_submission(unapplied.submission_id)
    assert (found.previous_status, found.messages_applied) == ("running", False)
    assert lanes.apply(worker.database, held).outcome is Applied.ENDED
    assert stage.handle.get_message("m2") is None
    applied = stage.handle.submit_messages([{**message, "id": "m3"}])
    done = lanes.Ending(Status.COMPLETED)
    settled = lanes.settle(worker.database, held, done, worker=worker.worker_id, next_claim=held.row.uid)
    assert isinstance(settled.next, lanes.Claim)
    lanes.apply(worker.database, settled.next)
    found = stage.handle.cancel_submission(applied.submission_id)
    assert (found.previous_status, found.messages_applied) == ("running", True)
    assert stage.handle.get_message("m3") is not None


@pytest.mark.spec("S61", "S51", "S52", "S99")
@pytest.mark.parametrize("end", ["cancel", "clear"])
def test_ended_while_the_running_hook_is_in_flight(stage: Stage, end: str) -> None:
    entered, gate = threading.Event(), threading.Event()

    async def hook(told: Submission) -> None:
        if told.status is Status.RUNNING:
            entered.set()
            await passed(gate)

    stage.script.hook = hook
    say = [{"role": "user", "parts": [{"type": "text", "text": f"say {n}"}]} for n in range(3)]
    receipt = stage.handle.submit_messages(say)
    with stage.draining():
        assert entered.wait(PATIENCE_SECONDS)
        if end == "cancel":
            found = stage.handle.cancel_submission(receipt.submission_id, "stop")
            assert (found.outcome, found.previous_status) == ("cancelled", "running")
            assert found.messages_applied is False
        else:
            stage.handle.clear_messages()
        gate.set()
    ended = stage.wait(receipt.submission_id)
    assert ended.status is (Status.ABORTED if end == "cancel" else Status.SKIPPED)
    assert stage.script.statuses() == ["pending", "running", ended.status]
    assert stage.handle.get_messages() == []


@pytest.mark.spec("S50", "S62")
def test_a_running_turn_stops_and_what_it_said_is_kept_and_linked(stage: Stage) -> None:
    receipt = stage.handle.submit_messages("hold")
    with stage.draining() as worker:
        assert stage.script.begun.wait(PATIENCE_SECONDS)
        found = stage.handle.cancel_submission(receipt.submission_id, "stop")
        assert (found.previous_status, found.messages_applied) == ("running", True)
        worker.join(PATIENCE_SECONDS)
        assert not worker.is_alive(), "it stops although its gate stays shut"
    ended = stage.wait(receipt.submission_id)
    assert (ended.status, ended.error) == (Status.ABORTED, "stop")
    assert stage.texts("assistant") == ["begun "]
    assert ended.message_id == stage.handle.get_messages()[1]["id"]
    assert stage.script.statuses() == ["pending", "running", "aborted"]


@pytest.mark.spec("S64")
def test_a_cancelled_turns_partial_is_not_linked_to_a_reused_id(stage: Stage) -> None:
    with stage.holding("X"):
        stage.runtime.running.stop = lambda *_: False  # type: ignore[method-assign]  # it hears of it too late
        stage.handle.cancel_submission("X", "first")
        eventually(lambda: stage.handle.delete_submission("X"))
        again = stage.handle.submit_messages("say new", submission_id="X")
        assert again.accepted
        found = stage.handle.cancel_submission("X", "second")
        assert (found.outcome, found.previous_status) == ("cancelled", "pending")
    ended = stage.row("X")
    assert (ended.status, ended.error, ended.message_id) == (Status.ABORTED, "second", None)
    assert stage.texts() == ["hold"]


@pytest.mark.spec("S65")
def test_a_cancel_without_reason_stays_without_error_text(stage: Stage) -> None:
    with stage.holding() as row:
        stage.handle.cancel_submission(row.submission_id)
    ended = stage.wait(row.submission_id)
    assert (ended.status, ended.error) == (Status.ABORTED, None)
    assert "error" not in ended.to_json()
    sweep(stage.runtime)
    assert stage.row(row.submission_id) == ended


@pytest.mark.spec("S67")
def test_of_cancels_at_once_one_wins(stage: Stage) -> None:
    receipt = stage.handle.submit_messages("say never")
    barrier = threading.Barrier(8)

    def cancel(number: int) -> str:
        barrier.wait(PATIENCE_SECONDS)
        return stage.handle.cancel_submission(receipt.submission_id, number).outcome

    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(cancel, range(8)))
    assert sorted(outcomes) == ["already_terminal"] * 7 + ["cancelled"]
    assert stage.row(receipt.submission_id).error == str(outcomes.index("cancelled"))
    eventually(lambda: stage.script.statuses() == ["pending", "aborted"])


@pytest.mark.spec("S69")
@pytest.mark.parametrize(
    "reason, told", [(ValueError("bad order"), "bad order"), (404, "404"), (None, None), ("", None)]
)
def test_reasons_become_texts(stage: Stage, reason: object, told: str | None) -> None:
    receipt = stage.handle.submit_messages("say never")
    found = stage.handle.cancel_submission(receipt.submission_id, reason)
    assert found.submission is not None
    assert found.submission.error == told


@pytest.mark.spec("S43")
@pytest.mark.parametrize("end", ["completed", "aborted", "skipped"])
def test_an_error_in_the_stream_counts_only_for_a_turn_that_would_have_completed(
    stage: Stage, end: str
) -> None:
    async def act(_: object) -> str:
        if end == "aborted":
            await stage.async_handle.cancel_submission("X", "stop")
        raise RuntimeError("stream broke")

    stage.script.act = act
    stage.handle.submit_messages("act", submission_id="X")
    if end == "skipped":
        held = stage.claim()
        stage.handle.reset_turn_state()
        failed = lanes.Ending(Status.ERROR, error="stream broke")
        lanes.settle(stage.runtime.database, held, failed, worker=stage.runtime.worker_id, next_claim=None)
    else:
        stage.drain()
    row = stage.row("X")
    expected = {
        "completed": ("error", "stream broke"),
        "aborted": ("aborted", "stop"),
        "skipped": ("skipped", "the agent's turns were reset"),
    }
    assert (row.status, row.error) == expected[end]


@pytest.mark.spec("S53", "S66")
@pytest.mark.parametrize("claimed", [False, True])
def test_a_report_is_written_with_the_status_and_once(stage: Stage, claimed: bool) -> None:
    receipt = stage.handle.submit_messages("say never", webhook_url="http://127.0.0.1:9/done")
    if claimed:
        stage.claim()
    stage.handle.cancel_submission(receipt.submission_id, "stop")
    stage.handle.cancel_submission(receipt.submission_id, "again")
    ((payload,),) = stage.sql("SELECT payload FROM {schema}.webhooks")
    assert (payload["status"], payload["error"]) == ("aborted", "stop")
    assert stage.handle.get_messages() == []


@pytest.mark.spec("S48")
def test_metadata_that_looks_like_configuration_is_only_kept(stage: Stage) -> None:
    forged = {"webhook_url": "https://x.example", "webhookUrl": "https://x.example", "__workflow": {"id": 1}}
    receipt = stage.handle.submit_messages("say hi", metadata=forged)
    stage.drain()
    row = stage.row(receipt.submission_id)
    assert (row.status, row.metadata) == (Status.COMPLETED, forged)
    assert stage.sql("SELECT * FROM {schema}.webhooks") == []


def test_cancel_all_tells_each_ids_outcome(stage: Stage) -> None:
    with stage.holding() as running:
        waiting = [stage.handle.submit_messages("say x", metadata={"batch": n % 2}) for n in range(4)]
        some = stage.handle.cancel_all("batch 1", metadata={"batch": 1})
        assert [each.submission_id for each in some] == [waiting[1].submission_id, waiting[3].submission_id]
        assert {each.previous_status for each in some} == {"pending"}
        rest = stage.handle.cancel_all("all")
        assert [each.submission_id for each in rest] == [
            running.submission_id, waiting[0].submission_id, waiting[2].submission_id,
        ]  # fmt: skip
        assert [each.previous_status for each in rest] == ["running", "pending", "pending"]
        assert [each.messages_applied for each in rest] == [True, False, False]
    assert stage.handle.cancel_all() == []
    reasons = {row.submission_id: (row.status, row.error) for row in stage.handle.list_submissions()}
    assert reasons[waiting[1].submission_id] == ("aborted", "batch 1")
    assert reasons[running.submission_id] == ("aborted", "all")
    assert stage.texts() == ["hold"]


def test_a_cancelled_row_that_is_deleted_may_be_submitted_again_and_runs(stage: Stage) -> None:
    for number in range(3):
        stage.handle.submit_messages(f"say {number}", submission_id="X", idempotency_key="K")
        if number < 2:
            stage.handle.cancel_submission("X")
            assert stage.handle.delete_submission("X")
    assert stage.drain() == "1 completed; lane is idle"
    assert stage.texts() == ["say 2"]


def test_cancelling_a_head_that_waits_for_its_time_lets_the_next_one_start(stage: Stage) -> None:
    later = stage.handle.submit_messages("say later", not_before=datetime.now(UTC) + timedelta(hours=1))
    stage.handle.submit_messages("say now")
    assert stage.drain() == "nothing ran; the next submission waits for its time"
    broker = redis.Redis.from_url(stage.runtime.settings.broker_url.get_secret_value())
    with broker:
        broker.flushdb()
        stage.handle.cancel_submission(later.submission_id)
        assert broker.keys(f"*{stage.address.name}*"), "a bell for the row behind it"
    assert stage.drain() == "1 completed; lane is idle"


def test_a_lane_whose_rows_were_all_cancelled_is_let_go(stage: Stage) -> None:
    """Their bells were revoked, so nobody claims and finds the lane empty."""
    receipt = stage.handle.submit_messages("say never")
    stage.handle.cancel_submission(receipt.submission_id)
    stage.sql("UPDATE {schema}.agents SET used_at = used_at - interval '1 hour'")
    assert lanes.wanted(stage.runtime.database, ["Witness"]) == {stage.address}
    assert lanes.drop_idle(stage.runtime.database) == 1
    assert lanes.wanted(stage.runtime.database, ["Witness"]) == set()


def test_two_agents_share_no_ids(stage: Stage) -> None:
    other = Stage(stage.runtime, Address("Witness", stage.address.name + "-other"))
    for each in (stage, other):
        each.handle.submit_messages("say hi", submission_id="X", idempotency_key="K")
    assert other.handle.cancel_submission("X").outcome == "cancelled"
    assert stage.row("X").status is Status.PENDING
    with beside(stage.drain):
        pass
    assert stage.row("X").status is Status.COMPLETED
