"""Reset and clear: nothing from before them starts, and nothing of it is said afterwards."""

import threading
from collections.abc import Callable

import pytest

from tests.engine.stage import PATIENCE_SECONDS, Stage, beside, kill, passed
from think_celery.core.submission import Kind, Status, Submission
from think_celery.engine.admit import Wish, admit
from think_celery.engine.runtime import Runtime
from think_celery.engine.sweep import sweep
from think_celery.ledger import lanes
from think_celery.ledger.lanes import Applied
from think_celery.testing import eventually


@pytest.mark.spec("S95")
@pytest.mark.parametrize("call, note", [("reset_turn_state", "reset"), ("clear_messages", "cleared")])
def test_what_waits_is_skipped_when_the_call_returns(stage: Stage, call: str, note: str) -> None:
    waiting = [stage.handle.submit_messages(f"say {number}") for number in range(3)]
    getattr(stage.handle, call)()
    for receipt in waiting:
        row = stage.row(receipt.submission_id)
        assert row.status is Status.SKIPPED
        assert note in (row.error or "")
        assert row.completed_at is not None
        assert row.started_at is None
    assert stage.drain() == "nothing ran; lane is idle"
    assert stage.handle.get_messages() == []


@pytest.mark.spec("S96")
def test_what_is_accepted_after_a_reset_runs(stage: Stage) -> None:
    stage.handle.submit_messages("say before")
    stage.handle.reset_turn_state()
    receipt = stage.handle.submit_messages("say after")
    assert stage.drain() == "1 completed; lane is idle"
    row = stage.row(receipt.submission_id)
    assert row.message_id is not None
    assert stage.texts() == ["say after"]


def test_a_reset_keeps_the_conversation_and_a_clear_empties_it(stage: Stage) -> None:
    receipt = stage.handle.submit_messages("say one")
    stage.drain()
    stage.handle.reset_turn_state()
    assert stage.texts() == ["say one"]
    stage.handle.clear_messages()
    assert stage.handle.get_messages() == []
    assert stage.row(receipt.submission_id).status is Status.COMPLETED, "neither removes records"
    stage.handle.submit_messages("count")
    stage.drain()
    assert stage.texts("assistant") == ["count (1)"]


@pytest.mark.spec("S97")
def test_a_claimed_row_that_has_applied_nothing_is_skipped(stage: Stage) -> None:
    receipt = stage.handle.submit_messages("say never")
    held = stage.claim()
    stage.handle.reset_turn_state()
    assert stage.row(receipt.submission_id).status is Status.SKIPPED
    assert lanes.apply(stage.runtime.database, held).outcome is Applied.ENDED
    assert stage.handle.get_messages() == []


@pytest.mark.parametrize("call", ["reset_turn_state", "clear_messages"])
def test_a_running_turn_is_aborted_and_says_nothing_more(stage: Stage, call: str) -> None:
    with stage.holding() as row:
        behind = stage.handle.submit_messages("say behind")
        getattr(stage.handle, call)()
        assert stage.row(row.submission_id).status is Status.ABORTED
    ended = stage.wait(row.submission_id)
    assert (ended.status, ended.message_id) == (Status.ABORTED, None)
    assert stage.row(behind.submission_id).status is Status.SKIPPED
    assert stage.texts() == (["hold"] if call == "reset_turn_state" else [])
    assert stage.texts("assistant") == []
    stage.handle.submit_messages("say next")
    assert stage.drain() == "1 completed; lane is idle"


def test_a_late_settle_of_the_old_generation_changes_nothing(stage: Stage) -> None:
    stage.handle.submit_messages("say old", submission_id="X")
    held = stage.claim()
    lanes.apply(stage.runtime.database, held)
    stage.handle.clear_messages()
    before = stage.row("X")
    late = {"id": "late", "role": "assistant", "parts": [{"type": "text", "text": "late"}]}
    ending = lanes.Ending(Status.COMPLETED, message=late)
    settled = lanes.settle(
        stage.runtime.database, held, ending, worker=stage.runtime.worker_id, next_claim=None
    )
    assert settled.settled, "it still gives the lane back"
    assert stage.row("X") == before
    assert stage.handle.get_messages() == []


@pytest.mark.spec("S101")
def test_a_row_of_a_dead_worker_is_not_brought_back_after_a_clear(
    stage: Stage, make_runtime: Callable[..., Runtime]
) -> None:
    receipt = stage.handle.submit_messages("say never")
    dead, watcher = make_runtime(), make_runtime(lease_seconds=0.1, sweep_seconds=0.05)
    stage.claim(dead)
    kill(dead)
    stage.handle.clear_messages()
    eventually(lambda: sweep(watcher).rescued == 1)
    assert stage.drain() == "nothing ran; lane is idle"
    assert stage.wait(receipt.submission_id).status is Status.SKIPPED
    assert stage.script.statuses() == ["pending", "skipped"]
    assert stage.handle.get_messages() == []


@pytest.mark.spec("S102")
def test_a_turn_of_another_kind_that_a_clear_overtakes_is_skipped(stage: Stage) -> None:
    receipt = admit(stage.runtime, stage.address, "say never", Wish(kind=Kind.SAVE))
    stage.handle.clear_messages()
    assert stage.wait(receipt.submission_id).status is Status.SKIPPED


@pytest.mark.spec("S72")
def test_waits_end_with_a_cancel_and_with_a_reset(stage: Stage) -> None:
    stage.handle.pause()  # who waits in a worker process also works off the lane
    first, second = stage.handle.submit_messages("say a"), stage.handle.submit_messages("say b")
    ends: dict[str, Submission] = {}

    def wait(submission_id: str) -> None:
        ends[submission_id] = stage.wait(submission_id)

    with beside(lambda: wait(first.submission_id), lambda: wait(second.submission_id)):
        stage.handle.cancel_submission(first.submission_id, "changed my mind")
        stage.handle.reset_turn_state()
    one, two = ends[first.submission_id], ends[second.submission_id]
    assert (one.status, one.error) == (Status.ABORTED, "changed my mind")
    assert two.status is Status.SKIPPED


@pytest.mark.spec("S75")
def test_a_wait_for_a_skipped_row_ends_after_its_own_hook(stage: Stage) -> None:
    stage.handle.pause()
    first, second = stage.handle.submit_messages("say a"), stage.handle.submit_messages("say b")
    gates = {first.submission_id: threading.Event(), second.submission_id: threading.Event()}

    async def hook(told: Submission) -> None:
        await passed(gates[told.submission_id])

    stage.script.hook = hook
    ended: list[str] = []

    def wait(submission_id: str) -> None:
        stage.wait(submission_id)
        ended.append(submission_id)

    with beside(stage.handle.reset_turn_state, lambda: wait(second.submission_id)):
        with beside(lambda: wait(first.submission_id)):
            eventually(lambda: stage.script.statuses(first.submission_id) == ["pending", "skipped"])
            assert ended == []
            gates[first.submission_id].set()
        assert ended == [first.submission_id]
        gates[second.submission_id].set()
    assert ended == [first.submission_id, second.submission_id]


def test_a_reset_does_not_wait_for_the_hooks_of_what_it_skipped(stage: Stage) -> None:
    gate = threading.Event()

    async def hook(told: Submission) -> None:
        if told.is_terminal:
            await passed(gate)

    receipt = stage.handle.submit_messages("say a")
    stage.script.hook = hook
    returned = threading.Event()

    def reset() -> None:
        stage.handle.reset_turn_state()
        returned.set()

    with beside(reset):
        assert returned.wait(PATIENCE_SECONDS / 4)
        assert stage.row(receipt.submission_id).status is Status.SKIPPED
        gate.set()
    eventually(lambda: stage.script.statuses() == ["pending", "skipped"])


def test_what_a_turn_has_used_is_known_although_it_was_reset(stage: Stage) -> None:
    stage.handle.submit_messages("say old", submission_id="X")
    held = stage.claim()
    lanes.apply(stage.runtime.database, held)
    stage.handle.clear_messages()
    ending = lanes.Ending(Status.ABORTED, usage={"requests": 1}, responds=True)
    lanes.settle(stage.runtime.database, held, ending, worker=stage.runtime.worker_id, next_claim=None)
    assert stage.row("X").usage == {"requests": 1}
    assert stage.sql("SELECT response_due FROM {schema}.submissions") == [(False,)]
