"""Deleting records, by id, by age and with the whole agent; what waits or runs goes with its agent only."""

import threading
from datetime import UTC, datetime, timedelta

import pytest
import redis

from tests.engine.stage import Stage, beside
from think_celery.core.address import Address
from think_celery.core.submission import TERMINAL, Status
from think_celery.testing import eventually


def fill(stage: Stage, count: int, status: str = "completed") -> None:
    """Insert ended rows, one a minute, the oldest first; the fastest way to many."""
    stage.handle.pause()  # makes the lane
    stage.sql(
        "INSERT INTO {schema}.submissions (agent_type, agent_name, submission_id, uid, request_id, kind,"
        " status, position, messages, body_hash, created_at, completed_at)"
        " SELECT :type, :name, 's' || n, gen_random_uuid(), 's' || n, 'submit', :status, n, '[]', '',"
        " clock_timestamp() - interval '1 day' + n * interval '1 minute',"
        " clock_timestamp() - interval '1 day' + n * interval '1 minute' FROM generate_series(1, :count) n",
        type=stage.address.type_name,
        name=stage.address.name,
        count=count,
        status=status,
    )
    stage.sql("UPDATE {schema}.agents SET last_position = :count, head_position = :count + 1", count=count)


@pytest.mark.spec("S89")
def test_a_finished_row_is_listed_deleted_and_gone(stage: Stage) -> None:
    receipt = stage.handle.submit_messages("say hi")
    stage.drain()
    (listed,) = stage.handle.list_submissions("completed")
    assert listed.submission_id == receipt.submission_id
    assert stage.handle.delete_submission(receipt.submission_id) is True
    assert stage.handle.inspect_submission(receipt.submission_id) is None
    assert stage.handle.list_submissions() == []
    assert stage.handle.delete_submission(receipt.submission_id) is False
    assert stage.texts() == ["say hi"], "messages stay"


@pytest.mark.spec("S92")
def test_what_waits_or_runs_or_is_unknown_is_not_deleted(stage: Stage) -> None:
    with stage.holding() as running:
        waiting = stage.handle.submit_messages("say x")
        for submission_id in (running.submission_id, waiting.submission_id, "unknown"):
            assert stage.handle.delete_submission(submission_id) is False
        assert stage.handle.delete_submissions() == 0
        assert stage.handle.delete_submissions(["pending", "running"]) == 0
    assert stage.wait(waiting.submission_id).status is Status.COMPLETED


@pytest.mark.spec("S90")
def test_bulk_deletion_by_status(stage: Stage) -> None:
    for said in ("say a", "say b", "error c"):
        stage.handle.submit_messages(said)
    stage.drain()
    cancelled = stage.handle.submit_messages("say d")
    stage.handle.cancel_submission(cancelled.submission_id)
    waiting = stage.handle.submit_messages("say e")
    assert stage.handle.delete_submissions("completed") == 2
    assert stage.handle.delete_submissions(["error", "pending", "error"]) == 1
    assert stage.handle.delete_submissions([]) == 0
    assert stage.handle.delete_submissions() == 1
    assert [row.submission_id for row in stage.handle.list_submissions()] == [waiting.submission_id]


@pytest.mark.spec("S86")
def test_the_cutoff_is_strict_and_comes_before_the_limit(stage: Stage) -> None:
    fill(stage, 3)
    first, second, third = (stage.row(f"s{number}").completed_at for number in (1, 2, 3))
    assert first is not None
    assert second is not None
    waiting = stage.handle.submit_messages("say x")
    assert stage.handle.delete_submissions(completed_before=first) == 0
    assert stage.handle.delete_submissions("completed", completed_before=second) == 1
    assert [row.submission_id for row in stage.handle.list_submissions()][1:] == ["s3", "s2"]
    assert third is not None
    assert stage.handle.delete_submissions(completed_before=third + timedelta(seconds=1), limit=1) == 1
    elsewhere = datetime.now(UTC).astimezone(tz=None)
    assert stage.handle.delete_submissions(completed_before=elsewhere) == 1
    assert [row.submission_id for row in stage.handle.list_submissions()] == [waiting.submission_id]


@pytest.mark.spec("S93")
def test_limits_of_bulk_deletion(stage: Stage) -> None:
    fill(stage, 900)
    assert stage.handle.delete_submissions(limit=0) == 1
    assert stage.handle.delete_submissions(limit=-3) == 1
    assert stage.handle.delete_submissions() == 100
    assert stage.handle.inspect_submission("s102") is None
    assert stage.handle.inspect_submission("s103") is not None
    assert stage.handle.delete_submissions(limit=10_000) == 500
    assert stage.handle.inspect_submission("s602") is None
    assert stage.handle.inspect_submission("s603") is not None
    assert stage.handle.delete_submissions(limit=500) == 298
    assert stage.handle.delete_submissions(limit=500) == 0


def test_every_terminal_status_can_be_deleted(stage: Stage) -> None:
    for status in sorted(TERMINAL):
        fill(stage, 1, status)
        assert stage.handle.delete_submissions(status) == 1


@pytest.mark.spec("S25")
def test_a_deleted_rows_id_and_key_are_free_again(stage: Stage) -> None:
    first = stage.handle.submit_messages("say old", submission_id="X", idempotency_key="K")
    stage.drain()
    assert not stage.handle.submit_messages("say old", idempotency_key="K").accepted
    assert stage.handle.delete_submission("X")
    again = stage.handle.submit_messages("say new", submission_id="Y", idempotency_key="K")
    assert (again.accepted, first.accepted) == (True, True)
    stage.drain()
    assert stage.row("Y").status is Status.COMPLETED
    assert stage.texts("assistant") == ["old ", "new "]


def test_deleting_one_agent_takes_everything_of_it_and_nothing_of_others(stage: Stage) -> None:
    other = Stage(stage.runtime, Address("Witness", stage.address.name + "-other"))
    for each in (stage, other):
        each.handle.submit_messages("say secret", webhook_url="http://127.0.0.1:9/done")
        each.drain()
        each.handle.submit_messages("say waiting")
    assert stage.handle.delete_agent() is True
    for table in ("submissions", "messages", "agents", "webhooks"):
        rows = stage.sql("SELECT * FROM {schema}." + table)
        assert rows, f"the other agent's {table} stay"
        assert stage.address.name + "'" not in repr(rows)
    prefix = stage.runtime.settings.redis_prefix
    with redis.Redis.from_url(stage.runtime.settings.redis_url.get_secret_value()) as client:
        logs = f"{prefix}:turn:*:log"
        eventually(lambda: len(list(client.scan_iter(logs))) == 1, describe="the other turn's stream")
    assert stage.handle.get_messages() == []
    assert stage.handle.list_submissions() == []
    assert stage.handle.delete_agent() is False
    assert other.drain() == "1 completed; lane is idle"
    assert stage.drain() == "nothing ran; lane is idle"


def test_a_turn_whose_agent_is_deleted_writes_nothing_more(stage: Stage) -> None:
    stage.handle.submit_messages("hold", submission_id="X")
    with stage.draining():
        assert stage.script.begun.wait(20)
        ((uid,),) = stage.sql("SELECT uid FROM {schema}.submissions")
        waiter: list[object] = []
        with beside(lambda: waiter.append(stage.handle.wait_for_submission("X", timeout=20))):
            assert stage.handle.delete_agent() is True
        assert waiter == [None]
        again = stage.handle.submit_messages("say new", submission_id="X")
        assert again.accepted
        stage.script.gate.set()
    prefix = stage.runtime.settings.redis_prefix
    with redis.Redis.from_url(stage.runtime.settings.redis_url.get_secret_value()) as client:
        eventually(lambda: not client.exists(f"{prefix}:turn:{uid}:log"), describe="no log stays")
    stage.drain()
    assert stage.texts() == ["say new"]
    assert stage.texts("assistant") == ["new "]


def test_nothing_is_left_of_an_agent_that_is_deleted_while_it_runs(stage: Stage) -> None:
    stage.handle.submit_messages("hold", submission_id="X", webhook_url="http://127.0.0.1:9/done")
    with stage.draining():
        assert stage.script.begun.wait(20)
        assert stage.handle.delete_agent() is True
    for table in ("submissions", "messages", "webhooks"):
        assert stage.sql("SELECT * FROM {schema}." + table) == [], table


def test_deleting_while_others_delete_counts_each_row_once(stage: Stage) -> None:
    fill(stage, 400)
    barrier = threading.Barrier(4)
    counts: list[int] = []

    def delete() -> None:
        barrier.wait(20)
        while count := stage.handle.delete_submissions(limit=30):
            counts.append(count)

    with beside(*[delete] * 4):
        pass
    assert sum(counts) == 400


@pytest.mark.parametrize("use", ["pause", "add"])
def test_a_name_that_is_used_again_while_the_deleted_agent_stops(stage: Stage, use: str) -> None:
    """What was done under the name since stays, although nothing was submitted."""
    with stage.holding():
        stage.handle.delete_agent()
        if use == "pause":
            stage.handle.pause()
        else:
            stage.handle.add_messages("a note")
    assert len(stage.sql("SELECT * FROM {schema}.agents")) == 1
    assert stage.handle.pause() is (use == "add"), "it is paused already, or not yet"
    assert stage.texts() == ([] if use == "pause" else ["a note"])
