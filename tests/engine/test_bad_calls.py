"""Calls that cannot be meant: refused by name and remedy, with nothing written; all else is data."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from tests.engine.stage import Stage
from think_celery.core.submission import Status
from think_celery.engine import ending
from think_celery.engine.runtime import Runtime
from think_celery.errors import CallerError, IdentityConflict, InvalidInput, WrongContext

NAIVE = datetime(2030, 1, 1)  # noqa: DTZ001
CYCLE: dict[str, Any] = {}
CYCLE["me"] = CYCLE
LOOP: list[Any] = []
LOOP.append(LOOP)
WEST = datetime.max.replace(tzinfo=timezone(timedelta(hours=-5)))
EAST = datetime.min.replace(tzinfo=timezone(timedelta(hours=5)))


def said(**more: Any) -> dict[str, Any]:
    return {"role": "user", "parts": [{"type": "text", "text": "hi"}], **more}


def test_messages(stage: Stage) -> None:
    for messages, told in [
        ([], "messages: the list is empty"),
        ((), "messages: the list is empty"),
        (lambda: [said()], "messages: is a function, which cannot be stored"),
        ([said, said()], r"messages\[0\]: is a function"),
        ([said(parts=[{"type": "data-x", "data": CYCLE}])], "messages"),
        ([said(parts=[{"type": "data-x", "data": LOOP}])], "messages"),
        ([said(parts=[{"type": "data-x", "data": object()}])], "messages"),
        ([said(parts=[{"type": "data-x", "data": float("inf")}])], "messages"),
        ([said(role="robot")], r"messages\[0\].role"),
        ([said(id="")], r"messages\[0\].id: must not be blank"),
        ([said(id="m"), said(id="m")], r"messages\[1\].id: is also the id of messages\[0\]"),
        ("  ", "is blank"),
        (None, "messages: must be text"),
        (7, "messages: must be text"),
    ]:
        with pytest.raises(InvalidInput, match=told):
            stage.handle.submit_messages(messages)
    assert stage.handle.list_submissions() == []
    assert stage.script.heard == []


def test_metadata(stage: Stage) -> None:
    for metadata in [CYCLE, {"loop": LOOP}, {1, 2}, "text", [1], {"x": {1}}, {"k\x00": 1}]:
        with pytest.raises(InvalidInput, match="metadata"):
            stage.handle.submit_messages("hi", metadata=metadata)
        with pytest.raises(InvalidInput, match="metadata"):
            stage.handle.list_submissions(metadata=metadata)
        with pytest.raises(InvalidInput, match="metadata"):
            stage.handle.cancel_all(metadata=metadata)
        assert stage.handle.list_submissions() == []


def test_sizes_are_told_with_their_limit(stage: Stage, make_runtime: Callable[..., Runtime]) -> None:
    small = Stage(make_runtime(max_metadata_bytes=1000, max_messages_bytes=5000), stage.address)
    with pytest.raises(InvalidInput, match=r"metadata: .*1[,.]?0\d\d .*1[,.]?000 "):
        small.handle.submit_messages("hi", metadata={"x": "y" * 1010})
    with pytest.raises(InvalidInput, match=r"messages: .*6[,.]?\d\d\d .*5[,.]?000 "):
        small.handle.submit_messages("x" * 6000)
    assert small.handle.list_submissions() == []
    assert small.handle.submit_messages("hi", metadata={"x": "y" * 900}).accepted


def test_ids(stage: Stage) -> None:
    for call in ["inspect_submission", "cancel_submission", "delete_submission", "rerun"]:
        for submission_id in ["", "  ", "a\x00", "x" * 501, None, 7]:
            with pytest.raises(InvalidInput, match="submission_id"):
                getattr(stage.handle, call)(submission_id)
            with pytest.raises(InvalidInput, match="submission_id"):
                stage.handle.wait_for_submission(submission_id)


def test_unknown_ids_are_answers(stage: Stage) -> None:
    assert stage.handle.inspect_submission("nobody") is None
    assert stage.handle.wait_for_submission("nobody") is None
    assert stage.handle.delete_submission("nobody") is False
    assert stage.handle.cancel_submission("nobody").outcome == "not_found"
    assert stage.handle.rerun("nobody") is None
    assert stage.handle.delete_agent() is False
    assert stage.handle.cancel_all() == []


def test_times(stage: Stage) -> None:
    for option in ["not_before", "not_after"]:
        for value in [NAIVE, "2030-01-01", 1893456000, WEST, EAST]:
            with pytest.raises(InvalidInput, match=option):
                stage.handle.submit_messages("hi", **{option: value})
            assert stage.handle.list_submissions() == []


def test_a_time_to_start_after_the_latest_start(stage: Stage) -> None:
    now = datetime.now(UTC)
    with pytest.raises(InvalidInput, match="not_after: is earlier than not_before"):
        stage.handle.submit_messages("hi", not_before=now, not_after=now - timedelta(seconds=1))
    elsewhere = now.astimezone(timezone(timedelta(hours=9)))
    row = stage.handle.submit_messages("hi", not_before=elsewhere, not_after=elsewhere)
    assert row.not_before == now
    assert row.to_json()["notBefore"].endswith("Z")


def test_cutoffs(stage: Stage) -> None:
    for value in [NAIVE, "2030-01-01", 5, WEST, EAST]:
        with pytest.raises(InvalidInput, match="completed_before"):
            stage.handle.delete_submissions(completed_before=value)


def test_run_timeouts(stage: Stage) -> None:
    for value in [0, -1, float("nan"), -0.0, True, "5", timedelta(seconds=-1), timedelta(0)]:
        with pytest.raises(InvalidInput, match="run_timeout"):
            stage.handle.submit_messages("hi", run_timeout=value)
        assert stage.handle.list_submissions() == []


def test_extreme_run_timeouts_are_kept(stage: Stage) -> None:
    for value in [1e-9, 1e300, 10**400, float("inf"), timedelta.max]:
        receipt = stage.handle.submit_messages("say hi", run_timeout=value)  # type: ignore[arg-type]
        stage.drain()
        row = stage.wait(receipt.submission_id)
        assert row.status is (Status.ERROR if value == 1e-9 else Status.COMPLETED)
        assert row.run_timeout is not None
        assert "runTimeout" in row.to_json()


def test_wait_timeouts(stage: Stage) -> None:
    for value in [-1, float("nan"), True, "5", timedelta(seconds=-1), [1]]:
        with pytest.raises(InvalidInput, match="timeout"):
            stage.handle.wait_for_submission("X", timeout=value)
        with pytest.raises(InvalidInput, match="timeout"):
            asyncio.run(stage.async_handle.wait_for_submission("X", timeout=value))


def test_statuses(stage: Stage) -> None:
    for value in ["done", ["pending", "done"], "", 5, [5], [["pending"]], [None], object()]:
        with pytest.raises(InvalidInput, match="status"):
            stage.handle.list_submissions(status=value)
        with pytest.raises(InvalidInput, match="status"):
            stage.handle.delete_submissions(status=value)


def test_kinds(stage: Stage) -> None:
    for value in ["chats", 5, [["chat"]]]:
        with pytest.raises(InvalidInput, match="kind"):
            stage.handle.list_submissions(kind=value)


def test_limits(stage: Stage) -> None:
    for value in ["5", None, 1.5, True]:
        with pytest.raises(InvalidInput, match="limit"):
            stage.handle.list_submissions(limit=value)
        with pytest.raises(InvalidInput, match="limit"):
            stage.handle.delete_submissions(limit=value)


@pytest.mark.parametrize("value", [10**30, -(10**30)])
def test_absurd_limits_are_clamped(stage: Stage, value: int) -> None:
    stage.handle.submit_messages("say hi")
    stage.drain()
    assert len(stage.handle.list_submissions(limit=value)) == 1
    assert stage.handle.delete_submissions(limit=value) == 1


@pytest.mark.parametrize("reason", ["nul \x00", "half \ud83d", ValueError("nul \x00")])
def test_reasons(stage: Stage, reason: object) -> None:
    receipt = stage.handle.submit_messages("hi")
    with pytest.raises(InvalidInput, match="reason: contains a NUL"):
        stage.handle.cancel_submission(receipt.submission_id, reason)
    with pytest.raises(InvalidInput, match="reason"):
        stage.handle.cancel_all(reason)
    assert stage.row(receipt.submission_id).status is Status.PENDING


def test_busy_policies(stage: Stage) -> None:
    for value in ["wait", "", None, 1, ["reject"]]:
        with pytest.raises(InvalidInput, match=r"if_busy: .* use enqueue, reject, interrupt, rollback"):
            stage.handle.submit_messages("hi", if_busy=value)
        assert stage.handle.list_submissions() == []


def test_webhook_addresses(stage: Stage) -> None:
    for value in ["", "example.com", "ftp://example.com", "http://", "http://u:p@example.com", 5]:
        with pytest.raises(InvalidInput, match="webhook_url"):
            stage.handle.submit_messages("hi", webhook_url=value)
        assert stage.handle.list_submissions() == []


def test_connections(stage: Stage) -> None:
    for value in ["connection", 5, object(), object]:
        with pytest.raises(InvalidInput, match=r"connection: .* no SQLAlchemy Connection or Session"):
            stage.handle.submit_messages("hi", connection=value)
        assert stage.handle.list_submissions() == []


def test_conflicting_identities_change_nothing(stage: Stage) -> None:
    stage.handle.submit_messages("hi", submission_id="A", idempotency_key="K1")
    stage.handle.submit_messages("hi", submission_id="B")
    before = stage.handle.list_submissions()
    for submission_id, key in (("A", "K2"), ("B", "K1"), ("C", "K1")):
        with pytest.raises(IdentityConflict):
            stage.handle.submit_messages("hi", submission_id=submission_id, idempotency_key=key)
    known = stage.handle.submit_messages("hi", submission_id="B", idempotency_key="new")
    assert (known.accepted, known.idempotency_key) == (False, None), "the key is not attached"
    assert stage.handle.list_submissions() == before
    assert stage.script.statuses() == ["pending", "pending"]


def test_class_names(stage: Stage) -> None:
    for value in ["", "a b\x00", "x" * 201, None, 5]:
        with pytest.raises(CallerError):
            ending.pause_class(stage.runtime, value, paused=True)


def test_every_blocking_call_in_an_event_loop_names_the_other_handle(stage: Stage) -> None:
    calls: list[Callable[[], object]] = [
        lambda: stage.handle.submit_messages("hi"),
        lambda: stage.handle.cancel_submission("X"),
        lambda: stage.handle.cancel_all(),
        lambda: stage.handle.clear_messages(),
        lambda: stage.handle.delete_agent(),
        lambda: stage.handle.pause(),
        lambda: stage.handle.rerun("X"),
        lambda: stage.handle.wait_for_submission("X"),
    ]

    async def use() -> None:
        for call in calls:
            with pytest.raises(WrongContext, match="await AsyncAgentHandle"):
                call()

    asyncio.run(use())
