"""Turns from submit to settled in one process; everything is real but the bell, which is rung by hand."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import text

from tests import agents  # noqa: F401  (registers the classes)
from think_celery import AgentHandle, message_text
from think_celery.core.address import Address
from think_celery.core.submission import Status
from think_celery.engine.drain import drain
from think_celery.engine.runtime import Runtime
from think_celery.engine.sweep import sweep
from think_celery.errors import IdentityConflict, InvalidInput
from think_celery.ledger import lanes, workers
from think_celery.settings import Settings
from think_celery.testing import eventually


@pytest.fixture
def handle(runtime: Runtime, agent: Address) -> AgentHandle:
    return AgentHandle(agent.type_name, agent.name, runtime=runtime)


def test_submit_drain_inspect(runtime: Runtime, handle: AgentHandle) -> None:
    receipt = handle.submit_messages("say one two", metadata={"source": "test"})
    assert (receipt.accepted, receipt.status) == (True, Status.PENDING)
    assert receipt.request_id == receipt.submission_id
    assert handle.get_messages() == []
    assert drain(runtime, handle.address) == "1 completed; lane is idle"
    done = handle.inspect_submission(receipt.submission_id)
    assert done is not None
    assert done.status is Status.COMPLETED
    assert done.metadata == {"source": "test"}
    assert done.created_at <= done.started_at <= done.first_chunk_at <= done.completed_at  # type: ignore[operator]
    asked, answered = handle.get_messages()
    assert (message_text(asked), message_text(answered)) == ("say one two", "one two ")
    assert answered["id"] == done.message_id
    assert handle.get_message(answered["id"]) == answered
    assert handle.get_message("unknown") is None


@pytest.mark.spec("S1")
def test_nothing_runs_inside_the_accepting_call(runtime: Runtime, handle: AgentHandle) -> None:
    receipt = handle.submit_messages("hello")
    row = handle.inspect_submission(receipt.submission_id)
    assert row is not None
    assert (row.status, row.attempt) == (Status.PENDING, 0)
    drain(runtime, handle.address)
    assert drain(runtime, handle.address) == "nothing ran; lane is idle"
    ended = handle.inspect_submission(receipt.submission_id)
    assert ended is not None
    assert (ended.status, ended.attempt) == (Status.COMPLETED, 1)


@pytest.mark.spec("S3")
def test_an_empty_list_is_refused(handle: AgentHandle) -> None:
    with pytest.raises(InvalidInput, match="messages: the list is empty"):
        handle.submit_messages([])
    assert handle.list_submissions() == []


@pytest.mark.spec("S4")
def test_an_empty_list_is_refused_before_the_key_is_looked_up(handle: AgentHandle) -> None:
    handle.submit_messages("hi", idempotency_key="K")
    with pytest.raises(InvalidInput, match="empty"):
        handle.submit_messages([], idempotency_key="K")


@pytest.mark.spec("S9")
def test_bad_metadata_is_refused_unless_the_key_is_known(handle: AgentHandle) -> None:
    cyclic: dict[str, Any] = {}
    cyclic["me"] = cyclic
    for bad in (cyclic, {"when": object()}, ["no", "object"], {"n": float("nan")}, {"z": "\x00"}):
        with pytest.raises(InvalidInput, match="metadata"):
            handle.submit_messages("hi", metadata=bad)  # type: ignore[arg-type]
    assert handle.list_submissions() == []
    first = handle.submit_messages("hi", idempotency_key="K")
    again = handle.submit_messages("hi", idempotency_key="K", metadata=cyclic)
    assert (again.accepted, again.submission_id) == (False, first.submission_id)
    with pytest.raises(InvalidInput, match="metadata"):
        handle.submit_messages("hi", idempotency_key="other", metadata=cyclic)
    assert len(handle.list_submissions()) == 1


@pytest.mark.spec("S13", "S15")
def test_a_pending_turns_messages_are_not_in_the_conversation(runtime: Runtime, handle: AgentHandle) -> None:
    running = handle.submit_messages("sleep 0.6", idempotency_key="K")
    worker = threading.Thread(target=drain, args=(runtime, handle.address))
    worker.start()
    eventually(lambda: handle.inspect_submission(running.submission_id).status == "running")  # type: ignore[union-attr]
    again = handle.submit_messages("sleep 0.6", idempotency_key="K")
    assert (again.accepted, again.submission_id) == (False, running.submission_id)
    assert (again.request_id, again.status) == (running.request_id, Status.RUNNING)
    eventually(lambda: len(handle.get_messages()) == 1)
    waiting = handle.submit_messages("second")
    assert [message_text(m) for m in handle.get_messages()] == ["sleep 0.6"]
    worker.join(20)
    assert [message_text(m) for m in handle.get_messages()][:3] == ["sleep 0.6", "sleeping slept", "second"]
    ended = handle.inspect_submission(waiting.submission_id)
    assert ended is not None
    assert ended.status is Status.COMPLETED


@pytest.mark.spec("S16")
def test_fifty_callers_with_one_key_make_one_submission(runtime: Runtime, handle: AgentHandle) -> None:
    barrier = threading.Barrier(50)

    def call(_: int) -> tuple[bool, str]:
        barrier.wait(20)
        receipt = handle.submit_messages("hi", idempotency_key="K")
        return receipt.accepted, receipt.submission_id

    with ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(call, range(50)))
    assert sorted(accepted for accepted, _ in answers) == [False] * 49 + [True]
    assert len({submission_id for _, submission_id in answers}) == 1
    drain(runtime, handle.address)
    assert [m["role"] for m in handle.get_messages()] == ["user", "assistant"]


@pytest.mark.spec("S17")
def test_the_first_payload_wins(runtime: Runtime, handle: AgentHandle) -> None:
    handle.submit_messages("say first", submission_id="X")
    again = handle.submit_messages("say second", submission_id="X")
    assert not again.accepted
    drain(runtime, handle.address)
    assert message_text(handle.get_messages()[0]) == "say first"


@pytest.mark.spec("S18")
def test_conflicting_identities_raise(handle: AgentHandle) -> None:
    handle.submit_messages("hi", submission_id="A", idempotency_key="K")
    with pytest.raises(IdentityConflict, match="belongs to submission 'A'"):
        handle.submit_messages("hi", submission_id="B", idempotency_key="K")
    assert handle.inspect_submission("B") is None


@pytest.mark.spec("S22")
def test_a_finished_submission_is_never_run_again(runtime: Runtime, handle: AgentHandle) -> None:
    for verb, status in (("say hi", "completed"), ("error no", "error")):
        first = handle.submit_messages(verb, idempotency_key=verb)
        drain(runtime, handle.address)
        again = handle.submit_messages(verb, idempotency_key=verb)
        assert (again.accepted, again.submission_id, again.status) == (False, first.submission_id, status)
        assert drain(runtime, handle.address) == "nothing ran; lane is idle"


@pytest.mark.spec("S29")
def test_blank_identities_are_refused(handle: AgentHandle) -> None:
    for name in ("submission_id", "idempotency_key"):
        for bad in ("", "  ", "a\x00b", "x" * 501, 7):
            with pytest.raises(InvalidInput, match=name):
                handle.submit_messages("hi", **{name: bad})  # type: ignore[arg-type]


@pytest.mark.spec("S30")
def test_a_row_without_a_bell_runs_when_the_lane_is_tried(runtime: Runtime, handle: AgentHandle) -> None:
    receipt = handle.submit_messages("hello", submission_id="given")
    drain(runtime, handle.address)
    done = handle.inspect_submission("given")
    assert done is not None
    assert (done.status, done.request_id) == (Status.COMPLETED, receipt.submission_id)
    assert len(handle.get_messages()) == 2


@pytest.mark.spec("S31")
def test_answers_come_in_order_of_acceptance(runtime: Runtime, handle: AgentHandle) -> None:
    for number in range(6):
        handle.submit_messages(f"say {number}")
    drain(runtime, handle.address)
    answers = [message_text(m).strip() for m in handle.get_messages() if m["role"] == "assistant"]
    assert answers == [str(number) for number in range(6)]


@pytest.mark.spec("S33")
def test_two_bells_at_once_run_each_row_once(make_runtime: Callable[..., Runtime], agent: Address) -> None:
    one, two = make_runtime(), make_runtime()
    handle = AgentHandle(agent.type_name, agent.name, runtime=one)
    for number in range(10):
        handle.submit_messages(f"say {number}")
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda runtime: drain(runtime, agent), [one, two, one, two]))
    assert [row.attempt for row in handle.list_submissions()] == [1] * 10
    assert len(handle.get_messages()) == 20


@pytest.mark.spec("S34", "S41")
def test_a_failing_turn_ends_in_error_and_the_next_one_runs(runtime: Runtime, handle: AgentHandle) -> None:
    bad = handle.submit_messages("error boom")
    good = handle.submit_messages("say fine")
    assert drain(runtime, handle.address) == "1 error, 1 completed; lane is idle"
    failed = handle.inspect_submission(bad.submission_id)
    assert failed is not None
    assert (failed.status, failed.error) == (Status.ERROR, "boom")
    assert failed.message_id is not None, "what was said before the failure is kept"
    done = handle.inspect_submission(good.submission_id)
    assert done is not None
    assert done.status is Status.COMPLETED


@pytest.mark.spec("S45", "S46")
def test_message_id_names_the_turns_own_message(runtime: Runtime, handle: AgentHandle) -> None:
    first = handle.submit_messages("say one")
    silent = handle.submit_messages("silent")
    drain(runtime, handle.address)
    one, none = (handle.inspect_submission(r.submission_id) for r in (first, silent))
    assert one is not None
    assert none is not None
    assert message_text(handle.get_message(one.message_id or "") or {}) == "one "
    assert (none.status, none.message_id) == (Status.COMPLETED, None)


def test_chunks_are_folded(runtime: Runtime, handle: AgentHandle) -> None:
    handle.submit_messages("chunks")
    drain(runtime, handle.address)
    parts = handle.get_messages()[1]["parts"]
    assert {"type": "data-progress", "id": "p", "data": 2} in parts
    assert parts[-1] == {"type": "text", "text": "done", "state": "done"}


def test_a_class_without_model_says_what_is_missing(runtime: Runtime) -> None:
    handle = AgentHandle("NoModel", "x", runtime=runtime)
    receipt = handle.submit_messages("hi")
    drain(runtime, handle.address)
    row = handle.inspect_submission(receipt.submission_id)
    assert row is not None
    assert "override get_model()" in (row.error or "")


def test_an_unknown_class_is_left_to_another_worker(runtime: Runtime) -> None:
    handle = AgentHandle("Elsewhere", "x", runtime=runtime)
    receipt = handle.submit_messages("hi")
    assert drain(runtime, handle.address).startswith("left pending: class Elsewhere is not loaded")
    row = handle.inspect_submission(receipt.submission_id)
    assert row is not None
    assert row.status is Status.PENDING


def test_a_long_lane_is_handed_over(make_runtime: Callable[..., Runtime], agent: Address) -> None:
    runtime = make_runtime(drain_turns=3)
    handle = AgentHandle(agent.type_name, agent.name, runtime=runtime)
    for number in range(5):
        handle.submit_messages(f"say {number}")
    assert drain(runtime, agent) == "3 completed; handed over"
    assert drain(runtime, agent) == "2 completed; lane is idle"


def test_a_bell_at_a_busy_lane_leaves_it_alone(make_runtime: Callable[..., Runtime], agent: Address) -> None:
    one, two = make_runtime(), make_runtime()
    handle = AgentHandle(agent.type_name, agent.name, runtime=one)
    receipt = handle.submit_messages("sleep 0.5")
    worker = threading.Thread(target=drain, args=(one, agent))
    worker.start()
    eventually(lambda: handle.inspect_submission(receipt.submission_id).status == "running")  # type: ignore[union-attr]
    assert drain(two, agent) == f"busy: worker {one.worker_id} runs this lane and goes on"
    worker.join(20)


def test_the_sweeper_brings_back_what_a_dead_worker_held(
    make_runtime: Callable[..., Runtime], agent: Address
) -> None:
    watcher = make_runtime(lease_seconds=0.2, sweep_seconds=0.05)
    handle = AgentHandle(agent.type_name, agent.name, runtime=watcher)
    unstarted = handle.submit_messages("say again")
    dead = make_runtime()
    held = lanes.claim(dead.database, agent, worker=dead.worker_id, claim_id=dead.worker_id)
    assert isinstance(held, lanes.Claim)
    workers.leave(dead.database, dead.worker_id)
    assert sweep(watcher).rescued == 0, "nobody judges before a lease of unbroken view"
    eventually(lambda: sweep(watcher).rescued == 1)
    assert drain(watcher, agent) == "1 completed; lane is idle"
    row = handle.inspect_submission(unstarted.submission_id)
    assert row is not None
    assert (row.attempt, row.status) == (2, Status.COMPLETED)


def test_the_sweeper_ends_a_turn_that_had_begun(make_runtime: Callable[..., Runtime], agent: Address) -> None:
    watcher = make_runtime(lease_seconds=0.1, sweep_seconds=0.05)
    handle = AgentHandle(agent.type_name, agent.name, runtime=watcher)
    begun = handle.submit_messages("say once")
    dead = make_runtime()
    held = lanes.claim(dead.database, agent, worker=dead.worker_id, claim_id=dead.worker_id)
    assert isinstance(held, lanes.Claim)
    lanes.apply(dead.database, held)
    workers.leave(dead.database, dead.worker_id)
    eventually(lambda: sweep(watcher).rescued == 1)
    row = handle.wait_for_submission(begun.submission_id, timeout=5)
    assert row is not None
    assert row.status is Status.ERROR
    assert (row.error or "").startswith("interrupted: the worker died")


def test_hostile_text_is_refused_at_the_door_and_cleaned_from_models(
    runtime: Runtime, handle: AgentHandle
) -> None:
    for bad in ("nul \x00", "half \ud83d"):
        with pytest.raises(InvalidInput, match=r"messages\[0\].parts\[0\].text"):
            handle.submit_messages(bad)
    receipt = handle.submit_messages("error nul \\x00 in a reason")
    drain(runtime, handle.address)
    assert handle.inspect_submission(receipt.submission_id).status is Status.ERROR  # type: ignore[union-attr]


def test_wait_sees_the_end_or_the_present(
    runtime: Runtime, agent: Address, settings: Settings, produce: Callable[[Settings], Runtime]
) -> None:
    handle = AgentHandle(agent.type_name, agent.name, runtime=produce(settings))
    receipt = handle.submit_messages("sleep 0.3")
    assert handle.wait_for_submission("unknown", timeout=1) is None
    assert handle.wait_for_submission(receipt.submission_id, timeout=0).status is Status.PENDING  # type: ignore[union-attr]
    assert handle.wait_for_submission(receipt.submission_id, timeout=0.05).status is Status.PENDING  # type: ignore[union-attr]
    worker = threading.Thread(target=drain, args=(runtime, handle.address))
    worker.start()
    ended = handle.wait_for_submission(receipt.submission_id, timeout=20)
    worker.join(20)
    assert ended is not None
    assert ended.status is Status.COMPLETED
    assert ended == handle.wait_for_submission(receipt.submission_id)


def test_stream_live_and_late_are_the_same(runtime: Runtime, handle: AgentHandle) -> None:
    receipt = handle.submit_messages("say a b c")
    live: list[Any] = []
    reader = threading.Thread(target=lambda: live.extend(handle.stream(receipt.submission_id)))
    reader.start()
    drain(runtime, handle.address)
    reader.join(20)
    late = list(handle.stream(receipt.submission_id))

    def said(events: list[Any]) -> str:
        return "".join(
            e.chunk["delta"] for e in events if e.kind == "chunk" and e.chunk["type"] == "text-delta"
        )

    assert said(live) == said(late) == "a b c "
    assert (late[-1].kind, late[-1].status) == ("end", "completed")
    middle = next(e for e in late if e.kind == "chunk" and e.chunk.get("delta") == "b ")
    assert said(list(handle.stream(receipt.submission_id, after=middle.id))) == "c "


def test_sixty_threads_submit_while_the_broker_is_frozen(runtime: Runtime, agent: Address) -> None:
    """Covered with a real frozen server in tests/worker; here: a broker address where nobody answers."""
    frozen = runtime.settings.model_copy(
        update={"broker_url": type(runtime.settings.broker_url)("redis://127.0.0.1:1/0")}
    )
    from think_celery.worker.app import build_app
    from think_celery.worker.publisher import CeleryPublisher

    lonely = Runtime(frozen, CeleryPublisher(build_app(frozen), frozen))
    handle = AgentHandle(agent.type_name, agent.name, runtime=lonely)
    with ThreadPoolExecutor(60) as pool:
        receipts = list(pool.map(lambda n: handle.submit_messages(f"say {n}"), range(60)))
    assert all(receipt.accepted for receipt in receipts)
    lonely.close()


def test_listing_through_the_handle(runtime: Runtime, handle: AgentHandle) -> None:
    for number in range(3):
        handle.submit_messages(f"say {number}")
    assert [row.position for row in handle.list_submissions(limit=0)] == [3]
    assert len(handle.list_submissions(limit=1000)) == 3
    assert handle.list_submissions(status=[]) == []
    assert handle.list_submissions(status="completed") == []
    with pytest.raises(InvalidInput, match="status: 'done' is unknown; use pending, running"):
        handle.list_submissions(status="done")
    with pytest.raises(InvalidInput, match="limit"):
        handle.list_submissions(limit="5")  # type: ignore[arg-type]


def test_the_ledger_shows_only_what_is_documented(runtime: Runtime, handle: AgentHandle) -> None:
    receipt = handle.submit_messages("say hi")
    assert set(receipt.to_json()) == {
        "submissionId", "agent", "kind", "status", "requestId", "position", "attempt", "createdAt",
        "accepted", "payloadMatches",
    }  # fmt: skip
    assert receipt.to_json()["createdAt"].endswith("Z")
    statement = text(runtime.database.sql("SELECT count(*) FROM {schema}.submissions"))
    assert runtime.database.run(lambda connection: connection.execute(statement).scalar_one()) == 1
