"""Whatever fails meanwhile: as many submissions as due occurrences, no more and no fewer (field rows 47, 48).

Three beats, four workers that dispatch and are killed at random, three of ten messages doubled, and a
PostgreSQL that stops in immediate mode and starts again. `SCHEDULE_FAULTS=600` runs the big one.
"""

import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from tests.acceptance.schedule_agents import AGENTS_VARIABLE, DOUBLE_VARIABLE, TASKS
from tests.own_postgres import Server
from tests.processes import Process, celery
from think_celery.engine.runtime import Runtime
from think_celery.errors import LedgerUnavailable
from think_celery.settings import Settings
from think_celery.testing import eventually

WANTED = int(os.environ.get("SCHEDULE_FAULTS", "100"))
SECONDS = 10.0 if WANTED <= 100 else 60.0
"""Over which the occurrences come due."""
BEATS = 3
WORKERS = 4
OUTAGE = 1.0 if WANTED <= 100 else 3.0
KILL_SECONDS = (1.5, 3.0)
QUICK = {
    "agents": ("tests.acceptance.schedule_agents",), "schedule_seconds": 0.5, "nudge_after_seconds": 0.5,
    "sweep_seconds": 0.5, "lease_seconds": 3.0, "heartbeat_seconds": 0.5,
}  # fmt: skip


@dataclass
class Scene:
    """The ledger and the processes around it."""

    settings: Settings
    runtime: Runtime
    folder: Path
    running: ExitStack
    workers: list[Process] = field(default_factory=list)
    started: int = 0

    def sql(self, statement: str, **parameters: Any) -> list[Any]:
        """Run a statement that may be repeated; PostgreSQL may be away for a while."""

        def unit(connection: Any) -> list[Any]:
            result = connection.execute(text(self.runtime.database.sql(statement)), parameters)
            return list(result.all()) if result.returns_rows else []

        pause, end = threading.Event(), time.monotonic() + 30
        while True:
            try:
                return self.runtime.database.run(unit)
            except LedgerUnavailable:
                if time.monotonic() > end:
                    raise
                pause.wait(0.05)

    def count(self, what: str) -> int:
        return int(self.sql(f"SELECT count(*) AS found FROM {{schema}}.{what}")[0].found)

    def start(self, kind: str, *options: str) -> Process:
        self.started += 1
        name = f"{kind}{self.started}"
        told = {AGENTS_VARIABLE: str(WANTED // TASKS), DOUBLE_VARIABLE: "1"}
        process = celery(self.settings, self.folder, kind, "-l", "INFO", *options, name=name, **told)
        return self.running.enter_context(process)

    def start_worker(self) -> None:
        self.workers.append(self.start("worker", "-n", f"w{self.started}@test", "-c", "2"))

    def start_beat(self) -> None:
        self.start("beat", "-S", "tests.acceptance.schedule_agents:TwiceScheduler")


@contextmanager
def killing(scene: Scene) -> Iterator[list[str]]:
    """Kill a worker every now and then, whatever it is at, and start another; gives who was killed."""
    over, killed = threading.Event(), list[str]()

    def kill() -> None:
        while not over.wait(random.uniform(*KILL_SECONDS)):
            victim = scene.workers.pop(random.randrange(len(scene.workers)))
            victim.kill()
            killed.append(victim.log.stem)
            scene.start_worker()

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    try:
        yield killed
    finally:
        over.set()
        thread.join(20)


@pytest.fixture
def scene(
    own_postgres: Server,
    make_settings: Callable[..., Settings],
    produce: Callable[[Settings], Runtime],
    tmp_path: Path,
) -> Iterator[Scene]:
    settings = make_settings(database_url=own_postgres.url, **QUICK)
    with ExitStack() as running:
        yield Scene(settings, produce(settings), tmp_path, running)


@pytest.mark.timeout(600)
@pytest.mark.spec("C79", "C80", "C81")
def test_as_many_submissions_as_occurrences(scene: Scene, own_postgres: Server) -> None:
    for _ in range(WORKERS):
        scene.start_worker()
    eventually(lambda: scene.count("schedules") == WANTED, timeout=90, describe="all are armed")
    for _ in range(BEATS):
        scene.start_beat()
    come_due(scene)
    with killing(scene) as killed:
        eventually(lambda: scene.count("occurrences") >= WANTED // 2, timeout=120, describe="half are due")
        own_postgres.crash()
        threading.Event().wait(OUTAGE)  # that is how long it is away
        own_postgres.start()
        eventually(lambda: scene.count("occurrences") >= WANTED, timeout=120, describe="all are due")
    # A turn whose worker was killed in the middle of it ends in `error`, as any other.
    ended = "submissions WHERE kind = 'schedule' AND completed_at IS NOT NULL"
    eventually(lambda: scene.count(ended) >= WANTED, timeout=120, describe="all have run")
    eventually(lambda: scene.count("occurrences WHERE state IN ('due', 'running')") == 0, timeout=60)
    assert len(killed) >= 2
    print(f"{WANTED} due, {BEATS} beats, {WORKERS} workers, {len(killed)} killed: {told(scene)}")
    assert scene.count("submissions") == WANTED
    assert scene.count("occurrences") == WANTED
    assert scene.count("occurrences WHERE state NOT IN ('submitted', 'done')") == 0
    [(keys, texts)] = scene.sql(
        "SELECT count(DISTINCT (agent_name, idempotency_key)), count(DISTINCT messages -> 0 -> 'parts') "
        "FROM {schema}.submissions"
    )
    assert (keys, texts) == (WANTED, WANTED)


def come_due(scene: Scene) -> None:
    """Let every task come due once within the next seconds."""
    scene.sql(
        "UPDATE {schema}.schedules SET next_run_at = "
        "date_trunc('second', now()) + floor(random() * cast(:over AS float8)) * interval '1 s'",
        over=SECONDS,
    )
    scene.sql("UPDATE {schema}.schedules SET due_at = next_run_at")


def told(scene: Scene) -> str:
    [(late, twice)] = scene.sql(
        "SELECT max(late_ms), count(*) FILTER (WHERE attempts > 1) FROM {schema}.occurrences"
    )
    rows, lost = scene.count("submissions"), scene.count("submissions WHERE status <> 'completed'")
    return (
        f"{rows} submissions ({lost} of them ended by a kill), the latest {late / 1000:.1f} s late, "
        f"{twice} occurrences run again"
    )
