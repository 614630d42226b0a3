"""Redis may lose everything: bells, queues, streams. No accepted turn is lost, and the order holds."""

from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from tests import agents
from tests.processes import celery, worker
from think_celery import AgentHandle
from think_celery.engine.reading import survey
from think_celery.engine.runtime import Runtime
from think_celery.settings import Settings
from think_celery.testing import eventually

Produce = Callable[[Settings], Runtime]


def wipe(settings: Settings) -> None:
    """FLUSHALL for the part of the server that this test uses; other tests keep theirs."""
    for url in (settings.broker_url, settings.redis_url):
        client = redis.Redis.from_url(url.get_secret_value())
        if url is settings.broker_url:
            client.flushdb()
        else:
            for key in client.scan_iter(f"{settings.redis_prefix}:*"):
                client.delete(key)
        client.close()


def recorded(log: Path) -> list[tuple[str, int]]:
    if not log.exists():
        return []
    return [(line.split("\t")[0], int(line.split("\t")[1])) for line in log.read_text().splitlines()]


@pytest.mark.timeout(120)
def test_fifty_pending_turns_survive_a_wiped_redis(
    make_settings: Callable[..., Settings], produce: Produce, tmp_path: Path
) -> None:
    settings = make_settings(
        agents=("tests.agents",), nudge_after_seconds=1.0, sweep_seconds=0.5, concurrency=4
    )
    log = tmp_path / "turns.log"
    runtime = produce(settings)
    for number in range(50):
        AgentHandle("Recorder", f"a{number % 5}", runtime=runtime).submit_messages(str(number))
    wipe(settings)
    with worker(settings, tmp_path, **{agents.LOG_VARIABLE: str(log)}):
        eventually(lambda: len(recorded(log)) == 50, timeout=60)
        eventually(lambda: not any(lane.pending or lane.running for lane in survey(runtime)))
    for agent in {name for name, _ in recorded(log)}:
        numbers = [number for name, number in recorded(log) if name == agent]
        assert numbers == sorted(numbers)
    assert len({number for _, number in recorded(log)}) == 50


@pytest.mark.timeout(120)
def test_a_wipe_under_a_running_worker(
    make_settings: Callable[..., Settings], produce: Produce, tmp_path: Path
) -> None:
    settings = make_settings(
        agents=("tests.agents",), nudge_after_seconds=1.0, sweep_seconds=0.5, concurrency=2
    )
    log = tmp_path / "turns.log"
    runtime = produce(settings)
    with worker(settings, tmp_path, **{agents.LOG_VARIABLE: str(log)}):
        for number in range(50):
            handle = AgentHandle("Recorder", f"a{number % 10}", runtime=runtime)
            handle.submit_messages(str(number), metadata={"seconds": 0.05})
        wipe(settings)
        eventually(lambda: len(recorded(log)) == 50, timeout=60)
    assert len(set(recorded(log))) == 50


@pytest.mark.timeout(120)
@pytest.mark.spec("S23")
def test_beat_rings_what_no_worker_sweeps(
    make_settings: Callable[..., Settings], produce: Produce, tmp_path: Path
) -> None:
    """The sweeper in beat and the one in every worker do the same work; here only beat's is quick enough."""
    settings = make_settings(agents=("tests.agents",), nudge_after_seconds=0.5, sweep_seconds=0.5)
    slow = settings.model_copy(update={"sweep_seconds": 3600.0})
    runtime = produce(settings)
    handle = AgentHandle("Scripted", "a", runtime=runtime)
    receipt = handle.submit_messages("say hi", submission_id="S")
    wipe(settings)
    with worker(slow, tmp_path), celery(settings, tmp_path, "beat", name="beat"):
        ended = handle.wait_for_submission(receipt.submission_id, timeout=30)
    assert ended is not None
    assert ended.status == "completed"


@pytest.mark.spec("S23")
def test_submitting_again_rings_again(
    make_settings: Callable[..., Settings], produce: Produce, tmp_path: Path
) -> None:
    settings = make_settings(agents=("tests.agents",), nudge_after_seconds=3600.0)
    runtime = produce(settings)
    handle = AgentHandle("Scripted", "a", runtime=runtime)
    handle.submit_messages("say hi", submission_id="S")
    wipe(settings)
    with worker(settings, tmp_path):
        again = handle.submit_messages("say hi", submission_id="S")
        assert not again.accepted
        ended = handle.wait_for_submission("S", timeout=20)
    assert ended is not None
    assert ended.status == "completed"
