"""`on_submission_status`: awaited, isolated, in order, and at least once of the end."""

import threading
from collections.abc import Callable
from datetime import timedelta
from uuid import uuid4

import pytest

from tests.engine.stage import PATIENCE_SECONDS, Stage, beside, kill, passed
from think_celery import AgentHandle, NestedTurnError, Think
from think_celery.agent import registry
from think_celery.core.address import Address
from think_celery.core.submission import Status, Submission
from think_celery.engine.drain import drain
from think_celery.engine.runtime import Runtime
from think_celery.engine.sweep import sweep
from think_celery.errors import WrongContext
from think_celery.ledger import classes, lanes
from think_celery.settings import Settings
from think_celery.testing import eventually

Make = Callable[..., Runtime]


@pytest.mark.spec("S2")
def test_the_whole_life_of_a_submission(stage: Stage) -> None:
    receipt = stage.handle.submit_messages(
        "say one two", submission_id="X", idempotency_key="K", metadata={"source": "test"}
    )
    assert (receipt.accepted, receipt.status, receipt.request_id) == (True, Status.PENDING, "X")
    assert receipt.metadata == {"source": "test"}
    assert stage.script.statuses() == ["pending"]
    stage.drain()
    row = stage.row("X")
    assert (row.status, row.request_id, row.idempotency_key) == (Status.COMPLETED, "X", "K")
    assert row.started_at is not None
    assert row.completed_at is not None
    asked, answered = stage.handle.get_messages()
    assert (asked["role"], answered["id"]) == ("user", row.message_id)
    assert stage.script.statuses() == ["pending", "running", "completed"]
    first, second, third = stage.script.heard
    assert (first.started_at, first.completed_at, first.attempt) == (None, None, 0)
    assert (second.started_at, second.message_id) == (row.started_at, None)
    assert third == row, "the hook is given the row as it was at that step"


@pytest.mark.spec("S8")
def test_a_raising_hook_harms_nobody(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    async def hook(told: Submission) -> None:
        raise RuntimeError("hook broke")

    stage.script.hook = hook
    receipt = stage.handle.submit_messages("say hi")
    assert receipt.accepted
    following = stage.handle.submit_messages("say next")
    stage.drain()
    assert stage.wait(receipt.submission_id).status is Status.COMPLETED
    assert stage.wait(following.submission_id).status is Status.COMPLETED
    assert stage.handle.cancel_submission(receipt.submission_id).outcome == "already_terminal"
    assert "hook broke" in caplog.text
    assert stage.script.statuses() == ["pending", "pending", *["running", "completed"] * 2]


def test_a_hook_that_never_ends_is_given_up(make_runtime: Callable[..., Runtime], stage: Stage) -> None:
    never = threading.Event()

    async def hook(told: Submission) -> None:
        await passed(never)

    stage.script.hook = hook
    short = Stage(make_runtime(hook_seconds=0.05), stage.address)
    receipt = short.handle.submit_messages("say hi")
    assert short.drain() == "1 completed; lane is idle"
    assert short.wait(receipt.submission_id).status is Status.COMPLETED


@pytest.mark.spec("S24")
def test_a_retry_tells_no_hook_and_starts_nothing(stage: Stage) -> None:
    with stage.holding("X") as row:
        again = stage.handle.submit_messages("hold", submission_id="X")
        assert (again.accepted, again.status, again.attempt) == (False, Status.RUNNING, 1)
        assert again.started_at == row.started_at
    assert stage.row("X").attempt == 1
    assert stage.drain() == "nothing ran; lane is idle"
    assert not stage.handle.submit_messages("hold", submission_id="X").accepted
    assert stage.script.statuses() == ["pending", "running", "completed"]


@pytest.mark.spec("S74")
def test_a_wait_ends_after_the_hook(stage: Stage) -> None:
    gate = threading.Event()

    async def hook(told: Submission) -> None:
        if told.is_terminal:
            await passed(gate)

    receipt = stage.handle.submit_messages("say never")
    stage.script.hook = hook
    ended: list[Submission] = []
    with beside(lambda: stage.handle.cancel_submission(receipt.submission_id)):
        eventually(lambda: stage.script.statuses()[-1] == "aborted")
        assert stage.row(receipt.submission_id).is_terminal
        with beside(lambda: ended.append(stage.wait(receipt.submission_id))):
            timed_out = stage.handle.wait_for_submission(receipt.submission_id, timeout=0.1)
            assert timed_out is not None
            assert timed_out.status is Status.ABORTED
            assert ended == []
            gate.set()
    assert [row.status for row in ended] == ["aborted"]


@pytest.mark.spec("S76")
def test_a_waiter_gets_the_end_of_a_row_that_is_deleted_before_its_hook(stage: Stage) -> None:
    """Delivered or not, the end is the last that is known of the row."""
    receipt = stage.handle.submit_messages("say never")
    stage.handle.pause()  # who waits runs it otherwise
    ended: list[Submission] = []
    with beside(lambda: ended.append(stage.wait(receipt.submission_id))):
        eventually(stage.is_heard)
        stage.sql(
            "UPDATE {schema}.submissions SET status = 'aborted', error = 'silently', hook_due = true,"
            " completed_at = clock_timestamp()"
        )
        eventually(lambda: stage.handle.delete_submission(receipt.submission_id))
    assert [(row.status, row.error) for row in ended] == [("aborted", "silently")]
    assert stage.handle.wait_for_submission(receipt.submission_id) is None


@pytest.mark.spec("S78")
def test_the_old_hook_does_not_end_a_wait_for_a_reused_id(
    stage: Stage, settings: Settings, produce: Callable[[Settings], Runtime]
) -> None:
    gate = threading.Event()
    outside = AgentHandle(stage.address.type_name, stage.address.name, runtime=produce(settings))

    async def hook(told: Submission) -> None:
        if told.is_terminal:
            await passed(gate)

    stage.handle.submit_messages("say old", submission_id="X")
    stage.script.hook = hook
    with beside(lambda: stage.handle.cancel_submission("X")):
        eventually(lambda: stage.script.statuses()[-1] == "aborted")
        assert stage.handle.delete_submission("X")
        assert stage.handle.submit_messages("say new", submission_id="X").accepted
        seen: list[Submission | None] = []
        with beside(lambda: seen.append(outside.wait_for_submission("X", timeout=0.4))):
            gate.set()
    assert [row is not None and row.status for row in seen] == [Status.PENDING]


@pytest.mark.spec("S79", "S11")
def test_a_turn_may_submit_to_its_own_agent_but_not_wait_for_it(stage: Stage) -> None:
    async def act(_: object) -> str:
        receipt = await stage.async_handle.submit_messages("say after")
        assert (receipt.accepted, receipt.status) == (True, Status.PENDING)
        with pytest.raises(WrongContext, match="which do not wait"):
            await stage.async_handle.wait_for_submission(receipt.submission_id)
        return receipt.submission_id

    stage.script.act = act
    stage.handle.submit_messages("act")
    assert stage.drain() == "2 completed; lane is idle"
    inner, outer = stage.handle.list_submissions()
    assert (inner.status, outer.status) == (Status.COMPLETED, Status.COMPLETED)
    assert stage.texts("assistant") == [inner.submission_id, "after "]


@pytest.mark.spec("S80", "S11")
def test_a_hook_may_submit_but_not_wait_for_its_own_submission(stage: Stage) -> None:
    refused: list[str] = []

    async def hook(told: Submission) -> None:
        try:
            await stage.async_handle.wait_for_submission(told.submission_id, timeout=1)
        except WrongContext as error:
            refused.append(str(error))
        if told.status is Status.COMPLETED and told.submission_id == "X":
            await stage.async_handle.submit_messages("say chained", submission_id="Y")

    stage.script.hook = hook
    stage.handle.submit_messages("say first", submission_id="X")
    stage.drain()
    assert stage.wait("Y").status is Status.COMPLETED
    assert len(refused) == 6
    assert stage.texts("assistant") == ["first ", "chained "]


def test_the_next_turn_starts_after_the_hook_of_the_last(stage: Stage) -> None:
    order: list[tuple[str, str, int]] = []

    async def hook(told: Submission) -> None:
        order.append((told.submission_id, told.status, len(await stage.async_handle.get_messages())))

    stage.script.hook = hook
    for name in ("A", "B"):
        stage.handle.submit_messages(f"say {name}", submission_id=name)
    stage.drain()
    assert order == [
        ("A", "pending", 0), ("B", "pending", 0),
        ("A", "running", 0), ("A", "completed", 2), ("B", "running", 2), ("B", "completed", 4),
    ]  # fmt: skip


def test_a_plain_function_may_be_the_hook(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[tuple[str, str]] = []

    def hook(self: Think, told: Submission) -> None:
        heard.append((told.status, threading.current_thread().name))

    monkeypatch.setattr(registry.get("Witness"), "on_submission_status", hook)
    stage.handle.submit_messages("say hi")
    stage.drain()
    assert [status for status, _ in heard] == ["pending", "running", "completed"]
    assert not any(name.startswith("think-loop") for _, name in heard), "it may block"


def test_an_end_whose_process_died_before_its_hook_is_told_by_another(
    stage: Stage, make_runtime: Callable[..., Runtime]
) -> None:
    receipt = stage.handle.submit_messages("say hi")
    dead = make_runtime()
    held = stage.claim(dead)
    lanes.apply(dead.database, held)
    lanes.settle(dead.database, held, lanes.Ending(Status.COMPLETED), worker=dead.worker_id, next_claim=None)
    # It had just taken the right to call the hook.
    taken = classes.take_hook(
        dead.database, stage.address, holder=uuid4(), lease=timedelta(seconds=0.2), done=None
    )
    assert taken is not None
    kill(dead)
    assert stage.script.statuses() == ["pending"]
    sweeper = make_runtime(nudge_after_seconds=0.001)
    eventually(lambda: sweep(sweeper).rung == 1, describe="the bell of a hook that is due")
    stage.drain()
    assert stage.wait(receipt.submission_id).status is Status.COMPLETED
    assert stage.script.statuses() == ["pending", "completed"]
    assert sweep(sweeper).rung == 0


def test_hooks_of_a_paused_agent_are_rung_too(stage: Stage, make_runtime: Callable[..., Runtime]) -> None:
    stage.handle.submit_messages("say hi")
    stage.handle.pause()
    stage.sql(
        "UPDATE {schema}.submissions"
        " SET status = 'aborted', completed_at = clock_timestamp(), hook_due = true"
    )
    sweeper = make_runtime(nudge_after_seconds=0.001)
    assert sweep(sweeper).rung == 1
    stage.drain()
    assert stage.script.statuses() == ["pending", "aborted"]


def test_a_requeued_row_is_told_as_pending_again(stage: Stage, make_runtime: Callable[..., Runtime]) -> None:
    receipt = stage.handle.submit_messages("say hi")
    dead, watcher = make_runtime(), make_runtime(lease_seconds=0.1, sweep_seconds=0.05)
    stage.claim(dead)
    kill(dead)
    eventually(lambda: sweep(watcher).rescued == 1)
    stage.drain()
    assert stage.wait(receipt.submission_id).status is Status.COMPLETED
    assert stage.script.statuses() == ["pending", "pending", "running", "completed"]


@pytest.mark.parametrize("end", ["runs", "is cancelled"])
def test_a_producer_without_the_class_leaves_the_hooks_to_a_worker(
    make_runtime: Callable[..., Runtime], end: str
) -> None:
    name = f"Late{uuid4().hex[:8]}"
    producer, address = make_runtime(), Address(name, "x")
    classes.declare(producer.database, {name: True})  # as a worker said that has it
    handle = AgentHandle(name, "x", runtime=producer)
    receipt = handle.submit_messages("say hi")
    if end == "is cancelled":
        handle.cancel_submission(receipt.submission_id)
        assert handle.wait_for_submission(receipt.submission_id, timeout=0.05) is not None
    heard: list[str] = []

    async def hook(self: Think, told: Submission) -> None:
        heard.append(told.status)

    async def answer(self: Think, turn: object):  # type: ignore[no-untyped-def]
        yield "hi"

    type(name, (Think,), {"on_submission_status": hook, "on_chat_message": answer, "__module__": __name__})
    try:
        drain(make_runtime(), address)
    finally:
        registry._types.pop(name)
    assert heard == (["pending", "running", "completed"] if end == "runs" else ["aborted"])
    ended = handle.wait_for_submission(receipt.submission_id, timeout=PATIENCE_SECONDS)
    assert ended is not None
    assert ended.is_terminal


def test_a_class_without_the_hook_costs_nothing(runtime: Runtime, agent: Address) -> None:
    handle = AgentHandle(agent.type_name, agent.name, runtime=runtime)
    receipt = handle.submit_messages("say hi")
    handle.cancel_submission(receipt.submission_id)
    stage = Stage(runtime, agent)
    assert stage.sql("SELECT count(*) FROM {schema}.submissions WHERE hook_due")[0][0] == 0


def test_no_hook_hears_of_a_row_that_is_only_read(stage: Stage) -> None:
    receipt = stage.handle.submit_messages("say hi")
    stage.handle.inspect_submission(receipt.submission_id)
    stage.handle.list_submissions()
    stage.handle.wait_for_submission(receipt.submission_id, timeout=0)
    assert stage.script.statuses() == ["pending"]


def test_no_turn_starts_before_its_acceptance_was_heard(stage: Stage, make_runtime: Make) -> None:
    """The lane is worked off elsewhere all the while; the submission waits for its producer's hook."""
    gate = threading.Event()

    async def hook(told: Submission) -> None:
        if told.status is Status.PENDING:
            await passed(gate)

    stage.script.hook = hook
    worker = make_runtime()
    with beside(lambda: stage.handle.submit_messages("say hi", submission_id="X")):
        eventually(lambda: stage.script.statuses() == ["pending"])
        assert drain(worker, stage.address) == "nothing ran; the next submission waits for its time"
        gate.set()
    drain(worker, stage.address)
    assert stage.script.statuses() == ["pending", "running", "completed"]


def test_a_hook_that_a_turn_waits_for_does_not_wait_for_the_lane(stage: Stage) -> None:
    """Of the start only: the lane is free when the hook hears of the end."""
    told: list[str] = []

    async def hook(submission: Submission) -> None:
        if submission.status is Status.RUNNING:
            with pytest.raises(NestedTurnError):
                await stage.async_handle.save_messages("say inner")
            with pytest.raises(NestedTurnError):
                await stage.async_handle.wait_until_stable()
        elif submission.is_terminal:
            told.append((await stage.async_handle.save_messages("say after")).status)

    stage.script.hook = hook
    stage.handle.submit_messages("say hi")
    stage.drain()
    assert told == ["completed"]
    assert stage.texts() == ["say hi", "say after"]
