"""Which queues a worker consumes, seen from outside: real processes, real servers."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.processes import Process, worker
from tests.worker.conftest import OwnValkey
from think_celery import AgentHandle, Submission
from think_celery.engine.runtime import Runtime
from think_celery.settings import Settings
from think_celery.testing import eventually
from think_celery.worker.app import build_app

Make = Callable[..., Settings]
Produce = Callable[[Settings], Runtime]
POOLS = ["threads", "prefork", "solo"]


def answer(runtime: Runtime, name: str, *, timeout: float = 20, agent: str = "Scripted") -> str:
    """Submit one turn and return its status when it ends."""
    handle = AgentHandle(agent, name, runtime=runtime)
    ended = handle.wait_for_submission(handle.submit_messages("say hi").submission_id, timeout=timeout)
    assert isinstance(ended, Submission)
    return str(ended.status)


def consumed(settings: Settings, name: str = "worker") -> set[str]:
    """Return the queues that a worker says it consumes, which is what Flower shows."""
    app = build_app(settings)
    with app.connection_for_write() as connection:  # kombu's pools are global and may hold a dead one
        inspect = app.control.inspect([f"{name}@test"], timeout=5, limit=1, connection=connection)
        found = inspect.active_queues() or {}
    return {queue["name"] for queues in found.values() for queue in queues}


def log_of(process: Process) -> str:
    return process.log.read_text()


@pytest.mark.parametrize("pool", POOLS)
def test_new_agents_are_heard_and_leave_no_bindings(
    make_settings: Make,
    produce: Produce,
    broker: "redis.Redis",
    tmp_path: Path,
    pool: str,
    settings: Settings,
) -> None:
    settings = make_settings(
        agents=("tests.agents",), pool=pool, concurrency=2, broker_url=settings.broker_url.get_secret_value()
    )
    runtime = produce(settings)
    with worker(settings, tmp_path) as process:
        for name in ("a", "b", "c.d", "ü/é"):
            assert answer(runtime, name) == "completed"
        queues = consumed(settings)
        assert {"think", "agent.Scripted.a", "agent.Scripted.c%2Ed"} <= queues
        bindings = {key for key in broker.keys("_kombu.binding.*") if "pidbox" not in key}
        assert bindings <= {"_kombu.binding.think", "_kombu.binding.celeryev"}
        assert not broker.keys("unacked*")
        assert process.stop() == 0
    text = log_of(process)
    assert "mingle" not in text
    assert "Traceback" not in text, text


def test_the_wanted_set_outlives_worker_and_redis(
    make_settings: Make, produce: Produce, own_valkey: OwnValkey, tmp_path: Path
) -> None:
    urls = {"redis_url": own_valkey.url, "broker_url": own_valkey.url}
    settings = make_settings(agents=("tests.agents",), **urls)
    runtime = produce(settings)
    with worker(settings, tmp_path):
        assert answer(runtime, "before") == "completed"
    with worker(settings, tmp_path, name="next") as process:
        eventually(lambda: "agent.Scripted.before" in consumed(settings, "next"))
        own_valkey.stop()
        eventually(lambda: "Connection to broker lost" in log_of(process))
        receipt = AgentHandle("Scripted", "meanwhile", runtime=runtime).submit_messages("say hi")
        assert receipt.accepted
        own_valkey.start()
        handle = AgentHandle("Scripted", "meanwhile", runtime=runtime)
        ended = handle.wait_for_submission(receipt.submission_id, timeout=40)
        assert ended is not None
        assert ended.status == "completed"
        assert {"agent.Scripted.before", "agent.Scripted.meanwhile"} <= consumed(settings, "next")
        assert answer(runtime, "after") == "completed"
    assert "Unrecoverable" not in log_of(process)


def test_an_idle_queue_is_dropped_and_comes_back(
    make_settings: Make, produce: Produce, tmp_path: Path
) -> None:
    settings = make_settings(
        agents=("tests.agents",), announce_seconds=0.3, refresh_seconds=0.3, sweep_seconds=0.3
    )
    runtime = produce(settings)
    with worker(settings, tmp_path) as process:
        assert answer(runtime, "a") == "completed"
        eventually(lambda: "queues.dropped count=1 first=agent.Scripted.a" in log_of(process))
        eventually(lambda: "agent.Scripted.a" not in consumed(settings))
        assert answer(runtime, "a") == "completed"
        for number in range(40):  # around the moment of the drop
            assert answer(runtime, "a", timeout=10) == "completed", number


def test_scope_type_has_one_queue_per_class(make_settings: Make, produce: Produce, tmp_path: Path) -> None:
    settings = make_settings(agents=("tests.agents",), queue_scope="type")
    runtime = produce(settings)
    with worker(settings, tmp_path):
        assert answer(runtime, "a") == "completed"
        types = {"agent.Scripted", "agent.Recorder", "agent.NoModel"}
        assert consumed(settings) == {"think", *types}


def test_fixed_queues_stay_fixed(make_settings: Make, produce: Produce, tmp_path: Path) -> None:
    settings = make_settings(agents=("tests.agents",))
    runtime = produce(settings)
    with worker(settings, tmp_path, "-Q", "agent.Scripted.alice", "-c", "1"):
        assert answer(runtime, "alice") == "completed"
        handle = AgentHandle("Scripted", "bob", runtime=runtime)
        waiting = handle.wait_for_submission(handle.submit_messages("say hi").submission_id, timeout=1)
        assert waiting is not None
        assert waiting.status == "pending"
        assert consumed(settings) == {"agent.Scripted.alice"}


def test_an_unknown_class_is_left_to_others(make_settings: Make, produce: Produce, tmp_path: Path) -> None:
    settings = make_settings(agents=("tests.agents",))
    runtime = produce(settings)
    with worker(settings, tmp_path):
        handle = AgentHandle("Elsewhere", "a", runtime=runtime)
        receipt = handle.submit_messages("say hi")
        assert answer(runtime, "b") == "completed"
        assert not [queue for queue in consumed(settings) if "Elsewhere" in queue]
        still = handle.inspect_submission(receipt.submission_id)
        assert still is not None
        assert still.status == "pending"


def test_a_worker_that_starts_before_its_ledger_waits(
    make_settings: Make, produce: Produce, tmp_path: Path
) -> None:
    from think_celery.ledger import migrate

    ready = make_settings(agents=("tests.agents",), database_timeout=1.0)
    settings = ready.model_copy(update={"schema_name": ready.schema_name + "_later"})
    with worker(settings, tmp_path) as process:
        eventually(lambda: "queues.unknown" in log_of(process))
        eventually(lambda: "think-heartbeat.failed" in log_of(process))
        migrate.upgrade(settings)
        assert answer(produce(settings), "a") == "completed"


def test_a_worker_that_starts_before_its_redis_waits(
    make_settings: Make, produce: Produce, own_valkey: OwnValkey, tmp_path: Path
) -> None:
    from tests.processes import celery

    settings = make_settings(agents=("tests.agents",), redis_url=own_valkey.url, broker_url=own_valkey.url)
    own_valkey.stop()
    options: list[Any] = ["worker", "-n", "early@test", "-l", "INFO"]
    with celery(settings, tmp_path, *options, name="early") as process:
        eventually(lambda: "Cannot connect to redis" in log_of(process), timeout=30)
        own_valkey.start()
        eventually(lambda: "early@test ready" in log_of(process), timeout=30)
        assert answer(produce(settings), "a") == "completed"


def test_a_frozen_broker_is_survived(
    make_settings: Make, produce: Produce, own_valkey: OwnValkey, tmp_path: Path
) -> None:
    """Half-open for longer than every timeout: what was accepted meanwhile runs when the server is back."""
    settings = make_settings(
        agents=("tests.agents",),
        redis_url=own_valkey.url,
        broker_url=own_valkey.url,
        redis_timeout=1.0,
        sweep_seconds=0.5,
        nudge_after_seconds=1.0,
    )
    runtime = produce(settings)
    with worker(settings, tmp_path) as process:
        assert answer(runtime, "before") == "completed"
        handle = AgentHandle("Scripted", "during", runtime=runtime)
        with own_valkey.frozen():
            start = time.monotonic()
            receipt = handle.submit_messages("say hi")
            assert receipt.accepted
            assert time.monotonic() - start < 3.0
            threading.Event().wait(5)
        ended = handle.wait_for_submission(receipt.submission_id, timeout=40)
        assert ended is not None
        assert ended.status == "completed"
        assert answer(runtime, "after", timeout=40) == "completed"
        assert process.stop() == 0
    assert "Unrecoverable" not in log_of(process)
