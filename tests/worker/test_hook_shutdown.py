"""Response hooks when their worker ends: a warm shutdown lets them finish, a kill has them called again."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.processes import worker
from tests.worker.hook_agents import LOG_VARIABLE
from think_celery import AgentHandle
from think_celery.engine.runtime import Runtime
from think_celery.settings import Settings
from think_celery.testing import eventually

Make = Callable[..., Settings]
Produce = Callable[[Settings], Runtime]


@pytest.mark.parametrize("pool", ["threads", "prefork"])
def test_a_warm_shutdown_lets_a_hook_finish(
    make_settings: Make, produce: Produce, tmp_path: Path, pool: str
) -> None:
    """What the hook starts belongs to it."""
    settings = make_settings(agents=("tests.worker.hook_agents",), pool=pool, concurrency=1)
    handle, log = AgentHandle("Reporter", "a", runtime=produce(settings)), tmp_path / "hooks"
    with worker(settings, tmp_path, **{LOG_VARIABLE: str(log), "HOOK_SECONDS": "1.5"}) as process:
        handle.submit_messages("go on")
        eventually(log.exists)
        assert process.stop() == 0
    assert log.read_text().split() == ["begun", "ended"] * 2
    assert [message["role"] for message in handle.get_messages()] == ["user", "assistant"] * 2


def test_a_killed_worker_leaves_its_hook_to_another(
    make_settings: Make, produce: Produce, tmp_path: Path
) -> None:
    settings = make_settings(
        agents=("tests.worker.hook_agents",),
        heartbeat_seconds=0.3,
        lease_seconds=1.5,
        sweep_seconds=0.3,
        nudge_after_seconds=0.3,
    )
    handle, log = AgentHandle("Reporter", "a", runtime=produce(settings)), tmp_path / "hooks"
    with worker(settings, tmp_path, name="first", **{LOG_VARIABLE: str(log), "HOOK_SECONDS": "30"}) as first:
        handle.submit_messages("hi")
        eventually(log.exists)
        with worker(settings, tmp_path, name="second", **{LOG_VARIABLE: str(log), "HOOK_SECONDS": "0"}):
            first.kill()
            eventually(lambda: log.read_text().split() == ["begun", "begun", "ended"], timeout=20)
