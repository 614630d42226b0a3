"""Stopping a turn when the signals fail: flags that cannot be read, that are old, or that are many."""

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from uuid import UUID, uuid4

import pytest
import redis
from pydantic import SecretStr

from tests.engine.stage import PATIENCE_SECONDS, Stage, beside, kill, scripts
from tests.stream.conftest import start_server
from think_celery.core.address import Address
from think_celery.core.routing import abort_channel, abort_key
from think_celery.core.submission import Status
from think_celery.engine import presence
from think_celery.engine.runtime import Runtime
from think_celery.engine.sweep import sweep
from think_celery.ledger import lanes
from think_celery.ledger.lanes import Applied, Ending
from think_celery.stream import abort
from think_celery.testing import eventually

Make = Callable[..., Runtime]


def another(stage: Stage, runtime: Runtime | None = None) -> Stage:
    """Return a second agent (of another process)."""
    return Stage(runtime or stage.runtime, Address("Witness", f"w-{uuid4()}"))


def uid_of(stage: Stage, submission_id: str) -> UUID:
    ((uid,),) = stage.sql("SELECT uid FROM {schema}.submissions WHERE submission_id = :id", id=submission_id)
    return UUID(str(uid))


def ask_to_stop(runtime: Runtime, uid: UUID, attempt: int) -> None:
    runtime.loop.run(abort.send(runtime.streams, uid, attempt), timeout=PATIENCE_SECONDS)


def is_idle(runtime: Runtime) -> bool:
    """True when a process runs no turn, now that it has read the ledger again."""
    presence.beat(runtime)
    return not runtime.running


@contextmanager
def absent() -> Iterator[str]:
    """No server at all: port 1 of this machine is nobody's."""
    yield "redis://127.0.0.1:1/0"


@contextmanager
def frozen() -> Iterator[str]:
    """A server that takes every request and answers none."""
    server = start_server()
    os.kill(server._process.pid, signal.SIGSTOP)
    try:
        yield f"redis://127.0.0.1:{server.port}/0"
    finally:
        os.kill(server._process.pid, signal.SIGCONT)
        server.terminate()


@contextmanager
def cutting() -> Iterator[str]:
    """A server that closes the connection as soon as something is asked."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listening.accept()
                    with suppress(OSError), connection:
                        connection.recv(1)

        with beside(serve):
            yield f"redis://127.0.0.1:{listening.getsockname()[1]}/0"
            listening.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("broken", [absent, frozen, cutting])
def test_a_flag_that_cannot_be_read_neither_fails_a_turn_nor_hides_its_cancel(
    make_runtime: Make, stage: Stage, broken: Callable[[], AbstractContextManager[str]]
) -> None:
    """Field report: a broken pipe while the flag was read left the turn running for ever."""
    with broken() as url:
        runtime = make_runtime(redis_url=SecretStr(url), redis_timeout=0.5)
        worker = Stage(runtime, stage.address)
        first = worker.handle.submit_messages("say first")
        assert worker.drain().startswith("1 completed")
        with worker.holding() as row:
            found = stage.handle.cancel_submission(row.submission_id, "stop")
            assert (found.outcome, found.previous_status) == ("cancelled", "running")
            eventually(lambda: is_idle(runtime))  # long before the turn gives up
            assert not worker.script.gate.is_set()
        third = worker.handle.submit_messages("say third")
        assert worker.drain().startswith("1 completed")
        ended = [stage.row(each) for each in (first.submission_id, row.submission_id, third.submission_id)]
        assert [each.status for each in ended] == ["completed", "aborted", "completed"]
        assert stage.texts("assistant") == ["first ", "begun ", "third "]
        runtime.close()


def test_redis_may_go_in_the_middle_of_a_turn_that_is_then_cancelled(
    make_runtime: Make, stage: Stage
) -> None:
    server = start_server()
    try:
        runtime = make_runtime(redis_url=SecretStr(f"redis://127.0.0.1:{server.port}/0"))
        worker = Stage(runtime, stage.address)
        with worker.holding() as row:
            server.terminate()
            stage.handle.cancel_submission(row.submission_id, "stop")
            eventually(lambda: is_idle(runtime))  # long before the turn gives up
            assert not worker.script.gate.is_set()
        assert stage.row(row.submission_id).status is Status.ABORTED
        with worker.holding() as row:
            pass
        assert stage.row(row.submission_id).status is Status.COMPLETED
        runtime.close()
    finally:
        server.terminate()


def test_the_flag_of_an_old_attempt_stops_no_new_one(make_runtime: Make) -> None:
    """Field report: a resumed turn aborted itself, since its flag named no attempt."""
    watcher = make_runtime(lease_seconds=0.2, sweep_seconds=0.05)
    stage = Stage(watcher, Address("Witness", f"w-{uuid4()}"))
    receipt = stage.handle.submit_messages("hold")
    dead = make_runtime()
    uid = stage.claim(dead).row.uid
    ask_to_stop(watcher, uid, 1)
    kill(dead)
    eventually(lambda: sweep(watcher).rescued == 1)
    bystander = another(stage)
    with stage.draining(), bystander.holding() as other:
        assert stage.script.begun.wait(PATIENCE_SECONDS)
        ask_to_stop(watcher, uid, 1)
        # Heard on the same channel, so the process has read both once this one stops.
        ask_to_stop(watcher, uid_of(bystander, other.submission_id), 1)
        assert bystander.wait(other.submission_id).status is Status.ABORTED
        assert stage.row(receipt.submission_id).status is Status.RUNNING
        stage.script.gate.set()
    ended = stage.row(receipt.submission_id)
    assert (ended.status, ended.attempt) == (Status.COMPLETED, 2)
    assert stage.texts("assistant") == ["begun ended"]


def test_the_flag_of_an_attempt_that_nobody_heard_of_stops_it_at_its_start(stage: Stage) -> None:
    receipt = stage.handle.submit_messages("hold")
    ask_to_stop(stage.runtime, uid_of(stage, receipt.submission_id), 1)
    with stage.draining() as worker:
        worker.join(PATIENCE_SECONDS)
        assert not worker.is_alive()
    assert stage.row(receipt.submission_id).status is Status.ABORTED


def test_flags_do_not_pile_up(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Field report: the markers of cancelled turns stayed for ever."""
    settings, worker, count = stage.runtime.settings, stage.runtime.worker_id, 150
    expected = set()
    for number in range(count):
        if number == count // 2:
            monkeypatch.setattr(abort, "FLAG_SECONDS", 1)
        receipt = stage.handle.submit_messages("say never")
        held = stage.claim()
        expected |= {abort_key(settings.redis_prefix, held.row.uid, 1)} if number < count // 2 else set()
        for _ in range(2):
            stage.handle.cancel_submission(receipt.submission_id)
        lanes.settle(stage.runtime.database, held, Ending(Status.ABORTED), worker=worker, next_claim=None)
    with redis.Redis.from_url(settings.redis_url.get_secret_value(), decode_responses=True) as client:
        # The lasting ones are still there when the short ones are gone.
        eventually(lambda: set(client.keys(f"{settings.redis_prefix}:turn:*:abort:*")) == expected)
        left = [client.ttl(key) for key in expected]
        assert 0 < min(left) <= max(left) <= 3600
        assert [key for key in client.keys(f"{settings.redis_prefix}:*") if client.ttl(key) < 0] == []


def test_a_cancel_beside_the_append_takes_the_messages_or_leaves_them(stage: Stage) -> None:
    """Field report: a submission cancelled while it waited dropped its message into the chat later."""
    database, worker = stage.runtime.database, stage.runtime.worker_id
    kept: list[str] = []
    for number in range(60):
        text = f"say {number}"
        receipt = stage.handle.submit_messages(text)
        held = stage.claim()
        gate, applied = threading.Barrier(2), list[Applied]()

        def append(
            held: lanes.Claim = held, gate: threading.Barrier = gate, applied: list[Applied] = applied
        ) -> None:
            gate.wait(PATIENCE_SECONDS)
            applied.append(lanes.apply(database, held).outcome)

        with beside(append):
            gate.wait(PATIENCE_SECONDS)
            found = stage.handle.cancel_submission(receipt.submission_id)
        assert (found.outcome, found.previous_status) == ("cancelled", "running")
        assert (applied[0] is not Applied.ENDED) == found.messages_applied
        kept += [text] if found.messages_applied else []
        lanes.settle(database, held, Ending(Status.ABORTED), worker=worker, next_claim=None)
        assert stage.texts() == kept


@pytest.mark.parametrize("by_itself", [True, False])
def test_a_turn_is_dead_when_its_lease_says_so_although_a_process_runs_it(
    make_runtime: Make, by_itself: bool
) -> None:
    """Field report: recovery trusted a set of active turns in memory, and skipped a dead one for hours."""
    runner = make_runtime(lease_seconds=0.5, sweep_seconds=0.05)
    judge = runner if by_itself else make_runtime(lease_seconds=0.5, sweep_seconds=0.05)
    stage = Stage(runner, Address("Witness", f"w-{uuid4()}"))
    with stage.holding() as row:
        assert runner.running
        eventually(lambda: sweep(judge).rescued == 1)  # the runner gives no sign of life
        assert runner.running
        assert stage.row(row.submission_id).status is Status.ERROR
        for _ in range(3):
            presence.beat(runner)
        eventually(lambda: not runner.running)
        assert not scripts[stage.address.name].gate.is_set()
    ended = stage.row(row.submission_id)
    assert (ended.status, ended.message_id) == (Status.ERROR, None)
    following = stage.handle.submit_messages("say next")
    assert stage.drain().startswith("1 completed")
    assert stage.row(following.submission_id).attempt == 1


@pytest.mark.spec("T49")
def test_a_turn_lives_as_long_as_its_lease_although_no_process_is_known_to_run_it(make_runtime: Make) -> None:
    judge = make_runtime(lease_seconds=0.5, sweep_seconds=0.05)
    stage = Stage(make_runtime(), Address("Witness", f"w-{uuid4()}"))
    receipt = stage.handle.submit_messages("say hi")
    stage.claim()
    end = threading.Event()
    sign = "UPDATE {schema}.workers SET heartbeat_at = clock_timestamp() WHERE worker_id = :worker"

    def live() -> None:
        while not end.wait(0.05):
            stage.sql(sign, worker=stage.runtime.worker_id)

    with beside(live):
        for _ in range(30):
            assert sweep(judge).rescued == 0
            end.wait(0.04)
        assert stage.row(receipt.submission_id).status is Status.RUNNING
        end.set()
    eventually(lambda: sweep(judge).rescued == 1)
    assert stage.drain().startswith("1 completed")
    assert stage.row(receipt.submission_id).attempt == 2


@pytest.mark.parametrize(
    "payload", [b"nonsense", b"[]", b'{"uid": 1}', b'{"uid": "x", "attempt": 1}', b"\xff"]
)
def test_what_is_no_abort_on_the_channel_stops_nothing_and_nobody(stage: Stage, payload: bytes) -> None:
    with stage.holding() as held:
        channel = abort_channel(stage.runtime.settings.redis_prefix)
        with closing(redis.Redis.from_url(stage.runtime.settings.redis_url.get_secret_value())) as client:
            client.publish(channel, payload)
        uid = uid_of(stage, held.submission_id)
        ask_to_stop(stage.runtime, uid, attempt=1)
        eventually(lambda: is_idle(stage.runtime))
