"""One busy agent must not keep the others waiting, and a worker may be bound to one agent."""

import statistics
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.processes import worker
from think_celery import AgentHandle
from think_celery.engine.runtime import Runtime
from think_celery.settings import Settings

Produce = Callable[[Settings], Runtime]


@pytest.mark.timeout(150)
def test_a_flood_leaves_room_for_fresh_agents(
    make_settings: Callable[..., Settings], produce: Produce, tmp_path: Path
) -> None:
    """500 turns wait in one lane; the first turn of an agent never seen before still starts at once."""
    settings = make_settings(agents=("tests.agents",), concurrency=4)
    runtime = produce(settings)
    with worker(settings, tmp_path):
        flood = AgentHandle("Scripted", "flood", runtime=runtime)
        AgentHandle("Scripted", "warm-up", runtime=runtime).submit_messages("hi")
        for _ in range(500):
            flood.submit_messages("sleep 0.05")
        delays = []
        for number in range(21):
            fresh = AgentHandle("Scripted", f"fresh-{number}", runtime=runtime)
            receipt = fresh.submit_messages("hi")
            ended = fresh.wait_for_submission(receipt.submission_id, timeout=20)
            assert ended is not None
            assert ended.started_at is not None
            delays.append((ended.started_at - ended.created_at).total_seconds() * 1000)
        assert flood.list_submissions(status="pending"), "the flood must outlast the measurement"
    assert statistics.median(delays) < 50, sorted(delays)


def test_a_worker_bound_to_one_queue_serves_that_agent_alone(
    make_settings: Callable[..., Settings], produce: Produce, tmp_path: Path
) -> None:
    settings = make_settings(agents=("tests.agents",))
    runtime = produce(settings)
    alice, bob = (AgentHandle("Scripted", name, runtime=runtime) for name in ("alice", "bob"))
    with worker(settings, tmp_path, "-Q", "agent.Scripted.alice", "-c", "1"):
        waiting = bob.submit_messages("say bob")
        served = alice.submit_messages("say alice")
        ended = alice.wait_for_submission(served.submission_id, timeout=20)
        assert ended is not None
        assert ended.status == "completed"
        left = bob.inspect_submission(waiting.submission_id)
        assert left is not None
        assert left.status == "pending"
