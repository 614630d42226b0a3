"""Cancels beside other calls: many at once, busy lanes, resets, agents and workers that are gone."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.acceptance import cancel_agents
from tests.acceptance.cancel_stage import (
    Stage,
    check_alone,
    ended,
    make_settings,
    producer,
    roles,
    staged,
    workers,
)
from think_celery import AgentHandle
from think_celery.core.submission import CancelResult
from think_celery.dev.servers import Addresses
from think_celery.engine import presence
from think_celery.engine.drain import drain
from think_celery.engine.runtime import Runtime
from think_celery.ledger import lanes
from think_celery.testing import eventually


@pytest.fixture(scope="module")
def stage(servers: Addresses, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A worker process, and this process as the producer."""
    with staged(make_settings(servers), tmp_path_factory.mktemp("crowds")) as made:
        yield made


def together(*calls: Callable[[], Any]) -> list[Any]:
    """Make calls at the same moment, each in a thread, and return their answers."""
    line = threading.Barrier(len(calls))

    def start(call: Callable[[], Any]) -> Any:
        line.wait(10)
        return call()

    with ThreadPoolExecutor(len(calls)) as threads:
        return [each.result() for each in [threads.submit(start, call) for call in calls]]


def check_result(handle: AgentHandle, result: CancelResult) -> None:
    """The answer of a cancel is what the row says for ever."""
    row = ended(handle, result.submission_id)
    assert result.submission is not None
    if result.outcome == "cancelled":
        assert (row.status, row.error) == ("aborted", result.submission.error)
        assert row.completed_at == result.submission.completed_at
    else:
        assert result.outcome == "already_terminal"
        assert (row.status, row.completed_at) == (result.submission.status, result.submission.completed_at)


@pytest.mark.spec("S67")
@pytest.mark.parametrize("running", [False, True], ids=["waiting", "running"])
def test_two_cancels_at_once(stage: Stage, running: bool) -> None:
    """One cancelled it, the other came too late; the reason is the first one's."""
    for number in range(8):
        handle = stage.handle(f"twice-{running}-{number}")
        if running:
            handle.submit_messages("first", submission_id="target", metadata={"pause": 60})
            stage.told(handle.address.name, "said")
        else:
            handle.pause()
            handle.submit_messages("first", submission_id="target")
        cancel = handle.cancel_submission
        results = together(*[partial(cancel, "target", f"reason {n}") for n in range(2)])
        assert sorted(result.outcome for result in results) == ["already_terminal", "cancelled"]
        (first,) = [n for n, result in enumerate(results) if result.outcome == "cancelled"]
        assert results[first].previous_status == ("running" if running else "pending")
        row = ended(handle, "target")
        assert row.error == f"reason {first}"
        assert all(result.submission.error == f"reason {first}" for result in results)
        hooks = [each.data for each in stage.notes(handle.address.name, "hook")]
        assert hooks == ["pending", "running", "aborted"][:: 1 if running else 2]


@pytest.mark.spec("S68")
def test_fifty_cancels_beside_fifty_ends(stage: Stage) -> None:
    """Ten agents with five short turns each; every turn is cancelled about when it ends."""
    handles = [stage.handle(f"crowd-{number}") for number in range(10)]
    plan = {"pieces": 1, "pause": 0.005}
    for handle in handles:
        for number in range(5):
            handle.submit_messages(str(number), submission_id=str(number), metadata=plan)
    results = together(
        *[lambda h=h, n=n: (h, h.cancel_submission(str(n), "stop")) for n in range(5) for h in handles]
    )
    for handle, result in results:
        check_result(handle, result)
    for handle in handles:
        last = handle.submit_messages("last", metadata=plan)
        assert ended(handle, last.submission_id).status == "completed"
        notes = stage.notes(handle.address.name)
        check_alone(notes)
        applied = [r.submission_id for h, r in results if h is handle and r.messages_applied is not False]
        assert [text for role, text in roles(handle) if role == "user"] == [*sorted(applied), "last"]
        ends = [each.submission for each in notes if each.what == "hook" and each.data not in _STARTS]
        assert sorted(ends) == sorted([*"01234", last.submission_id])


_STARTS = ("pending", "running")


def test_cancel_all_and_by_metadata(stage: Stage) -> None:
    handle = stage.handle("all")
    plans = [{"pause": 60, "tenant": "a"}, {"tenant": "b"}, {"tenant": "a"}, {"tenant": "a", "more": 1}, {}]
    for number, plan in enumerate(plans):
        handle.submit_messages(str(number), submission_id=str(number), metadata=plan)
    stage.told("all", "said", submission="0")
    some = handle.cancel_all("tenant left", metadata={"tenant": "a"})
    assert [(r.submission_id, r.previous_status, r.messages_applied) for r in some] == [
        ("0", "running", True),
        ("2", "pending", False),
        ("3", "pending", False),
    ]
    rest = handle.cancel_all()
    for result in [*some, *rest]:
        assert result.outcome == "cancelled"
        check_result(handle, result)
    assert handle.cancel_all("again") == []
    aborted = {row.submission_id: row.error for row in handle.list_submissions(status="aborted")}
    assert {"0": "tenant left", "2": "tenant left", "3": "tenant left"}.items() <= aborted.items()
    assert {r.submission_id for r in [*some, *rest]} == set(aborted)
    assert handle.cancel_all(metadata={"tenant": "nobody"}) == []


@pytest.mark.timeout(120)
@pytest.mark.parametrize("how", ["interrupt", "rollback"])
def test_making_way_under_load(stage: Stage, how: Any) -> None:
    """Four callers per agent take each other's place: order holds, never two at once, the last answers."""
    handles = [stage.handle(f"{how}-{number}") for number in range(4)]
    plan = {"pieces": 3, "pause": 0.01}

    def push(handle: AgentHandle, caller: int) -> None:
        for number in range(8):
            handle.submit_messages(f"{caller}.{number}", metadata=plan, if_busy=how)

    together(*[lambda h=h, c=c: push(h, c) for h in handles for c in range(4)])
    for handle in handles:
        rows = sorted(handle.list_submissions(limit=100), key=lambda row: row.position or 0)
        assert len(rows) == 32
        assert ended(handle, rows[-1].submission_id).status == "completed"
        ends = {row.submission_id: ended(handle, row.submission_id) for row in rows}
        notes = stage.notes(handle.address.name)
        check_alone(notes)
        starts = [each.submission for each in notes if each.what == "start"]
        assert starts == [row.submission_id for row in rows if row.submission_id in starts], "in order"
        kept = [row for row in ends.values() if row.status == "completed"]
        answers = [message for message in handle.get_messages() if message["role"] == "assistant"]
        linked = [row.message_id for row in ends.values() if row.message_id is not None]
        assert [message["id"] for message in answers] == linked
        assert all(row.status in {"completed", "aborted"} for row in ends.values())
        if how == "rollback":
            assert linked == [row.message_id for row in kept]
            assert len(handle.get_messages()) == 2 * len(kept)


@pytest.mark.timeout(120)
@pytest.mark.spec("S95", "S96", "S97")
def test_clearing_at_any_moment_of_a_turn(stage: Stage) -> None:
    """What ran before leaves nothing in the fresh conversation, whenever it was cleared."""

    def clear(number: int) -> None:
        handle = stage.handle(f"clear-{number}")
        plan = {"pieces": 5, "pause": 0.01}
        handle.submit_messages("old", submission_id="old", metadata=plan)
        handle.submit_messages("older", submission_id="waiting", metadata=plan)
        threading.Event().wait(number * 0.004)
        handle.clear_messages()
        handle.submit_messages("fresh", submission_id="fresh", metadata={"pieces": 1, "pause": 0})
        assert ended(handle, "fresh").status == "completed"
        assert roles(handle) == [("user", "fresh"), ("assistant", "0 ")]
        check_alone(stage.notes(handle.address.name))
        check_cleared(stage, handle)

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(clear, range(40)))


def check_cleared(stage: Stage, handle: AgentHandle) -> None:
    """Skipped rows were never started, aborted ones were; both link no message, and both were told once."""
    for submission_id in ("old", "waiting"):
        row = ended(handle, submission_id)
        notes = [each for each in stage.notes(handle.address.name) if each.submission == submission_id]
        hooks = [each.data for each in notes if each.what == "hook"]
        assert [each for each in hooks if each not in _STARTS] == [row.status]
        # A lane at work may take a row before its producer has called the hook of the acceptance.
        assert [each for each in hooks if each != "pending"][-1] == row.status
        if row.status == "skipped":
            assert not any(each.what == "start" for each in notes)
        if row.status != "completed":
            assert row.status in {"skipped", "aborted"}
            assert row.message_id is None


@pytest.mark.parametrize("type_name", ["Racer", "Tooled"])
def test_deleting_an_agent_while_it_answers(stage: Stage, type_name: str) -> None:
    """Nothing is left; whoever uses the name again starts afresh, once the old turn has stopped."""
    name = f"patient-deleted-{type_name}"
    handle = stage.handle(name, type_name)
    handle.submit_messages("old", submission_id="one", metadata={"pause": 60, "stopping": 0.7})
    handle.submit_messages("older", submission_id="two")
    stage.told(name, "said" if type_name == "Racer" else "tool")
    threading.Event().wait(0.15)  # a bell during the first moments of a turn waits for it in any case
    assert handle.delete_agent()
    assert handle.list_submissions() == []
    assert handle.get_messages() == []
    stage.open_gate(f"tool-{name}")
    handle.submit_messages("fresh", submission_id="one", metadata={"pieces": 1, "pause": 0})
    row = ended(handle, "one")
    assert (row.status, row.position) == ("completed", 1)
    assert [text for role, text in roles(handle) if role == "user"] == ["fresh"]
    assert len(handle.get_messages()) == 2
    check_alone(stage.notes(name))


def test_a_deleted_agent_leaves_no_lane_and_no_stream(stage: Stage) -> None:
    handle = stage.handle("gone")
    receipt = handle.submit_messages("old", metadata={"gate": "gone"})
    stage.told("gone", "said")
    assert handle.delete_agent()
    stage.told("gone", "stop")
    redis = stage.runtime.streams.client

    async def keys() -> list[bytes]:
        return [key async for key in redis.scan_iter(f"{stage.settings.redis_prefix}:*")]

    def left() -> list[bytes]:
        return [key for key in stage.runtime.loop.run(keys()) if receipt.submission_id.encode() in key]

    eventually(lambda: not handle.delete_agent(), describe="the lane is gone")
    eventually(lambda: not [key for key in left() if b"abort" not in key], describe="the stream is gone")


@pytest.mark.spec("S64")
def test_a_cancelled_id_is_deleted_and_used_again(stage: Stage) -> None:
    """Also while the first turn is still stopping: nothing of it reaches the second."""
    handle = stage.handle("again")
    handle.submit_messages("old", submission_id="same", metadata={"gate": "again", "stopping": 0.3})
    stage.told("again", "said")
    assert handle.cancel_submission("same", "stop").outcome == "cancelled"
    assert handle.delete_submission("same")
    receipt = handle.submit_messages("new", submission_id="same", metadata={"pieces": 2, "pause": 0})
    assert receipt.accepted
    row = ended(handle, "same")
    assert (row.status, row.error, row.position) == ("completed", None, 2)
    answer = handle.get_message(row.message_id or "")
    assert answer is not None
    assert answer["parts"][-1]["text"] == "0 1 "
    check_alone(stage.notes("again"))


@pytest.mark.spec("S64")
def test_a_cancelled_id_is_deleted_used_again_and_cancelled(stage: Stage) -> None:
    handle = stage.handle("again-cancelled")
    handle.submit_messages("old", submission_id="same", metadata={"gate": "never"})
    stage.told("again-cancelled", "said")
    handle.cancel_submission("same", "stop")
    assert handle.delete_submission("same")
    handle.pause()
    handle.submit_messages("new", submission_id="same")
    assert handle.cancel_submission("same", "stop again").previous_status == "pending"
    row = ended(handle, "same")
    assert (row.status, row.error, row.message_id) == ("aborted", "stop again", None)


@pytest.mark.timeout(60)
def test_cancelled_while_no_worker_was_up(servers: Addresses, tmp_path: Path) -> None:
    """The revoke is lost, the ledger is not: it does not run, and its task says why."""
    with producer(make_settings(servers), tmp_path) as stage:
        kept, lost = stage.handle("kept"), stage.handle("lost")
        uid = lost.submit_messages("never", submission_id="target").request_id
        result = lost.cancel_submission("target", "nobody needs it")
        assert (result.outcome, result.previous_status) == ("cancelled", "pending")
        kept.submit_messages("hi", submission_id="kept", metadata={"pieces": 1})
        with workers(stage) as process:
            assert ended(kept, "kept").status == "completed"
            eventually(lambda: "submission target is aborted: nobody needs it" in process.log.read_text())
            assert stage.notes("lost", "start") == []
            assert lost.get_messages() == []
            assert ended(lost, "target") == result.submission
            assert uid == "target"
            assert lost.delete_submission("target")
            lost.submit_messages("at last", submission_id="target", metadata={"pieces": 1})
            assert ended(lost, "target").status == "completed"


@pytest.mark.timeout(60)
def test_the_bell_of_a_cancelled_row_is_revoked(servers: Addresses, tmp_path: Path) -> None:
    """It waits behind a busy worker, which throws it away: Flower shows it as revoked."""
    with producer(make_settings(servers, concurrency=1), tmp_path) as stage, workers(stage) as process:
        busy, waiting = stage.handle("busy", "Silent"), stage.handle("waiting")
        busy.submit_messages("go on", submission_id="busy")
        stage.told("busy", "start")
        waiting.submit_messages("never", submission_id="target")
        assert waiting.cancel_submission("target").previous_status == "pending"
        busy.cancel_submission("busy")
        eventually(lambda: "Discarding revoked task: think.run_turn" in process.log.read_text())
        waiting.submit_messages("at last", submission_id="next", metadata={"pieces": 1})
        assert ended(waiting, "next").status == "completed"
        assert roles(waiting) == [("user", "at last"), ("assistant", "0 ")]


def test_a_deleted_row_does_not_keep_the_lane_of_a_dead_worker(
    make_runtime: Callable[..., Runtime], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Cancelled, deleted, and then its worker died before it had stopped."""
    monkeypatch.setenv(cancel_agents.FOLDER, str(tmp_path))
    dead, living = make_runtime(), make_runtime()
    handle = AgentHandle("Silent", "wedged", runtime=living)
    handle.submit_messages("old", submission_id="old")
    assert isinstance(
        lanes.claim(dead.database, handle.address, worker=dead.worker_id, claim_id=uuid4()), lanes.Claim
    )
    handle.cancel_submission("old")
    assert handle.delete_submission("old")
    presence.leave(dead)
    handle.submit_messages("new", submission_id="new", metadata={"pause": 0})
    (orphan,) = lanes.orphans(living.database)
    assert lanes.rescue(living.database, orphan, error=None) is None
    drain(living, handle.address)
    row = handle.inspect_submission("new")
    assert row is not None
    assert row.status == "completed"


def test_an_agent_that_gives_up_a_task_of_its_own_does_not_wedge(stage: Stage) -> None:
    """Code may raise CancelledError although nobody cancelled the turn: that is an error like others."""
    handle = stage.handle("quitter", "Quitter")
    handle.submit_messages("quit", submission_id="quit")
    handle.submit_messages("exit", submission_id="exit")
    handle.submit_messages("stay", submission_id="stay")
    for submission_id, words in (("quit", "CancelledError"), ("exit", "SystemExit(1)")):
        row = ended(handle, submission_id)
        assert row.status == "error"
        assert words in (row.error or "")
    assert ended(handle, "stay").status == "completed"
