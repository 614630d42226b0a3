"""Whatever fails meanwhile: as many submissions as due occurrences, no more and no fewer.

Three sources of ticks, four dispatchers, workers killed at random, three of ten messages doubled, and a crash
of PostgreSQL. `SCHEDULE_FAULTS=600` runs the big one.
"""

import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from tests.acceptance.schedule_agents import AGENTS_VARIABLE, DOUBLE_VARIABLE, TASKS
from tests.processes import Process, celery
from think_celery.engine import schedules
from think_celery.engine.runtime import Runtime
from think_celery.errors import ServiceError
from think_celery.settings import Settings
from think_celery.testing import eventually
from think_celery.worker.app import build_app
from think_celery.worker.beat import DISPATCH_DUE, beat_entries

WANTED = int(os.environ.get("SCHEDULE_FAULTS", "100"))
SECONDS = 10.0 if WANTED <= 100 else 60.0
WORKERS = 2
DISPATCHERS = 2
BEATS = 3


class Scene:
    """The ledger and what runs around it."""

    def __init__(self, settings: Settings, runtime: Runtime, folder: Path) -> None:
        self.settings = settings
        self.runtime = runtime
        self.folder = folder
        self.over = threading.Event()
        self.failures: list[BaseException] = []
        self._count = 0

    def sql(self, statement: str, **parameters: Any) -> list[Any]:
        def unit(connection: Any) -> list[Any]:
            result = connection.execute(text(self.runtime.database.sql(statement)), parameters)
            return list(result.all()) if result.returns_rows else []

        return self.runtime.database.run(unit)

    def count(self, what: str) -> int:
        return int(self.sql(f"SELECT count(*) AS found FROM {{schema}}.{what}")[0].found)

    def again(self, seconds: float, action: Callable[[], Any]) -> threading.Thread:
        """Repeat an action in a thread until all is over; a service may be away meanwhile."""

        def run() -> None:
            while not self.over.wait(random.uniform(0.5, 1.5) * seconds):
                try:
                    action()
                except ServiceError:
                    continue
                except BaseException as error:
                    self.failures.append(error)
                    return

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread

    def worker(self, running: ExitStack) -> Process:
        self._count += 1
        name = f"w{self._count}"
        told = {AGENTS_VARIABLE: str(WANTED // TASKS), DOUBLE_VARIABLE: "1"}
        options = ["worker", "-n", f"{name}@test", "-l", "INFO", "-c", "4"]
        return running.enter_context(celery(self.settings, self.folder, *options, name=name, **told))

    def crash_postgres(self) -> None:
        """Kill a server process, upon which PostgreSQL ends all of them and recovers from its log."""
        [(pid,)] = self.sql("SELECT pg_backend_pid()")
        os.kill(pid, signal.SIGKILL)


@contextmanager
def ticking(scene: Scene) -> Iterator[None]:
    """Beats and dispatchers."""
    app = build_app(scene.settings)
    options = beat_entries(scene.settings)[DISPATCH_DUE]["options"]

    def tick() -> None:
        app.send_task(DISPATCH_DUE, **options)

    threads = [scene.again(scene.settings.schedule_seconds, tick) for _ in range(BEATS)]
    for _ in range(DISPATCHERS):
        threads.append(scene.again(0.3, lambda: schedules.dispatch(scene.runtime)))
    try:
        yield
    finally:
        scene.over.set()
        for thread in threads:
            thread.join(20)
        app.close()


@pytest.mark.timeout(600)
@pytest.mark.spec("C79", "C80", "C81")
def test_as_many_submissions_as_occurrences(
    make_runtime: Callable[..., Runtime],
    settings: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(AGENTS_VARIABLE, str(WANTED // TASKS))
    quick = {
        "agents": ("tests.acceptance.schedule_agents",), "schedule_seconds": 0.5, "nudge_after_seconds": 0.5,
        "sweep_seconds": 0.5, "lease_seconds": 3.0, "heartbeat_seconds": 0.5,
    }  # fmt: skip
    own = settings.model_copy(update=quick)
    scene = Scene(own, make_runtime(**quick), tmp_path)
    with ExitStack() as running:
        workers = [scene.worker(running) for _ in range(WORKERS)]
        eventually(lambda: scene.count("schedules") == WANTED, timeout=60, describe="all are armed")
        scene.sql(
            "UPDATE {schema}.schedules "
            "SET due_at = now() + random() * cast(:over AS float8) * interval '1 s', "
            "next_run_at = date_trunc('second', now())",
            over=SECONDS,
        )
        with ticking(scene):
            for third in (1, 2):
                eventually(lambda part=third: scene.count("occurrences") >= part * WANTED // 3, timeout=120)
                victim = workers.pop(random.randrange(len(workers)))
                victim.kill()
                workers.append(scene.worker(running))
                if third == 1:
                    scene.crash_postgres()
            eventually(lambda: scene.count("submissions WHERE kind = 'schedule'") >= WANTED, timeout=120)
            eventually(lambda: scene.count("submissions WHERE status <> 'completed'") == 0, timeout=120)
            scene.sql("UPDATE {schema}.occurrences SET due_at = now() WHERE state = 'due'")
            eventually(lambda: scene.count("occurrences WHERE state IN ('due', 'running')") == 0, timeout=60)
    assert scene.failures == []
    assert scene.count("submissions") == WANTED
    assert scene.count("occurrences") == WANTED
    assert scene.count("occurrences WHERE state NOT IN ('submitted', 'done')") == 0
    [(keys, texts)] = scene.sql(
        "SELECT count(DISTINCT (agent_name, idempotency_key)), count(DISTINCT messages -> 0 -> 'parts') "
        "FROM {schema}.submissions"
    )
    assert (keys, texts) == (WANTED, WANTED)
