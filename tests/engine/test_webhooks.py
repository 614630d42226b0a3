"""Finish webhooks from the outbox to a real receiver: prompt, signed, at least once, in nobody's way."""

import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from pydantic import SecretStr
from sqlalchemy import text

from tests import agents  # noqa: F401  (registers the classes)
from tests.engine.receiver import Receiver, receiving
from think_celery import AgentHandle
from think_celery.core.address import Address
from think_celery.core.submission import Status
from think_celery.core.webhook import signature
from think_celery.engine import posting
from think_celery.engine.drain import drain
from think_celery.engine.runtime import Runtime
from think_celery.engine.sweep import sweep
from think_celery.engine.webhooks import deliver, poke
from think_celery.ledger import webhooks as outbox
from think_celery.testing import eventually

SECRET = "whsec-1"
ROOT = Path(__file__).resolve().parents[2]
Make = Callable[..., Runtime]


class Bells:
    """Carries bells nowhere and keeps them."""

    def __init__(self) -> None:
        self.rung: list[Any] = []

    def publish(self, task: str, args: Any, *, task_id: str, queue: str) -> None:
        self.rung.append(args)

    def revoke(self, task_ids: Any) -> None:
        """Nothing to void."""

    def close(self) -> None:
        """Nothing to close."""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as server:
        yield server


@pytest.fixture
def make_worker(make_runtime: Make) -> Make:
    """Make worker processes that may reach the receiver."""
    return lambda **more: make_runtime(webhook_allow_private=True, **more)


@pytest.fixture
def producer(runtime: Runtime) -> Iterator[Runtime]:
    """A process that ends submissions and never delivers, as one that dies at once."""
    process = Runtime(runtime.settings, Bells())
    yield process
    process.close()


@pytest.fixture
def handle(producer: Runtime, agent: Address) -> AgentHandle:
    return AgentHandle(agent.type_name, agent.name, runtime=producer)


def ended(handle: AgentHandle, url: str, submission_id: str | None = None) -> str:
    """Submit, and cancel at once; nobody was told so far."""
    receipt = handle.submit_messages("hi", submission_id=submission_id, webhook_url=url)
    handle.cancel_submission(receipt.submission_id, "not needed")
    return receipt.submission_id


def waiting(runtime: Runtime) -> list[Any]:
    """Return the outbox."""
    query = text(runtime.database.sql("SELECT * FROM {schema}.webhooks ORDER BY created_at, webhook_id"))
    return list(runtime.database.run(lambda connection: connection.execute(query).all()))


def change(runtime: Runtime, assignments: str) -> None:
    statement = text(runtime.database.sql(f"UPDATE {{schema}}.webhooks SET {assignments}"))
    runtime.database.run(lambda connection: connection.execute(statement))


@pytest.mark.spec("S66")
def test_cancel_and_report_are_one_write_and_it_is_delivered_once(
    producer: Runtime, handle: AgentHandle, make_worker: Make, receiver: Receiver
) -> None:
    submission_id = ended(handle, receiver.url("/end"))
    query = text(
        producer.database.sql(
            "SELECT s.status, s.xmin = w.xmin FROM {schema}.submissions s"
            " JOIN {schema}.webhooks w ON w.submission_uid = s.uid"
        )
    )
    (row,) = producer.database.run(lambda connection: connection.execute(query).all())
    assert tuple(row) == ("aborted", True), "one transaction wrote both"
    workers = [make_worker() for _ in range(3)]
    with ThreadPoolExecutor(3) as pool:
        assert sum(pool.map(deliver, workers)) == 1
    assert receiver.told() == [submission_id]
    assert waiting(producer) == []
    handle.cancel_submission(submission_id)
    assert deliver(workers[0]) == 0
    assert len(receiver.requests) == 1


def test_a_turn_s_end_is_told_at_once(
    make_worker: Make, agent: Address, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    worker = make_worker(webhook_secret=SecretStr(SECRET))
    posting.load()
    handle = AgentHandle(agent.type_name, agent.name, runtime=worker)
    receipt = handle.submit_messages("say hi", metadata={"a": 1}, webhook_url=receiver.url("/end?token=t"))
    drain(worker, agent)
    settled = time.monotonic()
    eventually(lambda: receiver.requests)
    assert time.monotonic() - settled < 2.0
    request = receiver.only
    (headers, body) = request.headers, json.loads(request.body)
    row = handle.inspect_submission(receipt.submission_id)
    assert row is not None
    assert row.status is Status.COMPLETED
    assert body == {
        "type": "submission.ended",
        "webhookId": headers["think-webhook-id"],
        "submission": row.to_json(),
    }
    assert request.path == "/end?token=t"
    assert headers["content-type"] == "application/json"
    assert headers["think-submission"] == receipt.submission_id
    assert headers["host"] == f"127.0.0.1:{receiver.port}"
    assert headers["user-agent"].startswith("think-celery/")
    stamp = int(headers["think-timestamp"])
    assert headers["think-signature"] == signature(SECRET, timestamp=stamp, body=request.body)
    assert abs(time.time() - stamp) < 60
    assert UUID(body["webhookId"])
    eventually(lambda: "webhook.delivered" in caplog.text)
    assert "token=t" not in caplog.text


def test_the_documented_check_accepts_it_and_nothing_else(
    handle: AgentHandle, make_worker: Make, receiver: Receiver
) -> None:
    page = (ROOT / "docs" / "webhooks.md").read_text(encoding="utf-8")
    found: dict[str, Any] = {}
    exec(page.partition("```python\n")[2].partition("```")[0], found)  # noqa: S102
    ended(handle, receiver.url())
    assert deliver(make_worker(webhook_secret=SecretStr(SECRET))) == 1
    request = receiver.only
    is_genuine = found["is_genuine"]
    assert is_genuine(SECRET, request.headers, request.body)
    assert not is_genuine("other", request.headers, request.body)
    assert not is_genuine(SECRET, request.headers, request.body + b" ")
    assert not is_genuine(SECRET, {**request.headers, "think-timestamp": "1"}, request.body)


def test_without_a_secret_nothing_is_signed_and_any_id_fits(
    handle: AgentHandle, make_worker: Make, receiver: Receiver
) -> None:
    ended(handle, receiver.url(), "Bestellung ü 1%")
    assert deliver(make_worker()) == 1
    request = receiver.only
    assert "think-signature" not in request.headers
    assert request.headers["think-submission"] == "Bestellung%20%C3%BC%201%25"
    assert request.submission_id == "Bestellung ü 1%"


@pytest.mark.spec("S148")
def test_a_failed_delivery_is_kept_and_made_good(
    producer: Runtime, handle: AgentHandle, make_worker: Make, receiver: Receiver
) -> None:
    receiver.statuses = [500]
    submission_id = ended(handle, receiver.url())
    worker = make_worker()
    assert deliver(worker) == 0
    (row,) = waiting(producer)
    assert (row.attempts, row.error) == (1, "answered 500")
    assert timedelta(0) < row.due_at - row.created_at < timedelta(seconds=10)
    eventually(lambda: waiting(producer) == [], describe="the same process comes back after a second")
    assert receiver.told() == [submission_id] * 2
    assert len({request.headers["think-webhook-id"] for request in receiver.requests}) == 1
    assert receiver.requests[0].body == receiver.requests[1].body


def test_the_wait_doubles(
    producer: Runtime, handle: AgentHandle, make_worker: Make, receiver: Receiver
) -> None:
    receiver.statuses = [503]
    ended(handle, receiver.url())
    change(producer, "attempts = 5")
    worker = make_worker()
    assert deliver(worker) == 0
    (row,) = waiting(producer)
    assert row.attempts == 6
    assert deliver(worker) == 0
    assert len(receiver.requests) == 1, "not due yet"
    assert timedelta(seconds=30) < row.due_at - row.created_at < timedelta(seconds=60)


@pytest.mark.spec("S149")
def test_after_twelve_hours_it_is_given_up(
    producer: Runtime,
    handle: AgentHandle,
    make_worker: Make,
    receiver: Receiver,
    caplog: pytest.LogCaptureFixture,
) -> None:
    worker = make_worker()
    receiver.statuses = [500, 500]
    submission_id = ended(handle, receiver.url("/secret-path"))
    change(producer, "created_at = created_at - interval '11 hours', attempts = 100")
    assert deliver(worker) == 0
    assert len(waiting(producer)) == 1
    change(producer, "created_at = created_at - interval '61 minutes', due_at = created_at")
    caplog.set_level(logging.ERROR, "think_celery")
    assert deliver(worker) == 0
    assert waiting(producer) == []
    assert f"webhook.given_up webhook={receiver.requests[0].headers['think-webhook-id']}" in caplog.text
    assert f"submission={submission_id} host=127.0.0.1 attempt=102 error=answered 500" in caplog.text
    assert "secret-path" not in caplog.text


@pytest.mark.spec("S150")
def test_what_a_dead_process_ended_another_one_tells(
    producer: Runtime, handle: AgentHandle, make_worker: Make, receiver: Receiver
) -> None:
    drain(producer, handle.address)
    receipt = handle.submit_messages("error boom", webhook_url=receiver.url())
    drain(producer, handle.address)
    producer.close()
    worker = make_worker()
    sweep(worker)
    eventually(lambda: receiver.told() == [receipt.submission_id])
    assert json.loads(receiver.only.body)["submission"]["error"] == "boom"
    eventually(lambda: waiting(worker) == [])
    sweep(worker)
    assert deliver(worker) == 0
    assert len(receiver.requests) == 1


@pytest.mark.spec("S150")
def test_what_a_process_died_with_another_one_tells_once_the_lease_ends(
    producer: Runtime, handle: AgentHandle, make_worker: Make, receiver: Receiver
) -> None:
    ended(handle, receiver.url())
    (dead,) = outbox.claim(producer.database, lease=timedelta(milliseconds=300), limit=25)
    assert dead.attempts == 1, "counted before it is made"
    worker = make_worker()
    assert deliver(worker) == 0
    assert eventually(lambda: deliver(worker)) == 1
    late = {"error": "late", "wait": timedelta(hours=1), "give_up": timedelta(0)}
    ended(handle, receiver.url())
    (lost,) = outbox.claim(producer.database, lease=timedelta(0), limit=25)
    (held,) = outbox.claim(producer.database, lease=timedelta(hours=1), limit=25)
    assert not outbox.postpone(producer.database, lost, **late)  # type: ignore[arg-type]
    assert [row.error for row in waiting(producer)] == [None], "who lost the lease writes nothing"
    assert outbox.postpone(producer.database, held, **late)  # type: ignore[arg-type]


def test_a_producer_rings_and_a_worker_that_hears_it_tells(
    producer: Runtime, handle: AgentHandle, make_worker: Make, receiver: Receiver
) -> None:
    receipt = handle.submit_messages("hi", webhook_url=receiver.url())
    bells = producer.dispatcher._publisher
    assert isinstance(bells, Bells)
    before = len(bells.rung)
    handle.cancel_submission(receipt.submission_id)
    assert len(bells.rung) == before + 1
    assert receiver.requests == []
    drain(make_worker(), handle.address)
    eventually(lambda: receiver.told() == [receipt.submission_id])


def test_a_backlog_is_worked_off_by_all_and_told_once(
    producer: Runtime, handle: AgentHandle, make_worker: Make, receiver: Receiver
) -> None:
    wanted = [ended(handle, receiver.url()) for _ in range(70)]
    workers = [make_worker(), make_worker()]
    for worker in workers:
        poke(worker)
        poke(worker)
    eventually(lambda: waiting(producer) == [], timeout=30)
    assert sorted(receiver.told()) == sorted(wanted)
    assert all(worker.deliveries.free == 25 for worker in workers)


@pytest.mark.parametrize("path", ["/hold", "/drip"])
def test_a_slow_receiver_delays_neither_the_sweep_nor_the_others(
    producer: Runtime, handle: AgentHandle, make_worker: Make, receiver: Receiver, path: str
) -> None:
    worker = make_worker(webhook_timeout=3.0)
    posting.load()
    slow = [ended(handle, receiver.url(path)) for _ in range(10)]
    sweep(worker)
    eventually(lambda: sorted(receiver.told()) == sorted(slow))
    quick = ended(handle, receiver.url("/quick"))
    started = time.monotonic()
    sweep(worker)
    assert time.monotonic() - started < 0.5
    eventually(lambda: quick in receiver.told())
    assert not any(row.error for row in waiting(producer)), "the slow ones are still waited for"
    eventually(lambda: {row.error for row in waiting(producer)} == {"no answer within 3 s"})
    assert len(waiting(producer)) == 10


def test_closing_does_not_wait_for_a_slow_receiver(
    handle: AgentHandle, make_worker: Make, receiver: Receiver
) -> None:
    worker = make_worker(webhook_timeout=60.0)
    ended(handle, receiver.url("/hold"))
    poke(worker)
    eventually(lambda: receiver.requests)
    started = time.monotonic()
    worker.close()
    assert time.monotonic() - started < 6.0
    poke(worker)
    (row,) = waiting(handle._runtime)  # type: ignore[arg-type]
    assert row.attempts == 1, "kept for others"


def test_nobody_there_and_nonsense(
    producer: Runtime, handle: AgentHandle, make_worker: Make, receiver: Receiver
) -> None:
    """One that cannot even be read harms none of the others."""
    worker = make_worker()
    with socket.create_server(("127.0.0.1", 0)) as free:
        closed = free.getsockname()[1]
    ended(handle, f"http://127.0.0.1:{closed}/")
    ended(handle, receiver.url())
    change(producer, f"payload = payload - 'agent_type' WHERE url LIKE '%{closed}/'")
    assert deliver(worker) == 1
    (row,) = waiting(producer)
    assert row.error == "KeyError: 'agent_type'"
    ended(handle, f"http://127.0.0.1:{closed}/")
    assert deliver(worker) == 0
    assert "cannot be reached at 127.0.0.1" in waiting(producer)[1].error


def test_the_address_stays_inside(handle: AgentHandle, make_worker: Make, receiver: Receiver) -> None:
    receipt = handle.submit_messages("hi", webhook_url=receiver.url("/secret-path"))
    result = handle.cancel_submission(receipt.submission_id)
    row = handle.inspect_submission(receipt.submission_id)
    assert deliver(make_worker()) == 1
    shown = [receipt, result, row, *handle.list_submissions(), receiver.only.body]
    assert not [value for value in shown if "secret-path" in str(value) or "has_webhook" in str(value)]


def test_the_setting_s_address_takes_what_names_none(
    make_worker: Make, agent: Address, receiver: Receiver
) -> None:
    worker = make_worker(webhook_url=receiver.url("/all"))
    handle = AgentHandle(agent.type_name, agent.name, runtime=worker)
    handle.submit_messages("say hi")
    handle.submit_messages("say ho", webhook_url=receiver.url("/own"))
    gate = threading.Thread(target=drain, args=(worker, agent))
    gate.start()
    eventually(lambda: sorted(request.path for request in receiver.requests) == ["/all", "/own"])
    gate.join()


def test_a_deleted_agent_s_reports_go_with_it(
    handle: AgentHandle, make_worker: Make, receiver: Receiver
) -> None:
    ended(handle, receiver.url())
    handle.delete_agent()
    assert deliver(make_worker()) == 0
    assert receiver.requests == []


def test_a_refused_address_is_given_up_at_once(
    producer: Runtime,
    handle: AgentHandle,
    runtime: Runtime,
    receiver: Receiver,
    caplog: pytest.LogCaptureFixture,
) -> None:
    ended(handle, receiver.url("/", "localhost"))
    assert deliver(runtime) == 0
    assert waiting(producer) == []
    assert receiver.requests == []
    assert "webhook.given_up" in caplog.text
    assert "is not public and therefore refused" in caplog.text
