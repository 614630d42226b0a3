"""How long a running turn goes on after its cancel; caller and worker are two processes."""

import os
import signal
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.cancel_stage import Stage, ended, make_settings, staged
from tests.stream.conftest import start_server
from think_celery.dev.servers import Addresses

SAMPLES = 24
HEARTBEAT_SECONDS = 1.0


def stop_ms(stage: Stage, name: str, type_name: str, *, again: int) -> tuple[float, float]:
    """Cancel a turn that runs; returns the milliseconds until it has stopped, and until the call returned."""
    handle = stage.handle(name, type_name)
    receipt = handle.submit_messages("go on for ever")
    stage.told(name, "start", count=again)
    asked = time.monotonic_ns()
    result = handle.cancel_submission(receipt.submission_id, "stop")
    answered = time.monotonic_ns()
    assert (result.outcome, result.messages_applied) == ("cancelled", True)
    stopped = stage.told(name, "stop", count=again)[-1].at
    return (stopped - asked) / 1e6, (answered - asked) / 1e6


@pytest.mark.timeout(60)
@pytest.mark.parametrize("pool", ["threads", "prefork"])
def test_a_running_turn_stops_within_200_ms(
    servers: Addresses, tmp_path: Path, pool: str, record_testsuite_property: Callable[[str, object], None]
) -> None:
    """In the median, with an agent that streams and with one that is silent."""
    with staged(make_settings(servers, pool=pool, concurrency=2), tmp_path) as stage:
        for type_name in ("Streaming", "Silent"):
            times = [
                stop_ms(stage, f"fast-{type_name}", type_name, again=number + 1)[0]
                for number in range(SAMPLES)
            ]
            p50, p95 = statistics.median(times), sorted(times)[int(SAMPLES * 0.95)]
            figure = f"p50 {p50:.1f} ms, p95 {p95:.1f} ms"
            print(pool, type_name, figure)
            record_testsuite_property(f"cancel {pool} {type_name}", figure)
            assert p50 < 200, sorted(times)


@contextmanager
def frozen(server: Any) -> Iterator[None]:
    """A server that answers nobody and closes nothing."""
    os.kill(server._process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server._process.pid, signal.SIGCONT)


@contextmanager
def stopped(server: Any) -> Iterator[None]:
    """A server that is not there."""
    server.stop()
    try:
        yield
    finally:
        server.start()


@pytest.mark.timeout(90)
@pytest.mark.parametrize("outage", [frozen, stopped])
def test_without_redis_it_stops_at_the_next_heartbeat(
    servers: Addresses, tmp_path: Path, outage: Callable[[Any], Any]
) -> None:
    """The ledger alone is enough; the call is not held up, although the same server is the broker."""
    valkey = start_server(config={"save": "", "loglevel": "warning"})
    try:
        address = f"redis://127.0.0.1:{valkey.port}/0"
        settings = make_settings(
            servers, redis_url=address, broker_url=address, heartbeat_seconds=HEARTBEAT_SECONDS
        )
        with staged(settings, tmp_path) as stage:
            handles = {name: stage.handle(name, name) for name in ("Streaming", "Silent")}
            for name, handle in handles.items():
                handle.submit_messages("go on for ever", submission_id="target")
                stage.told(name, "start")
            with outage(valkey):
                for name, handle in handles.items():
                    asked = time.monotonic_ns()
                    assert handle.cancel_submission("target", "stop").outcome == "cancelled"
                    took = (time.monotonic_ns() - asked) / 1e9
                    late = (stage.told(name, "stop")[0].at - asked) / 1e9
                    print(name, f"call {took:.3f} s, stopped after {late:.3f} s")
                    assert took < 2.0
                    assert late < HEARTBEAT_SECONDS + 1.0
            for name, handle in handles.items():
                row = ended(handle, "target")
                assert (row.status, row.error) == ("aborted", "stop")
                assert (row.message_id is not None) == (name == "Streaming")
    finally:
        valkey.terminate()
